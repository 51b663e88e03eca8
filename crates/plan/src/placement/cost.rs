//! Whether a filter is expected to save more than it costs, as far as planning knows.
//!
//! ```text
//!   saved   probe rows x row width x hash exchanges they cross
//!   spent   build keys x 5 bytes up, once
//!         + build keys x 10 bits (capped) down, for every receiver
//! ```
//!
//! The coordinator repeats the question with the true number of keys; here only what is
//! hopeless is kept out. Estimates of filtered inputs are guesses (20 % per predicate),
//! so on a cluster missing statistics speak for a filter. In one process they speak
//! against it, for there is little to gain.

use arrow::datatypes::{DataType, Schema};
use datafusion::common::{JoinType, Statistics};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, IsNotNullExpr, Literal};
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::sync::Arc;

use super::site::{Site, as_node, is_node};
use super::{Environment, Plan};
use crate::config::RuntimeFilterOptions;
use crate::ledger::Refusal;
use crate::nodes::RuntimeFilterProbeExec;
use crate::spec::Estimates;

/// A sorted, delta-coded 64-bit hash.
const UP_BYTES_PER_KEY: f64 = 5.0;
/// A Bloom filter of 1 % false positives.
const DOWN_BYTES_PER_KEY: f64 = 10.0 / 8.0;
/// Width assumed for a value of a type without a fixed one.
const VARIABLE_WIDTH: usize = 20;
/// In one process: probe rows for each build row from which on a filter may pay.
const IN_PROCESS_RATIO: u64 = 4;
/// Distinct probe keys for each build row from which on an unfiltered build side counts
/// as selective.
const DISTINCT_RATIO: u64 = 2;

/// What is known about a filter's places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forecast {
    pub(super) estimates: Estimates,
    /// Bytes of the probe rows, counted once for each exchange that they cross.
    crossing_bytes: Option<f64>,
    /// Distinct values of a single key column at the probes.
    probe_keys: Option<u64>,
}

/// What the statistics say about a build place below `left` and probe places below
/// `right`.
pub(super) fn forecast(left: &Plan, build: &Site, right: &Plan, probes: &[Site]) -> Forecast {
    let statistics = |root: &Plan, site: &Site| {
        let node = site.node(root)?;
        StatisticsContext::new()
            .compute(node.as_ref(), &StatisticsArgs::new())
            .ok()
    };
    let build_rows = statistics(left, build).and_then(|statistics| rows(&statistics));
    let mut probe = Some((0_u64, 0.0_f64, 0.0_f64, Some(0_u64)));
    for site in probes {
        probe = probe.and_then(|(rows_sum, bytes_sum, crossing_sum, keys_sum)| {
            let statistics = statistics(right, site)?;
            let rows = rows(&statistics)?;
            let bytes = rows as f64 * row_width(&site.node(right)?.schema()) as f64;
            let keys = distinct(&statistics, site).and_then(|keys| keys_sum.map(|sum| sum + keys));
            let crossing = bytes * site.exchanges.max(1) as f64;
            Some((
                rows_sum.saturating_add(rows),
                bytes_sum + bytes,
                crossing_sum + crossing,
                keys,
            ))
        });
    }
    Forecast {
        estimates: Estimates {
            build_rows,
            probe_rows: probe.map(|(rows, ..)| rows),
            probe_bytes: probe.map(|(_, bytes, ..)| bytes as u64),
        },
        crossing_bytes: probe.map(|(_, _, crossing, _)| crossing),
        probe_keys: probe.and_then(|(.., keys)| keys),
    }
}

/// Whether a filter from `left` is worth placing.
pub(super) fn gate(
    left: &Plan,
    forecast: &Forecast,
    options: &RuntimeFilterOptions,
    environment: &Environment,
) -> Result<(), Refusal> {
    if !is_selective(left) && !has_few_keys(forecast) {
        return Err(Refusal::BuildNotSelective);
    }
    let Estimates {
        build_rows,
        probe_rows,
        ..
    } = forecast.estimates;
    if !environment.cluster {
        return match (build_rows, probe_rows) {
            (Some(build), Some(probe)) if probe >= build.saturating_mul(IN_PROCESS_RATIO) => Ok(()),
            _ => Err(Refusal::NotInOneProcess),
        };
    }
    let (Some(build_rows), Some(crossing)) = (build_rows, forecast.crossing_bytes) else {
        return Ok(());
    };
    let keys = build_rows as f64;
    let filter = (keys * DOWN_BYTES_PER_KEY).min(options.max_filter_bytes as f64);
    let traffic = keys * UP_BYTES_PER_KEY + filter * environment.receivers as f64;
    if traffic > (1.0 - options.min_saving) * crossing {
        return Err(Refusal::FilterTooLarge);
    }
    Ok(())
}

