//! Benchmarks of runtime filters on a cluster.
//!
//! | module | measures |
//! |---|---|
//! | `savings` (no subcommand) | shuffle bytes that filters save on TPC-H |
//! | `regret` | the filter sizes chosen against every other size |
//! | `planning` | the time that placing filters adds to planning |
//! | `cluster` | nothing: workers on loopback, sessions and runs for the first two |

mod cluster;
mod planning;
mod regret;
mod savings;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Shuffle bytes that runtime filters save on TPC-H.
#[derive(Debug, Parser)]
#[command(
    name = "runtime-filter-bench",
    version,
    args_conflicts_with_subcommands = true
)]
struct Args {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    #[command(flatten)]
    savings: savings::SavingsArgs,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Whether any other filter size moves fewer bytes than the one chosen.
    Regret(regret::RegretArgs),
    /// The time that placing filters adds to planning a query of 30 joins.
    Planning(planning::PlanningArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let passed = match args.benchmark {
        None => savings::bench(args.savings).await,
        Some(Benchmark::Regret(args)) => regret::bench(args).await,
        Some(Benchmark::Planning(args)) => planning::bench(args).await,
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("runtime-filter-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
