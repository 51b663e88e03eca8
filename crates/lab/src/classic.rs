//! The classic Bloom filter.

use crate::double_hashing::{Probing, positions};
use crate::error::{InsertError, SizeError};
use crate::filter::Membership;
use crate::memory::zeroed_words;
use crate::sizing::{self, Sizing};

/// m bits, of which each key sets k (Bloom, 1970), found by double hashing (Kirsch, Mitzenmacher:
/// Less Hashing, Same Performance, 2006).
///
/// Double hashing adds up to about 1.5/m to the false positive probability that the formula gives:
/// nothing to speak of at 10 bits a key and many thousands of keys, half as much again for 50 keys at
/// 0.5 %, and the greater part of it for 2000 keys at 25 bits each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicBloom {
    words: Vec<u64>,
    bits: u64,
    hashes: u32,
    ones: u64,
    probing: Probing,
}

impl ClassicBloom {
    /// An empty filter.
    ///
    /// # Errors
    ///
    /// [`SizeError::TooLarge`] above [`MAX_BYTES`](crate::MAX_BYTES), [`SizeError::OutOfMemory`] if
    /// the memory cannot be had.
    pub fn new(sizing: Sizing) -> Result<Self, SizeError> {
        Self::with_probing(sizing, Probing::Double)
    }

    pub(crate) fn with_probing(sizing: Sizing, probing: Probing) -> Result<Self, SizeError> {
        Ok(Self {
            words: zeroed_words(sizing.bits())?,
            bits: sizing.bits(),
            hashes: sizing.hashes(),
            ones: 0,
            probing,
        })
    }

    /// How many bits are set.
    pub fn ones(&self) -> u64 {
        self.ones
    }

    /// The distinct keys it probably holds, by the share of bits set: see
    /// [`items_from_fill`](crate::items_from_fill).
    pub fn estimated_items(&self) -> f64 {
        sizing::items_from_fill(self.bits, self.hashes, self.ones)
    }
}

impl Membership for ClassicBloom {
    fn name(&self) -> &'static str {
        "classic Bloom"
    }

    fn shape(&self) -> String {
        format!("k = {}", self.hashes)
    }

    fn insert(&mut self, hash: u64) -> Result<(), InsertError> {
        for bit in positions(hash, self.bits, self.hashes, self.probing) {
            let word = &mut self.words[bit / 64];
            self.ones += !*word >> (bit % 64) & 1;
            *word |= 1 << (bit % 64);
        }
        Ok(())
    }

    fn contains(&self, hash: u64) -> bool {
        positions(hash, self.bits, self.hashes, self.probing)
            .all(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn byte_len(&self) -> usize {
        self.words.len() * 8
    }

    fn expected_fpp(&self, items: u64) -> f64 {
        sizing::expected_fpp(self.bits, self.hashes, items)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn counts_the_bits_that_it_sets() {
        let mut filter = ClassicBloom::new(Sizing::for_bits_per_key(10, 10.0).unwrap()).unwrap();
        // 100 bits, k = 7: positions 50, 75, 0, 25, then round again.
        for _ in 0..2 {
            filter.insert(0x8000_0000_4000_0000).unwrap();
            assert_eq!(filter.ones(), 4);
        }
        // 0 to 6, of which 0 is set.
        filter.insert(0).unwrap();
        assert_eq!(filter.ones(), 10);
        let counted: u32 = filter.words.iter().map(|word| word.count_ones()).sum();
        assert_eq!(counted, 10);
    }

    #[test]
    fn beyond_the_memory_limit_is_refused() {
        let sizing = Sizing::for_fpp(1_000_000_000, 0.01).unwrap();
        let error = ClassicBloom::new(sizing).unwrap_err();
        assert!(matches!(error, SizeError::TooLarge { .. }), "{error}");
    }
}
