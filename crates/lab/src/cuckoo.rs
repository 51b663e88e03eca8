//! The cuckoo filter.

use crate::error::{InsertError, SizeError};
use crate::filter::{Membership, Removable};
use crate::memory::PackedCells;
use crate::sizing;

const BUCKET_SLOTS: u64 = 4;

/// What four slots a bucket are sized to be filled to, less [`SPARE_SLOTS`].
///
/// On the average insertions fail at 0.95 to 0.97 (Fan et al., section 5.1), in single tables sooner.
/// Measured with fingerprints of 4 to 14 bits: below this one or two of a thousand tables of up to 1024
/// slots fail, and none of 600 tables of 4096 and 16,384 slots, of 150 of 65,536 or of 24 of 2^20.
const MAX_LOAD: f64 = 0.93;
/// Small tables fail sooner: which buckets a few keys share is chance.
const SPARE_SLOTS: f64 = 6.0;
const MAX_KICKS: usize = 500;
const EMPTY: u64 = 0;

/// With fewer bits a key has too few buckets to go to, and tables fail long before they are full.
const MIN_FINGERPRINT_BITS: u32 = 4;
const MAX_FINGERPRINT_BITS: u32 = 32;

/// Fingerprints of keys in a hash table of buckets of four slots (Fan, Andersen, Kaminsky,
/// Mitzenmacher: Cuckoo Filter: Practically Better Than Bloom, 2014).
///
/// A fingerprint lies in one of two buckets, each found from the other: `i xor hash(fingerprint)`.
/// When both are full, one fingerprint is moved to its other bucket, and so on for up to 500 moves.
///
/// Every insertion takes a slot, that of a key already present too: so each is undone by one removal,
/// and a key can be held 8 times at most (4 if its two buckets are the same one).
///
/// It can refuse a key before it is full. A table of s slots is meant for `0.93 s - 6` keys, of which
/// one or two tables in a thousand refuse some; large ones hardly ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CuckooFilter {
    slots: PackedCells,
    // Power of two, so that the way to the other bucket is its own way back.
    buckets: u64,
    fingerprint_bits: u32,
    random: u64,
}

impl CuckooFilter {
    /// An empty filter for `items` distinct keys, with the shortest fingerprints that are expected to
    /// keep to `fpp` (between 0 and 1).
    ///
    /// # Errors
    ///
    /// [`SizeError::ZeroItems`], [`SizeError::Fpp`] if not between 0 and 1,
    /// [`SizeError::FppOutOfReach`] if 32 bits do not suffice, [`SizeError::TooLarge`] above
    /// [`MAX_BYTES`](crate::MAX_BYTES), [`SizeError::OutOfMemory`] if the memory cannot be had.
    pub fn for_fpp(items: u64, fpp: f64) -> Result<Self, SizeError> {
        sizing::check_fpp(fpp)?;
        let buckets = buckets_for(items)?;
        let fingerprint_bits = (MIN_FINGERPRINT_BITS..=MAX_FINGERPRINT_BITS)
            .find(|&bits| expected_fpp(buckets, bits, items) <= fpp)
            .ok_or_else(|| SizeError::FppOutOfReach {
                fpp,
                least: expected_fpp(buckets, MAX_FINGERPRINT_BITS, items),
            })?;
        Self::new(buckets, fingerprint_bits)
    }

    /// An empty filter for `items` distinct keys, with the longest fingerprints (32 bits at most) that
    /// keep the memory within `bits_per_key` bits a key. The number of buckets is a power of two, so
    /// up to half of the memory may be for slots that stay empty.
    ///
    /// # Errors
    ///
    /// As [`for_fpp`](Self::for_fpp), and [`SizeError::BitsPerKey`] if not positive and finite,
    /// [`SizeError::TooFewBits`] if not even fingerprints of 4 bits fit.
    pub fn for_bits_per_key(items: u64, bits_per_key: f64) -> Result<Self, SizeError> {
        sizing::check_bits_per_key(bits_per_key)?;
        let buckets = buckets_for(items)?;
        let slots_per_key = (buckets * BUCKET_SLOTS) as f64 / items as f64;
        let fingerprint_bits = (bits_per_key / slots_per_key) as u32;
        if fingerprint_bits < MIN_FINGERPRINT_BITS {
            return Err(SizeError::TooFewBits {
                bits_per_key,
                needed: slots_per_key * f64::from(MIN_FINGERPRINT_BITS),
            });
        }
        Self::new(buckets, fingerprint_bits.min(MAX_FINGERPRINT_BITS))
    }

