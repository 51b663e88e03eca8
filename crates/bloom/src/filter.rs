//! The filter.

use crate::error::BloomError;
use crate::geometry;
use crate::kernel::{self, BLOCK_BYTES, Block, Blocks, Kernel};

/// Which hash function fed a filter: filters of different functions must never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashId {
    /// Number of the hash scheme, given out by whoever defines it.
    pub scheme: u32,
    /// The seed that the keys were hashed with.
    pub seed: u64,
}

/// A split-block Bloom filter over 64-bit hashes.
///
/// Never a false negative: a hash once inserted is always found, also after a merge, a fold or a trip
/// over the wire. The hashes must be well mixed in all 64 bits: the high half picks the block, the
/// low half the bits.
///
/// ```
/// use runtime_filter_bloom::{BloomFilter, HashId, geometry_for};
///
/// let hash_id = HashId { scheme: 1, seed: 42 };
/// let mut filter = BloomFilter::with_blocks(geometry_for(1000, 0.01, 1 << 20), hash_id)?;
/// filter.insert_hashes(&[0x0123_4567_89ab_cdef]);
/// let mut bitmap = [0];
/// filter.probe_hashes(&[0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210], &mut bitmap)?;
/// assert_eq!(bitmap, [0b01]);
/// # Ok::<(), runtime_filter_bloom::BloomError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BloomFilter {
    // Invariant: the length is legal (see `geometry`), hence from 1 to u32::MAX.
    blocks: Blocks,
    hash_id: HashId,
}

impl BloomFilter {
    /// An empty filter of `blocks` blocks of 32 bytes, for hashes made by `hash_id`.
    ///
    /// # Errors
    ///
    /// [`BloomError::IllegalBlocks`] for a size that is not legal, [`BloomError::OutOfMemory`] if the
    /// memory cannot be had.
    pub fn with_blocks(blocks: u32, hash_id: HashId) -> Result<Self, BloomError> {
        if !geometry::is_legal(blocks) {
            return Err(BloomError::IllegalBlocks { blocks });
        }
        let empty = Blocks::zeroed(blocks as usize).ok_or(BloomError::OutOfMemory { blocks })?;
        Ok(Self {
            blocks: empty,
            hash_id,
        })
    }

    /// Which hash function the filter is for.
    pub fn hash_id(&self) -> HashId {
        self.hash_id
    }

    /// The content, block by block.
    pub(crate) fn as_blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The content, to be overwritten.
    pub(crate) fn as_blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// Size in blocks of 32 bytes.
    pub fn blocks(&self) -> u32 {
        // A legal size fits; saturating only spares a panic path.
        u32::try_from(self.blocks.len()).unwrap_or(u32::MAX)
    }

