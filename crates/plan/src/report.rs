//! What a user sees after a query: a struct, a table, a line of JSON.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion_distributed::{
    DistributedMetricsFormat, NetworkBoundaryExt, rewrite_distributed_plan_with_metrics,
};
use runtime_filter_core::sizing::Form;
use runtime_filter_exchange::{Basis, FilterRecord, Verdict};
use serde::Serialize;

use crate::ledger::JoinOutcome;
use crate::nodes::metric::ScanRows;
use crate::nodes::{
    RuntimeFilterBuildExec, RuntimeFilterProbeExec, RuntimeFilterScopeExec, file_bytes, metric,
};

/// How long a report waits for the metrics of remote tasks. They come right after
/// the query; those of a worker that died never come.
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);

/// What a query moved, and what its runtime filters did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueryReport {
    /// The query's text.
    pub query: String,
    /// Rows of the result.
    pub rows: u64,
    /// Wall time in milliseconds.
    pub elapsed_ms: f64,
    /// Traffic of the query over all network boundaries.
    pub shuffle: Shuffle,
    /// What its scans of Parquet files read, and what they could leave out.
    pub storage: Storage,
    /// Traffic of its filters.
    pub filter_traffic: FilterTraffic,
    /// Its filters, by number.
    pub filters: Vec<FilterReport>,
    /// Joins without a filter, and why.
    pub refusals: Vec<RefusalReport>,
}

/// Traffic over the network boundaries of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Shuffle {
    /// Encoded bytes received over the network; co-located tasks count nothing.
    pub bytes: u64,
    /// Bytes in memory of everything that crossed a boundary, co-located or not.
    pub logical_bytes: u64,
    /// Rows that crossed a boundary, co-located or not.
    pub rows: u64,
}

/// What the Parquet scans of a query read and left out, whatever for: conditions of
/// the query, its runtime filters, or dynamic filters of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Storage {
    /// Bytes read from files.
    pub bytes_scanned: u64,
    /// Bytes of the files that the plan's scans range over, columns they do not need
    /// included.
    pub file_bytes: u64,
    /// Those of them that were not read, for want of need or by pruning: the same query
    /// without filters tells the two apart.
    pub bytes_pruned: u64,
    /// Files, or ranges of files, that were weighed by their statistics.
    pub files: u64,
    /// Those of them that were left out.
    pub files_pruned: u64,
    /// Row groups that were weighed by their statistics when their file was opened.
    pub row_groups: u64,
    /// Row groups left out, by statistics or by the file's own Bloom filters, then or
    /// later in the scan.
    pub row_groups_pruned: u64,
    /// Those of them that were left out once their file was open.
    pub row_groups_pruned_late: u64,
    /// Pages that were weighed by the page index.
    pub pages: u64,
    /// Pages left out.
    pub pages_pruned: u64,
    /// Rows of pages left out.
    pub page_rows_pruned: u64,
    /// Rows dropped while decoding (`parquet.pushdown_filters`).
    pub rows_pruned: u64,
}

impl Storage {
    /// Whether anything was left out.
    pub(crate) fn has_pruned(&self) -> bool {
        self.files_pruned + self.row_groups_pruned + self.pages_pruned + self.rows_pruned > 0
    }

    pub(crate) fn add(&mut self, metrics: &MetricsSet) {
        let weighed = |name| pruning(metrics, name);
        self.bytes_scanned += sum(metrics, "bytes_scanned");
        let (pruned, matched) = weighed("files_ranges_pruned_statistics");
        self.files += pruned + matched;
        self.files_pruned += pruned;
        let (pruned, matched) = weighed("row_groups_pruned_statistics");
        self.row_groups += pruned + matched;
        let late = sum(metrics, "row_groups_pruned_dynamic_filter");
        self.row_groups_pruned += pruned + weighed("row_groups_pruned_bloom_filter").0 + late;
        self.row_groups_pruned_late += late;
        let (pruned, matched) = weighed("page_index_pages_pruned");
        self.pages += pruned + matched;
        self.pages_pruned += pruned;
        self.page_rows_pruned += weighed("page_index_rows_pruned").0;
        self.rows_pruned += sum(metrics, "pushdown_rows_pruned");
    }
}

