//! What both benchmarks share: fresh hashes, and the contenders that are not our own kernels.

// Each benchmark uses its part.
#![allow(dead_code)]

use runtime_filter_bloom::{BloomFilter, HashId, mix_in_place};

/// Hashes in a batch: the rows of a record batch.
pub const BATCH: usize = 8192;

/// Sizes of filters in blocks of 32 bytes, with their names: the legal sizes nearest to those.
pub const SIZES: [(&str, u32); 5] = [
    ("15KB", 7 << 6),
    ("150KB", 5 << 10),
    ("1.5MB", 6 << 13),
    ("15MB", 7 << 16),
    ("150MB", 4 << 20),
];

/// Keys that fill a filter to 12 bits a key.
pub fn keys_of(blocks: u32) -> u64 {
    u64::from(blocks) * 256 / 12
}

/// Makes batches of distinct well mixed hashes. Fresh ones for each measurement, as a batch probed
/// twice finds its blocks in the cache.
pub struct Batches {
    next: u64,
    hashes: Vec<u64>,
}

const MIX_KEY: u64 = 0x9e37_79b9_7f4a_7c15;

impl Batches {
    pub fn new() -> Self {
        Self {
            next: 1 << 40,
            hashes: vec![0; BATCH],
        }
    }

    /// Hashes that no filter holds.
    pub fn misses(&mut self) -> &[u64] {
        let from = self.next;
        self.next += BATCH as u64;
        self.fill(from..)
    }

    /// Hashes among the first `keys` members, in random order.
    pub fn hits(&mut self, keys: u64) -> &[u64] {
        let mut draws = vec![0; BATCH];
        for draw in &mut draws {
            *draw = self.next;
            self.next += 1;
        }
        mix_in_place(&mut draws, 77);
        self.fill(draws.into_iter().map(|draw| draw % keys))
    }

    fn fill(&mut self, values: impl Iterator<Item = u64>) -> &[u64] {
        for (hash, value) in self.hashes.iter_mut().zip(values) {
            *hash = value;
        }
        mix_in_place(&mut self.hashes, MIX_KEY);
        &self.hashes
    }
}

/// Calls `insert` with the hashes of the first `keys` members.
pub fn members(keys: u64, mut insert: impl FnMut(&[u64])) {
    let mut hashes = Vec::with_capacity(BATCH);
    let mut from = 0;
    while from < keys {
        let to = keys.min(from + BATCH as u64);
        hashes.clear();
        hashes.extend(from..to);
        mix_in_place(&mut hashes, MIX_KEY);
        insert(&hashes);
        from = to;
    }
}

/// Our filter with 12 bits a key.
pub fn ours(blocks: u32) -> BloomFilter {
    let id = HashId { scheme: 0, seed: 0 };
    let mut filter = BloomFilter::with_blocks(blocks, id).unwrap();
    members(keys_of(blocks), |hashes| filter.insert_hashes(hashes));
    filter
}

/// The same blocks as plain memory, aligned for every contender.
#[derive(Clone)]
pub struct Table {
    lines: Vec<Line>,
    blocks: usize,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; 16]);

impl Table {
    pub fn new(blocks: u32) -> Self {
        Self {
            lines: vec![Line([0; 16]); (blocks as usize).div_ceil(2)],
            blocks: blocks as usize,
        }
    }

    pub fn filled(blocks: u32) -> Self {
        let mut table = Self::new(blocks);
        members(keys_of(blocks), |hashes| {
            portable_insert(&mut table, hashes)
        });
        table
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }
}

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

