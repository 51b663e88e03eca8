//! Whether any other filter size moves fewer bytes than the one chosen.
//!
//!     cargo run --release -p runtime-filter-bench -- regret --scale 1
//!
//! Every query runs with `target_fpp = auto`, and with each form of a sweep forced on its filters: on
//! all at once, and with `--per-filter` on one while the others stay automatic. Bytes are those of the
//! shuffle and of the filter exchange together, medians of `--repeats` interleaved runs.
//!
//! Runs of one query differ, because the engine routes rows as they come, and the least of many medians
//! is less than any of them is on average. So the best form of the sweep is run again, interleaved with
//! the automatic one, and the regret is taken from these runs alone.

use datafusion::prelude::SessionContext;

use crate::Result;
use crate::cluster::{Cluster, ClusterArgs, query, run, set};

/// The sweep: false positive shares, the list of the keys, no filter at all.
const FORMS: [&str; 12] = [
    "0.5", "0.3", "0.1", "0.05", "0.02", "0.01", "0.005", "0.002", "0.001", "0.0001", "keys",
    "nothing",
];
const AUTO: &str = "";

#[derive(Debug, clap::Args)]
pub(crate) struct RegretArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Runs of each form of the sweep.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Runs of the best form and of the automatic one, to compare them.
    #[arg(long, default_value_t = 9)]
    confirm: usize,
    /// Also change the form of one filter at a time.
    #[arg(long)]
    per_filter: bool,
    /// Greatest regret that passes, in per cent.
    #[arg(long, default_value_t = 5.0)]
    bar: f64,
    /// The median of every form of the sweep as well.
    #[arg(long)]
    verbose: bool,
}

/// Bytes of the runs of one form.
#[derive(Debug, Clone)]
struct Samples {
    form: String,
    bytes: Vec<u64>,
}

impl Samples {
    fn new(form: impl Into<String>) -> Self {
        Self {
            form: form.into(),
            bytes: vec![],
        }
    }

    fn median(&self) -> f64 {
        let mut sorted = self.bytes.clone();
        sorted.sort_unstable();
        let at = |i: usize| sorted.get(i).copied().unwrap_or(0) as f64;
        (at((sorted.len().max(1) - 1) / 2) + at(sorted.len() / 2)) / 2.0
    }

    /// Greatest less least, as a share of the median.
    fn spread(&self) -> f64 {
        let (least, most) = (self.bytes.iter().min(), self.bytes.iter().max());
        match (least, most) {
            (Some(least), Some(most)) => (most - least) as f64 / self.median().max(1.0),
            _ => 0.0,
        }
    }

    fn name(&self) -> &str {
        if self.form == AUTO {
            "auto"
        } else {
            &self.form
        }
    }
}

/// Whether no query regrets more than the bar.
pub(crate) async fn bench(args: RegretArgs) -> Result<bool> {
    let cluster = Cluster::start(&args.cluster).await?;
    let session = cluster.session(true).await?;
    println!(
        "{:>5} {:>10} {:>7} {:>12} {:>10} {:>7} {:>8}   {:>10} {:>8}",
        "query",
        "auto MB",
        "spread",
        "best form",
        "best MB",
        "spread",
        "regret",
        "nothing MB",
        "wrong"
    );
    let mut worst: f64 = 0.0;
    for number in &args.cluster.queries {
        let sql = query(*number)?;
        set(&session, "runtime_filter.forced_sizes", AUTO)?;
        let first = run(&session, sql).await?;
        if first.report.filters.is_empty() {
            println!("{:>5} no filter, so nothing to size", format!("Q{number}"));
            continue;
        }
        let mut forms: Vec<Samples> = vec![Samples::new(AUTO)];
        forms.extend(FORMS.iter().map(|form| Samples::new(format!("*={form}"))));
        if args.per_filter && first.report.filters.len() > 1 {
            for filter in &first.report.filters {
                forms.extend(FORMS.map(|form| Samples::new(format!("{}={form}", filter.id))));
            }
        }
        let mut differing = 0;
        for _ in 0..args.repeats.max(1) {
            for form in &mut forms {
                differing += u32::from(sample(&session, sql, form).await? != first.rows);
            }
        }
        let (automatic, sweep) = forms.split_first().ok_or("no form")?;
        let best = sweep
            .iter()
            .min_by(|a, b| a.median().total_cmp(&b.median()))
            .ok_or("no form")?;
        let nothing = sweep.iter().find(|form| form.form == "*=nothing");
        let mut pair = [Samples::new(AUTO), Samples::new(best.form.clone())];
        for _ in 0..args.confirm.max(1) {
            for form in &mut pair {
                differing += u32::from(sample(&session, sql, form).await? != first.rows);
            }
        }
        let [auto, best] = &pair;
        let regret = 100.0 * (auto.median() / best.median().max(1.0) - 1.0);
        worst = worst.max(regret);
        println!(
            "{:>5} {:>10.3} {:>6.1}% {:>12} {:>10.3} {:>6.1}% {:>7.2}%   {:>10.3} {:>8}",
            format!("Q{number}"),
            auto.median() / 1e6,
            100.0 * auto.spread(),
            best.name(),
            best.median() / 1e6,
            100.0 * best.spread(),
            regret,
            nothing.map_or(0.0, Samples::median) / 1e6,
            differing,
        );
        if args.verbose {
            for form in std::iter::once(automatic).chain(sweep) {
                println!(
                    "      {:>12} {:>10.3} {:>6.1}%",
                    form.name(),
                    form.median() / 1e6,
                    100.0 * form.spread()
                );
            }
            println!("{}", first.report.to_json());
        }
        if differing > 0 {
            return Err(format!("{differing} runs of Q{number} gave other rows").into());
        }
    }
    cluster.stop().await?;
    println!(
        "greatest regret {worst:.2} % (bar {} %)\n\
         auto, best: median bytes of {} interleaved runs each, shuffle and filter messages; best form: of the\n\
         sweep's medians ({} runs each), `filter=form`; spread: greatest less least of the runs; nothing:\n\
         median with every filter withheld; wrong: runs with another result",
        args.bar,
        args.confirm.max(1),
        args.repeats.max(1)
    );
    Ok(worst <= args.bar)
}

/// One more run of `form`. Returns its rows.
async fn sample(session: &SessionContext, sql: &str, form: &mut Samples) -> Result<Vec<String>> {
    set(session, "runtime_filter.forced_sizes", &form.form)?;
    let run = run(session, sql).await?;
    form.bytes.push(run.report.total_bytes());
    Ok(run.rows)
}