/// Messages of the filter exchange, in bytes on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FilterTraffic {
    /// Workers to coordinator.
    pub bytes_up: u64,
    /// Coordinator to workers.
    pub bytes_down: u64,
}

/// What one filter did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterReport {
    /// Number of the filter in its plan.
    pub id: u32,
    /// The join it serves.
    pub join: String,
    /// Its build side.
    pub build: BuildReport,
    /// What was sent; `None` without a filter.
    pub filter: Option<FilterShape>,
    /// `applied` or `pass_all`.
    pub verdict: &'static str,
    /// Why every row passed.
    pub reason: Option<String>,
    /// Its probe side.
    pub probe: ProbeReport,
    /// What the verdict was based on; `None` if the keys never were complete.
    pub decision: Option<DecisionReport>,
    /// Share of the probe rows without a partner that passed, by the join's own count of rows with
    /// one. `None` where that count is not of the filter's rows: if the join read other rows than
    /// the probes let through, if rows passed unfiltered, or if no row was without a partner.
    pub measured_fpp: Option<f64>,
}

/// The figures that the coordinator decided by. Bytes are those on the wire, expected.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DecisionReport {
    /// How the form was chosen: `bytes` (the fewest expected), `local` (nothing crosses a network),
    /// `default` (no statistics), `fixed` or `forced`.
    pub rule: &'static str,
    /// Remote processes that the filter was sized for.
    pub expected_receivers: u64,
    /// Remote processes that got it.
    pub receivers: u64,
    /// Remote processes that came when the copies before had used up what it may cost.
    pub receivers_refused: u64,
    /// Probe bytes that the filter can thin out; `None` without statistics.
    pub probe_bytes: Option<u64>,
    /// Share of them expected to match.
    pub keep_rate: f64,
    /// `bloom`, `keys` or `empty`: the form chosen, or weighed and found too dear.
    pub kind: &'static str,
    /// Encoded bytes of that form.
    pub bytes: u64,
    /// Its false positive probability by the model.
    pub model_fpp: f64,
    /// Bytes of all its copies; 0 if it was not sent.
    pub sending_bytes: f64,
    /// Copies, matching rows and false positives together; `None` without statistics.
    pub expected_bytes: Option<f64>,
    /// `probe_bytes` less `expected_bytes`; `None` without statistics.
    pub expected_saving: Option<f64>,
}

impl DecisionReport {
    fn of(record: &FilterRecord, basis: &Basis) -> Self {
        let candidate = basis.candidate;
        Self {
            rule: basis.rule,
            expected_receivers: basis.receivers as u64,
            receivers: record.receivers,
            receivers_refused: record.receivers_refused,
            probe_bytes: basis.probe_bytes,
            keep_rate: basis.keep,
            kind: match candidate.form {
                Form::Empty => "empty",
                Form::Keys => "keys",
                Form::Bloom(_) => "bloom",
            },
            bytes: candidate.bytes,
            model_fpp: candidate.fpp,
            sending_bytes: basis.sending_bytes,
            expected_bytes: basis.expected_bytes,
            expected_saving: basis.expected_saving,
        }
    }
}

/// The build side of one filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BuildReport {
    /// Rows of the tasks that reported.
    pub rows: u64,
    /// Distinct keys; `None` if the merge did not complete.
    pub distinct_keys: Option<u64>,
    /// Tasks that reported.
    pub tasks: u64,
}

/// A filter as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FilterShape {
    /// `bloom`, `keys` or `empty`.
    pub kind: &'static str,
    /// Encoded bytes.
    pub bytes: u64,
    /// Share of non-matching keys expected to pass.
    pub estimated_fpp: f64,
}

