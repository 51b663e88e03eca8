//! Errors of this crate.

use thiserror::Error;

/// Why a filter of the wanted size cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// A filter for no items has no size.
    #[error("a filter for 0 items has no size; ask for at least 1")]
    ZeroItems,
    /// The false positive probability is not a share.
    #[error(
        "{fpp} is no false positive probability; give one above 0 and below 1, as 0.01 for 1 %"
    )]
    Fpp {
        /// The probability asked for.
        fpp: f64,
    },
    /// This kind of filter cannot reach the false positive probability at any size.
    #[error(
        "a false positive probability of {fpp:e} is out of reach, this filter goes down to {least:.1e}; ask for more than that"
    )]
    FppOutOfReach {
        /// The probability asked for.
        fpp: f64,
        /// The smallest this kind reaches.
        least: f64,
    },
    /// The number of bits a key is not a positive number.
    #[error("{bits_per_key} bits a key make no filter; give a positive number, as 10")]
    BitsPerKey {
        /// The bits a key asked for.
        bits_per_key: f64,
    },
    /// This kind of filter needs more bits a key.
    #[error(
        "{bits_per_key} bits a key are too few for this filter; it needs {needed:.1} for this number of items"
    )]
    TooFewBits {
        /// The bits a key asked for.
        bits_per_key: f64,
        /// The bits a key needed.
        needed: f64,
    },
    /// The filter would be larger than this crate allows.
    #[error(
        "a filter of {:.1} GB is beyond the limit of {:.1} GB; ask for fewer items, fewer bits a key or a higher false positive probability",
        *bytes as f64 / 1e9,
        *limit as f64 / 1e9
    )]
    TooLarge {
        /// Bytes needed, `u64::MAX` if more than that.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The memory could not be had.
    #[error("no memory for a filter of {bytes} bytes; free some, or ask for fewer items")]
    OutOfMemory {
        /// Bytes needed.
        bytes: u64,
    },
}

/// Why a key could not be inserted. The filter is as it was before, and still answers for all keys
/// that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum InsertError {
    /// No place was found for the key.
    #[error("the filter is full; remove keys, or build one for more items")]
    Full,
    /// The next layer of a filter that grows could not be made.
    #[error("the filter cannot grow: {0}")]
    Grow(#[from] SizeError),
}
