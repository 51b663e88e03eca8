//! The gRPC messages, and the checks that stand between them and the state.

use std::sync::Arc;

use prost::Message;
use runtime_filter_core::{HASH_SCHEME, Partial, RuntimeFilter};

use crate::id::ExecutionId;
use crate::merge::TaskReport;
use crate::registry::ExecutionSettings;
use crate::verdict::{Announcement, PassAllReason, Verdict};

/// The generated messages, client and server of `proto/runtime_filter.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, rust_2018_idioms)]
pub mod proto {
    tonic::include_proto!("runtime_filter.v1");
}

/// Version of the protocol that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest `max_filter_bytes` that a process accepts from another: 256 MiB.
pub const MAX_FILTER_BYTES: usize = 256 << 20;

/// Largest message that either side accepts: a partial of the largest filter
/// and its envelope. A sparse partial is smaller than a dense one by construction.
pub const MAX_MESSAGE_BYTES: usize = MAX_FILTER_BYTES + (1 << 16);

/// Bytes of a block of a dense partial.
const BLOCK_BYTES: usize = 32;

/// A message that does not follow the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A oneof is empty or out of place.
    #[error("the exchange expected {expected} but got {got}; do both sides run the same version?")]
    Unexpected {
        /// What the protocol allows here.
        expected: &'static str,
        /// What came.
        got: &'static str,
    },
    /// The other side speaks another protocol.
    #[error(
        "the other side speaks protocol {theirs}, this side {PROTOCOL_VERSION}; upgrade the older one"
    )]
    Protocol {
        /// Version of the other side.
        theirs: u32,
    },
    /// The other side hashes differently, so its filters mean nothing here.
    #[error(
        "the other side hashes keys with scheme {theirs}, this side with {HASH_SCHEME}; upgrade the older one"
    )]
    HashScheme {
        /// Scheme of the other side.
        theirs: u32,
    },
    /// A size beyond what this process allows.
    #[error("a filter of {bytes} bytes was asked for; the largest allowed is {MAX_FILTER_BYTES}")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
}

/// First message of a coordinator.
pub fn hello(coordinator: u64) -> proto::ToWorker {
    to_worker(proto::to_worker::Message::Hello(proto::Hello {
        protocol_version: PROTOCOL_VERSION,
        hash_scheme: HASH_SCHEME,
        coordinator,
    }))
}

/// Answer to [`hello`].
pub fn welcome() -> proto::ToCoordinator {
    to_coordinator(proto::to_coordinator::Message::Welcome(proto::Welcome {
        protocol_version: PROTOCOL_VERSION,
        hash_scheme: HASH_SCHEME,
    }))
}

/// Whether both sides mean the same by a message and by a hash.
///
/// # Errors
/// If they do not.
pub fn check_versions(protocol_version: u32, hash_scheme: u32) -> Result<(), WireError> {
    if protocol_version != PROTOCOL_VERSION {
        return Err(WireError::Protocol {
            theirs: protocol_version,
        });
    }
    if hash_scheme != HASH_SCHEME {
        return Err(WireError::HashScheme {
            theirs: hash_scheme,
        });
    }
    Ok(())
}

/// The coordinator begins an execution.
pub fn begin(execution: ExecutionId, settings: &ExecutionSettings) -> proto::ToWorker {
    to_worker(proto::to_worker::Message::Begin(proto::Begin {
        sequence: execution.sequence,
        seed: settings.seed,
        max_filter_bytes: settings.max_filter_bytes as u64,
    }))
}

/// What a [`begin`] says.
///
/// # Errors
/// If its filters could grow beyond [`MAX_FILTER_BYTES`].
pub fn read_begin(begin: &proto::Begin) -> Result<ExecutionSettings, WireError> {
    match usize::try_from(begin.max_filter_bytes) {
        Ok(max_filter_bytes) if max_filter_bytes <= MAX_FILTER_BYTES => Ok(ExecutionSettings {
            seed: begin.seed,
            max_filter_bytes,
        }),
        _ => Err(WireError::TooLarge {
            bytes: begin.max_filter_bytes,
        }),
    }
}

