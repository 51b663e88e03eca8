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

use crate::Result;
use crate::cluster::{Cluster, ClusterArgs, Run, query, run};

#[derive(Debug, clap::Args)]
pub(crate) struct SavingsArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Runs of each query, off and on.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// No cluster: all in this process, DataFusion's defaults without and with the rule.
    #[arg(long)]
    in_process: bool,
    /// The reports of the filtered runs as well.
    #[arg(long)]
    verbose: bool,
    /// The median reports as JSON, a line each: off, then on.
    #[arg(long)]
    json: bool,
}

/// Whether every result was the same off and on.
pub(crate) async fn bench(args: SavingsArgs) -> Result<bool> {
    let cluster = match args.in_process {
        true => Cluster::in_process(&args.cluster)?,
        false => Cluster::start(&args.cluster).await?,
    };
    let off = cluster.session(false).await?;
    let on = cluster.session(true).await?;

    let mut table = Table::default();
    for number in &args.cluster.queries {
        let sql = query(*number)?;
        let mut runs: [Vec<Run>; 2] = [vec![], vec![]];
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
            println!("{}\n{}", off.report.to_json(), on.report.to_json());
        } else {
            table.row(*number, &off, &on);
            if args.verbose {
                println!("{}", on.report);
            }
        }
    }
    if !args.json {
        table.total();
    }
    cluster.stop().await?;
    Ok(table.differing == 0)
}

/// The run of median time.
fn median(mut runs: Vec<Run>) -> Option<Run> {
    runs.sort_by(|a, b| a.report.elapsed_ms.total_cmp(&b.report.elapsed_ms));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
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
    fn row(&mut self, number: u8, off: &Run, on: &Run) {
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
        let (same, off, on) = (off.rows == on.rows, &off.report, &on.report);
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