    /// Size of the bits in memory, in bytes. The encoded form is [`HEADER_LEN`](crate::HEADER_LEN)
    /// bytes longer.
    pub fn byte_len(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// Adds a batch of hashes. Adding one twice changes nothing.
    pub fn insert_hashes(&mut self, hashes: &[u64]) {
        self.insert_hashes_by(Kernel::best(), hashes);
    }

    /// As [`insert_hashes`](Self::insert_hashes), by a kernel of choice: same result, other speed.
    pub fn insert_hashes_by(&mut self, kernel: Kernel, hashes: &[u64]) {
        kernel::insert(kernel, &mut self.blocks, hashes);
    }

    /// Looks up a batch of hashes: bit `i` of `bitmap` (word `i / 64`, least significant first) is set
    /// iff hash `i` may have been inserted.
    ///
    /// The first `hashes.len().div_ceil(64)` words are overwritten, with zeros after the last hash;
    /// words past those are left alone.
    ///
    /// # Errors
    ///
    /// [`BloomError::ShortBitmap`] if `bitmap` has too few words; it is then untouched.
    pub fn probe_hashes(&self, hashes: &[u64], bitmap: &mut [u64]) -> Result<(), BloomError> {
        self.probe_hashes_by(Kernel::best(), hashes, bitmap)
    }

    /// As [`probe_hashes`](Self::probe_hashes), by a kernel of choice: same result, other speed.
    ///
    /// # Errors
    ///
    /// [`BloomError::ShortBitmap`] if `bitmap` has too few words; it is then untouched.
    pub fn probe_hashes_by(
        &self,
        kernel: Kernel,
        hashes: &[u64],
        bitmap: &mut [u64],
    ) -> Result<(), BloomError> {
        check_bitmap(hashes, bitmap)?;
        kernel::probe::<false>(kernel, &self.blocks, hashes, bitmap);
        Ok(())
    }

    /// As [`probe_hashes`](Self::probe_hashes), but clears the bits of absent hashes and leaves those
    /// of present ones as they were. In the last word of the hashes the bits after the last hash are
    /// cleared as well; words past it are left alone.
    ///
    /// # Errors
    ///
    /// [`BloomError::ShortBitmap`] if `bitmap` has too few words; it is then untouched.
    pub fn probe_hashes_and(&self, hashes: &[u64], bitmap: &mut [u64]) -> Result<(), BloomError> {
        check_bitmap(hashes, bitmap)?;
        kernel::probe::<true>(Kernel::best(), &self.blocks, hashes, bitmap);
        Ok(())
    }

    /// Adds everything that `other` holds: afterwards `self` equals the filter built from both sets of
    /// hashes.
    ///
    /// Both should have been sized for the union. Filters sized for their own share saturate when
    /// merged.
    ///
    /// # Errors
    ///
    /// [`BloomError::HashMismatch`] if the keys were hashed otherwise, [`BloomError::GeometryMismatch`]
    /// if the sizes differ; `self` is then unchanged.
    pub fn merge_from(&mut self, other: &Self) -> Result<(), BloomError> {
        self.check_merge(other)?;
        kernel::merge(Kernel::best(), &mut self.blocks, &other.blocks);
        Ok(())
    }

    /// Adds everything that each of `others` holds, four in a pass over memory: for filters beyond the
    /// cache about twice as fast as one [`merge_from`](Self::merge_from) each.
    ///
    /// # Errors
    ///
    /// As for [`merge_from`](Self::merge_from), for the first of `others` that does not fit; `self` is
    /// then unchanged.
    pub fn merge_many(&mut self, others: &[&Self]) -> Result<(), BloomError> {
        for other in others {
            self.check_merge(other)?;
        }
        let (fours, rest) = others.as_chunks::<4>();
        for four in fours {
            let four = four.map(BloomFilter::as_blocks);
            kernel::merge_four(Kernel::best(), &mut self.blocks, four);
        }
        for other in rest {
            kernel::merge(Kernel::best(), &mut self.blocks, &other.blocks);
        }
        Ok(())
    }

    fn check_merge(&self, other: &Self) -> Result<(), BloomError> {
        if self.hash_id != other.hash_id {
            return Err(BloomError::HashMismatch {
                this: self.hash_id,
                other: other.hash_id,
            });
        }
        if self.blocks.len() != other.blocks.len() {
            return Err(BloomError::GeometryMismatch {
                this: self.blocks(),
                other: other.blocks(),
            });
        }
        Ok(())
    }

    /// The filter that would have been built from the same hashes with `blocks` blocks. Exact.
    ///
    /// Multiply-shift maps a hash to block `floor(high * n / 2^32)`, and
    /// `floor(floor(high * n / 2^32) / d) = floor(high * (n / d) / 2^32)`: so `d` adjacent blocks hold
    /// just the hashes of one block of a filter `d` times smaller.
    ///
    /// # Errors
    ///
    /// [`BloomError::NotADivisor`] if `blocks` does not divide the present size,
    /// [`BloomError::OutOfMemory`] if the memory cannot be had.
    pub fn fold_to(&self, blocks: u32) -> Result<Self, BloomError> {
        let from = self.blocks();
        if blocks == 0 || !from.is_multiple_of(blocks) {
            return Err(BloomError::NotADivisor { from, to: blocks });
        }
        let mut folded = Self::with_blocks(blocks, self.hash_id)?;
        let group = (from / blocks) as usize;
        kernel::fold(Kernel::best(), &self.blocks, group, &mut folded.blocks);
        Ok(folded)
    }

    /// Folds to the smallest size whose [`estimated_fpp`](Self::estimated_fpp) is at most `fpp` (0 to
    /// 1); an unchanged copy if none is.
    ///
    /// Sizes that the estimated number of keys puts well above `fpp` are not tried.
    ///
    /// # Errors
    ///
    /// [`BloomError::OutOfMemory`] if the memory cannot be had.
    pub fn fold_to_fpp(&self, fpp: f64) -> Result<Self, BloomError> {
        // The prediction errs by a few per cent in small filters; beyond this margin it is not wrong.
        const MARGIN: f64 = 2.0;
        let ndv = self.estimated_ndv();
        let candidates = geometry::fold_sizes(self.blocks())
            .filter(|&size| size < self.blocks())
            .filter(|&size| geometry::expected_fpp(size, ndv) <= fpp * MARGIN);
        for size in candidates {
            let folded = self.fold_to(size)?;
            if folded.estimated_fpp() <= fpp {
                return Ok(folded);
            }
        }
        Ok(self.clone())
    }

    /// The probability (0 to 1) that a hash never inserted is reported present, given the bits set.
    ///
    /// Exact for uniform hashes: such a hash meets a given block with equal probability and a set bit
    /// in each lane with the lane's fill, so the mean over blocks of the product of lane fills. (The
    /// eighth power of the overall fill is too low by half: fuller blocks err far more often.) Reads
    /// the whole filter.
    pub fn estimated_fpp(&self) -> f64 {
        let sum = kernel::sum_of_products(Kernel::best(), &self.blocks);
        sum / self.blocks.len() as f64 / 32f64.powi(8)
    }

    /// Share of bits set, 0 to 1. Reads the whole filter.
    pub fn fill(&self) -> f64 {
        let set = kernel::count_ones(Kernel::best(), &self.blocks);
        set as f64 / (self.byte_len() as f64 * 8.0)
    }

    /// Estimated number of distinct hashes inserted; `u64::MAX` when every bit is set.
    ///
    /// `-32 * blocks * ln(1 - fill)`: each key sets one bit of 32 in each lane of its block, so with
    /// Poisson loads a bit stays clear with probability `exp(-ndv / (32 * blocks))` (the estimator of
    /// Swamidass and Baldi, 2007, for this layout). Within about 0.1 % at a million keys. Reads the
    /// whole filter.
    pub fn estimated_ndv(&self) -> u64 {
        // A float cast to u64 saturates, so an infinite estimate becomes u64::MAX.
        (-32.0 * self.blocks.len() as f64 * (1.0 - self.fill()).ln()).round() as u64
    }

    /// Whether no hash was inserted.
    pub fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| *block == Block::default())
    }
}