/// The worker takes part in an execution.
pub fn began(sequence: u64) -> proto::ToCoordinator {
    to_coordinator(proto::to_coordinator::Message::Began(proto::Began {
        sequence,
    }))
}

/// The coordinator ends an execution.
pub fn end(sequence: u64) -> proto::ToWorker {
    to_worker(proto::to_worker::Message::End(proto::End { sequence }))
}

/// The worker has a probe of a filter.
pub fn interest(sequence: u64, filter: u32) -> proto::ToCoordinator {
    to_coordinator(proto::to_coordinator::Message::Interest(proto::Interest {
        sequence,
        filter,
    }))
}

/// A build task has reported.
pub fn partial(sequence: u64, filter: u32, report: &TaskReport) -> proto::ToCoordinator {
    let outcome = match &report.outcome {
        Ok(keys) => {
            let mut bytes = Vec::with_capacity(keys.encoded_len());
            keys.encode(&mut bytes);
            proto::partial::Outcome::Keys(bytes)
        }
        Err(reason) => proto::partial::Outcome::Unknown(reason.code()),
    };
    to_coordinator(proto::to_coordinator::Message::Partial(proto::Partial {
        sequence,
        filter,
        task_index: report.task_index,
        task_count: report.task_count,
        partition_count: report.partition_count,
        partitions_covered: report.partitions_covered,
        outcome: Some(outcome),
    }))
}

/// What a [`partial`] says. Keys that cannot be read make the report unknown.
pub fn read_partial(partial: &proto::Partial, settings: &ExecutionSettings) -> TaskReport {
    let outcome = match &partial.outcome {
        Some(proto::partial::Outcome::Keys(bytes)) => {
            // The size that all dense partials have: one block even where less is allowed.
            let dense_bytes = settings.cap_blocks() as usize * BLOCK_BYTES;
            Partial::decode(bytes, dense_bytes).map_err(|_| PassAllReason::Malformed)
        }
        Some(proto::partial::Outcome::Unknown(code)) => Err(PassAllReason::from_code(*code)),
        None => Err(PassAllReason::Malformed),
    };
    TaskReport {
        task_index: partial.task_index,
        task_count: partial.task_count,
        partition_count: partial.partition_count,
        partitions_covered: partial.partitions_covered,
        outcome,
    }
}

/// The coordinator has decided on a filter.
pub fn verdict(sequence: u64, filter: u32, announcement: &Announcement) -> proto::ToWorker {
    let outcome = match announcement.encoded_filter() {
        Ok(bytes) => proto::verdict::Outcome::RuntimeFilter(bytes),
        Err(reason) => proto::verdict::Outcome::PassAll(reason.code()),
    };
    to_worker(proto::to_worker::Message::Verdict(proto::Verdict {
        sequence,
        filter,
        outcome: Some(outcome),
    }))
}

/// What a [`verdict`] says. A filter that cannot be read, or that was hashed with
/// another seed than the execution's, passes all.
pub fn read_verdict(verdict: &proto::Verdict, settings: &ExecutionSettings) -> Verdict {
    match &verdict.outcome {
        Some(proto::verdict::Outcome::RuntimeFilter(bytes)) => {
            match RuntimeFilter::decode(bytes, settings.max_filter_bytes) {
                Ok(filter) if filter.seed() == settings.seed => Verdict::Filter(Arc::new(filter)),
                _ => Verdict::PassAll(PassAllReason::Malformed),
            }
        }
        Some(proto::verdict::Outcome::PassAll(code)) => {
            Verdict::PassAll(PassAllReason::from_code(*code))
        }
        None => Verdict::PassAll(PassAllReason::Malformed),
    }
}

/// Bytes of a message on the wire, its gRPC frame header included.
pub fn wire_len(message: &impl Message) -> u64 {
    const GRPC_FRAME_HEADER: usize = 5;
    (message.encoded_len() + GRPC_FRAME_HEADER) as u64
}

fn to_worker(message: proto::to_worker::Message) -> proto::ToWorker {
    proto::ToWorker {
        message: Some(message),
    }
}

fn to_coordinator(message: proto::to_coordinator::Message) -> proto::ToCoordinator {
    proto::ToCoordinator {
        message: Some(message),
    }
}

#[cfg(test)]
mod tests;
