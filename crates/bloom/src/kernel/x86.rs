//! The loops for x86-64 with AVX2, and with AVX-512.
//!
//! Probes take 64 hashes at a time. Where their blocks lie is computed for all 64 first ("staged"):
//! that arithmetic fills whole registers, the block loads no longer wait for it, and for filters
//! beyond the cache the blocks of a later chunk can be prefetched from the same list.
//!
//! Every unsafe block here rests on one of two facts, named in its comment:
//!
//! - *offsets*: a staged offset is `BLOCK_BYTES * i` with `i` below the number of blocks, because
//!   `(h >> 32) * n >> 32 < n` for every `h` and every `n` from 1 to 2^32 - 1. Filters are never
//!   empty here, and never longer (see `geometry`).
//! - *array*: the pointer comes from a reference to an array as long as the access.

use std::arch::x86_64::*;

use super::{BLOCK_BYTES, Block, CHUNK, SALTS, portable};

/// Filters up to this size stay in a core's second-level cache, where prefetching costs more than it
/// saves. 1 MiB is common; a cache of another size shifts the optimum by little.
const PREFETCH_ABOVE: usize = 1 << 20;

/// The same for insertion, which waits for no result of its loads.
const PREFETCH_WRITES_ABOVE: usize = 4 << 20;

/// Chunks between the prefetch of a block and its use: 128 hashes, long enough for memory, short
/// enough for the first-level cache.
const DISTANCE: usize = 2;

/// Staged chunks kept: a power of two above the distance, so that the place of a chunk is a mask away.
const RING: usize = 2 * DISTANCE;

