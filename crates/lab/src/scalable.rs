//! The scalable Bloom filter.

use crate::classic::ClassicBloom;
use crate::double_hashing::Probing;
use crate::error::{InsertError, SizeError};
use crate::filter::Membership;
use crate::sizing::{self, Sizing};

/// Each layer's false positive probability in terms of the one before.
const TIGHTENING: f64 = 0.5;

/// About 2^-60. Among a few keys, two of the 64-bit hashes are as likely to be equal.
const LEAST_FPP: f64 = 1e-18;

/// Layers of classic filters, each for twice the keys at half the false positive probability of the
/// one before, added when the last is full (Almeida, Baquero, Preguiça, Hutchison: Scalable Bloom
/// Filters, 2007).
///
/// With p0 for the first layer and r = 1/2, all layers together stay at `p0 / (1 - r)`, however many
/// there are. A key that already seems present is not inserted again, so repeated keys do not make it
/// grow. A layer counts as full by its bits: the keys that get into it are those that set new ones, so
/// by the number of keys it would be overfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalableBloom {
    plan: Plan,
    // Never empty.
    layers: Vec<ClassicBloom>,
    // The last layer is full when it has more bits set than this.
    full_at: u64,
}

impl ScalableBloom {
    /// An empty filter with room for `first_items` distinct keys (at least 128 are granted) before it
    /// grows, whose false positive probability is not expected to exceed `fpp` (between 0 and 1).
    ///
    /// # Errors
    ///
    /// As [`Sizing::for_fpp`]; [`SizeError::FppOutOfReach`] below 1e-18, [`SizeError::TooLarge`] if the first layer is above
    /// [`MAX_BYTES`](crate::MAX_BYTES), [`SizeError::OutOfMemory`] if the memory cannot be had.
    pub fn new(first_items: u64, fpp: f64) -> Result<Self, SizeError> {
        sizing::check_fpp(fpp)?;
        if fpp < LEAST_FPP {
            let least = LEAST_FPP;
            return Err(SizeError::FppOutOfReach { fpp, least });
        }
        Self::from_plan(Plan {
            first_items: granted(first_items),
            first_fpp: fpp * (1.0 - TIGHTENING),
        })
    }

    /// An empty filter with room for `first_items` distinct keys (at least 128 are granted) before it
    /// grows, that takes about `bits_per_key` bits of memory a key once it holds `items`. Less at few
    /// bits a key: keys that seem present are not inserted, and where they are many (below about 10
    /// bits) the last layer is never made. Measured with 100,000 keys and room for a tenth at first: 2.9
    /// bits for 8 asked for, 3.4 for 9, all 10 for 10.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`SizeError::BitsPerKey`] if not positive and finite,
    /// [`SizeError::TooFewBits`] if the layers do not fit in at any false positive probability.
    pub fn for_bits_per_key(
        first_items: u64,
        items: u64,
        bits_per_key: f64,
    ) -> Result<Self, SizeError> {
        sizing::check_bits_per_key(bits_per_key)?;
        if first_items == 0 || items == 0 {
            return Err(SizeError::ZeroItems);
        }
        let plan = |ln_first_fpp: f64| Plan {
            first_items: granted(first_items),
            first_fpp: ln_first_fpp.exp(),
        };
        // Memory falls as the probability rises, so bisect over its logarithm. The upper end is a
        // first layer of 1/2: beyond it the bound for all layers would be no probability.
        let (mut tight, mut loose) = (f64::MIN_POSITIVE.ln(), TIGHTENING.ln());
        let needed = plan(loose).bits_per_key(items);
        if needed > bits_per_key {
            return Err(SizeError::TooFewBits {
                bits_per_key,
                needed,
            });
        }
        for _ in 0..60 {
            let middle = (tight + loose) / 2.0;
            if plan(middle).bits_per_key(items) > bits_per_key {
                tight = middle;
            } else {
                loose = middle;
            }
        }
        Self::from_plan(plan(loose))
    }

