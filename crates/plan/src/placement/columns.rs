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
pub(crate) fn column(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Through a projection, whose other columns do not matter.
pub(crate) fn through_projection(node: &ProjectionExec, keys: &[usize]) -> Option<Vec<usize>> {
    keys.iter()
        .map(|key| column(&node.expr().get(*key)?.expr))
        .collect()
}

/// Through a filter, which may project at the same time.
pub(crate) fn through_filter(node: &FilterExec, keys: &[usize]) -> Option<Vec<usize>> {
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

/// The join operators that columns can be followed through, and the side that owns the
/// columns, if one owns them all.
pub(super) fn through_join(node: &Plan, keys: &[usize]) -> Option<(JoinType, OnSide)> {
    let (join_type, located) = locate_in_join(node, keys)?;
    let side = located.first()?.side;
    let keys = located
        .iter()
        .map(|located| (located.side == side).then_some(located.column))
        .collect::<Option<_>>()?;
    Some((join_type, OnSide { side, keys }))
}

/// The columns of one side of a join that equal `keys` of its output in every row of that
/// output: its own ones among them as they are, the others' across the join's equal keys.
///
/// ```text
///   Inner [b = c]      keys of the output    on its left    on its right
///     [b, v]           [b]                   [b]            [c]
///     [c, w]           [v]                   [v]            none
///                      [b, w]                none           [c, w]
/// ```
///
/// A row of that side without an output row of such keys may be missing from the join's
/// input: it takes part in output rows of its own keys only. Outer, anti and mark joins do
/// not qualify: there a missing row of the other side changes or adds output rows. The
/// NULL equality of the join does not matter: a NULL key here either meets a NULL key
/// there, or no output row has it.
pub(super) fn across_join(node: &Plan, keys: &[usize], side: JoinSide) -> Option<OnSide> {
    let (on, left, right) = if let Some(join) = as_node::<HashJoinExec>(node) {
        (join.on(), join.left(), join.right())
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        (join.on(), join.left(), join.right())
    } else {
        return None;
    };
    let (join_type, located) = locate_in_join(node, keys)?;
    if !matches!(
        join_type,
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi
    ) {
        return None;
    }
    let (left, right) = (left.schema(), right.schema());
    let twin = |located: &Located| {
        on.iter().find_map(|(l, r)| {
            let (l, r) = (column(l)?, column(r)?);
            // Where types differ, equal values may hash apart.
            if left.fields().get(l)?.data_type() != right.fields().get(r)?.data_type() {
                return None;
            }
            let (this, other) = match located.side {
                JoinSide::Right => (r, l),
                JoinSide::Left | JoinSide::None => (l, r),
            };
            (this == located.column).then_some(other)
        })
    };
    let keys = located.iter().map(|located| {
        if located.side == side {
            Some(located.column)
        } else {
            twin(located)
        }
    });
    Some(OnSide {
        side,
        keys: keys.collect::<Option<_>>()?,
    })
}

/// A column of a join's output in the schema of the side it comes from.
#[derive(Debug, Clone, Copy)]
struct Located {
    side: JoinSide,
    column: usize,
}

fn locate_in_join(node: &Plan, keys: &[usize]) -> Option<(JoinType, Vec<Located>)> {
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
    let left = left.schema().fields().len();
    let located = project(projection, keys)?
        .into_iter()
        .map(|key| locate(join_type, left, right, key))
        .collect::<Option<_>>()?;
    Some((join_type, located))
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

fn locate(join_type: JoinType, left: usize, right: usize, key: usize) -> Option<Located> {
    let (side, column) = match join_type {
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
    }?;
    Some(Located { side, column })
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