/// Byte offsets of the blocks of one chunk of hashes.
type Offsets = [u64; CHUNK];

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Compiles the portable loops for an instruction set.
macro_rules! compile_portable {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(in super::super) fn merge(blocks: &mut [Block], more: &[Block]) {
            portable::merge(blocks, more);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn merge_four(blocks: &mut [Block], more: [&[Block]; 4]) {
            portable::merge_four(blocks, more);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn fold(blocks: &[Block], group: usize, folded: &mut [Block]) {
            portable::fold(blocks, group, folded);
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn count_ones(blocks: &[Block]) -> u64 {
            portable::count_ones(blocks)
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn sum_of_products(blocks: &[Block]) -> f64 {
            portable::sum_of_products(blocks)
        }

        #[target_feature(enable = $features)]
        pub(in super::super) fn mix_in_place(values: &mut [u64], key: u64) {
            portable::mix_in_place(values, key);
        }
    };
}

/// Runs `answer` on every chunk of `hashes`, with its staged offsets, and puts the word it returns
/// into `bitmap`. With `PREFETCH`, fetches the blocks of a chunk `DISTANCE` chunks ahead.
///
/// Inlined into functions with a target feature, as are the closures.
#[inline(always)]
fn by_chunk<const AND: bool, const PREFETCH: bool>(
    blocks: &[Block],
    hashes: &[u64],
    bitmap: &mut [u64],
    stage: impl Fn(&[u64; CHUNK], &mut Offsets),
    answer: impl Fn(&[u64; CHUNK], &Offsets) -> u64,
) {
    let put = |word: &mut u64, bits: u64| *word = if AND { *word & bits } else { bits };
    let (chunks, tail) = hashes.as_chunks::<CHUNK>();
    let mut staged = [[0u64; CHUNK]; RING];
    let fetch = |offsets: &Offsets| {
        if PREFETCH {
            for &offset in offsets {
                prefetch_to_read(blocks, offset);
            }
        }
    };
    let ahead = if PREFETCH { DISTANCE } else { 0 };
    for (at, chunk) in chunks.iter().enumerate().take(ahead) {
        stage(chunk, &mut staged[at % RING]);
        fetch(&staged[at % RING]);
    }
    for (at, (chunk, word)) in chunks.iter().zip(bitmap.iter_mut()).enumerate() {
        if let Some(later) = chunks.get(at + ahead) {
            stage(later, &mut staged[(at + ahead) % RING]);
            fetch(&staged[(at + ahead) % RING]);
        }
        put(word, answer(chunk, &staged[at % RING]));
    }
    if let Some(word) = bitmap.get_mut(chunks.len())
        && !tail.is_empty()
    {
        // Padded with hashes of 0, whose answers are cut off again.
        let mut padded = [0u64; CHUNK];
        padded[..tail.len()].copy_from_slice(tail);
        stage(&padded, &mut staged[0]);
        let bits = answer(&padded, &staged[0]);
        put(word, bits & !(u64::MAX << tail.len()));
    }
}

#[inline(always)]
fn prefetch_to_read(blocks: &[Block], offset: u64) {
    // SAFETY: *offsets*; and a prefetch may name any address.
    unsafe {
        let block = blocks.as_ptr().byte_add(offset as usize);
        _mm_prefetch::<_MM_HINT_T0>(block.cast());
    }
}

#[inline(always)]
fn prefetch_to_write(blocks: &[Block], offset: u64) {
    // SAFETY: *offsets*; and a prefetch may name any address.
    unsafe {
        let block = blocks.as_ptr().byte_add(offset as usize);
        _mm_prefetch::<_MM_HINT_ET0>(block.cast());
    }
}

pub(super) mod avx2 {
    use super::*;

    compile_portable!("avx2,bmi1,bmi2,popcnt");

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(in super::super) fn probe<const AND: bool>(
        blocks: &[Block],
        hashes: &[u64],
        bitmap: &mut [u64],
    ) {
        let count = blocks.len() as u64;
        let stage = |chunk: &_, offsets: &mut _| stage(chunk, count, offsets);
        let answer = |chunk: &_, offsets: &_| answer(blocks, chunk, offsets);
        if size_of_val(blocks) <= PREFETCH_ABOVE {
            by_chunk::<AND, false>(blocks, hashes, bitmap, stage, answer);
        } else {
            by_chunk::<AND, true>(blocks, hashes, bitmap, stage, answer);
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(in super::super) fn insert(blocks: &mut [Block], hashes: &[u64]) {
        if size_of_val(blocks) <= PREFETCH_WRITES_ABOVE {
            insert_chunks::<0>(blocks, hashes);
        } else {
            insert_chunks::<DISTANCE>(blocks, hashes);
        }
    }

    /// Fetches blocks `AHEAD` chunks before they are written, if that is not 0.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn insert_chunks<const AHEAD: usize>(blocks: &mut [Block], hashes: &[u64]) {
        let count = blocks.len() as u64;
        let (chunks, tail) = hashes.as_chunks::<CHUNK>();
        let mut staged = [[0u64; CHUNK]; RING];
        for at in 0..chunks.len() + AHEAD {
            if let Some(later) = chunks.get(at) {
                let offsets = &mut staged[at % RING];
                stage(later, count, offsets);
                if AHEAD > 0 {
                    for &offset in offsets.iter() {
                        prefetch_to_write(blocks, offset);
                    }
                }
            }
            if let Some(due) = at.checked_sub(AHEAD)
                && let Some(chunk) = chunks.get(due)
            {
                add(blocks, chunk, &staged[due % RING]);
            }
        }
        portable::insert(blocks, tail);
    }

    /// The bit of each lane that `hash` sets.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn masks(hash: u64, salts: __m256i) -> __m256i {
        let bits =
            _mm256_srli_epi32::<27>(_mm256_mullo_epi32(_mm256_set1_epi32(hash as i32), salts));
        _mm256_sllv_epi32(_mm256_set1_epi32(1), bits)
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn add(blocks: &mut [Block], hashes: &[u64; CHUNK], offsets: &Offsets) {
        // SAFETY: *array*.
        let salts = unsafe { _mm256_loadu_si256(SALTS.as_ptr().cast()) };
        let base = blocks.as_mut_ptr();
        for (&hash, &offset) in hashes.iter().zip(offsets) {
            // SAFETY: *offsets*.
            unsafe {
                let block: *mut __m256i = base.byte_add(offset as usize).cast();
                let both = _mm256_or_si256(_mm256_load_si256(block), masks(hash, salts));
                _mm256_store_si256(block, both);
            }
        }
    }

    /// Where the blocks of the hashes lie, of `count` blocks.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn stage(hashes: &[u64; CHUNK], count: u64, offsets: &mut Offsets) {
        let count = _mm256_set1_epi64x(count as i64);
        let whole_blocks = _mm256_set1_epi64x(!(BLOCK_BYTES as i64 - 1));
        let groups = hashes.as_chunks::<4>().0.iter();
        for (group, out) in groups.zip(offsets.as_chunks_mut::<4>().0) {
            // SAFETY: *array*.
            let hash = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
            let product = _mm256_mul_epu32(_mm256_srli_epi64::<32>(hash), count);
            // (product >> 32) * 32
            let offset = _mm256_and_si256(_mm256_srli_epi64::<27>(product), whole_blocks);
            // SAFETY: *array*.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), offset) };
        }
    }

    /// One bit a hash: whether its block has all its bits.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn answer(blocks: &[Block], hashes: &[u64; CHUNK], offsets: &Offsets) -> u64 {
        // SAFETY: *array*.
        let salts = unsafe { _mm256_loadu_si256(SALTS.as_ptr().cast()) };
        // A byte a hash, as setting a byte is cheaper than shifting a bit into place.
        let mut found = [0u8; CHUNK];
        for ((&hash, &offset), found) in hashes.iter().zip(offsets).zip(&mut found) {
            // SAFETY: *offsets*.
            let block =
                unsafe { _mm256_load_si256(blocks.as_ptr().byte_add(offset as usize).cast()) };
            *found = _mm256_testc_si256(block, masks(hash, salts)) as u8;
        }
        let half = |half: &[u8; 32]| {
            // SAFETY: *array*.
            let bytes = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            // 1 moves up to the sign bit; 0 stays 0.
            _mm256_movemask_epi8(_mm256_slli_epi16::<7>(bytes)) as u32
        };
        match found.as_chunks::<32>().0 {
            [low, high] => u64::from(half(low)) | u64::from(half(high)) << 32,
            // Not reached: 64 bytes are two halves. All present is the answer that loses nothing.
            _ => u64::MAX,
        }
    }
}

pub(super) mod avx512 {
    use super::*;

    compile_portable!("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt");

    /// Bound by loads and stores: wider registers gain nothing.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
    pub(in super::super) fn insert(blocks: &mut [Block], hashes: &[u64]) {
        super::avx2::insert(blocks, hashes);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
    pub(in super::super) fn probe<const AND: bool>(
        blocks: &[Block],
        hashes: &[u64],
        bitmap: &mut [u64],
    ) {
        let count = blocks.len() as u64;
        let stage = |chunk: &_, offsets: &mut _| stage(chunk, count, offsets);
        let answer = |chunk: &_, offsets: &_| answer(blocks, chunk, offsets);
        if size_of_val(blocks) <= PREFETCH_ABOVE {
            by_chunk::<AND, false>(blocks, hashes, bitmap, stage, answer);
        } else {
            by_chunk::<AND, true>(blocks, hashes, bitmap, stage, answer);
        }
    }

    /// Where the blocks of the hashes lie, of `count` blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
    fn stage(hashes: &[u64; CHUNK], count: u64, offsets: &mut Offsets) {
        let count = _mm512_set1_epi64(count as i64);
        let whole_blocks = _mm512_set1_epi64(!(BLOCK_BYTES as i64 - 1));
        let groups = hashes.as_chunks::<8>().0.iter();
        for (group, out) in groups.zip(offsets.as_chunks_mut::<8>().0) {
            // SAFETY: *array*.
            let hash = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
            let product = _mm512_mul_epu32(_mm512_srli_epi64::<32>(hash), count);
            // (product >> 32) * 32
            let offset = _mm512_and_si512(_mm512_srli_epi64::<27>(product), whole_blocks);
            // SAFETY: *array*.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), offset) };
        }
    }

    /// One bit a hash: whether its block has all its bits. Two hashes share a register: the first in
    /// its low half, the second in its high half.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
    fn answer(blocks: &[Block], hashes: &[u64; CHUNK], offsets: &Offsets) -> u64 {
        // SAFETY: *array*.
        let salts = unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(SALTS.as_ptr().cast())) };
        let one = _mm512_set1_epi32(1);
        // Of eight hashes, as sixteen lanes of 32 bits: the low half of one in the lower eight lanes,
        // of the next in the upper eight.
        let halves = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
        let pick = [0, 4, 8, 12].map(|from| _mm512_add_epi32(halves, _mm512_set1_epi32(from)));
        let load = |offset: u64| {
            // SAFETY: *offsets*.
            unsafe { _mm256_load_si256(blocks.as_ptr().byte_add(offset as usize).cast()) }
        };
        // A bit for each lane that lacks its bit: so a byte for each hash, 0 if nothing lacks.
        let mut lacking = [0u16; CHUNK / 2];
        let groups = hashes
            .as_chunks::<8>()
            .0
            .iter()
            .zip(offsets.as_chunks::<8>().0);
        for ((group, offsets), lacking) in groups.zip(lacking.as_chunks_mut::<4>().0) {
            // SAFETY: *array*.
            let group = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
            let pairs = pick.iter().zip(offsets.as_chunks::<2>().0);
            for ((&pick, &[first, second]), lacking) in pairs.zip(lacking) {
                let low = _mm512_permutexvar_epi32(pick, group);
                let bits = _mm512_srli_epi32::<27>(_mm512_mullo_epi32(low, salts));
                let masks = _mm512_sllv_epi32(one, bits);
                let pair =
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(first)), load(second));
                *lacking = _mm512_testn_epi32_mask(pair, masks);
            }
        }
        // SAFETY: *array*.
        let bytes = unsafe { _mm512_loadu_si512(lacking.as_ptr().cast()) };
        _mm512_testn_epi8_mask(bytes, bytes)
    }
}
