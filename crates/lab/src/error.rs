//! Errors of this crate.

use std::fmt;

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
        "{fpp:?} is no false positive probability; give one above 0 and below 1, as 0.01 for 1 %"
    )]
    Fpp {
        /// The probability asked for.
        fpp: f64,
    },
    /// This kind of filter cannot reach the false positive probability at any size allowed.
    #[error(
        "a false positive probability of {fpp:e} is out of reach: for this number of items this kind of filter goes down to {least:.1e}; ask for more than that"
    )]
    FppOutOfReach {
        /// The probability asked for.
        fpp: f64,
        /// The smallest this kind reaches.
        least: f64,
    },
    /// The number of bits a key is not a positive number.
    #[error("{bits_per_key:?} bits a key make no filter; give a positive number, as 10")]
    BitsPerKey {
        /// The bits a key asked for.
        bits_per_key: f64,
    },
    /// This kind of filter needs more bits a key.
    #[error(
        "{bits_per_key:?} bits a key are too few for this filter; it needs {needed:.1} for this number of items"
    )]
    TooFewBits {
        /// The bits a key asked for.
        bits_per_key: f64,
        /// The bits a key needed.
        needed: f64,
    },
    /// The filter would be larger than this crate allows.
    #[error(
        "a filter of {} is beyond the limit of {:.2} GB; ask for fewer items, fewer bits a key or a higher false positive probability",
        Needed(*bytes),
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

/// A size for people, rounded up so that it never looks like the limit that it exceeds.
struct Needed(u64);

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.0 == u64::MAX { "more than " } else { "" };
        write!(f, "{more}{:.2} GB", (self.0 as f64 / 1e7).ceil() / 100.0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_short_and_tell_the_limit_apart() {
        let limit = crate::MAX_BYTES;
        let too_large = |bytes| SizeError::TooLarge { bytes, limit }.to_string();
        let just = too_large(limit + 8);
        assert!(
            just.contains("1.08 GB is beyond the limit of 1.07 GB"),
            "{just}"
        );
        assert!(too_large(u64::MAX).contains("more than 18446744073.71 GB"));
        for error in [
            SizeError::Fpp { fpp: 1e300 },
            SizeError::BitsPerKey {
                bits_per_key: -1e300,
            },
        ] {
            assert!(error.to_string().len() < 120, "{error}");
        }
    }
}
