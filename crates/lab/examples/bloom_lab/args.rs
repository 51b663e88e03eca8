//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use runtime_filter_lab::Sizing;

use crate::measure::Target;

/// Sizes Bloom filters and their relatives, fills them, and prints the false positive probability
/// (FPP) by formula beside the measured one.
#[derive(Debug, Parser)]
#[command(name = "bloom_lab")]
pub(crate) struct Args {
    /// Distinct keys to size the filters for, 1 to 2^40, also as 1e5 or 100_000; with the overfill at
    /// most 4e9
    #[arg(long, default_value = "100000", value_parser = count, allow_negative_numbers = true)]
    pub(crate) items: u64,

    /// False positive probability to size for, from 1e-12 to below 1; excludes --bits-per-key [default: 0.01]
    #[arg(long, conflicts_with = "bits_per_key", value_parser = fpp, allow_negative_numbers = true)]
    fpp: Option<f64>,

    /// Memory to size for, from 0.1 to 1000 bits a key; excludes --fpp
    #[arg(long, value_parser = bits_per_key, allow_negative_numbers = true)]
    bits_per_key: Option<f64>,

    /// Overfill the filters up to this many times the keys they were sized for, 1 to 100; at 1 not at
    /// all
    #[arg(long, default_value_t = 2.0, value_parser = overfill, allow_negative_numbers = true)]
    pub(crate) overfill: f64,

    /// Whole bits a key to sweep, first and last, 1 to 64; with at most 100,000 keys
    #[arg(
        long,
        value_name = "FROM..TO",
        default_value = "4..20",
        allow_hyphen_values = true
    )]
    pub(crate) sweep: Sweep,

    /// Absent keys to look up for each measurement, 1 to 2^40, also as 1e6 or 1_000_000
    #[arg(long, default_value = "1000000", value_parser = count, allow_negative_numbers = true)]
    pub(crate) probes: u64,

    /// Seed of the keys, 0 to 2^64 - 1
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,

    /// Where to write the plot, an SVG; a name that ends in .svg
    #[arg(long, value_name = "FILE", default_value = "bloom_lab.svg")]
    pub(crate) out: PathBuf,

    /// Write no plot, whatever --out says
    #[arg(long)]
    pub(crate) no_plot: bool,
}

impl Args {
    pub(crate) fn target(&self) -> Target {
        match self.bits_per_key {
            Some(bits_per_key) => Target::BitsPerKey(bits_per_key),
            None => Target::Fpp(self.fpp.unwrap_or(0.01)),
        }
    }
}

/// Bits a key from the first to the last, both included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sweep {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Sweep {
    pub(crate) fn bits(self) -> impl Iterator<Item = f64> {
        (self.from..=self.to).map(f64::from)
    }
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once("..")
            .and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)))
            .filter(|&(from, to)| 1 <= from && from <= to && to <= 64)
            .map(|(from, to)| Self { from, to })
            .ok_or_else(|| "give first and last bits a key between 1 and 64, as 4..20".to_owned())
    }
}

fn fpp(text: &str) -> Result<f64, String> {
    let fpp = number(text)?;
    // Far below what any of the filters reaches, but not below what can be told from 0.
    if fpp > 0.0 && fpp < 1e-12 {
        return Err("no filter here gets below 1e-12; give a larger probability".to_owned());
    }
    // One item is the least that can be too many.
    Sizing::for_fpp(1, fpp).map_err(|error| error.to_string())?;
    Ok(fpp)
}

fn bits_per_key(text: &str) -> Result<f64, String> {
    let bits_per_key = number(text)?;
    if !(0.1..=1000.0).contains(&bits_per_key) {
        return Err("give 0.1 to 1000 bits a key".to_owned());
    }
    Sizing::for_bits_per_key(1, bits_per_key).map_err(|error| error.to_string())?;
    Ok(bits_per_key)
}

fn overfill(text: &str) -> Result<f64, String> {
    let factor = number(text)?;
    if (1.0..=100.0).contains(&factor) {
        Ok(factor)
    } else {
        Err("give a factor from 1 to 100".to_owned())
    }
}

/// A whole number, also as `1e6` or `1_000_000`. At most 2^40, which would take days already.
fn count(text: &str) -> Result<u64, String> {
    let plain = text.replace('_', "");
    let number: f64 = plain.parse().map_err(|_| "this is no number".to_owned())?;
    if number.fract() == 0.0 && (1.0..=(1u64 << 40) as f64).contains(&number) {
        // Exact: whole numbers below 2^53 are.
        Ok(number as u64)
    } else {
        Err("give a whole number from 1 to 2^40".to_owned())
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "this is no number".to_owned())
}
