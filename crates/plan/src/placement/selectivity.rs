//! What equality with a text keeps.
//!
//! DataFusion has no interval for text, so it holds `p_type = '...'` to keep 20 % of the
//! rows, whatever the column. A probe side behind such a filter is then taken for far
//! larger than it is, and a filter is built that costs more than all it could save
//! (TPC-H Q8). Here the share is one in as many distinct values as the column is
//! thought to have:
//!
//! ```text
//!   known distinct count          that
//!   bounds of one character each  characters between them (l_returnflag: 'A'..'R')
//!   otherwise                     200, PostgreSQL's default, or all rows if fewer
//! ```

use std::sync::Arc;

use datafusion::common::{ColumnStatistics, JoinType, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::site::{as_node, filter_input, is_node};
use super::{Plan, is_hash_exchange, is_transparent};

/// DataFusion's `default_filter_selectivity`, as a share.
const DEFAULT_SHARE: f64 = 0.2;

/// PostgreSQL's `DEFAULT_NUM_DISTINCT`.
const DEFAULT_DISTINCT: f64 = 200.0;

/// What is left, in `0.0..=1.0`, of the rows that the statistics give for `node`.
pub(super) fn correction(context: &StatisticsContext, node: &Plan) -> f64 {
    let child = |index: usize| {
        node.children()
            .get(index)
            .map_or(1.0, |child| correction(context, child))
    };
    if let Some(filter) = as_node::<FilterExec>(node) {
        return child(0) * correction_of(context, filter);
    }
    if let Some(join) = as_node::<HashJoinExec>(node) {
        return match join.join_type() {
            JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => child(0) * child(1),
            JoinType::Left | JoinType::LeftAnti | JoinType::LeftMark => child(0),
            JoinType::Right | JoinType::RightAnti | JoinType::RightMark => child(1),
            JoinType::Full => 1.0,
        };
    }
    let passes = is_transparent(node)
        || is_hash_exchange(node)
        || is_node::<ProjectionExec>(node)
        || is_node::<CoalescePartitionsExec>(node)
        || filter_input(node).is_some();
    if passes { child(0) } else { 1.0 }
}

fn correction_of(context: &StatisticsContext, filter: &FilterExec) -> f64 {
    let input = filter.input();
    let Ok(statistics) = context.compute(input.as_ref(), &StatisticsArgs::new()) else {
        return 1.0;
    };
    let rows = statistics.num_rows.get_value().map(|rows| *rows as f64);
    let share: f64 = split_conjunction(filter.predicate())
        .into_iter()
        .filter_map(text_equality)
        .map(|column| {
            let distinct = statistics.column_statistics.get(column).and_then(distinct);
            let assumed = rows.map_or(DEFAULT_DISTINCT, |rows| DEFAULT_DISTINCT.min(rows));
            1.0 / distinct.unwrap_or(assumed).max(1.0)
        })
        .product();
    (share / DEFAULT_SHARE).min(1.0)
}

/// The column of `column = 'text'`.
fn text_equality(conjunct: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    let equality = conjunct.downcast_ref::<BinaryExpr>()?;
    if *equality.op() != Operator::Eq {
        return None;
    }
    let one_way = |column: &Arc<dyn PhysicalExpr>, literal: &Arc<dyn PhysicalExpr>| {
        let text = literal.downcast_ref::<Literal>()?.value().try_as_str();
        text.flatten()?;
        Some(column.downcast_ref::<Column>()?.index())
    };
    let (left, right) = (equality.left(), equality.right());
    one_way(left, right).or_else(|| one_way(right, left))
}

fn distinct(column: &ColumnStatistics) -> Option<f64> {
    if let Some(distinct) = column.distinct_count.get_value() {
        return Some(*distinct as f64);
    }
    let bound = |value: Option<&ScalarValue>| {
        let mut characters = value?.try_as_str()??.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => Some(u32::from(character)),
            _ => None,
        }
    };
    let lowest = bound(column.min_value.get_value())?;
    let highest = bound(column.max_value.get_value())?;
    Some(f64::from(highest.saturating_sub(lowest)) + 1.0)
}