    fn from_plan(plan: Plan) -> Result<Self, SizeError> {
        let first = plan.layer(0)?;
        Ok(Self {
            plan,
            layers: vec![layer_of(first)?],
            full_at: ones_when_full(&first),
        })
    }

    /// How many layers there are by now, at least 1.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }
}

impl Membership for ScalableBloom {
    fn name(&self) -> &'static str {
        "scalable Bloom"
    }

    fn shape(&self) -> String {
        match self.layers() {
            1 => "1 layer".to_owned(),
            layers => format!("{layers} layers"),
        }
    }

    fn insert(&mut self, hash: u64) -> Result<(), InsertError> {
        if self.contains(hash) {
            return Ok(());
        }
        if let Some(last) = self.layers.last_mut()
            && last.ones() <= self.full_at
        {
            return last.insert(hash);
        }
        let sizing = self.plan.layer(self.layers.len())?;
        let mut next = layer_of(sizing)?;
        next.insert(hash)?;
        self.layers.push(next);
        self.full_at = ones_when_full(&sizing);
        Ok(())
    }

    fn contains(&self, hash: u64) -> bool {
        // The last layers are the largest and the likeliest to hold a key.
        self.layers.iter().rev().any(|layer| layer.contains(hash))
    }

    fn byte_len(&self) -> usize {
        self.layers.iter().map(Membership::byte_len).sum()
    }

    fn expected_fpp(&self, items: u64) -> f64 {
        // By logarithms: 1 - (1 - p) loses a small p.
        let mut ln_absent = 0.0;
        for (layer, held) in self.plan.layers_for(items) {
            ln_absent += (-sizing::expected_fpp(layer.bits(), layer.hashes(), held)).ln_1p();
        }
        -ln_absent.exp_m1()
    }
}

/// Layers are small and tight, just where double hashing would break the bound.
fn layer_of(sizing: Sizing) -> Result<ClassicBloom, SizeError> {
    ClassicBloom::with_probing(sizing, Probing::Independent)
}

/// In smaller layers the formula of the classic filter promises too little: which bits a few keys share
/// is chance. 0 stays 0, to be refused.
fn granted(first_items: u64) -> u64 {
    const LEAST: u64 = 128;
    match first_items {
        0 => 0,
        items => items.max(LEAST),
    }
}

/// The bits that as many keys as it was sized for are expected to set, `m (1 - e^(-kn/m))`, less those
/// of one key: so the last one does not exceed them either. With independent positions the false
/// positive probability is that of the bits set, whichever keys set them.
fn ones_when_full(sizing: &Sizing) -> u64 {
    let bits = sizing.bits() as f64;
    let written = f64::from(sizing.hashes()) * sizing.items() as f64;
    let expected = (-bits * (-written / bits).exp_m1()) as u64;
    expected.saturating_sub(u64::from(sizing.hashes()))
}

/// What layers come to, without making them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    first_items: u64,
    first_fpp: f64,
}

/// The probability is never NaN.
impl Eq for Plan {}

impl Plan {
    fn layer(&self, index: usize) -> Result<Sizing, SizeError> {
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        let factor = 1u64.checked_shl(index.unsigned_abs()).unwrap_or(u64::MAX);
        let items = self.first_items.saturating_mul(factor);
        // The textbook size may be a few per cent above its target; the bound allows none.
        Sizing::for_fpp_at_most(items, self.first_fpp * TIGHTENING.powi(index))
    }

    /// The layers that `items` keys lead to, each with the number of keys that it then holds. Ends
    /// early where a layer cannot be made.
    fn layers_for(&self, items: u64) -> impl Iterator<Item = (Sizing, u64)> {
        let mut left = items;
        (0..)
            .map_while(|index| self.layer(index).ok())
            .map_while(move |layer| {
                let held = left.min(layer.items());
                left -= held;
                (held > 0).then_some((layer, held))
            })
    }

