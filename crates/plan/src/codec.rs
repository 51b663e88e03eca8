//! How build and probe nodes travel to a worker.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use serde::{Deserialize, Serialize};

use crate::nodes::{RuntimeFilterBuildExec, RuntimeFilterProbeExec};
use crate::spec::FilterSpec;

/// First bytes of a payload of ours; the last one is its version.
const MAGIC: [u8; 4] = *b"DRF\x02";

/// Largest payload that is read.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Build,
    Probe,
}

#[derive(Debug, Serialize, Deserialize)]
struct Node {
    role: Role,
    spec: FilterSpec,
    keys: Vec<usize>,
}

/// Encodes and decodes the nodes of runtime filters. Register it on coordinating
/// and worker sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuntimeFilterCodec;

impl PhysicalExtensionCodec for RuntimeFilterCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(payload) = bytes.strip_prefix(&MAGIC) else {
            return internal_err!("not a runtime filter node of this version");
        };
        if payload.len() > MAX_PAYLOAD_BYTES {
            return internal_err!(
                "a runtime filter node of {} bytes is too large",
                payload.len()
            );
        }
        let [input] = inputs else {
            return internal_err!("a runtime filter node has one input, not {}", inputs.len());
        };
        let Node { role, spec, keys } = payload::decode(payload)?;
        let (spec, input) = (Arc::new(spec), Arc::clone(input));
        Ok(match role {
            Role::Build => Arc::new(RuntimeFilterBuildExec::try_new(spec, keys, input)?),
            Role::Probe => Arc::new(RuntimeFilterProbeExec::try_new(spec, keys, input)?),
        })
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let node = if let Some(build) = node.downcast_ref::<RuntimeFilterBuildExec>() {
            let (spec, keys) = (build.spec().as_ref().clone(), build.keys().to_vec());
            Node {
                role: Role::Build,
                spec,
                keys,
            }
        } else if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
            let (spec, keys) = (probe.spec().as_ref().clone(), probe.keys().to_vec());
            Node {
                role: Role::Probe,
                spec,
                keys,
            }
        } else {
            return internal_err!("{} is not a runtime filter node", node.name());
        };
        bytes.extend_from_slice(&MAGIC);
        payload::encode(&node, bytes)
    }
}

/// The only place that knows how a payload becomes bytes.
mod payload {
    use super::{MAX_PAYLOAD_BYTES, Node, Result, internal_datafusion_err};

    fn config() -> impl bincode::config::Config {
        bincode::config::standard().with_limit::<MAX_PAYLOAD_BYTES>()
    }

    pub(super) fn encode(node: &Node, bytes: &mut Vec<u8>) -> Result<()> {
        let encoded = bincode::serde::encode_to_vec(node, config()).map_err(|e| {
            internal_datafusion_err!("a runtime filter node cannot be encoded: {e}")
        })?;
        bytes.extend_from_slice(&encoded);
        Ok(())
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Node> {
        let unreadable =
            |e| internal_datafusion_err!("a runtime filter node cannot be decoded: {e}");
        let (node, read) = bincode::serde::decode_from_slice(bytes, config())
            .map_err(|e| unreadable(e.to_string()))?;
        if read != bytes.len() {
            return Err(unreadable(format!("{} bytes too many", bytes.len() - read)));
        }
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::spec::{Estimates, WaitClass};
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion_proto::physical_plan::DefaultPhysicalProtoConverter;

    fn input() -> Arc<dyn ExecutionPlan> {
        let fields = ["a", "a", "b"].map(|name| Field::new(name, DataType::Int64, true));
        Arc::new(EmptyExec::new(Arc::new(Schema::new(fields.to_vec()))))
    }

    fn encoded() -> Vec<u8> {
        let spec = FilterSpec {
            id: 7,
            join: "Inner a = b".into(),
            null_equals_null: true,
            wait: WaitClass::InStage,
            estimates: Estimates {
                build_rows: Some(1),
                probe_rows: None,
                probe_bytes: Some(u64::MAX),
                probe_keys: Some(3),
            },
            leans_on_probes: true,
        };
        let node = RuntimeFilterProbeExec::try_new(Arc::new(spec), vec![2, 1], input()).unwrap();
        let mut bytes = vec![];
        RuntimeFilterCodec
            .try_encode(
                Arc::new(node),
                &mut bytes,
                &DefaultPhysicalProtoConverter {},
            )
            .unwrap();
        bytes
    }

    fn decode(bytes: &[u8], inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
        RuntimeFilterCodec.try_decode(
            bytes,
            inputs,
            &TaskContext::default(),
            &DefaultPhysicalProtoConverter {},
        )
    }

    #[test]
    fn nodes_round_trip() {
        let decoded = decode(&encoded(), &[input()]).unwrap();
        let probe = decoded.downcast_ref::<RuntimeFilterProbeExec>().unwrap();
        assert_eq!(probe.keys(), [2, 1]);
        assert_eq!(probe.spec().id, 7);
        assert_eq!(probe.spec().wait, WaitClass::InStage);
        assert_eq!(probe.spec().estimates.probe_bytes, Some(u64::MAX));
    }

    #[test]
    fn other_bytes_are_errors() {
        let bytes = encoded();
        assert!(decode(&bytes, &[]).is_err());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], &[input()]).is_err(), "cut to {len}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(decode(&longer, &[input()]).is_err());
        let narrow = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        assert!(decode(&bytes, &[narrow]).is_err(), "key outside the input");
    }
}