/// The probe side of one filter, over all its tasks and partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ProbeReport {
    /// Rows that reached the probes.
    pub rows_in: u64,
    /// Rows dropped.
    pub rows_dropped: u64,
    /// Those of them that a Parquet scan did not decode to the end.
    pub rows_dropped_in_scan: u64,
    /// Bytes of the other dropped rows in memory, estimated.
    pub bytes_dropped: u64,
    /// Partitions that were polled.
    pub first_polls: u64,
    /// Partitions polled before the verdict was there.
    pub polls_before_verdict: u64,
    /// Partitions whose wait ran out.
    pub timeouts: u64,
    /// Time spent waiting, summed over the partitions.
    pub wait_ms: f64,
    /// `before_scan`, `during_scan`, `never`; `not_polled` if no probe ran.
    pub arrived: &'static str,
    /// Rows that passed before the verdict was there.
    pub rows_unfiltered: u64,
    /// Rows of these that the filter would have dropped: estimated from the share
    /// that all its probes dropped of the rows they looked up, 0 without such rows.
    pub rows_missed: u64,
    /// Rows that passed unlooked-at while the filter was switched off.
    pub rows_skipped: u64,
    /// Times that a filter was switched off because it kept nearly all rows.
    pub switched_off: u64,
    /// Times that it was switched on again.
    pub switched_on: u64,
    /// Rows after which probes switched off, `None` if none did: rows looked at.
    pub disabled_after_rows: Option<u64>,
}

/// A join without a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusalReport {
    /// The join.
    pub join: String,
    /// Why.
    pub reason: String,
}

