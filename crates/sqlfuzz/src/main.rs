//! Runs random queries with filters on and off, from a seed.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use runtime_filter_sqlfuzz::case::Case;
use runtime_filter_sqlfuzz::tape::Tape;
use runtime_filter_sqlfuzz::{Error, Fuzzer, Outcome};

/// Random queries over random data, with filters on and off.
#[derive(Debug, Parser)]
#[command(name = "runtime-filter-sqlfuzz", version)]
struct Args {
    /// Queries to run, one a seed.
    #[arg(long, default_value_t = 20_000)]
    queries: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers of the cluster, in this process.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Print why queries fail without filters, too.
    #[arg(long)]
    verbose: bool,
    /// Only print the case of the first seed.
    #[arg(long)]
    show: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match fuzz(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("runtime-filter-sqlfuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn fuzz(args: Args) -> Result<bool, Error> {
    if args.show {
        println!("{}", Case::of(&mut Tape::of_seed(args.seed))?);
        return Ok(true);
    }
    let folder =
        std::env::temp_dir().join(format!("runtime-filter-sqlfuzz-{}", std::process::id()));
    let fuzzer = Fuzzer::new(args.workers.into(), folder.clone()).await?;
    let run = fuzzer
        .run(args.seed, args.queries, &mut |seed, totals, outcome| {
            match outcome {
                Outcome::Broken(case) => {
                    println!("== seed {seed} is broken; at its smallest:\n{case}");
                }
                Outcome::Refused(why) if args.verbose => println!("== seed {seed}: {why}"),
                _ => {}
            }
            if totals.cases % 1000 == 0 {
                println!("{totals}");
                let _ = std::io::stdout().flush();
            }
        })
        .await;
    let _ = std::fs::remove_dir_all(&folder);
    let totals = run?;
    println!("from seed {}: {totals}", args.seed);
    Ok(totals.broken == 0 && totals.left == 0)
}
