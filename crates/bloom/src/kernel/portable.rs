//! The loops in plain Rust: the reference for the other kernels, and the code that compilers vectorise
//! by themselves (NEON, and AVX where a loop needs no more than wider registers).

use super::{Block, CHUNK, SALTS};

/// The block that `hash` belongs to, of `blocks` in all: always below `blocks`, unless that is 0.
#[inline(always)]
pub(super) fn block_index(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// The bit of each lane that `hash` sets.
#[inline(always)]
pub(super) fn lane_masks(hash: u64) -> [u32; 8] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

#[inline(always)]
pub(super) fn insert(blocks: &mut [Block], hashes: &[u64]) {
    let count = blocks.len();
    for &hash in hashes {
        if let Some(block) = blocks.get_mut(block_index(hash, count)) {
            block.merge(&Block(lane_masks(hash)));
        }
    }
}

#[inline(always)]
pub(super) fn probe<const AND: bool>(blocks: &[Block], hashes: &[u64], bitmap: &mut [u64]) {
    let mut indices = [0usize; CHUNK];
    for (word, chunk) in bitmap.iter_mut().zip(hashes.chunks(CHUNK)) {
        // Indices first: their arithmetic vectorises, and the block loads then overlap.
        for (index, &hash) in indices.iter_mut().zip(chunk) {
            *index = block_index(hash, blocks.len());
        }
        let mut bits = 0u64;
        for (i, (&hash, &index)) in chunk.iter().zip(&indices).enumerate() {
            let (masks, block) = (lane_masks(hash), &blocks[index].0);
            // No branch, and a sum over lanes that stays in vector registers.
            let lacking = (0..8).fold(0, |lacking, lane| lacking | masks[lane] & !block[lane]);
            bits |= u64::from(lacking == 0) << i;
        }
        *word = if AND { *word & bits } else { bits };
    }
}

#[inline(always)]
pub(super) fn merge(blocks: &mut [Block], more: &[Block]) {
    for (block, more) in blocks.iter_mut().zip(more) {
        block.merge(more);
    }
}

#[inline(always)]
pub(super) fn merge_four(blocks: &mut [Block], [a, b, c, d]: [&[Block]; 4]) {
    let len = [a, b, c, d]
        .iter()
        .fold(blocks.len(), |len, more| len.min(more.len()));
    // Slices of one length are indexed without checks, and so in whole registers.
    let (blocks, a, b, c, d) = (
        &mut blocks[..len],
        &a[..len],
        &b[..len],
        &c[..len],
        &d[..len],
    );
    for i in 0..len {
        for lane in 0..8 {
            blocks[i].0[lane] |= a[i].0[lane] | b[i].0[lane] | c[i].0[lane] | d[i].0[lane];
        }
    }
}

#[inline(always)]
pub(super) fn fold(blocks: &[Block], group: usize, folded: &mut [Block]) {
    for (union, group) in folded.iter_mut().zip(blocks.chunks(group)) {
        for block in group {
            union.merge(block);
        }
    }
}

#[inline(always)]
pub(super) fn count_ones(blocks: &[Block]) -> u64 {
    blocks
        .iter()
        .flat_map(|block| block.0)
        .map(|lane| u64::from(lane.count_ones()))
        .sum()
}

#[inline(always)]
pub(super) fn sum_of_products(blocks: &[Block]) -> f64 {
    blocks
        .iter()
        .map(|block| {
            // A product of eight counts of at most 32 is at most 2^40.
            let product: u64 = block
                .0
                .iter()
                .map(|lane| u64::from(lane.count_ones()))
                .product();
            product as f64
        })
        .sum()
}

#[inline(always)]
pub(super) fn mix_in_place(values: &mut [u64], key: u64) {
    for value in values {
        let mut x = *value ^ key;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *value = x ^ (x >> 31);
    }
}