fn check_bitmap(hashes: &[u64], bitmap: &[u64]) -> Result<(), BloomError> {
    let needed = hashes.len().div_ceil(64);
    if bitmap.len() < needed {
        return Err(BloomError::ShortBitmap {
            needed,
            got: bitmap.len(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::geometry::{expected_fpp, fold_sizes};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ID: HashId = HashId { scheme: 1, seed: 7 };
    const SIZES: [u32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 14, 40, 48, 56, 64, 640];

    /// Well mixed distinct hashes: splitmix64 of a counter.
    fn hashes(from: u64, count: u64) -> Vec<u64> {
        (from..from + count)
            .map(|i| {
                let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                x ^ (x >> 31)
            })
            .collect()
    }

    fn filter_of(blocks: u32, hashes: &[u64]) -> BloomFilter {
        let mut filter = BloomFilter::with_blocks(blocks, ID).unwrap();
        filter.insert_hashes(hashes);
        filter
    }

    fn found(filter: &BloomFilter, hashes: &[u64]) -> Vec<bool> {
        let mut bitmap = vec![u64::MAX; hashes.len().div_ceil(64)];
        filter.probe_hashes(hashes, &mut bitmap).unwrap();
        (0..hashes.len())
            .map(|i| bitmap[i / 64] >> (i % 64) & 1 == 1)
            .collect()
    }

    #[test]
    fn one_key_sets_the_bits_of_the_parquet_specification() {
        // Worked by hand: block (0x80000000 * 4) >> 32 = 2; low half 1, so lane i has bit salt >> 27.
        let filter = filter_of(4, &[0x8000_0000_0000_0001]);
        let bits = [8u32, 8, 17, 20, 14, 5, 19, 11];
        assert_eq!(filter.as_blocks()[2].0, bits.map(|bit| 1 << bit));
        for other in [0, 1, 3] {
            assert_eq!(filter.as_blocks()[other], Block::default());
        }
    }

    #[test]
    fn illegal_sizes_are_refused() {
        for blocks in [0, 9, 11, 13, 15, 17, u32::MAX] {
            let error = BloomFilter::with_blocks(blocks, ID).unwrap_err();
            assert_eq!(error, BloomError::IllegalBlocks { blocks });
        }
    }

    #[test]
    fn a_short_bitmap_is_an_error_and_stays_untouched() {
        let filter = filter_of(1, &[]);
        let mut bitmap = [7u64];
        let error = BloomError::ShortBitmap { needed: 2, got: 1 };
        assert_eq!(
            filter.probe_hashes(&[1; 65], &mut bitmap),
            Err(error.clone())
        );
        assert_eq!(filter.probe_hashes_and(&[1; 65], &mut bitmap), Err(error));
        assert_eq!(bitmap, [7]);
    }

    #[test]
    fn probe_overwrites_its_words_and_no_others() {
        let keys = hashes(0, 70);
        let filter = filter_of(64, &keys);
        let mut bitmap = [0, u64::MAX, 5];
        filter.probe_hashes(&keys, &mut bitmap).unwrap();
        assert_eq!(bitmap, [u64::MAX, 0b11_1111, 5]);
        let mut bitmap = [0b101, 0b1000, 5];
        filter.probe_hashes_and(&keys, &mut bitmap).unwrap();
        assert_eq!(bitmap, [0b101, 0b1000, 5]);
        filter_of(64, &[])
            .probe_hashes_and(&keys, &mut bitmap)
            .unwrap();
        assert_eq!(bitmap, [0, 0, 5]);
    }

    #[test]
    fn merging_sizes_that_differ_is_refused() {
        let mut small = filter_of(4, &[1]);
        let before = small.clone();
        let error = small.merge_from(&filter_of(8, &[2])).unwrap_err();
        assert_eq!(error, BloomError::GeometryMismatch { this: 4, other: 8 });
        assert_eq!(small, before);
    }

    #[test]
    fn merging_many_with_a_stranger_among_them_changes_nothing() {
        let mut filter = filter_of(4, &[1]);
        let before = filter.clone();
        let good = filter_of(4, &[2]);
        let error = filter.merge_many(&[&good, &good, &good, &good, &filter_of(8, &[3])]);
        assert_eq!(
            error,
            Err(BloomError::GeometryMismatch { this: 4, other: 8 })
        );
        assert_eq!(filter, before);
    }

    #[test]
    fn merging_what_was_hashed_otherwise_is_refused() {
        let mut filter = filter_of(4, &[1]);
        let before = filter.clone();
        for other in [HashId { scheme: 2, ..ID }, HashId { seed: 8, ..ID }] {
            let error = filter.merge_from(&BloomFilter::with_blocks(4, other).unwrap());
            assert_eq!(error, Err(BloomError::HashMismatch { this: ID, other }));
        }
        assert_eq!(filter, before);
    }

    #[test]
    fn folding_to_a_size_that_does_not_divide_is_refused() {
        let filter = filter_of(40, &[1]);
        for to in [0, 3, 6, 7, 80] {
            let error = filter.fold_to(to).unwrap_err();
            assert_eq!(error, BloomError::NotADivisor { from: 40, to });
        }
    }

    #[test]
    fn measured_fpp_is_within_a_tenth_of_the_expected() {
        let ndv = 100_000u64;
        // More foreign hashes where false positives are rare, so that the sample stays sharp.
        for (bits, foreign) in [(8, 1u64 << 20), (12, 1 << 21), (16, 1 << 22)] {
            let blocks = geometry::largest_at_most(u32::try_from(ndv * bits / 256).unwrap());
            let filter = filter_of(blocks, &hashes(0, ndv));
            let hits = found(&filter, &hashes(1 << 40, foreign));
            let measured = hits.iter().filter(|&&hit| hit).count() as f64 / foreign as f64;
            let expected = expected_fpp(blocks, ndv);
            let estimated = filter.estimated_fpp();
            assert!(
                (measured / expected - 1.0).abs() < 0.1,
                "{measured} {expected}"
            );
            assert!(
                (estimated / expected - 1.0).abs() < 0.1,
                "{estimated} {expected}"
            );
        }
    }

    #[test]
    fn estimated_ndv_is_within_one_per_cent() {
        for ndv in [1_000u64, 10_000, 100_000] {
            let got = filter_of(5 << 10, &hashes(7, ndv)).estimated_ndv();
            assert!((got as f64 / ndv as f64 - 1.0).abs() < 0.01, "{ndv}: {got}");
        }
    }

    #[test]
    fn estimates_of_empty_and_full_filters() {
        let empty = filter_of(3, &[]);
        assert!(empty.is_empty());
        assert_eq!(
            (empty.fill(), empty.estimated_fpp(), empty.estimated_ndv()),
            (0.0, 0.0, 0)
        );
        let full = filter_of(1, &hashes(0, 100_000));
        assert!(!full.is_empty());
        assert_eq!(
            (full.fill(), full.estimated_fpp(), full.estimated_ndv()),
            (1.0, 1.0, u64::MAX)
        );
    }

    #[test]
    fn fold_to_fpp_takes_the_smallest_size_that_holds_the_target() {
        let keys = hashes(0, 5_000);
        let filter = filter_of(7 << 12, &keys);
        for fpp in [0.001, 0.01, 0.1] {
            let folded = filter.fold_to_fpp(fpp).unwrap();
            let wanted = fold_sizes(7 << 12)
                .find(|&size| filter.fold_to(size).unwrap().estimated_fpp() <= fpp)
                .unwrap();
            assert_eq!(folded, filter_of(wanted, &keys));
        }
        let saturated = filter_of(4, &hashes(0, 100_000));
        assert_eq!(saturated.fold_to_fpp(0.01).unwrap(), saturated);
    }

    proptest! {
        #[test]
        fn never_a_false_negative(keys in vec(any::<u64>(), 0..300), size in 0..SIZES.len()) {
            let filter = filter_of(SIZES[size], &keys);
            prop_assert!(found(&filter, &keys).iter().all(|&hit| hit));
        }

        #[test]
        fn folding_equals_building_smaller(keys in vec(any::<u64>(), 0..300), size in 0..SIZES.len()) {
            let filter = filter_of(SIZES[size], &keys);
            for target in fold_sizes(SIZES[size]) {
                prop_assert_eq!(filter.fold_to(target).unwrap(), filter_of(target, &keys));
            }
        }

        #[test]
        fn merging_equals_building_from_the_union(
            left in vec(any::<u64>(), 0..100),
            right in vec(any::<u64>(), 0..100),
            size in 0..SIZES.len(),
        ) {
            let mut merged = filter_of(SIZES[size], &left);
            merged.merge_from(&filter_of(SIZES[size], &right)).unwrap();
            prop_assert_eq!(merged, filter_of(SIZES[size], &[left, right].concat()));
        }

        #[test]
        fn merging_many_equals_merging_each(
            keys in vec(vec(any::<u64>(), 0..40), 0..11),
            size in 0..SIZES.len(),
        ) {
            let filters: Vec<BloomFilter> = keys.iter().map(|keys| filter_of(SIZES[size], keys)).collect();
            let mut merged = filter_of(SIZES[size], &[1]);
            merged.merge_many(&filters.iter().collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(merged, filter_of(SIZES[size], &[keys.concat(), vec![1]].concat()));
        }

        #[test]
        fn and_probe_equals_probe_and_bitmap(
            keys in vec(any::<u64>(), 0..50),
            probes in vec(any::<u64>(), 0..200),
            before in vec(any::<u64>(), 4),
        ) {
            let filter = filter_of(2, &keys);
            let probes = [probes, keys].concat();
            let mut plain = vec![0; 4];
            filter.probe_hashes(&probes, &mut plain).unwrap();
            let mut anded = before.clone();
            filter.probe_hashes_and(&probes, &mut anded).unwrap();
            for word in 0..probes.len().div_ceil(64) {
                prop_assert_eq!(anded[word], plain[word] & before[word]);
            }
        }
    }
}
