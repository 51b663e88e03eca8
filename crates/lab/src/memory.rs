//! Zeroed memory, had or refused but never aborted for.

use crate::error::SizeError;

/// The most bytes that one allocation of a filter may take: 1 GiB, 895 million keys at 1 % in a
/// classic Bloom filter.
///
/// A limit of the crate's own, since most systems grant more than they have and kill later.
pub const MAX_BYTES: u64 = 1 << 30;

/// Zeroed words that hold at least `bits` bits.
pub(crate) fn zeroed_words(bits: u64) -> Result<Vec<u64>, SizeError> {
    let words = bits.div_ceil(64);
    let bytes = words.saturating_mul(8);
    if bytes > MAX_BYTES {
        let limit = MAX_BYTES;
        return Err(SizeError::TooLarge { bytes, limit });
    }
    let out_of_memory = SizeError::OutOfMemory { bytes };
    let len = usize::try_from(words).map_err(|_| out_of_memory)?;
    let mut zeroed = Vec::new();
    zeroed.try_reserve_exact(len).map_err(|_| out_of_memory)?;
    zeroed.resize(len, 0);
    Ok(zeroed)
}

/// Unsigned numbers of `width` bits (1 to 32), packed without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedCells {
    // One word longer than needed, so that each cell lies within a pair of words.
    words: Vec<u64>,
    width: u32,
}

impl PackedCells {
    pub(crate) fn zeroed(cells: u64, width: u32) -> Result<Self, SizeError> {
        let bits = cells.saturating_mul(u64::from(width)).saturating_add(64);
        let words = zeroed_words(bits)?;
        Ok(Self { words, width })
    }

    pub(crate) fn get(&self, cell: usize) -> u64 {
        let (word, shift) = self.place(cell);
        (self.pair(word) >> shift) as u64 & self.mask()
    }

    /// Overwrites a cell and returns what was there. Bits of `value` beyond the width are dropped.
    pub(crate) fn replace(&mut self, cell: usize, value: u64) -> u64 {
        let (word, shift) = self.place(cell);
        let pair = self.pair(word);
        let old = (pair >> shift) as u64 & self.mask();
        let new = pair ^ (u128::from(old ^ (value & self.mask())) << shift);
        self.words[word] = new as u64;
        self.words[word + 1] = (new >> 64) as u64;
        old
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.words.len() * 8
    }

    fn mask(&self) -> u64 {
        (1 << self.width) - 1
    }

    fn place(&self, cell: usize) -> (usize, usize) {
        let bit = cell * self.width as usize;
        (bit / 64, bit % 64)
    }

    fn pair(&self, word: usize) -> u128 {
        u128::from(self.words[word]) | u128::from(self.words[word + 1]) << 64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_hold_the_bits_or_are_refused() {
        assert_eq!(zeroed_words(1).unwrap(), [0]);
        assert_eq!(zeroed_words(65).unwrap(), [0, 0]);
        let limit = MAX_BYTES;
        let bytes = MAX_BYTES + 8;
        assert_eq!(
            zeroed_words(MAX_BYTES * 8 + 1),
            Err(SizeError::TooLarge { bytes, limit })
        );
        assert!(zeroed_words(u64::MAX).is_err());
        assert!(PackedCells::zeroed(u64::MAX, 32).is_err());
    }

    proptest! {
        #[test]
        fn cells_behave_as_an_array(
            width in 1u32..=32,
            writes in proptest::collection::vec((0usize..50, any::<u64>()), 0..200),
        ) {
            let mut cells = PackedCells::zeroed(50, width).unwrap();
            let mut model = [0u64; 50];
            for (cell, value) in writes {
                let old = std::mem::replace(&mut model[cell], value & ((1 << width) - 1));
                prop_assert_eq!(cells.replace(cell, value), old);
            }
            for (cell, &value) in model.iter().enumerate() {
                prop_assert_eq!(cells.get(cell), value);
            }
        }
    }
}
