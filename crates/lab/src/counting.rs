//! The counting Bloom filter.

use crate::double_hashing::{Probing, positions};
use crate::error::{InsertError, SizeError};
use crate::filter::{Membership, Removable};
use crate::memory::PackedCells;
use crate::sizing::{self, Sizing};

const COUNTER_BITS: u32 = 4;
const SATURATED: u64 = (1 << COUNTER_BITS) - 1;

/// A Bloom filter with a counter of 4 bits in place of each bit, so that keys can be removed (Fan,
/// Cao, Almeida, Broder: Summary Cache, 2000, section V.C). Four times the memory of the classic one
/// for the same false positives.
///
/// A counter that reached 15 stays there for good: how often it was really counted up is lost, and
/// counting it down could deny a key that is held. At the best k it is one counter in 10^15 that gets
/// there; inserting one key 15 times does it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountingBloom {
    counters: PackedCells,
    len: u64,
    hashes: u32,
}

impl CountingBloom {
    /// An empty filter with a counter for each bit of `sizing`.
    ///
    /// # Errors
    ///
    /// [`SizeError::TooLarge`] above [`MAX_BYTES`](crate::MAX_BYTES), [`SizeError::OutOfMemory`] if
    /// the memory cannot be had.
    pub fn new(sizing: Sizing) -> Result<Self, SizeError> {
        Ok(Self {
            counters: PackedCells::zeroed(sizing.bits(), COUNTER_BITS)?,
            len: sizing.bits(),
            hashes: sizing.hashes(),
        })
    }

    /// An empty filter that takes `bits_per_key` bits of memory a key, hence a quarter as many
    /// counters.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`Sizing::for_bits_per_key`].
    pub fn for_bits_per_key(items: u64, bits_per_key: f64) -> Result<Self, SizeError> {
        sizing::check_bits_per_key(bits_per_key)?;
        let counters_per_key = bits_per_key / f64::from(COUNTER_BITS);
        Self::new(Sizing::for_bits_per_key(items, counters_per_key)?)
    }
}

impl Membership for CountingBloom {
    fn name(&self) -> &'static str {
        "counting Bloom"
    }

    fn shape(&self) -> String {
        format!("k = {}", self.hashes)
    }

    fn insert(&mut self, hash: u64) -> Result<(), InsertError> {
        for cell in positions(hash, self.len, self.hashes, Probing::Double) {
            let count = self.counters.get(cell);
            if count < SATURATED {
                self.counters.replace(cell, count + 1);
            }
        }
        Ok(())
    }

    fn contains(&self, hash: u64) -> bool {
        positions(hash, self.len, self.hashes, Probing::Double)
            .all(|cell| self.counters.get(cell) > 0)
    }

    fn byte_len(&self) -> usize {
        self.counters.byte_len()
    }

    fn expected_fpp(&self, items: u64) -> f64 {
        sizing::expected_fpp(self.len, self.hashes, items)
    }
}

impl Removable for CountingBloom {
    fn remove(&mut self, hash: u64) -> bool {
        if !self.contains(hash) {
            return false;
        }
        for cell in positions(hash, self.len, self.hashes, Probing::Double) {
            let count = self.counters.get(cell);
            // Zero only if a false positive is removed that meets a cell twice.
            if 0 < count && count < SATURATED {
                self.counters.replace(cell, count - 1);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn filter() -> CountingBloom {
        CountingBloom::new(Sizing::for_bits_per_key(100, 10.0).unwrap()).unwrap()
    }

    #[test]
    fn a_key_is_held_as_often_as_it_was_inserted() {
        let mut filter = filter();
        let empty = filter.clone();
        for _ in 0..3 {
            filter.insert(1 << 60).unwrap();
        }
        for _ in 0..3 {
            assert!(filter.contains(1 << 60));
            assert!(filter.remove(1 << 60));
        }
        assert!(!filter.remove(1 << 60));
        assert_eq!(filter, empty);
    }

    #[test]
    fn saturated_counters_stay() {
        let mut filter = filter();
        for _ in 0..15 {
            filter.insert(1 << 60).unwrap();
        }
        let saturated = filter.clone();
        filter.insert(1 << 60).unwrap();
        assert_eq!(filter, saturated);
        for _ in 0..20 {
            assert!(filter.remove(1 << 60));
        }
        assert_eq!(filter, saturated);
    }

    #[test]
    fn removing_what_is_absent_changes_nothing() {
        let mut filter = filter();
        filter.insert(1 << 60).unwrap();
        let before = filter.clone();
        assert!(!filter.remove(1 << 50));
        assert_eq!(filter, before);
    }

    #[test]
    fn memory_is_four_bits_a_counter() {
        // 1000 counters, and the spare word of packed cells.
        assert_eq!(filter().byte_len(), 512);
        let same_memory = CountingBloom::for_bits_per_key(100, 40.0).unwrap();
        assert_eq!(same_memory, filter());
    }
}
