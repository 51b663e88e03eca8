//! Whether a filter is expected to save more than it costs, as far as planning knows.
//!
//! ```text
//!   saved   bytes that enter the hash exchanges between the probes and the join
//!   spent   build keys x 5.5 bytes up, once
//!         + build keys x 10 bits (capped) down, for every receiver
//! ```
//!
//! A copy, or a further filter of one join, is judged by those exchanges alone that the
//! probes before it do not lie below.
//!
//! The coordinator repeats the question with the true number of keys; here only what is
//! hopeless is kept out. Estimates of filtered inputs are guesses (20 % per predicate),
//! so on a cluster missing statistics speak for a filter, and bytes in memory stand for
//! bytes on the wire: build keys and probe rows are both over-estimated. (Weighing with
//! encoded bytes refused TPC-H Q12 and Q14 at scale 1, which save 90 % and 25 %.) In one
//! process missing statistics speak against a filter, for there is little to gain.

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
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::selectivity::correction;
use super::site::{Site, as_node, filter_input, is_node, walk};
use super::{Environment, Plan, is_transparent};
use crate::config::RuntimeFilterOptions;
use crate::ledger::Refusal;
use crate::nodes::RuntimeFilterProbeExec;
use crate::spec::Estimates;

/// A hash in a sorted, coded list: 6.0 bytes at a thousand keys, 4.7 at a million.
const UP_BYTES_PER_KEY: f64 = 5.5;
/// A Bloom filter of 1 % false positives.
const DOWN_BYTES_PER_KEY: f64 = 10.0 / 8.0;
/// Width assumed for a value of a type without a fixed one.
const VARIABLE_WIDTH: usize = 20;
/// In one process: probe rows for each build row from which on a filter may pay.
const IN_PROCESS_RATIO: u64 = 4;
/// In one process: probe rows below which hashing and copying them all costs less than
/// planning and merging a filter.
const IN_PROCESS_ROWS: u64 = 32 * 1024;
/// Distinct probe keys for each build row from which on an unfiltered build side counts
/// as selective.
const DISTINCT_RATIO: u64 = 2;
/// Share of what may be spent on a filter that may be spent on a further one of its join.
const ADDITION_SHARE: f64 = 0.4;
/// The same for one that makes others stricter.
const STONE_SHARE: f64 = 0.1;
/// Rows of a table whose scan may be put off for a verdict: it takes no time to speak of.
const STONE_ROWS: u64 = 1_000_000;

/// Statistics of the plans of one placement, each node's computed once.
#[derive(Default)]
pub(super) struct Estimator {
    context: StatisticsContext,
    /// The context knows nodes by their address, which must not be given out again.
    alive: RefCell<Vec<Plan>>,
}

impl Estimator {
    fn keep(&self, plan: &Plan) {
        self.alive.borrow_mut().push(Arc::clone(plan));
    }

    fn statistics(&self, node: &Plan) -> Option<Arc<Statistics>> {
        self.context
            .compute(node.as_ref(), &StatisticsArgs::new())
            .ok()
    }
}

/// Paths to the inputs of exchanges.
pub(super) type Exchanges = BTreeSet<Vec<usize>>;

/// The exchanges between `sites` and the join. Sites in several children of one union
/// share the exchange above it, and copies those above the join that they hang on.
pub(super) fn exchanges(sites: &[Site]) -> Exchanges {
    sites
        .iter()
        .flat_map(Site::exchange_inputs)
        .map(<[usize]>::to_vec)
        .collect()
}