    fn new(buckets: u64, fingerprint_bits: u32) -> Result<Self, SizeError> {
        Ok(Self {
            slots: PackedCells::zeroed(buckets * BUCKET_SLOTS, fingerprint_bits)?,
            buckets,
            fingerprint_bits,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// Fingerprint, never [`EMPTY`], and its two buckets.
    fn places(&self, hash: u64) -> (u64, [u64; 2]) {
        // The low half makes the fingerprint and the high half the bucket, so that neither tells of
        // the other.
        let values = (1u64 << self.fingerprint_bits) - 1;
        let fingerprint = 1 + (((hash & 0xffff_ffff) * values) >> 32);
        let bucket = (hash >> 32) & (self.buckets - 1);
        (fingerprint, [bucket, self.other(bucket, fingerprint)])
    }

    fn other(&self, bucket: u64, fingerprint: u64) -> u64 {
        let hash = fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        bucket ^ (hash & (self.buckets - 1))
    }

    fn find(&self, bucket: u64, content: u64) -> Option<usize> {
        let first = (bucket * BUCKET_SLOTS) as usize;
        (first..first + BUCKET_SLOTS as usize).find(|&slot| self.slots.get(slot) == content)
    }

    /// Two random bits. Which, matters little: xorshift (Marsaglia, 2003).
    fn random_slot(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 62
    }
}

impl Membership for CuckooFilter {
    fn name(&self) -> &'static str {
        "cuckoo"
    }

    fn shape(&self) -> String {
        format!("{}-bit prints", self.fingerprint_bits)
    }

    fn insert(&mut self, hash: u64) -> Result<(), InsertError> {
        let (mut homeless, buckets) = self.places(hash);
        let random = self.random;
        for bucket in buckets {
            if let Some(free) = self.find(bucket, EMPTY) {
                self.slots.replace(free, homeless);
                return Ok(());
            }
        }
        let mut bucket = buckets[1];
        let mut kicked = Vec::with_capacity(MAX_KICKS);
        for _ in 0..MAX_KICKS {
            let slot = (bucket * BUCKET_SLOTS + self.random_slot()) as usize;
            homeless = self.slots.replace(slot, homeless);
            kicked.push(slot);
            bucket = self.other(bucket, homeless);
            if let Some(free) = self.find(bucket, EMPTY) {
                self.slots.replace(free, homeless);
                return Ok(());
            }
        }
        // The last one kicked belongs to a key that was accepted: dropping it would deny that key.
        for slot in kicked.into_iter().rev() {
            homeless = self.slots.replace(slot, homeless);
        }
        self.random = random;
        Err(InsertError::Full)
    }

    fn contains(&self, hash: u64) -> bool {
        let (fingerprint, buckets) = self.places(hash);
        buckets
            .into_iter()
            .any(|bucket| self.find(bucket, fingerprint).is_some())
    }

    fn byte_len(&self) -> usize {
        self.slots.byte_len()
    }

    fn expected_fpp(&self, items: u64) -> f64 {
        expected_fpp(self.buckets, self.fingerprint_bits, items)
    }
}

impl Removable for CuckooFilter {
    fn remove(&mut self, hash: u64) -> bool {
        let (fingerprint, buckets) = self.places(hash);
        for bucket in buckets {
            if let Some(slot) = self.find(bucket, fingerprint) {
                self.slots.replace(slot, EMPTY);
                return true;
            }
        }
        false
    }
}

fn buckets_for(items: u64) -> Result<u64, SizeError> {
    if items == 0 {
        return Err(SizeError::ZeroItems);
    }
    // One bucket takes any keys.
    if items <= BUCKET_SLOTS {
        return Ok(1);
    }
    let slots = (items as f64 + SPARE_SLOTS) / MAX_LOAD;
    let buckets = (slots / BUCKET_SLOTS as f64).ceil() as u64;
    // Half of the range is left, so that slots can be counted; memory ends long before.
    Ok(buckets.min(1 << 60).next_power_of_two())
}

/// `1 - (1 - 1/v)^(8 load)`: a foreign fingerprint, one of v values, is compared with those in two
/// buckets of four slots. For long fingerprints that is about `8 load / 2^bits` (Fan et al.,
/// section 5.1). A model of many buckets: with a few, the two of a key are often the same one.
fn expected_fpp(buckets: u64, fingerprint_bits: u32, items: u64) -> f64 {
    let load = (items as f64 / (buckets * BUCKET_SLOTS) as f64).min(1.0);
    let values = ((1u64 << fingerprint_bits) - 1) as f64;
    -(2.0 * BUCKET_SLOTS as f64 * load * (-1.0 / values).ln_1p()).exp_m1()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_computed_by_hand() {
        // 100,006 / 3.72 = 26,884 buckets, hence 2^15: load 0.763. 8 * 0.763 / 2^10 = 0.6 %.
        let filter = CuckooFilter::for_fpp(100_000, 0.01).unwrap();
        assert_eq!((filter.buckets, filter.fingerprint_bits), (1 << 15, 10));
        assert_eq!(filter.byte_len(), (1 << 17) * 10 / 8 + 8);
        let filter = CuckooFilter::for_bits_per_key(100_000, 16.0).unwrap();
        assert_eq!((filter.buckets, filter.fingerprint_bits), (1 << 15, 12));
        let error = CuckooFilter::for_bits_per_key(100_000, 5.0).unwrap_err();
        assert!(matches!(error, SizeError::TooFewBits { needed, .. } if needed > 5.24));
        let error = CuckooFilter::for_fpp(100_000, 1e-12).unwrap_err();
        assert!(matches!(error, SizeError::FppOutOfReach { .. }));
        assert!(CuckooFilter::for_fpp(u64::MAX, 0.01).is_err());
        assert!(CuckooFilter::for_bits_per_key(u64::MAX, 64.0).is_err());
    }

    #[test]
    fn one_key_fits_eight_times_and_the_ninth_changes_nothing() {
        let mut filter = CuckooFilter::for_fpp(1000, 0.001).unwrap();
        let hash = 0x1234_5678_9abc_def0;
        let (_, buckets) = filter.places(hash);
        assert_ne!(buckets[0], buckets[1]);
        for _ in 0..8 {
            filter.insert(hash).unwrap();
        }
        let before = filter.clone();
        assert_eq!(filter.insert(hash), Err(InsertError::Full));
        assert_eq!(filter, before);
        for _ in 0..8 {
            assert!(filter.remove(hash));
        }
        assert!(!filter.remove(hash));
        assert!(!filter.contains(hash));
    }

    #[test]
    fn reaches_ninety_five_per_cent_load_and_fails_without_loss() {
        let slots = 1u64 << 14;
        let mut filter = CuckooFilter::new(slots / BUCKET_SLOTS, 12).unwrap();
        let hashes: Vec<u64> = (0..2 * slots).map(mix).collect();
        let mut held = Vec::new();
        let mut failed = 0;
        for &hash in &hashes {
            let before = filter.clone();
            match filter.insert(hash) {
                Ok(()) => held.push(hash),
                Err(error) => {
                    assert_eq!(error, InsertError::Full);
                    assert_eq!(filter, before);
                    failed += 1;
                }
            }
            if failed == 100 {
                break;
            }
        }
        assert_eq!(failed, 100);
        assert!(held.len() as f64 > 0.95 * slots as f64, "{}", held.len());
        assert!(held.iter().all(|&hash| filter.contains(hash)));

        let (removed, kept) = held.split_at(held.len() / 2);
        assert!(removed.iter().all(|&hash| filter.remove(hash)));
        assert!(kept.iter().all(|&hash| filter.contains(hash)));
        filter.insert(hashes[hashes.len() - 1]).unwrap();
    }

    #[test]
    fn holds_what_it_was_sized_for() {
        // Each size of table as full as it is meant to be, and what is just below a power of two.
        let most = |slots: f64| (MAX_LOAD * slots - SPARE_SLOTS) as u64;
        let mut sizes = vec![1, 4, 5, 30, 60, 120, 1000, 62_259];
        sizes.extend((4..=16).map(|log| most(f64::from(1 << log))));
        for items in sizes {
            for fpp in [0.5, 0.01, 0.001] {
                for seed in 0..20 {
                    let mut filter = CuckooFilter::for_fpp(items, fpp).unwrap();
                    let mut hashes: Vec<u64> = (0..items).collect();
                    runtime_filter_bloom::mix_in_place(&mut hashes, mix(seed));
                    let fits = hashes.iter().all(|&hash| filter.insert(hash).is_ok());
                    assert!(fits, "{items} {fpp} {seed}");
                }
            }
        }
    }

    fn mix(key: u64) -> u64 {
        let mut hash = [key];
        runtime_filter_bloom::mix_in_place(&mut hash, 5);
        hash[0]
    }

    proptest! {
        #[test]
        fn the_other_bucket_leads_back(hash: u64, size in 0u32..30, bits in 4u32..=32) {
            let filter = CuckooFilter {
                slots: PackedCells::zeroed(0, bits).unwrap(),
                buckets: 1 << size,
                fingerprint_bits: bits,
                random: 1,
            };
            let (fingerprint, [first, second]) = filter.places(hash);
            prop_assert!(fingerprint != EMPTY && fingerprint < 1 << bits);
            prop_assert!(first < filter.buckets && second < filter.buckets);
            prop_assert_eq!(filter.other(second, fingerprint), first);
        }
    }
}
