//! Sizes filters, fills them, and shows whether the formulas hold.
//!
//! ```sh
//! cargo run --release --example bloom_lab -- --items 100000 --fpp 0.01
//! ```

mod args;
mod measure;
mod plot;
mod report;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use runtime_filter_lab::ClassicBloom;

use crate::args::Args;
use crate::measure::{Kind, Lab, Run, Target};

/// The example that everybody quotes: 0.82 %, and 13.8 % when overfilled twice.
const QUOTED_BITS_PER_KEY: f64 = 10.0;

/// The sweep is about bits a key. How many keys changes nothing but the time it takes.
const MAX_SWEEP_ITEMS: u64 = 100_000;

/// At a fraction of a bit a key, filters fit in memory for any number of keys; filling them would not
/// end.
const MAX_KEYS: f64 = 4e9;

fn main() -> ExitCode {
    match run(&Args::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let target = args.target();
    let sizing = target.sizing(args.items)?;
    report::sizing(out, &sizing, target)?;
    if !args.no_plot {
        plot::check_file(&args.out)?;
    }
    // Without the simplest of them there is nothing to compare with.
    drop(ClassicBloom::new(sizing)?);
    if args.items as f64 * args.overfill > MAX_KEYS {
        return Err("filling that many keys would take hours; lower --items or --overfill".into());
    }

    let lab = Lab::new(args.probes, args.seed);
    report::fill_heading(out, args.probes)?;
    let mut runs = Vec::new();
    for kind in Kind::ALL {
        let run = lab.fill(kind, args.items, target, args.overfill);
        report::fill_row(out, kind, &run)?;
        runs.push((kind, run));
    }

    report::fill_legend(out, &sizing)?;

    // At 1 it would be the same table again.
    if args.overfill > 1.0 {
        report::overfill_heading(out, args.overfill)?;
        for (kind, run) in &runs {
            report::overfill_row(out, kind.name(), run)?;
        }
    }
    if args.overfill > 1.0 && sizing.bits_per_key() != QUOTED_BITS_PER_KEY {
        let target = Target::BitsPerKey(QUOTED_BITS_PER_KEY);
        let run = lab.fill(Kind::Classic, args.items, target, args.overfill);
        report::overfill_row(out, "classic, 10 bits", &run)?;
    }

    report::stopped(out, &runs)?;

    let items = args.items.min(MAX_SWEEP_ITEMS);
    report::sweep_heading(out, items)?;
    let mut sweep = Vec::new();
    for bits_per_key in args.sweep.bits() {
        let row = Kind::ALL.map(|kind| lab.full(kind, items, bits_per_key));
        report::sweep_row(out, bits_per_key, &row)?;
        sweep.push(row);
    }
    report::sweep_legend(out, sweep.iter().flatten().flatten())?;

    if !args.no_plot {
        let runs: Vec<(Kind, Run)> = runs
            .into_iter()
            .filter_map(|(kind, run)| Some((kind, run.ok()?)))
            .collect();
        let curves = Kind::ALL.map(|kind| measure::formula(kind, items, &args.sweep));
        plot::write(
            &args.out,
            &plot::Plot {
                args,
                items,
                curves: &curves,
                sweep: &sweep,
                runs: &runs,
            },
        )?;
        writeln!(out, "\nplot: {}", args.out.display())?;
    }
    Ok(())
}

/// Whether whoever reads the output has gone, as `head` does.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
