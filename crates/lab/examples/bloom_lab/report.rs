//! What is printed.

use std::io::{self, Write};

use runtime_filter_lab::Sizing;

use crate::measure::{Kind, Run, SCALABLE_STARTS_AT, Sample, Target};

/// What double hashing adds to the FPP, times m: see `ClassicBloom`.
const DOUBLE_HASHING_EXCESS: f64 = 1.5;

/// With fewer keys filters have few blocks or buckets.
const FEW_KEYS: u64 = 1000;

/// Share of the expected FPP from which on that is told.
const NOTEWORTHY: f64 = 0.05;

pub(crate) fn sizing(out: &mut impl Write, sizing: &Sizing, target: Target) -> io::Result<()> {
    let items = counted(sizing.items(), "key");
    writeln!(out, "Bloom filter for {items}, {target}")?;
    let bits = counted(sizing.bits(), "bit");
    let (bits_per_key, bytes) = (sizing.bits_per_key(), bytes(sizing.byte_len()));
    writeln!(out, "  m             {bits}, {bits_per_key:.2} a key")?;
    writeln!(out, "  k             {}", sizing.hashes())?;
    writeln!(out, "  memory        {bytes}")?;
    writeln!(
        out,
        "  expected FPP  {} %",
        digits(sizing.expected_fpp() * 100.0, 4)
    )?;
    out.flush()
}

pub(crate) fn fill_heading(out: &mut impl Write, probes: u64) -> io::Result<()> {
    writeln!(
        out,
        "\nFilters for the same, measured with {}\n",
        counted(probes, "absent key")
    )?;
    writeln!(
        out,
        "{:<17}{:>10}  {:<14}{:>10}{:>11}   measured / expected",
        "filter", "bits a key", "shape", "expected", "measured"
    )?;
    out.flush()
}

pub(crate) fn fill_row(
    out: &mut impl Write,
    kind: Kind,
    run: &Result<Run, String>,
) -> io::Result<()> {
    write!(out, "{:<17}", kind.name())?;
    match run {
        Ok(Run { full, .. }) => writeln!(
            out,
            "{:>10.2}  {:<14}{:>10}{:>11}   {}",
            full.bits_per_key,
            full.shape,
            percent(full.expected),
            measured(full),
            ratio(full)
        )?,
        Err(why) => writeln!(out, "  {why}")?,
    }
    out.flush()
}

pub(crate) fn fill_legend(out: &mut impl Write, sizing: &Sizing) -> io::Result<()> {
    writeln!(
        out,
        "
counting  4 bits a counter
scalable  starts with room for a {SCALABLE_STARTS_AT}th of the keys
±         one standard deviation, from the number of lookups; with few keys, which bits they
          happen to share matters more"
    )?;
    let excess = DOUBLE_HASHING_EXCESS / sizing.bits() as f64;
    if excess > NOTEWORTHY * sizing.expected_fpp() {
        writeln!(
            out,
            "
The formula does not hold for so small a filter: double hashing adds up to about 1.5/m,
here {}, in classic and counting filters.",
            percent(excess)
        )?;
    }
    if sizing.items() < FEW_KEYS {
        writeln!(
            out,
            "
The formulas of split block and cuckoo are for many blocks or buckets: with only {}
they can be off by half and more, mostly to the larger side.",
            counted(sizing.items(), "key")
        )?;
    }
    Ok(())
}

pub(crate) fn overfill_heading(out: &mut impl Write, overfill: f64) -> io::Result<()> {
    writeln!(
        out,
        "\nThe same filters with {overfill} times the keys that they were sized for\n"
    )?;
    writeln!(
        out,
        "{:<17}{:>12}{:>15}{:>11}{:>11}   measured / expected",
        "filter", "before", "keys now", "expected", "measured"
    )
}

pub(crate) fn overfill_row(
    out: &mut impl Write,
    name: &str,
    run: &Result<Run, String>,
) -> io::Result<()> {
    // What could not be made was told in the table before.
    let Ok(run) = run else { return Ok(()) };
    let Some(last) = run.steps.last() else {
        return Ok(());
    };
    writeln!(
        out,
        "{name:<17}{:>12}{:>15}{:>11}{:>11}   {}",
        measured(&run.full),
        grouped(last.keys),
        percent(last.expected),
        measured(last),
        ratio(last)
    )?;
    out.flush()
}

