//! Runs the exchange over a network that fails, seed after seed, and prints the totals.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use runtime_filter_faults::{run_many, simulation};

/// Network faults between the real ends of the exchange, on a simulated network and clock.
#[derive(Debug, Parser)]
struct Args {
    /// Simulations
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,

    /// Seed of the first one; the n-th after it has a seed larger by n
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Only print what is drawn from the first seed, and what came of it
    #[arg(long)]
    explain: bool,

    /// Threads
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    threads: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let begin = Instant::now();
    let report = if args.explain {
        println!("{:#?}", runtime_filter_faults::Plan::draw(args.first));
        simulation::run(args.first)
    } else {
        let last = args.first.saturating_add(args.seeds);
        println!("seeds {}..{last}", args.first);
        run_many(args.first..last, args.threads, |runs| {
            if runs % 5_000 == 0 {
                eprintln!("{runs} runs in {:.0} s", begin.elapsed().as_secs_f64());
            }
        })
    };
    print!("{report}");
    println!("{:.1} s", begin.elapsed().as_secs_f64());
    match report.is_clean() && report.runs > 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
