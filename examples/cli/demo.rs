//! What runtime filters save, on three joins of TPC-H.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;
use runtime_filter_tpch::DataFolder;

use crate::cluster::{Cluster, Session};
use crate::compare;
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::run;

/// The three queries, each with the reason why a filter pays.
const QUERIES: [(u8, &str); 3] = [
    (
        17,
        "parts of one brand and container that sell in small lots: few parts, lineitem read twice",
    ),
    (
        18,
        "customers with the largest orders: few orders, joined with customer, orders and lineitem",
    ),
    (
        20,
        "suppliers with too many of some parts in stock: few parts, joined with partsupp and lineitem",
    ),
];

/// A single measurement of a short query is mostly noise.
const RUNS: usize = 3;

const LEGEND: &str = "
shuffled        bytes sent between workers, with filters off and on
filter traffic  bytes of the filters themselves, to and from the coordinator
saved           share of all these bytes that filters saved
rows dropped    rows of the large side that were dropped before they were shuffled
time            median of three runs, after one that does not count
same rows       whether both runs returned the same rows
";

pub(crate) async fn run(
    session: &Session,
    cluster: &Cluster,
    tpch: &DataFolder,
    output: &mut Output,
) -> Result<()> {
    output::emit(&format!(
        "{}, TPC-H scale {} ({} as Parquet in {})\n\n",
        cluster.describe(),
        tpch.scale(),
        output::bytes(tpch.bytes()),
        tpch.dir().display(),
    ))?;
    for (number, what) in QUERIES {
        output::emit(&format!("{:<4} {what}\n", format!("Q{number}")))?;
    }
    output::emit("\n")?;

    // Draws nothing unless standard error is a terminal.
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(100));
    let mut comparisons = Vec::new();
    for (number, _) in QUERIES {
        spinner.set_message(format!("running Q{number} with filters off and on"));
        let text = runtime_filter_tpch::query(number)
            .ok_or_else(|| CliError::failed(format!("there is no TPC-H query {number}")))?;
        for query in session.parse(text)? {
            run::interruptible(compare::warm_up(session, &query)).await?;
            let label = format!("Q{number}");
            let comparison = compare::compare(session, &query, label, RUNS, output);
            comparisons.push(run::interruptible(comparison).await?);
        }
    }
    spinner.finish_and_clear();
    compare::print_table(&comparisons)?;
    output::emit(LEGEND)?;
    if !std::io::stdin().is_terminal() {
        output::emit("\nRun this in a terminal for a prompt, or see --help for more.\n")?;
    }
    compare::conclude(&comparisons)
}
