//! Filters made, filled and probed.

use std::fmt;

use runtime_filter_bloom::mix_in_place;
use runtime_filter_lab::{
    ClassicBloom, CountingBloom, CuckooFilter, Membership, ScalableBloom, SizeError, Sizing,
    SplitBlock,
};

use crate::args::Sweep;
use crate::report::plain_percent;

/// Keys from here on are never inserted.
const ABSENT: u64 = 1 << 63;
const BATCH: usize = 1024;

/// A scalable filter is for whoever does not know how many keys will come.
pub(crate) const SCALABLE_STARTS_AT: u64 = 10;

/// What the filters are sized for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Fpp(f64),
    BitsPerKey(f64),
}

impl Target {
    pub(crate) fn sizing(self, items: u64) -> Result<Sizing, SizeError> {
        match self {
            Self::Fpp(fpp) => Sizing::for_fpp(items, fpp),
            Self::BitsPerKey(bits_per_key) => Sizing::for_bits_per_key(items, bits_per_key),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fpp(fpp) => write!(f, "FPP {}", plain_percent(*fpp)),
            Self::BitsPerKey(1.0) => write!(f, "1 bit a key"),
            Self::BitsPerKey(bits_per_key) => write!(f, "{bits_per_key} bits a key"),
        }
    }
}

/// The kinds of filter, in the order in which they are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    SplitBlock,
    Classic,
    Counting,
    Scalable,
    Cuckoo,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::SplitBlock,
        Self::Classic,
        Self::Counting,
        Self::Scalable,
        Self::Cuckoo,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SplitBlock => "split block",
            Self::Classic => "classic",
            Self::Counting => "counting",
            Self::Scalable => "scalable",
            Self::Cuckoo => "cuckoo",
        }
    }

    fn build(self, items: u64, target: Target) -> Result<Box<dyn Membership>, SizeError> {
        let first = items.div_ceil(SCALABLE_STARTS_AT);
        Ok(match (self, target) {
            (Self::SplitBlock, Target::Fpp(fpp)) => Box::new(SplitBlock::for_fpp(items, fpp)?),
            (Self::SplitBlock, Target::BitsPerKey(bits)) => {
                Box::new(SplitBlock::for_bits_per_key(items, bits)?)
            }
            (Self::Classic, target) => Box::new(ClassicBloom::new(target.sizing(items)?)?),
            (Self::Counting, Target::Fpp(_)) => {
                Box::new(CountingBloom::new(target.sizing(items)?)?)
            }
            (Self::Counting, Target::BitsPerKey(bits)) => {
                Box::new(CountingBloom::for_bits_per_key(items, bits)?)
            }
            (Self::Scalable, Target::Fpp(fpp)) => Box::new(ScalableBloom::new(first, fpp)?),
            (Self::Scalable, Target::BitsPerKey(bits)) => {
                Box::new(ScalableBloom::for_bits_per_key(first, items, bits)?)
            }
            (Self::Cuckoo, Target::Fpp(fpp)) => Box::new(CuckooFilter::for_fpp(items, fpp)?),
            (Self::Cuckoo, Target::BitsPerKey(bits)) => {
                Box::new(CuckooFilter::for_bits_per_key(items, bits)?)
            }
        })
    }
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Distinct keys in the filter.
    pub(crate) keys: u64,
    /// Distinct keys that it was made for.
    pub(crate) sized_for: u64,
    /// Memory over the keys it was sized for.
    pub(crate) bits_per_key: f64,
    pub(crate) shape: String,
    pub(crate) expected: f64,
    pub(crate) measured: f64,
    /// Absent keys that were found.
    pub(crate) hits: u64,
}

/// A filter filled in steps.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// When it held what it was sized for.
    pub(crate) full: Sample,
    /// Every quarter of that, and the end.
    pub(crate) steps: Vec<Sample>,
    /// Keys over those sized for, and FPP by the formula.
    pub(crate) curve: Vec<(f64, f64)>,
    /// Why it was filled no further.
    pub(crate) stopped: Option<String>,
}

pub(crate) struct Lab {
    probes: u64,
    key: u64,
}

impl Lab {
    pub(crate) fn new(probes: u64, seed: u64) -> Self {
        // The mixer takes its key by exclusive or: small ones would only reorder small numbers.
        let mut key = [seed];
        mix_in_place(&mut key, 0x9e37_79b9_7f4a_7c15);
        Self {
            probes,
            key: key[0],
        }
    }

