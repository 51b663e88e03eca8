//! Textbook filters beside the split-block Bloom filter: to size filters and to compare them.
//!
//! All take well mixed 64-bit hashes of keys, and none ever answers "absent" for a key it holds.
//!
//! - [`Sizing`]: bits, hashes and false positive probability (FPP) of a Bloom filter, and back.
//! - [`Membership`]: what every filter does; [`Removable`]: what some do as well.
//! - [`ClassicBloom`]: the original, m bits and k hashes.
//! - [`CountingBloom`]: counters in place of bits, so that keys can be removed.
//! - [`ScalableBloom`]: grows by layers, for a number of keys not known beforehand.
//! - [`CuckooFilter`]: fingerprints in a hash table; removes keys, and can be full.
//! - [`SplitBlock`]: the filter of `runtime_filter_bloom`, behind the same trait.
//! - [`SizeError`], [`InsertError`]: everything that can go wrong.
//!
//! ```
//! use runtime_filter_lab::{ClassicBloom, Membership, Sizing};
//!
//! let sizing = Sizing::for_fpp(100_000, 0.01)?;
//! assert_eq!((sizing.bits(), sizing.hashes()), (958_506, 7));
//! let mut filter = ClassicBloom::new(sizing)?;
//! filter.insert(0x0123_4567_89ab_cdef)?;
//! assert!(filter.contains(0x0123_4567_89ab_cdef));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod classic;
mod counting;
mod cuckoo;
mod double_hashing;
mod error;
mod filter;
mod memory;
mod scalable;
mod sizing;
mod split_block;

pub use classic::ClassicBloom;
pub use counting::CountingBloom;
pub use cuckoo::CuckooFilter;
pub use error::{InsertError, SizeError};
pub use filter::{Membership, Removable};
pub use memory::MAX_BYTES;
pub use scalable::ScalableBloom;
pub use sizing::{Sizing, expected_fpp, items_from_fill, optimal_hashes};
pub use split_block::SplitBlock;
