//! The inner loops: insert and probe batches of hashes.
//!
//! Layout and salts are those of the split-block Bloom filter of the Parquet format
//! (<https://parquet.apache.org/docs/file-format/bloomfilter/>): the high half of a hash picks the
//! block by multiply-shift, the low half picks one bit in each of the block's eight lanes.

/// Bytes of one block.
pub(crate) const BLOCK_BYTES: usize = 32;

/// Odd constants of the Parquet specification, one a lane.
const SALTS: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// Eight lanes of 32 bits, aligned so that no block straddles two cache lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(32))]
pub(crate) struct Block(pub(crate) [u32; 8]);

impl Block {
    /// Sets every bit that is set in `other`.
    #[inline]
    pub(crate) fn merge(&mut self, other: &Self) {
        for (lane, more) in self.0.iter_mut().zip(other.0) {
            *lane |= more;
        }
    }
}

/// The block that `hash` belongs to, of `blocks` in all: always below `blocks`.
#[inline]
fn block_index(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// The bit of each lane that `hash` sets.
#[inline]
fn lane_masks(hash: u64) -> [u32; 8] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

/// Adds `hashes`. Does nothing when there are no blocks.
pub(crate) fn insert(blocks: &mut [Block], hashes: &[u64]) {
    let count = blocks.len();
    for &hash in hashes {
        if let Some(block) = blocks.get_mut(block_index(hash, count)) {
            block.merge(&Block(lane_masks(hash)));
        }
    }
}

/// Calls `emit` with one word of answers for each 64 hashes: bit `i` of word `w` tells whether hash
/// `64 * w + i` may be present. Bits past the last hash are 0.
#[inline]
pub(crate) fn probe(blocks: &[Block], hashes: &[u64], mut emit: impl FnMut(usize, u64)) {
    let mut indices = [0usize; 64];
    for (word, chunk) in hashes.chunks(64).enumerate() {
        // Indices first: their arithmetic vectorises, and the block loads then overlap.
        for (index, &hash) in indices.iter_mut().zip(chunk) {
            *index = block_index(hash, blocks.len());
        }
        let mut bits = 0u64;
        for (i, (&hash, &index)) in chunk.iter().zip(&indices).enumerate() {
            let masks = lane_masks(hash);
            let mut found = blocks[index].0;
            for (lane, mask) in found.iter_mut().zip(masks) {
                *lane &= mask;
            }
            // Comparing whole arrays keeps the loop free of branches.
            bits |= u64::from(found == masks) << i;
        }
        emit(word, bits);
    }
}

/// Replaces each of `values` by `mix(value ^ key)`, where `mix` is the finaliser of splitmix64
/// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with the constants of
/// Stafford's variant 13): a bijection that spreads every input bit over all 64 output bits.
///
/// It is here because this is where kernels are compiled for several CPUs.
pub fn mix_in_place(values: &mut [u64], key: u64) {
    for value in values {
        let mut x = *value ^ key;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *value = x ^ (x >> 31);
    }
}