/// What the statistics say about a build place below `build` and probe places below
/// `probe`.
///
/// The probe bytes are those that enter the exchanges on the way from the probes to the
/// join, less those that are `covered` by others: what joins in between drop or project
/// away is not there to be saved.
pub(super) fn forecast(
    estimator: &Estimator,
    build: &Plan,
    build_site: &Site,
    probe: &Plan,
    sites: &[Site],
    covered: &Exchanges,
) -> Estimates {
    estimator.keep(build);
    estimator.keep(probe);
    let statistics = |root: &Plan, path: &[usize]| estimator.statistics(walk(root, path)?);
    let rows_at = |root: &Plan, path: &[usize]| {
        let rows = rows(statistics(root, path)?.as_ref())?;
        let correction = correction(&estimator.context, walk(root, path)?);
        Some((rows as f64 * correction).ceil() as u64)
    };
    let bytes_at = |path: &Vec<usize>| {
        let width = row_width(&walk(probe, path)?.schema());
        Some(rows_at(probe, path)?.saturating_mul(width))
    };
    let exchanges = exchanges(sites);
    let probe_bytes = exchanges.difference(covered).map(bytes_at);
    let probe_rows = sites.iter().map(|site| rows_at(probe, &site.path));
    let probe_keys = sites
        .iter()
        .map(|site| distinct(statistics(probe, &site.path)?.as_ref(), site));
    Estimates {
        build_rows: rows_at(build, &build_site.path),
        probe_rows: probe_rows.sum(),
        probe_bytes: probe_bytes.sum(),
        probe_keys: probe_keys.sum(),
    }
}

/// Whether a filter from `build` is worth placing.
pub(super) fn gate(
    build: &Plan,
    forecast: &Estimates,
    options: &RuntimeFilterOptions,
    environment: &Environment,
) -> Result<(), Refusal> {
    if !is_selective(build) && !has_few_keys(forecast) {
        return Err(Refusal::BuildNotSelective);
    }
    let Estimates {
        build_rows,
        probe_rows,
        probe_bytes,
        ..
    } = *forecast;
    if !environment.cluster {
        return match pays_in_process(build_rows, probe_rows) {
            true => Ok(()),
            false => Err(Refusal::NotInOneProcess),
        };
    }
    let (Some(build_rows), Some(probe_bytes)) = (build_rows, probe_bytes) else {
        return Ok(());
    };
    let traffic = up_bytes(build_rows) + down_bytes(build_rows, options, environment);
    if traffic > (1.0 - options.min_saving) * probe_bytes as f64 {
        return Err(Refusal::FilterTooLarge);
    }
    Ok(())
}

/// Whether a copy of a filter pays for itself, whose `forecast` leaves out what the first
/// probes thin out. What comes up from the build side is paid for by those; a copy may
/// need the filter on other workers.
pub(super) fn copy_pays(
    forecast: &Estimates,
    options: &RuntimeFilterOptions,
    environment: &Environment,
) -> bool {
    let Estimates {
        build_rows,
        probe_rows,
        probe_bytes,
        ..
    } = *forecast;
    if !environment.cluster {
        return pays_in_process(build_rows, probe_rows);
    }
    match (build_rows, probe_bytes) {
        (Some(build), Some(bytes)) => {
            down_bytes(build, options, environment) <= (1.0 - options.min_saving) * bytes as f64
        }
        _ => true,
    }
}

/// Whether one more filter of a join that has one pays for itself, whose `forecast` leaves
/// out what that one thins out. A part of a key drops fewer rows than the whole, and how
/// many nobody knows, so that it must be worth it by a wide margin.
pub(super) fn addition_pays(
    forecast: &Estimates,
    options: &RuntimeFilterOptions,
    environment: &Environment,
) -> bool {
    let Estimates {
        build_rows,
        probe_rows,
        probe_bytes,
        ..
    } = *forecast;
    if !environment.cluster {
        return pays_in_process(build_rows, probe_rows);
    }
    match (build_rows, probe_bytes) {
        (Some(build), Some(bytes)) => {
            let traffic = up_bytes(build) + down_bytes(build, options, environment);
            traffic <= ADDITION_SHARE * (1.0 - options.min_saving) * bytes as f64
        }
        _ => false,
    }
}

/// Whether a filter of `build_rows` keys is worth it for making other filters smaller and
/// stricter, which are to thin out `saving` bytes.
pub(super) fn stone_pays(
    build_rows: Option<u64>,
    saving: Option<u64>,
    options: &RuntimeFilterOptions,
    environment: &Environment,
) -> bool {
    match (build_rows, saving) {
        (Some(build), Some(saving)) => {
            let traffic = up_bytes(build) + down_bytes(build, options, environment);
            traffic <= STONE_SHARE * (1.0 - options.min_saving) * saving as f64
        }
        _ => false,
    }
}