fn index(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

fn portable_insert(table: &mut Table, hashes: &[u64]) {
    for &hash in hashes {
        let block = index(hash, table.blocks);
        for (lane, salt) in SALTS.iter().enumerate() {
            let bit = (hash as u32).wrapping_mul(*salt) >> 27;
            table.lines[block / 2].0[block % 2 * 8 + lane] |= 1 << bit;
        }
    }
}

/// The loop that anyone writes first with AVX2 intrinsics: a key at a time, no staging, no prefetch.
#[cfg(target_arch = "x86_64")]
pub mod plain_avx2 {
    use super::{SALTS, Table, index};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    fn masks(hash: u64) -> __m256i {
        let salts = unsafe { _mm256_loadu_si256(SALTS.as_ptr().cast()) };
        let bits = _mm256_mullo_epi32(_mm256_set1_epi32(hash as i32), salts);
        _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_srli_epi32::<27>(bits))
    }

    #[target_feature(enable = "avx2")]
    pub fn probe(table: &Table, hashes: &[u64], bitmap: &mut [u64]) {
        let base = table.as_ptr();
        for (word, chunk) in bitmap.iter_mut().zip(hashes.chunks(64)) {
            let mut bits = 0u64;
            for (i, &hash) in chunk.iter().enumerate() {
                let at = index(hash, table.blocks);
                let block = unsafe { _mm256_load_si256(base.add(at * 32).cast()) };
                bits |= (_mm256_testc_si256(block, masks(hash)) as u64) << i;
            }
            *word = bits;
        }
    }

    #[target_feature(enable = "avx2")]
    pub fn insert(table: &mut Table, hashes: &[u64]) {
        let blocks = table.blocks;
        let base = table.as_mut_ptr();
        for &hash in hashes {
            let block: *mut __m256i = unsafe { base.add(index(hash, blocks) * 32).cast() };
            unsafe {
                _mm256_store_si256(
                    block,
                    _mm256_or_si256(_mm256_load_si256(block), masks(hash)),
                )
            };
        }
    }

    /// The least that any probe must do: find each block, fetched two chunks ahead, and load a word of
    /// it.
    #[target_feature(enable = "avx2")]
    pub fn load_only_prefetched(table: &Table, hashes: &[u64]) -> u64 {
        let base = table.as_ptr();
        let mut staged = [[0usize; 64]; 4];
        let (chunks, tail) = hashes.as_chunks::<64>();
        assert!(tail.is_empty());
        let stage = |at: usize, out: &mut [usize; 64]| {
            let Some(chunk) = chunks.get(at) else { return };
            for (offset, &hash) in out.iter_mut().zip(chunk) {
                *offset = index(hash, table.blocks) * 32;
            }
            for &offset in out.iter() {
                unsafe { _mm_prefetch::<_MM_HINT_T0>(base.add(offset).cast()) };
            }
        };
        stage(0, &mut staged[0]);
        stage(1, &mut staged[1]);
        let mut sum = 0u64;
        for at in 0..chunks.len() {
            stage(at + 2, &mut staged[(at + 2) % 4]);
            for &offset in &staged[at % 4] {
                sum = sum.wrapping_add(unsafe { base.add(offset).cast::<u64>().read() });
            }
        }
        sum
    }

    /// The least that any merge of two must do.
    #[target_feature(enable = "avx2")]
    pub fn read_both(left: &Table, right: &Table) -> u32 {
        let mut union = [0u32; 16];
        for (left, right) in left.lines.iter().zip(&right.lines) {
            for (lane, (left, right)) in union.iter_mut().zip(left.0.iter().zip(&right.0)) {
                *lane |= left | right;
            }
        }
        union.iter().fold(0, |all, lane| all | lane)
    }

    /// The same without prefetching, which costs more than it saves in the cache.
    #[target_feature(enable = "avx2")]
    pub fn load_only(table: &Table, hashes: &[u64]) -> u64 {
        let base = table.as_ptr();
        hashes.iter().fold(0u64, |sum, &hash| {
            let at = index(hash, table.blocks) * 32;
            sum.wrapping_add(unsafe { base.add(at).cast::<u64>().read() })
        })
    }
}

/// A table in the hands of sbbf-rs.
pub struct SbbfRs {
    table: Table,
    functions: sbbf_rs::FilterFn,
}

impl SbbfRs {
    pub fn filled(blocks: u32) -> Self {
        let mut filter = Self {
            table: Table::new(blocks),
            functions: sbbf_rs::FilterFn::new(),
        };
        members(keys_of(blocks), |hashes| filter.insert(hashes));
        filter
    }

    pub fn insert(&mut self, hashes: &[u64]) {
        let (buffer, blocks) = (self.table.as_mut_ptr(), self.table.blocks);
        for &hash in hashes {
            unsafe { self.functions.insert(buffer, blocks, hash) };
        }
    }

    pub fn probe(&self, hashes: &[u64], bitmap: &mut [u64]) {
        let (buffer, blocks) = (self.table.as_ptr(), self.table.blocks);
        to_bitmap(hashes, bitmap, |hash| unsafe {
            self.functions.contains(buffer, blocks, hash)
        });
    }
}

/// Answers a word of the bitmap at a time, for the contenders that answer a key at a time.
#[inline(always)]
pub fn to_bitmap(hashes: &[u64], bitmap: &mut [u64], contains: impl Fn(u64) -> bool) {
    for (word, chunk) in bitmap.iter_mut().zip(hashes.chunks(64)) {
        let answers = chunk.iter().enumerate();
        *word = answers.fold(0, |bits, (i, &hash)| bits | u64::from(contains(hash)) << i);
    }
}

/// parquet's filter of at least as many bytes, filled (it sizes in powers of two).
pub fn parquet(blocks: u32) -> parquet::bloom_filter::Sbbf {
    let mut filter = parquet::bloom_filter::Sbbf::new_with_num_of_bytes(blocks as usize * 32);
    members(keys_of(blocks), |hashes| {
        hashes.iter().for_each(|hash| filter.insert(hash));
    });
    filter
}

/// fastbloom's filter of as many bits, filled.
pub fn fastbloom(blocks: u32) -> fastbloom::BloomFilter {
    let mut filter = fastbloom_empty(blocks);
    members(keys_of(blocks), |hashes| {
        for &hash in hashes {
            filter.insert_hash(hash);
        }
    });
    filter
}

pub fn fastbloom_empty(blocks: u32) -> fastbloom::BloomFilter {
    fastbloom::BloomFilter::with_num_bits(blocks as usize * 256)
        .expected_items(keys_of(blocks) as usize)
}