    /// Fills a filter to what it was sized for, and on to `overfill` times that.
    pub(crate) fn fill(
        &self,
        kind: Kind,
        items: u64,
        target: Target,
        overfill: f64,
    ) -> Result<Run, String> {
        let mut filter = kind
            .build(items, target)
            .map_err(|error| error.to_string())?;
        let mut steps = Vec::new();
        let mut full = None;
        let mut stopped = None;
        let mut keys = 0;
        for factor in factors(overfill) {
            let wanted = ((items as f64 * factor) as u64).max(1);
            (keys, stopped) = self.insert(filter.as_mut(), keys, wanted);
            let sample = self.sample(filter.as_ref(), keys, items);
            steps.push(sample.clone());
            if factor == 1.0 || stopped.is_some() {
                full.get_or_insert(sample);
            }
            if stopped.is_some() {
                break;
            }
        }
        let last = keys as f64 / items as f64;
        let curve = (1..=256)
            .map(|step| last * f64::from(step) / 256.0)
            .map(|factor| (factor, filter.expected_fpp((items as f64 * factor) as u64)))
            .collect();
        Ok(Run {
            full: full.ok_or("nothing was measured")?,
            steps,
            curve,
            stopped,
        })
    }

    /// A filter of a given memory that holds what it was sized for, if it can be had and filled.
    pub(crate) fn full(&self, kind: Kind, items: u64, bits_per_key: f64) -> Option<Sample> {
        let mut filter = kind.build(items, Target::BitsPerKey(bits_per_key)).ok()?;
        let (keys, _) = self.insert(filter.as_mut(), 0, items);
        (keys == items).then(|| self.sample(filter.as_ref(), keys, items))
    }

    /// Inserts keys `from..to`; returns how many there are then, and why not all.
    fn insert(&self, filter: &mut dyn Membership, from: u64, to: u64) -> (u64, Option<String>) {
        let mut keys = from;
        for batch in self.hashes(from, to) {
            for hash in batch {
                if let Err(error) = filter.insert(hash) {
                    return (keys, Some(error.to_string()));
                }
                keys += 1;
            }
        }
        (keys, None)
    }

    fn sample(&self, filter: &dyn Membership, keys: u64, items: u64) -> Sample {
        let hits: u64 = self
            .hashes(ABSENT, ABSENT + self.probes)
            .map(|batch| filter.count_contained(&batch) as u64)
            .sum();
        Sample {
            keys,
            sized_for: items,
            bits_per_key: bits_per_key(filter, items),
            shape: filter.shape(),
            expected: filter.expected_fpp(keys),
            measured: hits as f64 / self.probes as f64,
            hits,
        }
    }

    /// Hashes of keys `from..to`, in batches. Different for different keys: the mixer is a bijection.
    fn hashes(&self, from: u64, to: u64) -> impl Iterator<Item = Vec<u64>> {
        (from..to).step_by(BATCH).map(move |first| {
            let mut batch: Vec<u64> = (first..to.min(first + BATCH as u64)).collect();
            mix_in_place(&mut batch, self.key);
            batch
        })
    }
}

/// Bits a key and FPP by the formula, in ascending order, for every size that a sweep passes.
pub(crate) fn formula(kind: Kind, items: u64, sweep: &Sweep) -> Vec<(f64, f64)> {
    let mut curve: Vec<(f64, f64)> = (8 * sweep.from..=8 * sweep.to)
        .map(|eighths| f64::from(eighths) / 8.0)
        .filter_map(|bits| {
            let filter = kind.build(items, Target::BitsPerKey(bits)).ok()?;
            let real = match kind {
                // It has not grown yet.
                Kind::Scalable => bits,
                _ => bits_per_key(filter.as_ref(), items),
            };
            Some((real, filter.expected_fpp(items)))
        })
        .collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve.dedup_by(|a, b| a.0 == b.0);
    curve
}

fn bits_per_key(filter: &dyn Membership, items: u64) -> f64 {
    filter.byte_len() as f64 * 8.0 / items as f64
}

/// Quarters up to `last`, 1 and `last` always among them.
fn factors(last: f64) -> Vec<f64> {
    let mut factors: Vec<f64> = (1..=4).map(|quarters| f64::from(quarters) / 4.0).collect();
    // Many times overfilled filters answer yes to everything: eight steps show that as well.
    let step = ((last - 1.0) / 8.0).max(0.25);
    let mut next = 1.0 + step;
    while next < last {
        factors.push(next);
        next += step;
    }
    if last > 1.0 {
        factors.push(last);
    }
    factors
}
