//! Explores every state of the exchange in small clusters and prints how many there are.

use std::process::ExitCode;

use clap::Parser;
use runtime_filter_model::{Scenario, check};

/// Model checker of the exchange: every order of events in small clusters.
#[derive(Debug, Parser)]
struct Args {
    /// Only the scenario of this name
    #[arg(long)]
    scenario: Option<String>,

    /// Only those that every change is tested with
    #[arg(long, conflicts_with = "scenario")]
    quick: bool,

    /// Print the scenarios and end
    #[arg(long)]
    list: bool,

    /// Threads that explore
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    threads: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scenarios = match (&args.scenario, args.quick) {
        (Some(name), _) => match Scenario::named(name) {
            Some(scenario) => vec![scenario],
            None => {
                eprintln!("error: there is no scenario '{name}'; --list prints their names");
                return ExitCode::from(2);
            }
        },
        (None, true) => Scenario::quick(),
        (None, false) => Scenario::all(),
    };
    if args.list {
        for scenario in scenarios {
            println!("{}", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    let (mut states, mut steps, mut broken, mut reasons) = (0, 0, 0, Vec::new());
    for scenario in &scenarios {
        let outcome = check(scenario, args.threads.max(1));
        println!(
            "{:>11} states {:>12} steps {:>3} events deep {:>7.1} s  {}",
            outcome.states,
            outcome.steps,
            outcome.depth,
            outcome.elapsed.as_secs_f64(),
            scenario.name,
        );
        for (rule, events) in &outcome.broken {
            println!("  BROKEN: {rule}");
            for event in events {
                println!("    {event}");
            }
        }
        states += outcome.states;
        steps += outcome.steps;
        broken += outcome.broken.len();
        reasons.extend(outcome.reasons_told);
    }
    reasons.sort();
    reasons.dedup();
    println!("{states} states, {steps} steps, {broken} rules broken");
    println!("probes were told a filter, or to pass all because:");
    for reason in reasons {
        println!("  {reason}");
    }
    match broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
