//! Shuffle bytes that runtime filters save on TPC-H, filters off and on in one run.
//!
//!     cargo run --release -p runtime-filter-bench -- --scale 1
//!
//! Bytes are those that cross the network boundaries of the engine between workers
//! on loopback, encoded (`wire`), plus all messages of the filter exchange
//! (`filters`). Off and on are interleaved; times are medians of `--repeats`, bytes those of the run
//! with the median time.
//!
//! With `--in-process` there is no cluster: DataFusion's defaults against the same with the rule alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    QueryReport, RuntimeFilterOptions, RuntimeFilterRule, RuntimeFilterSessionExt, WorkerServer,
    Workers, query_report,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Shuffle bytes that runtime filters save on TPC-H.
#[derive(Debug, Parser)]
#[command(name = "runtime-filter-bench", version)]
struct Args {
    /// TPC-H scale factor; 1 is about 1 GB of raw data.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Workers on loopback ports of this process.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// TPC-H queries to run.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2,3,4,5,7,8,9,12,13,14,17,18,20,21,22"
    )]
    queries: Vec<u8>,
    /// Runs of each query, off and on.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// No cluster: all in this process, DataFusion's defaults without and with the rule.
    #[arg(long)]
    in_process: bool,
    /// Folder of the data; generated there if it is empty.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Setting for both sides, such as datafusion.optimizer.hash_join_single_partition_threshold=0.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The reports of the filtered runs as well.
    #[arg(long)]
    verbose: bool,
    /// The best reports as JSON, a line each: off, then on.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("runtime-filter-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(args: Args) -> Result<bool> {
    let folder = args.data.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("runtime-filter-bench-tpch-{}", args.scale))
    });
    eprintln!("TPC-H at scale {} in {}", args.scale, folder.display());
    runtime_filter_tpch::generate(&folder, args.scale, &mut |_| {})?;
    let mut workers = vec![];
    for _ in 0..if args.in_process { 0 } else { args.workers } {
        workers.push(WorkerServer::bind(([127, 0, 0, 1], 0).into()).await?);
    }
    let urls: Vec<_> = workers.iter().map(|worker| worker.url()).collect();
    let off = session(&args, &urls, &folder, false).await?;
    let on = session(&args, &urls, &folder, true).await?;

    let mut table = Table::default();
    for number in &args.queries {
        let sql =
            runtime_filter_tpch::query(*number).ok_or(format!("TPC-H has no query {number}"))?;
        let mut runs: [Vec<(QueryReport, Vec<String>)>; 2] = [vec![], vec![]];
        for repeat in 0..args.repeats.max(1) {
            // Whoever comes second finds caches warmer: take turns.
            for side in [repeat % 2, 1 - repeat % 2] {
                let context = [&off, &on][side];
                runs[side].push(run(context, sql).await?);
            }
        }
        let [Some(off), Some(on)] = runs.map(median) else {
            return Err("no run".into());
        };
        if args.json {
            println!("{}\n{}", off.0.to_json(), on.0.to_json());
        } else {
            table.row(*number, &off, &on);
            if args.verbose {
                println!("{}", on.0);
            }
        }
    }
    if !args.json {
        table.total();
    }
    for worker in workers {
        worker.shutdown().await?;
    }
    Ok(table.differing == 0)
}

/// The run of median time.
fn median(mut runs: Vec<(QueryReport, Vec<String>)>) -> Option<(QueryReport, Vec<String>)> {
    runs.sort_by(|(a, _), (b, _)| a.elapsed_ms.total_cmp(&b.elapsed_ms));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
}

