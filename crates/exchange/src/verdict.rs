//! What a probe is told.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use runtime_filter_core::{BloomError, RuntimeFilter};

/// Answer to "which rows of the probe side can join?"
#[derive(Debug, Clone)]
pub enum Verdict {
    /// A filter proven complete: rows it does not contain cannot join.
    Filter(Arc<RuntimeFilter>),
    /// Every row passes.
    PassAll(PassAllReason),
}

impl Verdict {
    /// Tells the hasher all that the verdict says, for a model checker.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        match self {
            Self::Filter(filter) => {
                let mut bytes = Vec::with_capacity(filter.byte_len());
                filter.encode(&mut bytes);
                bytes.hash(into);
            }
            Self::PassAll(reason) => reason.hash(into),
        }
    }
}

/// A verdict on its way to all its receivers, which share one encoded form of the filter.
#[derive(Debug, Clone)]
pub struct Announcement {
    verdict: Verdict,
    encoded: Arc<OnceLock<Bytes>>,
}

impl Announcement {
    /// An announcement that is not encoded yet.
    pub fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            encoded: Arc::default(),
        }
    }

    /// What is announced.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The encoded filter, or the reason for passing all. Encodes in the first call, of all clones
    /// together.
    ///
    /// # Errors
    /// The reason, if there is no filter.
    pub fn encoded_filter(&self) -> Result<Bytes, PassAllReason> {
        match &self.verdict {
            Verdict::PassAll(reason) => Err(*reason),
            Verdict::Filter(filter) => Ok(Bytes::clone(self.encoded.get_or_init(|| {
                let mut bytes = Vec::with_capacity(filter.byte_len());
                filter.encode(&mut bytes);
                bytes.into()
            }))),
        }
    }

    /// Whether the filter has been encoded.
    #[cfg(test)]
    pub(crate) fn is_encoded(&self) -> bool {
        self.encoded.get().is_some()
    }
}

macro_rules! pass_all_reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Why every row passes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum PassAllReason { $($(#[$doc])* $name,)* }

        impl PassAllReason {
            /// Every reason, in the order of their codes.
            pub const ALL: &'static [PassAllReason] = &[$(PassAllReason::$name),*];

            /// Number on the wire; never reused for another meaning.
            pub fn code(self) -> u32 {
                match self { $(PassAllReason::$name => $code,)* }
            }

            /// The reason with this number. A number of a newer version reads
            /// as [`PassAllReason::Unrecognised`]: passing is always safe.
            pub fn from_code(code: u32) -> Self {
                match code { $($code => PassAllReason::$name,)* _ => PassAllReason::Unrecognised }
            }
        }

        impl fmt::Display for PassAllReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(PassAllReason::$name => $text,)* })
            }
        }
    };
}

pass_all_reasons! {
    /// A number this version does not know.
    Unrecognised = 0, "reason of an unknown version";
    /// A build task failed.
    BuildFailed = 1, "a build task failed";
    /// A build stream was dropped before its end, as under LIMIT.
    BuildCancelled = 2, "a build task was cancelled before its end";
    /// The connection to a worker was lost.
    WorkerLost = 3, "the connection to a worker was lost";
    /// The connection to the coordinator was lost.
    CoordinatorLost = 4, "the connection to the coordinator was lost";
    /// Build tasks disagree on how many they are, or a partition came twice.
    InconsistentTasks = 5, "build tasks do not agree on their number or partitions";
    /// A partial could not be read.
    Malformed = 6, "a partial filter could not be read";
    /// The filter would cost more than it saves.
    TooLarge = 7, "the filter would be larger than what it saves";
    /// The filter would keep nearly every row.
    NotSelective = 8, "the filter would keep nearly every row";
    /// The execution ended first.
    Ended = 9, "the query ended first";
    /// A worker could not take part in this execution.
    WorkerUnavailable = 10, "a worker was not ready for runtime filters when the query began";
    /// The key columns cannot be hashed.
    UnsupportedKey = 11, "the key columns cannot be hashed";
    /// No exchange serves this process.
    NoExchange = 12, "this process takes no part in the exchange";
    /// The memory for the keys or the filter cannot be had.
    OutOfMemory = 13, "the memory for the filter cannot be had";
}

impl PassAllReason {
    /// Why keys that cannot be merged are unknown.
    pub(crate) fn of_merge(error: &BloomError) -> Self {
        match error {
            BloomError::OutOfMemory { .. } => Self::OutOfMemory,
            // Of another geometry or seed than the execution's.
            _ => Self::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_out_of_memory_is_told_from_one_of_foreign_geometry() {
        let out_of_memory = BloomError::OutOfMemory { blocks: 1 };
        assert_eq!(
            PassAllReason::of_merge(&out_of_memory),
            PassAllReason::OutOfMemory
        );
        let mismatch = BloomError::GeometryMismatch { this: 1, other: 2 };
        assert_eq!(PassAllReason::of_merge(&mismatch), PassAllReason::Malformed);
    }

    #[test]
    fn codes_are_unique_and_round_trip() {
        for (i, reason) in PassAllReason::ALL.iter().enumerate() {
            assert_eq!(PassAllReason::from_code(reason.code()), *reason);
            assert!(
                PassAllReason::ALL[..i]
                    .iter()
                    .all(|r| r.code() != reason.code())
            );
        }
        assert_eq!(
            PassAllReason::from_code(4_000_000),
            PassAllReason::Unrecognised
        );
    }
}