/// Why some filters hold fewer keys than the others.
pub(crate) fn stopped(
    out: &mut impl Write,
    runs: &[(Kind, Result<Run, String>)],
) -> io::Result<()> {
    for (kind, run) in runs {
        if let Ok(run) = run
            && let (Some(why), Some(last)) = (&run.stopped, run.steps.last())
        {
            let keys = counted(last.keys, "key");
            writeln!(out, "\n{} stopped at {keys}: {why}", kind.name())?;
        }
    }
    Ok(())
}

pub(crate) fn sweep_heading(out: &mut impl Write, items: u64) -> io::Result<()> {
    let items = counted(items, "key");
    writeln!(out, "\nFPP in % by bits a key, {items}\n")?;
    write!(out, "{:>4}", "")?;
    for kind in Kind::ALL {
        write!(out, "{:>22}", kind.name())?;
    }
    write!(out, "\n{:>4}", "bits")?;
    for _ in Kind::ALL {
        write!(out, "{:>6}{:>8}{:>8}", "real", "expect", "meas")?;
    }
    writeln!(out)
}

pub(crate) fn sweep_row(
    out: &mut impl Write,
    bits_per_key: f64,
    row: &[Option<Sample>],
) -> io::Result<()> {
    write!(out, "{bits_per_key:>4}")?;
    for sample in row {
        match sample {
            Some(sample) => write!(
                out,
                "{:>6.1}{:>8}{:>8}",
                sample.bits_per_key,
                digits(sample.expected * 100.0, 3),
                digits(sample.measured * 100.0, 3)
            )?,
            None => write!(out, "{:>6}{:>8}{:>8}", "-", "-", "-")?,
        }
    }
    writeln!(out)?;
    out.flush()
}

pub(crate) fn sweep_legend<'a>(
    out: &mut impl Write,
    mut samples: impl Iterator<Item = &'a Sample>,
) -> io::Result<()> {
    writeln!(
        out,
        "
real      bits a key really taken: split blocks come in legal sizes, cuckoo buckets in powers of two,
          and a scalable filter does not insert what seems present: below about 10 bits it hardly grows
-         cannot be had with so few bits, or filled"
    )?;
    if samples.any(differs) {
        writeln!(
            out,
            "
Some rates are far from their formula: the filter is too small for it. Double hashing adds up to about
1.5/m (classic, counting), and the formulas of split block and cuckoo are for many blocks or buckets."
        )?;
    }
    Ok(())
}

/// Whether a rate is further from its formula than chance explains.
fn differs(sample: &Sample) -> bool {
    const HITS: u64 = 100;
    let ratio = sample.measured / sample.expected;
    sample.hits >= HITS && !(0.7..=1.4).contains(&ratio)
}

fn measured(sample: &Sample) -> String {
    match sample.hits {
        0 => "none".to_owned(),
        _ => percent(sample.measured),
    }
}

/// Measured over expected, with the standard deviation that comes from the number of lookups.
fn ratio(sample: &Sample) -> String {
    if sample.hits == 0 || sample.expected == 0.0 {
        return "-".to_owned();
    }
    let ratio = sample.measured / sample.expected;
    let deviation = ratio * ((1.0 - sample.measured) / sample.hits as f64).sqrt();
    if ratio >= 100.0 {
        return format!("{ratio:.0}");
    }
    format!("{ratio:.3} ± {deviation:.3}")
}

/// As short as possible, for round numbers.
pub(crate) fn plain_percent(share: f64) -> String {
    let exact = share * 100.0;
    // Times 100 can add a last digit that was not there.
    let percent = format!("{exact:.12e}").parse().unwrap_or(exact);
    if percent < 1e-6 {
        return format!("{percent:e} %");
    }
    format!("{percent} %")
}

fn percent(share: f64) -> String {
    format!("{} %", digits(share * 100.0, 3))
}

/// Significant digits, without an exponent while that is readable.
fn digits(value: f64, significant: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude < -3 {
        return format!("{value:.1e}");
    }
    let decimals = (significant - 1 - magnitude).max(0) as usize;
    format!("{value:.decimals$}")
}

/// `1 key`, `2,000 keys`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => counted(bytes, "byte"),
        1_000..1_000_000 => format!("{:.1} KB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.1} GB", value / 1e9),
    }
}