/// An unfiltered build side is worth a filter too if it has far fewer keys than the
/// probe side. Only a true distinct count tells: a range or a row count is an upper
/// bound, which says nothing here.
fn has_few_keys(forecast: &Forecast) -> bool {
    match (forecast.estimates.build_rows, forecast.probe_keys) {
        (Some(build), Some(probe)) => build.saturating_mul(DISTINCT_RATIO) < probe,
        _ => false,
    }
}

/// Whether something in `node` keeps only part of the keys that its tables hold.
pub(super) fn is_selective(node: &Plan) -> bool {
    let any_child = || node.children().into_iter().any(is_selective);
    if node.fetch().is_some()
        || is_node::<GlobalLimitExec>(node)
        || is_node::<LocalLimitExec>(node)
        || is_node::<RuntimeFilterProbeExec>(node)
        || is_node::<EmptyExec>(node)
    {
        true
    } else if let Some(filter) = as_node::<FilterExec>(node) {
        drops_rows(filter.predicate()) || any_child()
    } else if let Some(source) = as_node::<DataSourceExec>(node) {
        let scan = source.data_source().downcast_ref::<FileScanConfig>();
        scan.and_then(|scan| scan.file_source().filter())
            .is_some_and(|filter| drops_rows(&filter))
    } else if let Some(join) = as_node::<HashJoinExec>(node) {
        join_is_selective(*join.join_type(), join.left(), join.right())
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        join_is_selective(join.join_type(), join.left(), join.right())
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        // `sum(x) > (subquery)`: a comparison like a filter's.
        let compares = join.filter().is_some() && *join.join_type() == JoinType::Inner;
        compares || join_is_selective(*join.join_type(), join.left(), join.right())
    } else {
        any_child()
    }
}

fn join_is_selective(join_type: JoinType, left: &Plan, right: &Plan) -> bool {
    match join_type {
        JoinType::Inner => is_selective(left) || is_selective(right),
        JoinType::LeftSemi | JoinType::RightSemi | JoinType::LeftAnti | JoinType::RightAnti => true,
        JoinType::Left | JoinType::LeftMark => is_selective(left),
        JoinType::Right | JoinType::RightMark => is_selective(right),
        JoinType::Full => false,
    }
}

/// Whether a predicate says more than `x IS NOT NULL` or `true`. What DataFusion's own
/// dynamic filters put into a scan does not count: it comes from the join above.
fn drops_rows(predicate: &Arc<dyn PhysicalExpr>) -> bool {
    split_conjunction(predicate).into_iter().any(|conjunct| {
        let trivial = conjunct.downcast_ref::<IsNotNullExpr>().is_some()
            || conjunct.downcast_ref::<Literal>().is_some()
            || conjunct
                .downcast_ref::<DynamicFilterPhysicalExpr>()
                .is_some();
        !trivial
    })
}

fn rows(statistics: &Statistics) -> Option<u64> {
    statistics.num_rows.get_value().map(|rows| *rows as u64)
}

fn distinct(statistics: &Statistics, site: &Site) -> Option<u64> {
    let [key] = site.keys.as_slice() else {
        return None;
    };
    let column = statistics.column_statistics.get(*key)?;
    column.distinct_count.get_value().map(|keys| *keys as u64)
}

fn row_width(schema: &Schema) -> usize {
    let width = |data_type: &DataType| match data_type {
        DataType::Boolean | DataType::Null => 1,
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(VARIABLE_WIDTH),
        other => other.primitive_width().unwrap_or(VARIABLE_WIDTH),
    };
    schema
        .fields()
        .iter()
        .map(|field| width(field.data_type()))
        .sum::<usize>()
        .max(1)
}
