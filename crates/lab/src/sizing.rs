//! The arithmetic of Bloom filters.
//!
//! With m bits, k hashes and n keys (Bloom: Space/Time Trade-offs in Hash Coding with Allowable
//! Errors, 1970):
//!
//! - FPP `p = (1 - e^(-kn/m))^k`,
//! - least bits for a wanted p: `m = -n ln p / (ln 2)^2`,
//! - best number of hashes: `k = m/n ln 2`.

use std::f64::consts::LN_2;

use crate::error::SizeError;

/// Beyond this many hashes nothing is gained: at 2^-64 the 64-bit hashes of two keys are equal anyway.
const MAX_HASHES: u32 = 64;

/// The most bits that a sizing may come to; below it a float holds every integer.
const MAX_BITS: u64 = 1 << 53;

/// Size of a Bloom filter: `bits` bits and `hashes` hashes for `items` distinct keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizing {
    items: u64,
    bits: u64,
    hashes: u32,
}

impl Sizing {
    /// The textbook size for a wanted false positive probability between 0 and 1: m rounded up,
    /// k to the nearest. By the rounding of k the expectation can come out slightly above `fpp`.
    ///
    /// # Errors
    ///
    /// [`SizeError::ZeroItems`], [`SizeError::Fpp`] if not between 0 and 1, [`SizeError::TooLarge`]
    /// beyond 2^53 bits.
    pub fn for_fpp(items: u64, fpp: f64) -> Result<Self, SizeError> {
        check_fpp(fpp)?;
        let bits = items as f64 * -fpp.ln() / (LN_2 * LN_2);
        Self::with_bits(items, bits)
    }

    /// As [`for_fpp`](Self::for_fpp), with the bits that the rounded k needs to really stay at
    /// `fpp`: `m = -kn / ln(1 - p^(1/k))`.
    ///
    /// # Errors
    ///
    /// As [`for_fpp`](Self::for_fpp).
    pub fn for_fpp_at_most(items: u64, fpp: f64) -> Result<Self, SizeError> {
        let textbook = Self::for_fpp(items, fpp)?;
        let k = f64::from(textbook.hashes);
        let bits = -k * items as f64 / (-fpp.powf(1.0 / k)).ln_1p();
        let bits = to_bits(bits)?.max(textbook.bits);
        Ok(Self { bits, ..textbook })
    }

    /// The size for a given number of bits a key, which need not be whole.
    ///
    /// # Errors
    ///
    /// [`SizeError::ZeroItems`], [`SizeError::BitsPerKey`] if not positive and finite,
    /// [`SizeError::TooLarge`] beyond 2^53 bits.
    pub fn for_bits_per_key(items: u64, bits_per_key: f64) -> Result<Self, SizeError> {
        check_bits_per_key(bits_per_key)?;
        Self::with_bits(items, items as f64 * bits_per_key)
    }

    fn with_bits(items: u64, bits: f64) -> Result<Self, SizeError> {
        if items == 0 {
            return Err(SizeError::ZeroItems);
        }
        let bits = to_bits(bits)?;
        let hashes = optimal_hashes(bits as f64 / items as f64);
        Ok(Self {
            items,
            bits,
            hashes,
        })
    }

    /// n: the distinct keys that the size is meant for.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// m: the bits of the filter.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// k: the bits set for a key.
    pub fn hashes(&self) -> u32 {
        self.hashes
    }

    /// m/n.
    pub fn bits_per_key(&self) -> f64 {
        self.bits as f64 / self.items as f64
    }

    /// The bits as bytes, rounded up.
    pub fn byte_len(&self) -> u64 {
        self.bits.div_ceil(8)
    }

    /// The false positive probability (0 to 1) once all items are in.
    pub fn expected_fpp(&self) -> f64 {
        expected_fpp(self.bits, self.hashes, self.items)
    }
}

/// The false positive probability (0 to 1) of a filter of `bits` bits that holds `items` distinct
/// keys, each by `hashes` bits: `(1 - e^(-kn/m))^k`. With 0 bits it is 1, with 0 hashes as well.
pub fn expected_fpp(bits: u64, hashes: u32, items: u64) -> f64 {
    if bits == 0 {
        return 1.0;
    }
    let k = f64::from(hashes);
    // exp_m1 keeps the digits that 1 - e^x loses where the filter is nearly empty.
    (-(-k * items as f64 / bits as f64).exp_m1()).powf(k)
}

/// The distinct keys that a filter of `bits` bits probably holds, of which `ones` are set:
/// `-(m/k) ln(1 - ones/m)` (Swamidass, Baldi: Mathematical Correction for Fingerprint Similarity
/// Measures to Improve Chemical Retrieval, 2007). Infinite if all are set.
pub fn items_from_fill(bits: u64, hashes: u32, ones: u64) -> f64 {
    if ones >= bits {
        return f64::INFINITY;
    }
    let m = bits as f64;
    -(m / f64::from(hashes.max(1))) * (-(ones as f64) / m).ln_1p()
}

/// The number of hashes that gives the fewest false positives: `bits_per_key * ln 2` to the nearest,
/// at least 1 and at most 64.
pub fn optimal_hashes(bits_per_key: f64) -> u32 {
    // A float cast saturates, and NaN gives 0.
    ((bits_per_key * LN_2).round() as u32).clamp(1, MAX_HASHES)
}

