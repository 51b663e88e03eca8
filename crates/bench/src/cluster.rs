//! Workers on loopback ports of this process, sessions that use them, and runs of TPC-H queries.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    QueryReport, RunningWorker, RuntimeFilterOptions, RuntimeFilterRule, RuntimeFilterSessionExt,
    WorkerServer, Workers, query_report,
};

use crate::Result;

/// What data is queried, and by how many workers.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// TPC-H scale factor; 1 is about 1 GB of raw data.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Workers on loopback ports of this process.
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
    /// TPC-H queries to run.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2,3,4,5,7,8,9,12,13,14,17,18,20,21,22"
    )]
    pub(crate) queries: Vec<u8>,
    /// Folder of the data; generated there if it is empty.
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Setting of every session, such as datafusion.optimizer.hash_join_single_partition_threshold=0.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
}

/// The data and the workers.
pub(crate) struct Cluster {
    folder: PathBuf,
    /// None where everything runs in this process.
    workers: Option<Vec<RunningWorker>>,
    partitions: usize,
    settings: Vec<String>,
}

/// One run of a query.
pub(crate) struct Run {
    pub(crate) report: QueryReport,
    /// The result as text, sorted.
    pub(crate) rows: Vec<String>,
}

impl Cluster {
    /// Generates the data, unless it is there, and starts the workers.
    pub(crate) async fn start(args: &ClusterArgs) -> Result<Self> {
        let mut cluster = Self::in_process(args)?;
        let mut workers = vec![];
        for _ in 0..args.workers {
            workers.push(WorkerServer::bind(([127, 0, 0, 1], 0).into()).await?);
        }
        cluster.workers = Some(workers);
        Ok(cluster)
    }

    /// Generates the data, unless it is there. Sessions are DataFusion's own, without workers.
    pub(crate) fn in_process(args: &ClusterArgs) -> Result<Self> {
        let folder = args.data.clone().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("runtime-filter-bench-tpch-{}", args.scale))
        });
        eprintln!("TPC-H at scale {} in {}", args.scale, folder.display());
        runtime_filter_tpch::generate(&folder, args.scale, &mut |_| {})?;
        Ok(Self {
            folder,
            workers: None,
            partitions: args.workers.max(1),
            settings: args.settings.clone(),
        })
    }

    /// A session on the cluster or in this process, with runtime filters or without.
    pub(crate) async fn session(&self, filters: bool) -> Result<SessionContext> {
        let mut options = RuntimeFilterOptions::default();
        options.enabled = filters;
        let config = SessionConfig::new().with_target_partitions(self.partitions);
        let builder = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config);
        let state = match &self.workers {
            None if !filters => builder,
            None => builder.with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::new(options))),
            Some(workers) => {
                let urls: Vec<_> = workers.iter().map(RunningWorker::url).collect();
                builder
                    .with_distributed_worker_resolver(Workers::try_new(urls)?)
                    .with_distributed_file_scan_config_bytes_per_partition(1)?
                    .with_distributed_planner()
                    .with_runtime_filters(options)
            }
        }
        .build();
        let context = SessionContext::new_with_state(state);
        for setting in &self.settings {
            let (key, value) = setting
                .split_once('=')
                .ok_or(format!("--set takes KEY=VALUE, not '{setting}'"))?;
            set(&context, key, value)?;
        }
        for table in runtime_filter_tpch::TABLES {
            let path = self.folder.join(format!("{table}.parquet"));
            let path = path.to_str().ok_or("the data folder's name is not UTF-8")?;
            context
                .register_parquet(table, path, ParquetReadOptions::default())
                .await?;
        }
        Ok(context)
    }

    /// Stops the workers.
    pub(crate) async fn stop(self) -> Result<()> {
        for worker in self.workers.into_iter().flatten() {
            worker.shutdown().await?;
        }
        Ok(())
    }
}

/// Sets an option of a session, as SQL's `SET` does.
pub(crate) fn set(context: &SessionContext, key: &str, value: &str) -> Result<()> {
    let state = context.state_ref();
    state.write().config_mut().options_mut().set(key, value)?;
    Ok(())
}

/// The text of a TPC-H query.
pub(crate) fn query(number: u8) -> Result<&'static str> {
    Ok(runtime_filter_tpch::query(number).ok_or(format!("TPC-H has no query {number}"))?)
}

/// Runs a query. Time counts planning and execution.
pub(crate) async fn run(context: &SessionContext, sql: &str) -> Result<Run> {
    let start = Instant::now();
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let elapsed = start.elapsed();
    let rows = rows(&batches)?;
    let report = query_report(&plan, sql, rows.len(), elapsed).await?;
    Ok(Run { report, rows })
}

/// Rows as text, sorted; floats to 7 digits, since their sums arrive in any order.
fn rows(batches: &[RecordBatch]) -> Result<Vec<String>> {
    use datafusion::arrow::array::AsArray;
    use datafusion::arrow::datatypes::{DataType, Float64Type};
    use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
    let mut rows = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let mut text = String::new();
            for column in batch.columns() {
                match column.data_type() {
                    DataType::Float64 => {
                        text +=
                            &format!("{:.6e}|", column.as_primitive::<Float64Type>().value(row));
                    }
                    _ => {
                        let format = ArrayFormatter::try_new(column, &FormatOptions::default())?;
                        text += &format!("{}|", format.value(row));
                    }
                }
            }
            rows.push(text);
        }
    }
    rows.sort_unstable();
    Ok(rows)
}
