//! Follows key columns from the output of an operator to its input, by index.
//!
//! ```text
//!   ProjectionExec [b@1 as x, a@0 as b]     keys [1]  (named b)
//!     DataSourceExec [a, b]                 keys [0]  (named a)
//! ```
//!
//! Names may repeat or change meaning on the way; indexes do not. `None` says that a
//! column is not the same column below.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::WindowExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::projection::ProjectionExec;

use super::Plan;
use super::site::as_node;

/// The index of the input column that `expr` is.
pub(super) fn column(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Through a projection, whose other columns do not matter.
pub(super) fn through_projection(node: &ProjectionExec, keys: &[usize]) -> Option<Vec<usize>> {
    keys.iter()
        .map(|key| column(&node.expr().get(*key)?.expr))
        .collect()
}

/// Through a filter, which may project at the same time.
pub(super) fn through_filter(node: &FilterExec, keys: &[usize]) -> Option<Vec<usize>> {
    project(node.projection().as_deref(), keys)
}

/// Through an aggregation, as group columns: a group then is in or out as a whole.
/// Grouping sets give NULL instead of the column, and a limit takes whatever group
/// comes first.
pub(super) fn through_aggregate(node: &AggregateExec, keys: &[usize]) -> Option<Vec<usize>> {
    let groups = node.group_expr();
    let plain = !groups.has_grouping_set()
        && matches!(groups.groups(), [group] if group.iter().all(|is_null| !is_null));
    if !plain || node.limit_options().is_some() {
        return None;
    }
    keys.iter()
        .map(|key| column(&groups.expr().get(*key)?.0))
        .collect()
}

/// Through a window operator, as columns that every window is partitioned by: a
/// partition then is in or out as a whole.
pub(super) fn through_window_partitions(
    windows: &[Arc<dyn WindowExpr>],
    input_width: usize,
    keys: &[usize],
) -> Option<Vec<usize>> {
    let partitioned_by = |key: usize| {
        windows.iter().all(|window| {
            window
                .partition_by()
                .iter()
                .any(|by| column(by) == Some(key))
        })
    };
    keys.iter()
        .map(|key| (*key < input_width && partitioned_by(*key)).then_some(*key))
        .collect()
}

/// Through a window operator, as columns that it only passes on.
pub(super) fn through_window_columns(input_width: usize, keys: &[usize]) -> Option<Vec<usize>> {
    keys.iter()
        .map(|key| (*key < input_width).then_some(*key))
        .collect()
}

/// One side of a join and the key columns in its schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OnSide {
    /// Left or right, never none.
    pub(super) side: JoinSide,
    /// The key columns in that side's schema.
    pub(super) keys: Vec<usize>,
}

impl OnSide {
    /// The number of the side among the join's children.
    pub(super) fn child(&self) -> usize {
        match self.side {
            JoinSide::Right => 1,
            JoinSide::Left | JoinSide::None => 0,
        }
    }
}

/// The join operators that columns can be followed through.
pub(super) fn through_join(node: &Plan, keys: &[usize]) -> Option<(JoinType, OnSide)> {
    let (join_type, left, projection) = if let Some(join) = as_node::<HashJoinExec>(node) {
        (*join.join_type(), join.left(), join.projection.as_deref())
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        (*join.join_type(), join.left(), join.projection().as_deref())
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        (join.join_type(), join.left(), None)
    } else if let Some(join) = as_node::<CrossJoinExec>(node) {
        (JoinType::Inner, join.left(), None)
    } else {
        return None;
    };
    let right = node
        .children()
        .get(1)
        .map_or(0, |right| right.schema().fields().len());
    let keys = project(projection, keys)?;
    let on_side = owning_side(join_type, left.schema().fields().len(), right, &keys)?;
    Some((join_type, on_side))
}

/// Whether each row of a join's output that has columns of `side` has them from a row
/// of that side, and every output row has one: rows of the side may then be dropped
/// with exactly the output rows that come from them. NULL-padded sides do not qualify.
pub(super) fn is_preserved(join_type: JoinType, side: JoinSide) -> bool {
    match join_type {
        JoinType::Inner => true,
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            side == JoinSide::Left
        }
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            side == JoinSide::Right
        }
        JoinType::Full => false,
    }
}

fn owning_side(join_type: JoinType, left: usize, right: usize, keys: &[usize]) -> Option<OnSide> {
    let locate = |key: usize| match join_type {
        // Behind the columns of the one side that comes out, a mark join adds its mark.
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            (key < left).then_some((JoinSide::Left, key))
        }
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            (key < right).then_some((JoinSide::Right, key))
        }
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full if key < left => {
            Some((JoinSide::Left, key))
        }
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
            (key < left + right).then(|| (JoinSide::Right, key - left))
        }
    };
    let located: Vec<_> = keys.iter().map(|key| locate(*key)).collect::<Option<_>>()?;
    let side = located.first()?.0;
    located
        .iter()
        .all(|(other, _)| *other == side)
        .then(|| OnSide {
            side,
            keys: located.into_iter().map(|(_, key)| key).collect(),
        })
}

fn project(projection: Option<&[usize]>, keys: &[usize]) -> Option<Vec<usize>> {
    match projection {
        Some(projection) => keys
            .iter()
            .map(|key| projection.get(*key).copied())
            .collect(),
        None => Some(keys.to_vec()),
    }
}