pub(crate) fn check_fpp(fpp: f64) -> Result<(), SizeError> {
    if fpp > 0.0 && fpp < 1.0 {
        Ok(())
    } else {
        Err(SizeError::Fpp { fpp })
    }
}

pub(crate) fn check_bits_per_key(bits_per_key: f64) -> Result<(), SizeError> {
    if bits_per_key > 0.0 && bits_per_key.is_finite() {
        Ok(())
    } else {
        Err(SizeError::BitsPerKey { bits_per_key })
    }
}

fn to_bits(bits: f64) -> Result<u64, SizeError> {
    let bits = bits.ceil();
    if bits > MAX_BITS as f64 {
        return Err(SizeError::TooLarge {
            bytes: (bits / 8.0) as u64,
            limit: MAX_BITS / 8,
        });
    }
    Ok((bits as u64).max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn near(got: f64, wanted: f64, tolerance: f64) {
        assert!((got / wanted - 1.0).abs() < tolerance, "{got} {wanted}");
    }

    #[test]
    fn one_per_cent_of_a_hundred_thousand_and_of_forty_million() {
        let sizing = Sizing::for_fpp(100_000, 0.01).unwrap();
        assert_eq!((sizing.bits(), sizing.hashes()), (958_506, 7));
        assert_eq!(sizing.byte_len(), 119_814);
        near(sizing.expected_fpp(), 0.01004, 0.001);

        let sizing = Sizing::for_fpp(40_000_000, 0.01).unwrap();
        assert_eq!((sizing.hashes(), sizing.items()), (7, 40_000_000));
        near(sizing.byte_len() as f64, 47.9e6, 0.001);
    }

    #[test]
    fn ten_bits_a_key_and_twice_the_keys() {
        let sizing = Sizing::for_bits_per_key(1000, 10.0).unwrap();
        assert_eq!((sizing.bits(), sizing.hashes()), (10_000, 7));
        near(sizing.expected_fpp(), 0.0082, 0.002);
        near(expected_fpp(10_000, 7, 2000), 0.138, 0.002);
    }

    #[test]
    fn small_cases_computed_by_hand() {
        // 1 / ln 2 = 1.44 bits for a half, and k = 1.
        let half = Sizing::for_fpp(100, 0.5).unwrap();
        assert_eq!((half.bits(), half.hashes()), (145, 1));
        // k = 1: 1 - e^-1.
        near(expected_fpp(8, 1, 8), 0.632_120_558, 1e-8);
        // m/k = 50, and ln 2 at half fill.
        near(items_from_fill(100, 2, 50), 50.0 * LN_2, 1e-12);
        assert_eq!(items_from_fill(100, 2, 0), 0.0);
        assert_eq!(items_from_fill(100, 2, 100), f64::INFINITY);
        for (bits_per_key, hashes) in [(0.1, 1), (1.0, 1), (10.0, 7), (16.0, 11), (1e9, 64)] {
            assert_eq!(optimal_hashes(bits_per_key), hashes);
        }
    }

    #[test]
    fn extremes_stay_probabilities() {
        assert_eq!(expected_fpp(0, 7, 1), 1.0);
        assert_eq!(expected_fpp(100, 7, 0), 0.0);
        assert_eq!(expected_fpp(100, 7, u64::MAX), 1.0);
        let nearly_empty = expected_fpp(1 << 50, 1, 1);
        near(nearly_empty, 2.0f64.powi(-50), 1e-9);
    }

    #[test]
    fn what_makes_no_filter_is_refused() {
        assert_eq!(Sizing::for_fpp(0, 0.01), Err(SizeError::ZeroItems));
        assert_eq!(Sizing::for_bits_per_key(0, 8.0), Err(SizeError::ZeroItems));
        for fpp in [0.0, 1.0, -0.1, 1.5, f64::INFINITY] {
            assert_eq!(Sizing::for_fpp(1, fpp), Err(SizeError::Fpp { fpp }));
        }
        assert!(Sizing::for_fpp(1, f64::NAN).is_err());
        for bits_per_key in [0.0, -1.0, f64::INFINITY] {
            let error = Err(SizeError::BitsPerKey { bits_per_key });
            assert_eq!(Sizing::for_bits_per_key(1, bits_per_key), error);
        }
        let error = Sizing::for_fpp(u64::MAX, 0.01).unwrap_err();
        assert!(matches!(error, SizeError::TooLarge { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn at_most_is_at_most_and_no_waste(items in 1u64..1 << 40, fpp in 1e-12f64..0.999) {
            let strict = Sizing::for_fpp_at_most(items, fpp).unwrap();
            prop_assert!(strict.expected_fpp() <= fpp * (1.0 + 1e-9));
            // One bit less, and it would be above.
            prop_assert!(strict.bits() == Sizing::for_fpp(items, fpp).unwrap().bits()
                || expected_fpp(strict.bits() - 1, strict.hashes(), items) > fpp * (1.0 - 1e-9));
        }

        #[test]
        fn fill_gives_back_the_items(items in 1u64..1 << 30, bits_per_key in 2f64..30.0) {
            let sizing = Sizing::for_bits_per_key(items, bits_per_key).unwrap();
            let (m, k) = (sizing.bits() as f64, f64::from(sizing.hashes()));
            let ones = m * (1.0 - (-k * items as f64 / m).exp());
            let got = items_from_fill(sizing.bits(), sizing.hashes(), ones.round() as u64);
            prop_assert!((got - items as f64).abs() <= 1.0 + 1e-6 * items as f64);
        }
    }
}
