//! Errors of this crate.

use thiserror::Error;

use crate::filter::HashId;

/// What can go wrong when filters are made, combined, probed or decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BloomError {
    /// The number of blocks is not 1, 2, 3 or `m * 2^k` with `m` in 4..=7.
    #[error(
        "{blocks} blocks is not a legal filter size; take one from geometry_for or largest_within"
    )]
    IllegalBlocks {
        /// The size asked for, in blocks of 32 bytes.
        blocks: u32,
    },
    /// The memory for a filter could not be had.
    #[error("no memory for a filter of {blocks} blocks of 32 bytes; lower the filter size limit")]
    OutOfMemory {
        /// The size asked for, in blocks of 32 bytes.
        blocks: u32,
    },
    /// The bitmap handed to a probe has fewer bits than there are hashes.
    #[error(
        "the bitmap holds {got} words but the hashes need {needed}; pass one bit a hash, rounded up to 64"
    )]
    ShortBitmap {
        /// Words of 64 bits needed.
        needed: usize,
        /// Words of 64 bits given.
        got: usize,
    },
    /// Two filters whose keys were hashed differently cannot be merged.
    #[error(
        "cannot merge keys hashed with scheme {} and seed {:#x} into ones with {} and {:#x}; hash all keys of a filter alike", other.scheme, other.seed, this.scheme, this.seed
    )]
    HashMismatch {
        /// Hash function of the filter merged into.
        this: HashId,
        /// Hash function of the filter merged from.
        other: HashId,
    },
    /// Two filters of different sizes cannot be merged.
    #[error(
        "cannot merge a filter of {other} blocks into one of {this}; fold both to one size first"
    )]
    GeometryMismatch {
        /// Blocks of the filter merged into.
        this: u32,
        /// Blocks of the filter merged from.
        other: u32,
    },
    /// A filter can only be folded to a size that divides its own.
    #[error(
        "cannot fold {from} blocks to {to}; the new size must divide the old, see geometry::fold_sizes"
    )]
    NotADivisor {
        /// Blocks of the filter.
        from: u32,
        /// Blocks asked for.
        to: u32,
    },
    /// The input does not start as an encoded filter does.
    #[error(
        "not an encoded Bloom filter: wrong magic; check that the sender encoded a BloomFilter"
    )]
    Magic,
    /// The input was encoded by a newer or older format.
    #[error(
        "Bloom filter format version {found} is not supported, only {supported}; run one release on all workers"
    )]
    Version {
        /// Version in the input.
        found: u16,
        /// The one version this build reads.
        supported: u16,
    },
    /// A field that must be zero is not.
    #[error("corrupt Bloom filter: a reserved field is not zero; send it again")]
    Reserved,
    /// The filter is larger than the receiver allows.
    #[error(
        "a Bloom filter of {bytes} bytes exceeds the limit of {limit}; raise the limit or size the filter smaller"
    )]
    TooLarge {
        /// Size of the filter in bytes, without header.
        bytes: u64,
        /// The limit given by the caller, in bytes.
        limit: usize,
    },
    /// The input is shorter or longer than its header says.
    #[error("corrupt Bloom filter: {got} bytes where {expected} were announced; send it again")]
    Length {
        /// Bytes the header announces, or the least a header takes.
        expected: u64,
        /// Bytes given.
        got: usize,
    },
    /// The content does not match its checksum.
    #[error("corrupt Bloom filter: checksum mismatch; send it again")]
    Checksum,
}