    fn bits_per_key(&self, items: u64) -> f64 {
        let bits: u64 = self.layers_for(items).map(|(layer, _)| layer.bits()).sum();
        bits as f64 / items as f64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn layers_double_and_tighten() {
        let filter = ScalableBloom::new(200, 0.02).unwrap();
        let layers: Vec<(Sizing, u64)> = filter.plan.layers_for(2000).collect();
        let shape: Vec<(u64, u64)> = layers.iter().map(|(s, held)| (s.items(), *held)).collect();
        assert_eq!(shape, [(200, 200), (400, 400), (800, 800), (1600, 600)]);
        let mut wanted = 0.01;
        for (layer, _) in layers {
            assert!(layer.expected_fpp() <= wanted && layer.expected_fpp() > 0.95 * wanted);
            wanted /= 2.0;
        }
    }

    #[test]
    fn the_bound_holds_however_far_it_grows() {
        for fpp in [0.9, 0.1, 0.01, 0.001] {
            let filter = ScalableBloom::new(10, fpp).unwrap();
            for items in [0, 9, 10, 1000, 1 << 20, 1 << 30] {
                assert!(filter.expected_fpp(items) <= fpp, "{fpp} {items}");
            }
        }
    }

    #[test]
    fn measured_rates_keep_the_bound_from_the_smallest_first_layer_on() {
        for (first, fpp, keys) in [
            (1, 0.01, 100),
            (1, 0.01, 1900),
            (10, 0.001, 1000),
            (10, 1e-4, 1000),
            (50, 0.001, 500),
            (100, 1e-4, 1000),
            (100, 0.001, 3900),
        ] {
            let (seeds, probes) = (60u64, 40_000u64);
            let mut wrong = 0;
            for seed in 0..seeds {
                let mut filter = ScalableBloom::new(first, fpp).unwrap();
                let mut hashes: Vec<u64> = (0..keys + probes).collect();
                runtime_filter_bloom::mix_in_place(&mut hashes, seed << 40);
                let (members, others) = hashes.split_at(keys as usize);
                members
                    .iter()
                    .for_each(|&hash| filter.insert(hash).unwrap());
                wrong += others.iter().filter(|&&hash| filter.contains(hash)).count();
            }
            let measured = wrong as f64 / (seeds * probes) as f64;
            // For chance in the probes: three standard deviations.
            let chance = 3.0 * (fpp / (seeds * probes) as f64).sqrt();
            assert!(measured <= fpp + chance, "{first} {fpp} {keys}: {measured}");
        }
    }

    #[test]
    fn grows_when_full_and_not_by_repeated_keys() {
        let mut filter = ScalableBloom::new(1000, 1e-4).unwrap();
        let mut grown_at = Vec::new();
        for key in 0..5000u64 {
            let mut hash = [key];
            runtime_filter_bloom::mix_in_place(&mut hash, 3);
            let layers = filter.layers();
            for _ in 0..3 {
                filter.insert(hash[0]).unwrap();
            }
            if filter.layers() > layers {
                grown_at.push(key as f64);
            }
        }
        assert_eq!(grown_at.len(), 2);
        for (got, wanted) in grown_at.into_iter().zip([1000.0, 3000.0]) {
            assert!((got / wanted - 1.0).abs() < 0.03, "{got} {wanted}");
        }
    }

    #[test]
    fn memory_is_as_asked_for() {
        let filter = ScalableBloom::for_bits_per_key(10_000, 100_000, 16.0).unwrap();
        let bits_per_key = filter.plan.bits_per_key(100_000);
        assert!((15.9..=16.0).contains(&bits_per_key), "{bits_per_key}");
        let error = ScalableBloom::for_bits_per_key(10_000, 100_000, 4.0).unwrap_err();
        assert!(matches!(error, SizeError::TooFewBits { .. }));
        assert!(ScalableBloom::for_bits_per_key(0, 1, 8.0).is_err());
        assert!(ScalableBloom::for_bits_per_key(1, 0, 8.0).is_err());
        assert!(ScalableBloom::for_bits_per_key(1, 1, f64::NAN).is_err());
        assert!(ScalableBloom::new(1, 1.0).is_err());
        let error = ScalableBloom::new(1, 5e-324).unwrap_err();
        assert!(matches!(error, SizeError::FppOutOfReach { .. }), "{error}");
    }
}
