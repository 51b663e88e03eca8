//! Which joins may have a filter at all, and how they will run.
//!
//! ```text
//!   how a join will run            left input                right input
//!   Partitioned                    below a hash exchange     below a hash exchange
//!   BecomesPartitioned (cluster)   exchange to come          exchange to come
//!   Collected                      one partition for all     as it is
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode, PiecewiseMergeJoinExec,
    SortMergeJoinExec, SymmetricHashJoinExec,
};
use runtime_filter_core::KeyHasher;

use super::Plan;
use super::columns::column;
use super::site::as_node;
use crate::ledger::Refusal;

/// The keys of a join that may have a filter from left to right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JoinKeys {
    /// Key columns of the build side.
    pub(super) left: Vec<usize>,
    /// Key columns of the probe side.
    pub(super) right: Vec<usize>,
    /// Their types, the same on both sides.
    pub(super) types: Vec<DataType>,
    /// NULL keys equal each other.
    pub(super) null_equals_null: bool,
}

/// The keys of `join`, or why no filter from its left to its right side is legal.
pub(super) fn keys(join: &HashJoinExec) -> Result<JoinKeys, Refusal> {
    // Before the join type: NULL-aware joins are LeftAnti, whose right side would
    // otherwise qualify.
    if join.null_aware {
        return Err(Refusal::NullAware);
    }
    if !join.join_type().on_lr_is_preserved().1 {
        return Err(Refusal::ProbePreserved);
    }
    let (left_schema, right_schema) = (join.left().schema(), join.right().schema());
    let mut keys = JoinKeys {
        left: vec![],
        right: vec![],
        types: vec![],
        null_equals_null: join.null_equality() == NullEquality::NullEqualsNull,
    };
    for (left, right) in join.on() {
        let (Some(left), Some(right)) = (column(left), column(right)) else {
            return Err(Refusal::KeyNotColumn);
        };
        let fields = (
            left_schema.fields().get(left),
            right_schema.fields().get(right),
        );
        let (Some(left_field), Some(right_field)) = fields else {
            return Err(Refusal::KeyNotColumn);
        };
        if left_field.data_type() != right_field.data_type() {
            return Err(Refusal::KeyTypesDiffer);
        }
        if !KeyHasher::supports(left_field.data_type()) {
            return Err(Refusal::KeyTypeUnsupported(type_name(
                left_field.data_type(),
            )));
        }
        keys.left.push(left);
        keys.right.push(right);
        keys.types.push(left_field.data_type().clone());
    }
    if keys.types.is_empty() {
        Err(Refusal::KeyNotColumn)
    } else {
        Ok(keys)
    }
}

/// How a hash join will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JoinShape {
    /// Both sides arrive partitioned by the key.
    Partitioned,
    /// A collected join that the distributed planner makes partitioned, by a new hash
    /// exchange on either input. It drops a fetch-less `CoalescePartitionsExec` on top
    /// of the left input.
    BecomesPartitioned,
    /// The left side is collected (or broadcast) as a whole first.
    Collected,
}

/// How `join` will run. `normalizes`: a distributed planner that converts collected
/// joins comes afterwards. `None` while the join itself leaves it open.
pub(super) fn shape(join: &HashJoinExec, normalizes: bool) -> Option<JoinShape> {
    match join.partition_mode() {
        PartitionMode::Partitioned => Some(JoinShape::Partitioned),
        PartitionMode::CollectLeft if normalizes && becomes_partitioned(join) => {
            Some(JoinShape::BecomesPartitioned)
        }
        PartitionMode::CollectLeft => Some(JoinShape::Collected),
        PartitionMode::Auto => None,
    }
}

/// Mirrors `normalize_collect_joins` of datafusion-distributed 4.0, which runs after
/// our rule: joins that emit build rows cannot be broadcast, so they are repartitioned,
/// unless both sides are a single partition. It does not depend on whether broadcast
/// joins are enabled.
fn becomes_partitioned(join: &HashJoinExec) -> bool {
    let partitions = |side: &Plan| side.output_partitioning().partition_count();
    let both_single = partitions(join.left()) == 1 && partitions(join.right()) == 1;
    !is_broadcast_safe(*join.join_type()) && !join.null_aware && !both_single
}

/// Whether a build side may be replicated into every task: no build row comes out.
fn is_broadcast_safe(join_type: JoinType) -> bool {
    matches!(
        join_type,
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

/// The text of a join, whichever operator it is, and the refusal of those operators
/// that are no hash join. `None` for a node that is no join.
pub(super) fn describe(node: &Plan) -> Option<(String, Option<Refusal>)> {
    let refusal = Some(Refusal::OperatorNotCovered(node.name().to_string()));
    if let Some(join) = as_node::<HashJoinExec>(node) {
        Some((
            text(*join.join_type(), join.on(), join.left(), join.right()),
            None,
        ))
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        Some((
            text(join.join_type(), join.on(), join.left(), join.right()),
            refusal,
        ))
    } else if let Some(join) = as_node::<SymmetricHashJoinExec>(node) {
        Some((
            text(*join.join_type(), join.on(), join.left(), join.right()),
            refusal,
        ))
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        Some((format!("{} without equal keys", join.join_type()), refusal))
    } else if let Some(join) = as_node::<PiecewiseMergeJoinExec>(node) {
        Some((format!("{} without equal keys", join.join_type()), refusal))
    } else {
        as_node::<CrossJoinExec>(node).map(|_| ("Cross".to_string(), refusal))
    }
}

type On = [(Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>)];

fn text(join_type: JoinType, on: &On, left: &Plan, right: &Plan) -> String {
    let name = |expr: &Arc<dyn PhysicalExpr>, side: &Plan| {
        let column = expr.downcast_ref::<Column>();
        let schema = side.schema();
        match column.and_then(|column| schema.fields().get(column.index())) {
            Some(field) => field.name().clone(),
            None => expr.to_string(),
        }
    };
    let pairs: Vec<String> = on
        .iter()
        .map(|(l, r)| format!("{} = {}", name(l, left), name(r, right)))
        .collect();
    format!("{join_type} {}", pairs.join(", "))
}

/// The name of a type without its parameters.
fn type_name(data_type: &DataType) -> String {
    let full = format!("{data_type:?}");
    full.split(['(', ' ', '{'])
        .next()
        .unwrap_or_default()
        .to_string()
}
