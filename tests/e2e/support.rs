//! Clusters, queries and the comparison of their rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    Coordinator, QueryReport, RunningWorker, RuntimeFilterOptions, RuntimeFilterSessionExt,
    WorkerServer, Workers, query_report,
};

/// Longer than any query of these tests takes on a loaded machine; a query that
/// reaches it hangs.
pub const HANG: Duration = Duration::from_secs(120);

/// Workers on loopback ports of this process, and what coordinates them.
pub struct Cluster {
    pub workers: Vec<RunningWorker>,
    pub coordinator: Arc<Coordinator>,
}

/// Settings that turn every join filter off, ours and DataFusion's.
pub const ORACLE: [(&str, &str); 2] = [
    ("runtime_filter.enabled", "false"),
    (
        "datafusion.optimizer.enable_dynamic_filter_pushdown",
        "false",
    ),
];

/// Every join repartitions both sides.
pub const PARTITIONED: [(&str, &str); 2] = [
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        "0",
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        "0",
    ),
];

impl Cluster {
    pub async fn start(workers: usize) -> Self {
        let mut running = vec![];
        for _ in 0..workers {
            running.push(
                WorkerServer::bind(([127, 0, 0, 1], 0).into())
                    .await
                    .unwrap(),
            );
        }
        Self {
            workers: running,
            coordinator: Arc::new(Coordinator::new()),
        }
    }

    pub fn urls(&self) -> Vec<String> {
        self.workers.iter().map(RunningWorker::url).collect()
    }

    pub fn session(&self, settings: &[(&str, &str)]) -> SessionContext {
        session(&self.urls(), &self.coordinator, settings)
    }

    /// Nothing may be left of any execution. Workers hear of an end a moment after
    /// the coordinator.
    pub async fn assert_empty(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let left = || {
            let workers: usize = self.workers.iter().map(|w| w.registry().len()).sum();
            (
                workers,
                self.coordinator.registry().len(),
                self.coordinator.executions(),
            )
        };
        while left() != (0, 0, 0) {
            assert!(
                Instant::now() < deadline,
                "left in workers, coordinator, hubs: {:?}",
                left()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A coordinating session that spreads every scan over all workers.
pub fn session(
    urls: &[String],
    coordinator: &Arc<Coordinator>,
    settings: &[(&str, &str)],
) -> SessionContext {
    session_with(urls, coordinator, settings, |builder| builder)
}

/// The same, with something added to the builder.
pub fn session_with(
    urls: &[String],
    coordinator: &Arc<Coordinator>,
    settings: &[(&str, &str)],
    with: impl FnOnce(SessionStateBuilder) -> SessionStateBuilder,
) -> SessionContext {
    let builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(urls.len()))
        .with_distributed_worker_resolver(Workers::try_new(urls).unwrap())
        .with_distributed_file_scan_config_bytes_per_partition(1)
        .unwrap()
        .with_distributed_planner()
        .with_runtime_filter_coordinator(RuntimeFilterOptions::default(), Arc::clone(coordinator));
    let context = SessionContext::new_with_state(with(builder).build());
    set(&context, settings);
    context
}

pub fn set(context: &SessionContext, settings: &[(&str, &str)]) {
    for (key, value) in settings {
        let state = context.state_ref();
        state
            .write()
            .config_mut()
            .options_mut()
            .set(key, value)
            .unwrap();
    }
}

pub async fn register_folder(context: &SessionContext, folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            let path = path.to_str().unwrap();
            context
                .register_parquet(name, path, ParquetReadOptions::default())
                .await
                .unwrap();
        }
    }
}

/// TPC-H data at `scale`, generated once per build folder.
pub fn tpch_folder(scale: f64) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tpch-{scale}"));
    runtime_filter_tpch::generate(&folder, scale, &mut |_| {}).unwrap();
    folder
}

/// An executed query.
#[derive(Debug)]
pub struct Run {
    pub rows: Rows,
    pub report: QueryReport,
}

pub async fn plan(context: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    context
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap()
}

pub async fn run(context: &SessionContext, sql: &str) -> Run {
    let plan = plan(context, sql).await;
    run_plan(context, sql, plan).await
}

pub async fn run_plan(context: &SessionContext, sql: &str, plan: Arc<dyn ExecutionPlan>) -> Run {
    let start = Instant::now();
    let (rows, elapsed) = rows_of(context, sql, &plan).await;
    // On a loaded machine the metrics of a task may come later than a report waits by itself.
    loop {
        match query_report(&plan, sql, rows.0.len(), elapsed).await {
            Ok(report) => return Run { rows, report },
            Err(error) => assert!(start.elapsed() < HANG, "{error}: {sql}"),
        }
    }
}

/// The rows of an executed plan, and how long they took.
pub async fn rows_of(
    context: &SessionContext,
    sql: &str,
    plan: &Arc<dyn ExecutionPlan>,
) -> (Rows, Duration) {
    let start = Instant::now();
    let batches = tokio::time::timeout(HANG, collect(Arc::clone(plan), context.task_ctx()))
        .await
        .unwrap_or_else(|_| panic!("hangs: {sql}"))
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
    (Rows::new(&batches), start.elapsed())
}

/// Rows as a multiset. Sums of floats arrive in any order, so floats are compared
/// with a tolerance.
#[derive(Debug, Clone)]
pub struct Rows(pub Vec<Vec<Cell>>);

#[derive(Debug, Clone)]
pub enum Cell {
    Text(String),
    Float(f64),
}

impl Cell {
    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => {
                a.to_bits() == b.to_bits() || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
            }
            _ => false,
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Float(value) => format!("{value:.4e}"),
        }
    }
}

impl Rows {
    pub fn new(batches: &[RecordBatch]) -> Self {
        let options = FormatOptions::new().with_null("NULL");
        let mut rows: Vec<Vec<Cell>> = vec![];
        for batch in batches {
            let formatters: Vec<_> = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
                .collect();
            for row in 0..batch.num_rows() {
                let cell = |(column, formatter): (&arrow::array::ArrayRef, &ArrayFormatter<'_>)| {
                    match column.data_type() {
                        DataType::Float64 if column.is_valid(row) => {
                            Cell::Float(column.as_primitive::<Float64Type>().value(row))
                        }
                        DataType::Float32 if column.is_valid(row) => {
                            Cell::Float(column.as_primitive::<Float32Type>().value(row).into())
                        }
                        _ => Cell::Text(formatter.value(row).to_string()),
                    }
                };
                rows.push(batch.columns().iter().zip(&formatters).map(cell).collect());
            }
        }
        rows.sort_by_cached_key(|row| row.iter().map(Cell::key).collect::<Vec<_>>());
        Self(rows)
    }

    #[track_caller]
    pub fn assert_same(&self, oracle: &Self, what: &str) {
        assert_eq!(self.0.len(), oracle.0.len(), "number of rows: {what}");
        for (ours, theirs) in self.0.iter().zip(&oracle.0) {
            let same =
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.matches(b));
            assert!(
                same,
                "{what}\n  with filters    {ours:?}\n  without filters {theirs:?}"
            );
        }
    }

    /// A single number, for hand-computed values.
    #[track_caller]
    pub fn number(&self) -> i64 {
        match self.0.as_slice() {
            [row] => match row.as_slice() {
                [Cell::Text(text)] => text.parse().unwrap(),
                row => panic!("not one number: {row:?}"),
            },
            rows => panic!("not one row: {rows:?}"),
        }
    }
}
