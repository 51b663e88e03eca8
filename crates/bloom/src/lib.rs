//! Mergeable, foldable split-block Bloom filter over 64-bit hashes.
//!
//! The crate knows nothing of Arrow, of keys or of how they were hashed: it takes batches of 64-bit
//! hashes and answers with bitmaps.
//!
//! - [`BloomFilter`]: build, probe, merge, fold, encode.
//! - [`geometry`]: which sizes a filter may have, and how large it must be.
//! - [`Kernel`]: the inner loops for this CPU, chosen by themselves.
//! - [`mix_in_place`]: fixed-width values to well mixed hashes.
//! - [`checksum64`]: the checksum that guards the encoded form.
//! - [`BloomError`]: everything that can go wrong.

mod checksum;
mod error;
mod filter;
pub mod geometry;
mod kernel;
mod wire;

pub use checksum::checksum64;
pub use error::BloomError;
pub use filter::{BloomFilter, HashId};
pub use geometry::{expected_fpp, geometry_for, largest_within};
pub use kernel::{Kernel, mix_in_place};
pub use wire::HEADER_LEN;