impl RuntimeFilterScopeExec {
    /// The scope in `plan`, which `downcast_ref` cannot see on a cluster, since it
    /// answers to the name of the node it wraps.
    pub fn find(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
        let mut found = None;
        let _ = plan.apply(|node| {
            if Self::from_plan(node).is_some() {
                found = Some(Arc::clone(node));
                return Ok(TreeNodeRecursion::Stop);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        found
    }

    /// `plan` as a scope, if it is one.
    pub fn from_plan(plan: &Arc<dyn ExecutionPlan>) -> Option<&Self> {
        let plan: &dyn Any = plan.as_ref();
        plan.downcast_ref()
    }
}

/// The report of the latest execution of `plan`, which has ended. `query` and
/// `elapsed` are put in as they are.
///
/// # Errors
/// If the plan was not executed, or its metrics cannot be read.
pub async fn query_report(
    plan: &Arc<dyn ExecutionPlan>,
    query: &str,
    rows: usize,
    elapsed: Duration,
) -> Result<QueryReport> {
    let mut report = QueryReport {
        query: query.to_owned(),
        rows: rows as u64,
        elapsed_ms: elapsed.as_secs_f64() * 1e3,
        shuffle: Shuffle::default(),
        storage: Storage::default(),
        filter_traffic: FilterTraffic::default(),
        filters: vec![],
        refusals: vec![],
    };
    let scope = RuntimeFilterScopeExec::find(plan);
    let measured = scope.as_ref().unwrap_or(plan);
    let measured = tokio::time::timeout(
        METRICS_TIMEOUT,
        rewrite_distributed_plan_with_metrics(
            Arc::clone(measured),
            DistributedMetricsFormat::Aggregated,
        ),
    )
    .await
    .map_err(|_| exec_datafusion_err!("the metrics of the query's tasks did not arrive"))??;

    let mut probes: BTreeMap<u32, ProbeSums> = BTreeMap::new();
    let mut joins: BTreeMap<u32, JoinSums> = BTreeMap::new();
    measured.apply(|node| {
        let metrics = node.metrics().unwrap_or_default();
        if node.is_network_boundary() {
            report.shuffle.bytes += sum(&metrics, "bytes_transferred");
            report.shuffle.logical_bytes += sum(&metrics, "output_bytes");
            report.shuffle.rows += sum(&metrics, "output_rows");
        }
        report.storage.add(&metrics);
        report.storage.file_bytes += file_bytes(node);
        for metric in metrics.iter() {
            let value = metric.value();
            if let Some(id) = ScanRows::In.filter(value.name()) {
                probes.entry(id).or_default().scan_rows_in += value.as_usize() as u64;
            } else if let Some(id) = ScanRows::Dropped.filter(value.name()) {
                probes.entry(id).or_default().scan_rows_dropped += value.as_usize() as u64;
            }
        }
        if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
            probes.entry(probe.spec().id).or_default().add(&metrics);
        }
        if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            let built = filters_below(join.left(), true);
            for id in filters_below(join.right(), false).intersection(&built) {
                joins.insert(*id, JoinSums::of(&metrics));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;

    let storage = &mut report.storage;
    storage.bytes_pruned = storage.file_bytes.saturating_sub(storage.bytes_scanned);

    let Some(scope) = scope.as_ref().and_then(RuntimeFilterScopeExec::from_plan) else {
        return Ok(report);
    };
    report.refusals = scope
        .ledger()
        .iter()
        .filter_map(|verdict| match &verdict.outcome {
            JoinOutcome::Placed { .. } => None,
            JoinOutcome::Refused(refusal) => Some(RefusalReport {
                join: verdict.join.clone(),
                reason: refusal.to_string(),
            }),
        })
        .collect();
    let mut records: BTreeMap<u32, FilterRecord> = BTreeMap::new();
    if let Some(run) = scope.latest_run() {
        let (bytes_up, bytes_down) = run.hub.traffic();
        report.filter_traffic = FilterTraffic {
            bytes_up,
            bytes_down,
        };
        records.extend(
            run.hub
                .records()
                .into_iter()
                .map(|record| (record.id, record)),
        );
    }
    for spec in scope.filters() {
        let probe = probes.get(&spec.id).copied().unwrap_or_default();
        let probe = probe.with_those_of_scans();
        report.filters.push(filter_report(
            spec.id,
            &spec.join,
            records.get(&spec.id),
            probe,
            joins.get(&spec.id),
        ));
    }
    Ok(report)
}

fn filter_report(
    id: u32,
    join: &str,
    record: Option<&FilterRecord>,
    probe: ProbeSums,
    join_sums: Option<&JoinSums>,
) -> FilterReport {
    let (mut shape, mut verdict, mut reason) = (None, "pass_all", None);
    match record.and_then(|record| record.verdict.as_ref()) {
        Some(Verdict::Filter(filter)) => {
            verdict = "applied";
            shape = Some(FilterShape {
                kind: filter.kind_name(),
                bytes: filter.byte_len() as u64,
                estimated_fpp: filter.estimated_fpp(),
            });
        }
        Some(Verdict::PassAll(why)) => reason = Some(why.to_string()),
        None => reason = Some("the query ended before every build task had reported".to_owned()),
    }
    FilterReport {
        id,
        join: join.to_owned(),
        build: record.map_or_else(BuildReport::default, |record| BuildReport {
            rows: record.build_rows,
            distinct_keys: record.distinct_keys,
            tasks: record.build_tasks,
        }),
        filter: shape,
        verdict,
        reason,
        probe: probe.report(),
        decision: record.and_then(|record| {
            let basis = record.basis.as_ref()?;
            Some(DecisionReport::of(record, basis))
        }),
        measured_fpp: shape.and(join_sums.and_then(|join| probe.measured_fpp(join))),
    }
}

/// The filters that have a build node (`builds`) or a probe node in `plan`.
fn filters_below(plan: &Arc<dyn ExecutionPlan>, builds: bool) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let _ = plan.apply(|node| {
        let spec = match builds {
            true => node
                .downcast_ref::<RuntimeFilterBuildExec>()
                .map(RuntimeFilterBuildExec::spec),
            false => node
                .downcast_ref::<RuntimeFilterProbeExec>()
                .map(RuntimeFilterProbeExec::spec),
        };
        ids.extend(spec.map(|spec| spec.id));
        Ok(TreeNodeRecursion::Continue)
    });
    ids
}

/// What a hash join counted on its probe side.
#[derive(Debug, Clone, Copy)]
struct JoinSums {
    rows_in: u64,
    /// Probe rows looked up, and those of them with a partner.
    looked_up: u64,
    matched: u64,
}

impl JoinSums {
    fn of(metrics: &MetricsSet) -> Self {
        let (mut matched, mut looked_up) = (0, 0);
        for metric in metrics.iter() {
            if let MetricValue::Ratio {
                name,
                ratio_metrics,
            } = metric.value()
                && name == "probe_hit_rate"
            {
                matched += ratio_metrics.part() as u64;
                looked_up += ratio_metrics.total() as u64;
            }
        }
        Self {
            rows_in: sum(metrics, "input_rows"),
            looked_up,
            matched,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct ProbeSums {
    report: ProbeReport,
    late: u64,
    no_verdict: u64,
    /// Rows that a scan below looked up itself, and those of them that the probes never saw.
    scan_rows_in: u64,
    scan_rows_dropped: u64,
}

impl ProbeSums {
    fn add(&mut self, metrics: &MetricsSet) {
        let report = &mut self.report;
        report.rows_in += sum(metrics, metric::ROWS_IN);
        report.rows_dropped += sum(metrics, metric::ROWS_DROPPED);
        report.bytes_dropped += sum(metrics, metric::BYTES_DROPPED);
        report.first_polls += sum(metrics, metric::FIRST_POLLS);
        report.polls_before_verdict += sum(metrics, metric::POLLS_BEFORE_VERDICT);
        report.timeouts += sum(metrics, metric::WAIT_TIMEOUTS);
        report.rows_unfiltered += sum(metrics, metric::ROWS_UNFILTERED);
        report.rows_skipped += sum(metrics, metric::ROWS_SKIPPED);
        report.switched_off += sum(metrics, metric::SWITCHED_OFF);
        report.switched_on += sum(metrics, metric::SWITCHED_ON);
        report.wait_ms += sum(metrics, metric::WAIT_TIME) as f64 / 1e6;
        self.late += sum(metrics, metric::LATE_VERDICTS);
        self.no_verdict += sum(metrics, metric::NO_VERDICT);
    }

    /// These, with the rows that scans looked up as if the probes had done so.
    fn with_those_of_scans(mut self) -> Self {
        let passed = self.scan_rows_in.saturating_sub(self.scan_rows_dropped);
        let report = &mut self.report;
        if self.scan_rows_in > 0 && report.rows_in == passed {
            // Each row was looked up in the scan; that the probes found nothing more to
            // drop is no fault of the filter.
            (report.rows_skipped, report.switched_off, report.switched_on) = (0, 0, 0);
        }
        report.rows_in = report.rows_in.saturating_sub(passed) + self.scan_rows_in;
        report.rows_dropped += self.scan_rows_dropped;
        report.rows_dropped_in_scan = self.scan_rows_dropped;
        self
    }

    /// The share of rows without a partner that passed, if `join` read just the rows that passed.
    fn measured_fpp(&self, join: &JoinSums) -> Option<f64> {
        let ProbeReport {
            rows_in,
            rows_dropped,
            ..
        } = self.report;
        let passed = rows_in.checked_sub(rows_dropped)?;
        let unfiltered = self.late + self.no_verdict + self.report.rows_skipped > 0;
        if unfiltered || join.rows_in != passed || join.looked_up != passed {
            return None;
        }
        let wrong = passed.checked_sub(join.matched)?;
        let without_partner = rows_dropped + wrong;
        (without_partner > 0).then(|| wrong as f64 / without_partner as f64)
    }

    fn report(self) -> ProbeReport {
        let arrived = if self.report.first_polls == 0 {
            "not_polled"
        } else if self.no_verdict == self.report.first_polls {
            "never"
        } else if self.late + self.no_verdict > 0 {
            "during_scan"
        } else {
            "before_scan"
        };
        let unseen = self.report.rows_skipped + self.report.rows_unfiltered;
        let looked_at = self.report.rows_in.saturating_sub(unseen);
        let disabled_after_rows = (self.report.switched_off > 0).then_some(looked_at);
        let rows_missed = match looked_at {
            0 => 0,
            _ => {
                let dropped = self.report.rows_dropped as f64 / looked_at as f64;
                (self.report.rows_unfiltered as f64 * dropped) as u64
            }
        };
        ProbeReport {
            arrived,
            rows_missed,
            disabled_after_rows,
            ..self.report
        }
    }
}

fn sum(metrics: &MetricsSet, name: &str) -> u64 {
    metrics
        .sum(|metric| metric.value().name() == name)
        .as_ref()
        .map_or(0, |value: &MetricValue| value.as_usize() as u64)
}

/// Containers that were left out, and that were not, summed over all files.
fn pruning(metrics: &MetricsSet, name: &str) -> (u64, u64) {
    let counts = metrics.iter().filter_map(|metric| match metric.value() {
        MetricValue::PruningMetrics {
            name: found,
            pruning_metrics,
        } if found == name => Some(pruning_metrics),
        _ => None,
    });
    counts.fold((0, 0), |(pruned, matched), counts| {
        (
            pruned + counts.pruned() as u64,
            matched + counts.matched() as u64,
        )
    })
}

impl QueryReport {
    /// The report as one line of JSON.
    pub fn to_json(&self) -> String {
        // Plain structs with text keys always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Bytes of shuffle and filter traffic together.
    pub fn total_bytes(&self) -> u64 {
        self.shuffle.bytes + self.filter_traffic.bytes_up + self.filter_traffic.bytes_down
    }

    /// Rows dropped by all filters.
    pub fn rows_dropped(&self) -> u64 {
        self.filters
            .iter()
            .map(|filter| filter.probe.rows_dropped)
            .sum()
    }
}

fn kb(bytes: u64) -> String {
    format!("{:.1} KB", bytes as f64 / 1e3)
}

impl fmt::Display for QueryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rows in {:.1} ms; shuffle {} ({} rows, {} in memory); filter traffic {} up, {} down",
            self.rows,
            self.elapsed_ms,
            kb(self.shuffle.bytes),
            self.shuffle.rows,
            kb(self.shuffle.logical_bytes),
            kb(self.filter_traffic.bytes_up),
            kb(self.filter_traffic.bytes_down),
        )?;
        let storage = &self.storage;
        writeln!(
            f,
            "  storage: {} read of {}; {} of {} files, {} of {} row groups ({} once open), {} of {} pages left out",
            kb(storage.bytes_scanned),
            kb(storage.file_bytes),
            storage.files_pruned,
            storage.files,
            storage.row_groups_pruned,
            storage.row_groups,
            storage.row_groups_pruned_late,
            storage.pages_pruned,
            storage.pages,
        )?;
        for filter in &self.filters {
            let probe = &filter.probe;
            write!(f, "  filter {} [{}]: ", filter.id, filter.join)?;
            match (&filter.filter, &filter.reason) {
                (Some(shape), _) => write!(
                    f,
                    "{} of {} keys, {}, ",
                    shape.kind,
                    filter.build.distinct_keys.unwrap_or(0),
                    kb(shape.bytes)
                )?,
                (None, reason) => {
                    write!(f, "pass all ({}), ", reason.as_deref().unwrap_or("unknown"))?
                }
            }
            writeln!(
                f,
                "dropped {} of {} rows ({} in scans; {}), missed about {}, skipped {}; {} of {} first polls before the verdict, waited {:.1} ms, {} timeouts, verdict {}",
                probe.rows_dropped,
                probe.rows_in,
                probe.rows_dropped_in_scan,
                kb(probe.bytes_dropped),
                probe.rows_missed,
                probe.rows_skipped,
                probe.polls_before_verdict,
                probe.first_polls,
                probe.wait_ms,
                probe.timeouts,
                probe.arrived,
            )?;
        }
        for refusal in &self.refusals {
            writeln!(f, "  no filter [{}]: {}", refusal.join, refusal.reason)?;
        }
        Ok(())
    }
}
