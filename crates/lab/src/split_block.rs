//! The split-block Bloom filter of `runtime_filter_bloom`, as a [`Membership`].

use runtime_filter_bloom::{BloomError, BloomFilter, HashId, geometry, geometry_for};

use crate::error::{InsertError, SizeError};
use crate::filter::Membership;
use crate::memory::MAX_BYTES;
use crate::sizing;

const BLOCK_BITS: f64 = 256.0;

/// Filters of the lab are never merged or sent, so it matters to nobody how their keys were hashed.
const ANY_HASH: HashId = HashId { scheme: 0, seed: 0 };

/// Blocks of 256 bits, in one of which a key sets a bit in each of eight lanes: one cache line a key,
/// for somewhat more false positives than the classic filter has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitBlock {
    filter: BloomFilter,
}

impl SplitBlock {
    /// An empty filter of the smallest legal size that is expected to keep to `fpp` (between 0 and 1)
    /// with `items` distinct keys.
    ///
    /// # Errors
    ///
    /// [`SizeError::ZeroItems`], [`SizeError::Fpp`] if not between 0 and 1, [`SizeError::TooLarge`]
    /// if [`MAX_BYTES`](crate::MAX_BYTES) do not even suffice for a classic filter,
    /// [`SizeError::FppOutOfReach`] if they suffice for that but not for blocks,
    /// [`SizeError::OutOfMemory`] if the memory cannot be had.
    pub fn for_fpp(items: u64, fpp: f64) -> Result<Self, SizeError> {
        sizing::check_fpp(fpp)?;
        if items == 0 {
            return Err(SizeError::ZeroItems);
        }
        let max_bytes = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
        let blocks = geometry_for(items, fpp, max_bytes);
        let least = geometry::expected_fpp(blocks, items);
        if least > fpp {
            // Unlimited it would be more than the textbook size. If that is not the reason, then that
            // more memory hardly helps: with k = 8 the probability falls but slowly.
            let textbook = sizing::Sizing::for_fpp(items, fpp)?.byte_len();
            return Err(if textbook > MAX_BYTES {
                too_large(textbook)
            } else {
                SizeError::FppOutOfReach { fpp, least }
            });
        }
        Self::with_blocks(blocks)
    }

    /// An empty filter of the largest legal size within `bits_per_key` bits a key: at least four
    /// fifths of them. One block is the least.
    ///
    /// # Errors
    ///
    /// [`SizeError::ZeroItems`], [`SizeError::BitsPerKey`] if not positive and finite,
    /// [`SizeError::TooLarge`] above [`MAX_BYTES`](crate::MAX_BYTES), [`SizeError::OutOfMemory`] if
    /// the memory cannot be had.
    pub fn for_bits_per_key(items: u64, bits_per_key: f64) -> Result<Self, SizeError> {
        sizing::check_bits_per_key(bits_per_key)?;
        if items == 0 {
            return Err(SizeError::ZeroItems);
        }
        let bytes = items as f64 * bits_per_key / 8.0;
        if bytes > MAX_BYTES as f64 {
            return Err(too_large(bytes as u64));
        }
        let blocks = (bytes * 8.0 / BLOCK_BITS) as u32;
        Self::with_blocks(geometry::largest_at_most(blocks))
    }

    fn with_blocks(blocks: u32) -> Result<Self, SizeError> {
        let filter = BloomFilter::with_blocks(blocks, ANY_HASH).map_err(|error| {
            let bytes = u64::from(blocks) * 32;
            match error {
                BloomError::OutOfMemory { .. } => SizeError::OutOfMemory { bytes },
                // All sizes are legal here.
                _ => too_large(bytes),
            }
        })?;
        Ok(Self { filter })
    }

    /// The filter itself.
    pub fn inner(&self) -> &BloomFilter {
        &self.filter
    }
}

fn too_large(bytes: u64) -> SizeError {
    let limit = MAX_BYTES;
    SizeError::TooLarge { bytes, limit }
}

impl Membership for SplitBlock {
    fn name(&self) -> &'static str {
        "split block"
    }

    fn shape(&self) -> String {
        "k = 8".to_owned()
    }

    fn insert(&mut self, hash: u64) -> Result<(), InsertError> {
        self.filter.insert_hashes(&[hash]);
        Ok(())
    }

    fn contains(&self, hash: u64) -> bool {
        self.count_contained(&[hash]) > 0
    }

    fn count_contained(&self, hashes: &[u64]) -> usize {
        let mut bitmap = [0; 16];
        let mut count = 0;
        for chunk in hashes.chunks(64 * bitmap.len()) {
            let words = &mut bitmap[..chunk.len().div_ceil(64)];
            count += match self.filter.probe_hashes(chunk, words) {
                Ok(()) => words.iter().map(|word| word.count_ones() as usize).sum(),
                // Cannot be: the bitmap is long enough. If in doubt, present.
                Err(_) => chunk.len(),
            };
        }
        count
    }

    fn byte_len(&self) -> usize {
        self.filter.byte_len()
    }

    fn expected_fpp(&self, items: u64) -> f64 {
        geometry::expected_fpp(self.filter.blocks(), items)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn sizes_are_legal_and_within_the_budget() {
        // 100,000 * 10 / 256 = 3906, and below it 7 * 2^9.
        let filter = SplitBlock::for_bits_per_key(100_000, 10.0).unwrap();
        assert_eq!(filter.inner().blocks(), 3584);
        let filter = SplitBlock::for_fpp(100_000, 0.01).unwrap();
        assert!(filter.expected_fpp(100_000) <= 0.01);
        assert_eq!(SplitBlock::for_bits_per_key(1, 0.1).unwrap().byte_len(), 32);
    }

    #[test]
    fn what_makes_no_filter_is_refused() {
        assert_eq!(SplitBlock::for_fpp(0, 0.01), Err(SizeError::ZeroItems));
        assert_eq!(
            SplitBlock::for_bits_per_key(0, 8.0),
            Err(SizeError::ZeroItems)
        );
        assert!(SplitBlock::for_fpp(1, 0.0).is_err());
        // Within the memory for the textbook's bits, but not with eight of them in a block.
        let error = SplitBlock::for_fpp(1000, 1e-30).unwrap_err();
        assert!(matches!(error, SizeError::FppOutOfReach { .. }), "{error}");
        assert!(SplitBlock::for_bits_per_key(1, 0.0).is_err());
        for result in [
            SplitBlock::for_fpp(1 << 40, 0.01),
            SplitBlock::for_bits_per_key(u64::MAX, 8.0),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, SizeError::TooLarge { .. }), "{error}");
        }
    }
}