async fn session(
    args: &Args,
    urls: &[String],
    folder: &std::path::Path,
    filters: bool,
) -> Result<SessionContext> {
    let mut options = RuntimeFilterOptions::default();
    options.enabled = filters;
    let partitions = args.workers.max(1);
    let builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(partitions));
    let state = match (args.in_process, filters) {
        (true, false) => builder.build(),
        (true, true) => builder
            .with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::new(options)))
            .build(),
        (false, _) => builder
            .with_distributed_worker_resolver(Workers::try_new(urls)?)
            .with_distributed_file_scan_config_bytes_per_partition(1)?
            .with_distributed_planner()
            .with_runtime_filters(options)
            .build(),
    };
    let context = SessionContext::new_with_state(state);
    for setting in &args.settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or(format!("--set takes KEY=VALUE, not '{setting}'"))?;
        context
            .state_ref()
            .write()
            .config_mut()
            .options_mut()
            .set(key, value)?;
    }
    for table in runtime_filter_tpch::TABLES {
        let path = folder.join(format!("{table}.parquet"));
        let path = path.to_str().ok_or("the data folder's name is not UTF-8")?;
        context
            .register_parquet(table, path, ParquetReadOptions::default())
            .await?;
    }
    Ok(context)
}

async fn run(context: &SessionContext, sql: &str) -> Result<(QueryReport, Vec<String>)> {
    let start = Instant::now();
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let elapsed = start.elapsed();
    let rows = rows(&batches)?;
    Ok((query_report(&plan, sql, rows.len(), elapsed).await?, rows))
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

/// 100 where nothing is sent at all.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 100.0;
    }
    100.0 * part as f64 / whole as f64
}

#[derive(Default)]
struct Table {
    off_bytes: u64,
    on_wire: u64,
    on_filters: u64,
    off_ms: f64,
    on_ms: f64,
    log_ratio: f64,
    queries: u32,
    differing: u32,
}

impl Table {
    fn row(
        &mut self,
        number: u8,
        off: &(QueryReport, Vec<String>),
        on: &(QueryReport, Vec<String>),
    ) {
        if self.queries == 0 {
            println!(
                "{:>5} {:>10} {:>10} {:>10} {:>7} {:>11} {:>9} {:>8} {:>8} {:>6}  rows",
                "query",
                "off MB",
                "on MB",
                "filters MB",
                "left",
                "dropped",
                "early",
                "off ms",
                "on ms",
                "ratio"
            );
        }
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let (same, off, on) = (off.1 == on.1, &off.0, &on.0);
        let filters = on.filter_traffic.bytes_up + on.filter_traffic.bytes_down;
        let early: u64 = on
            .filters
            .iter()
            .map(|f| f.probe.polls_before_verdict)
            .sum();
        let polls: u64 = on.filters.iter().map(|f| f.probe.first_polls).sum();
        println!(
            "{:>5} {:>10.2} {:>10.2} {:>10.3} {:>6.1}% {:>11} {:>9} {:>8.0} {:>8.0} {:>6.2}  {}",
            format!("Q{number}"),
            mb(off.total_bytes()),
            mb(on.shuffle.bytes),
            mb(filters),
            percent(on.total_bytes(), off.total_bytes()),
            on.rows_dropped(),
            format!("{early}/{polls}"),
            off.elapsed_ms,
            on.elapsed_ms,
            on.elapsed_ms / off.elapsed_ms,
            if same { "equal" } else { "DIFFERENT" },
        );
        self.off_bytes += off.total_bytes();
        self.on_wire += on.shuffle.bytes;
        self.on_filters += filters;
        self.off_ms += off.elapsed_ms;
        self.on_ms += on.elapsed_ms;
        self.log_ratio += (on.elapsed_ms / off.elapsed_ms).ln();
        self.queries += 1;
        self.differing += u32::from(!same);
    }

    fn total(&self) {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "total {:>10.2} {:>10.2} {:>10.3} {:>6.1}% {:>11} {:>9} {:>8.0} {:>8.0} {:>6.2}  geometric mean of ratios {:.3}",
            mb(self.off_bytes),
            mb(self.on_wire),
            mb(self.on_filters),
            percent(self.on_wire + self.on_filters, self.off_bytes),
            "",
            "",
            self.off_ms,
            self.on_ms,
            self.on_ms / self.off_ms,
            (self.log_ratio / f64::from(self.queries.max(1))).exp(),
        );
        println!(
            "off MB: wire bytes with filters off; on MB: with filters; filters MB: all messages of the exchange;\n\
             left: (on + filters) / off; early: probe partitions polled before the verdict / all"
        );
    }
}
