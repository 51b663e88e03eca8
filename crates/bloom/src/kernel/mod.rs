//! The inner loops, compiled for several CPUs: insert and probe batches of hashes, OR filters together,
//! count bits, mix values.
//!
//! Layout and salts are those of the split-block Bloom filter of the Parquet format
//! (<https://parquet.apache.org/docs/file-format/bloomfilter/>): the high half of a hash picks the
//! block by multiply-shift, the low half picks one bit in each of the block's eight lanes.
//!
//! ```text
//!             Kernel::best(), once a batch
//!            /            |             \
//!     portable.rs     x86::avx2     x86::avx512      all give the same bits
//! ```
//!
//! This is the only module of the project with unsafe code; `portable` has none. Its tests also run
//! under AddressSanitizer, and on another architecture:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly test -p runtime-filter-bloom --lib --target x86_64-unknown-linux-gnu
//!
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
//! cargo test -p runtime-filter-bloom --lib --target aarch64-unknown-linux-gnu
//! ```

#![allow(unsafe_code)]

mod blocks;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use blocks::Blocks;

/// Bytes of one block.
pub(crate) const BLOCK_BYTES: usize = 32;

/// Hashes handled at a time: one word of the bitmap.
const CHUNK: usize = 64;

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
    #[inline(always)]
    pub(crate) fn merge(&mut self, other: &Self) {
        for (lane, more) in self.0.iter_mut().zip(other.0) {
            *lane |= more;
        }
    }
}

/// A set of instructions that the inner loops are compiled for. All kernels give identical results;
/// they differ in speed only.
///
/// A value is proof that this CPU has the instructions: it can only be had from here. Filters use
/// [`best`](Self::best) by themselves; to name another is for benchmarks and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Isa);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Isa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernel {
    /// The kernel without any instructions of its own, left to the compiler to vectorise. On every
    /// CPU.
    pub fn portable() -> Self {
        Self(Isa::Portable)
    }

    /// AVX2; `None` if this CPU lacks it.
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if x86::has_avx2() {
            return Some(Self(Isa::Avx2));
        }
        None
    }

    /// AVX-512 (F, BW, DQ and VL); `None` if this CPU lacks it.
    pub fn avx512() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if x86::has_avx512() {
            return Some(Self(Isa::Avx512));
        }
        None
    }

    /// The fastest kernel of this CPU. Asks the CPU once in a process, later calls read a flag.
    #[inline]
    pub fn best() -> Self {
        Self::avx512()
            .or_else(Self::avx2)
            .unwrap_or(Self::portable())
    }

    /// All kernels of this CPU, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::avx512(), Self::avx2(), Some(Self::portable())]
            .into_iter()
            .flatten()
    }

    /// `"avx512"`, `"avx2"` or `"portable"`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }
}

/// Calls the function of that name which is compiled for the kernel.
macro_rules! dispatch {
    ($kernel:expr, $name:ident $(::<$param:tt>)? ($($arg:expr),*)) => {
        match $kernel.0 {
            Isa::Portable => portable::$name $(::<$param>)? ($($arg),*),
            // SAFETY: a `Kernel` with this instruction set exists only if the CPU has it, and having
            // it is all that these functions ask for beyond their types.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::avx2::$name $(::<$param>)? ($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86::avx512::$name $(::<$param>)? ($($arg),*) },
        }
    };
}

/// Adds `hashes`. Does nothing when there are no blocks.
pub(crate) fn insert(kernel: Kernel, blocks: &mut [Block], hashes: &[u64]) {
    if !blocks.is_empty() {
        dispatch!(kernel, insert(blocks, hashes));
    }
}

/// Answers 64 hashes with each word of `bitmap`: bit `i` of word `w` tells whether hash `64 * w + i`
/// may be present. Bits past the last hash are 0. With `AND`, clears the bits of absent hashes only.
///
/// Words that `bitmap` is short of are not answered; without blocks, nothing is present.
pub(crate) fn probe<const AND: bool>(
    kernel: Kernel,
    blocks: &[Block],
    hashes: &[u64],
    bitmap: &mut [u64],
) {
    let words = hashes.len().div_ceil(CHUNK).min(bitmap.len());
    let (bitmap, hashes) = (
        &mut bitmap[..words],
        &hashes[..hashes.len().min(words * CHUNK)],
    );
    if blocks.is_empty() {
        return bitmap.fill(0);
    }
    dispatch!(kernel, probe::<AND>(blocks, hashes, bitmap));
}

/// ORs `more` into `blocks`, block by block, up to the shorter of them.
pub(crate) fn merge(kernel: Kernel, blocks: &mut [Block], more: &[Block]) {
    dispatch!(kernel, merge(blocks, more));
}

/// As [`merge`] for four inputs at once: reading five streams and writing one moves less memory than
/// four times reading two and writing one.
pub(crate) fn merge_four(kernel: Kernel, blocks: &mut [Block], more: [&[Block]; 4]) {
    dispatch!(kernel, merge_four(blocks, more));
}

/// ORs each `group` adjacent blocks of `blocks` together, into one of `folded`. `group` must not be 0.
pub(crate) fn fold(kernel: Kernel, blocks: &[Block], group: usize, folded: &mut [Block]) {
    dispatch!(kernel, fold(blocks, group, folded));
}

/// The number of bits set.
pub(crate) fn count_ones(kernel: Kernel, blocks: &[Block]) -> u64 {
    dispatch!(kernel, count_ones(blocks))
}

/// Sum over the blocks of the product of the lanes' bit counts.
pub(crate) fn sum_of_products(kernel: Kernel, blocks: &[Block]) -> f64 {
    dispatch!(kernel, sum_of_products(blocks))
}

/// Replaces each of `values` by `mix(value ^ key)`, where `mix` is the finaliser of splitmix64
/// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with the constants of
/// Stafford's variant 13): a bijection that spreads every input bit over all 64 output bits.
///
/// It is here because this is where loops are compiled for several CPUs.
pub fn mix_in_place(values: &mut [u64], key: u64) {
    mix(Kernel::best(), values, key);
}

fn mix(kernel: Kernel, values: &mut [u64], key: u64) {
    dispatch!(kernel, mix_in_place(values, key));
}
