//! Errors of this crate.

use arrow::datatypes::DataType;
use runtime_filter_bloom::BloomError;
use thiserror::Error;

/// Why no [`KeyHasher`](crate::KeyHasher) can be made for a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnsupportedKey {
    /// The key has no columns.
    #[error("a runtime filter key needs at least one column; skip joins without equality keys")]
    NoColumns,
    /// A column has a type that is not hashed.
    #[error(
        "key column {position} has type {data_type}, which runtime filters cannot hash; leave this join unfiltered or cast the key"
    )]
    Type {
        /// Index of the column in the key.
        position: usize,
        /// Its type.
        data_type: DataType,
    },
}

/// Why a batch of key columns could not be hashed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HashError {
    /// The batch has more or fewer columns than the key.
    #[error("got {got} key columns where the hasher was made for {expected}; pass all of the key")]
    ColumnCount {
        /// Columns declared.
        expected: usize,
        /// Columns given.
        got: usize,
    },
    /// A column is not of its declared type.
    #[error("key column {position} has type {got} but was declared as {expected}; cast it first")]
    ColumnType {
        /// Index of the column in the key.
        position: usize,
        /// Type declared.
        expected: DataType,
        /// Type given.
        got: DataType,
    },
    /// The columns differ in length.
    #[error(
        "key column {position} has {got} rows but the first has {expected}; pass columns of one batch"
    )]
    ColumnLength {
        /// Index of the column in the key.
        position: usize,
        /// Rows of the first column.
        expected: usize,
        /// Rows of this one.
        got: usize,
    },
}

/// Why bytes could not be decoded as a partial or a filter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input does not start as this kind of message does.
    #[error("wrong magic: not an encoded {expected}; check which message was sent")]
    Magic {
        /// What the caller asked to decode.
        expected: &'static str,
    },
    /// The input was encoded by another format version.
    #[error(
        "format version {found} is not supported, only {supported}; run one release everywhere"
    )]
    Version {
        /// Version in the input.
        found: u16,
        /// The one version this build reads.
        supported: u16,
    },
    /// The sender hashes keys in another way, so its hashes mean nothing here.
    #[error("hash scheme {found} does not match {supported}; run one release everywhere")]
    HashScheme {
        /// Scheme in the input.
        found: u32,
        /// The one scheme of this build.
        supported: u32,
    },
    /// The content is larger than the receiver allows.
    #[error(
        "{bytes} bytes exceed the limit of {limit}; raise the limit or make the filter smaller"
    )]
    TooLarge {
        /// Size in bytes.
        bytes: u64,
        /// The limit given by the caller, in bytes.
        limit: u64,
    },
    /// The input ends too early.
    #[error("{got} bytes where at least {needed} are needed; send it again")]
    Truncated {
        /// Fewest bytes that would do.
        needed: u64,
        /// Bytes given.
        got: u64,
    },
    /// The content does not match its checksum.
    #[error("checksum mismatch: damaged on the way; send it again")]
    Checksum,
    /// A field has a value that no sender writes.
    #[error("malformed input: {0}; send it again")]
    Malformed(&'static str),
    /// The Bloom filter inside is at fault.
    #[error(transparent)]
    Bloom(#[from] BloomError),
}
