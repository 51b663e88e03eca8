//! How a node finds the execution that it belongs to.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::DistributedTaskContext;
use runtime_filter_exchange::{Execution, ExecutionId, Registry};

use super::RuntimeFilterProbeExec;
use crate::config::RuntimeFilterOptions;

/// A build or probe task within its stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) index: u32,
    pub(super) count: u32,
}

impl Task {
    pub(super) fn of(context: &TaskContext) -> Self {
        let task = context
            .session_config()
            .get_extension::<DistributedTaskContext>();
        // Without a distributed task: the head stage, or no cluster at all.
        let (index, count) = task.map_or((0, 1), |task| (task.task_index, task.task_count));
        // A number that does not fit is refused as inconsistent by the merge.
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            index: narrow(index),
            count: narrow(count),
        }
    }
}

/// The execution that `config` names, if this process takes part in it.
pub(super) fn execution(config: &SessionConfig) -> Option<Arc<Execution>> {
    let options = RuntimeFilterOptions::from_config(config.options())?;
    let id: ExecutionId = options.execution_id.parse().ok()?;
    config.get_extension::<Registry>()?.execution(&id)
}

/// Tells the hub of each filter that has a probe in `plan`, so that a verdict
/// reached before the first poll is sent here without being asked for.
pub fn announce_probes(plan: &Arc<dyn ExecutionPlan>, config: &SessionConfig) -> Result<()> {
    let Some(execution) = execution(config) else {
        return Ok(());
    };
    plan.apply(|node| {
        if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
            execution.verdict(probe.spec().id);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The types of the key columns, in order.
pub(super) fn key_types(schema: &SchemaRef, keys: &[usize]) -> Vec<DataType> {
    keys.iter()
        .map(|key| schema.field(*key).data_type().clone())
        .collect()
}

/// Whether `keys` are columns of `schema`, and at least one.
pub(super) fn check_keys(schema: &SchemaRef, keys: &[usize]) -> Result<()> {
    if keys.is_empty() {
        return internal_err!("a runtime filter needs at least one key column");
    }
    match keys.iter().find(|key| **key >= schema.fields().len()) {
        Some(key) => internal_err!(
            "key column {key} of a runtime filter is outside its input's {} columns",
            schema.fields().len()
        ),
        None => Ok(()),
    }
}
