//! Join keys to hashes, and runtime filters: build, merge, probe, encode.
//!
//! - [`bounds`]: least and greatest values of the key columns, for a storage layer to skip by.
//! - [`hash`]: key columns to one 64-bit hash a row, the same in every process.
//! - [`partial`]: what one task saw of the build side; partials merge exactly.
//! - [`sizing`]: which form of a filter is expected to move the fewest bytes.
//! - [`filter`]: the finished filter, with NULL semantics and an encoded form.
//! - [`error`]: everything that can go wrong.
//!
//! The crate does no I/O and knows nothing of plans, tasks or coverage: whether a filter is complete,
//! and so may drop a row at all, is for its users to know.

pub mod bounds;
pub mod error;
pub mod filter;
pub mod hash;
mod key_set;
pub mod partial;
mod rice;
pub mod sizing;
mod wire;

pub use bounds::{ColumnBounds, KeyValue};
pub use error::{DecodeError, HashError, UnsupportedKey};
pub use filter::{FilterKind, RuntimeFilter, SizingPolicy};
pub use hash::{HASH_SCHEME, KeyHasher};
pub use partial::{Keys, Partial, PartialBuilder};
pub use runtime_filter_bloom::{BloomError, largest_within};