fn pays_in_process(build_rows: Option<u64>, probe_rows: Option<u64>) -> bool {
    match (build_rows, probe_rows) {
        (Some(build), Some(probe)) => {
            probe >= IN_PROCESS_ROWS && probe >= build.saturating_mul(IN_PROCESS_RATIO)
        }
        _ => false,
    }
}

fn up_bytes(keys: u64) -> f64 {
    keys as f64 * UP_BYTES_PER_KEY
}

fn down_bytes(keys: u64, options: &RuntimeFilterOptions, environment: &Environment) -> f64 {
    let filter = (keys as f64 * DOWN_BYTES_PER_KEY).min(options.max_filter_bytes as f64);
    filter * environment.receivers as f64
}

/// An unfiltered build side is worth a filter too if it has far fewer keys than the
/// probe side. Only a true distinct count tells: a range or a row count is an upper
/// bound, which says nothing here.
fn has_few_keys(forecast: &Estimates) -> bool {
    match (forecast.build_rows, forecast.probe_keys) {
        (Some(build), Some(probe)) => build.saturating_mul(DISTINCT_RATIO) < probe,
        _ => false,
    }
}

/// Whether something in `node` keeps only part of the keys that its tables hold.
pub(super) fn is_selective(node: &Plan) -> bool {
    thins_out(node, true)
}

/// Whether that is so for the probes of other filters alone.
pub(super) fn leans_on_probes(node: &Plan) -> bool {
    is_selective(node) && !thins_out(node, false)
}

fn thins_out(node: &Plan, by_probes: bool) -> bool {
    let any_child = || {
        let mut children = node.children().into_iter();
        children.any(|child| thins_out(child, by_probes))
    };
    let join = |join_type: JoinType, left: &Plan, right: &Plan| match join_type {
        JoinType::Inner => thins_out(left, by_probes) || thins_out(right, by_probes),
        JoinType::LeftSemi | JoinType::RightSemi | JoinType::LeftAnti | JoinType::RightAnti => true,
        JoinType::Left | JoinType::LeftMark => thins_out(left, by_probes),
        JoinType::Right | JoinType::RightMark => thins_out(right, by_probes),
        JoinType::Full => false,
    };
    if is_node::<RuntimeFilterProbeExec>(node) {
        by_probes || any_child()
    } else if node.fetch().is_some()
        || is_node::<GlobalLimitExec>(node)
        || is_node::<LocalLimitExec>(node)
        || is_node::<EmptyExec>(node)
    {
        true
    } else if let Some(filter) = as_node::<FilterExec>(node) {
        drops_rows(filter.predicate()) || any_child()
    } else if let Some(source) = as_node::<DataSourceExec>(node) {
        let scan = source.data_source().downcast_ref::<FileScanConfig>();
        scan.and_then(|scan| scan.file_source().filter())
            .is_some_and(|filter| drops_rows(&filter))
    } else if let Some(hash) = as_node::<HashJoinExec>(node) {
        join(*hash.join_type(), hash.left(), hash.right())
    } else if let Some(merge) = as_node::<SortMergeJoinExec>(node) {
        join(merge.join_type(), merge.left(), merge.right())
    } else if let Some(nested) = as_node::<NestedLoopJoinExec>(node) {
        // `sum(x) > (subquery)`: a comparison like a filter's.
        let compares = nested.filter().is_some() && *nested.join_type() == JoinType::Inner;
        compares || join(*nested.join_type(), nested.left(), nested.right())
    } else {
        any_child()
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

/// Whether `node` is the scan of a table of at most [`STONE_ROWS`] rows, with nothing but
/// filters and projections above.
pub(super) fn is_small_scan(node: &Plan) -> bool {
    if is_node::<DataSourceExec>(node) {
        let statistics = StatisticsContext::new().compute(node.as_ref(), &StatisticsArgs::new());
        return statistics
            .ok()
            .and_then(|statistics| rows(&statistics))
            .is_some_and(|rows| rows <= STONE_ROWS);
    }
    let cheap = is_node::<FilterExec>(node)
        || is_node::<ProjectionExec>(node)
        || is_transparent(node)
        || filter_input(node).is_some();
    cheap && node.children().into_iter().all(is_small_scan)
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

fn row_width(schema: &Schema) -> u64 {
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
        .max(1) as u64
}
