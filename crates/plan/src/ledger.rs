//! What is said about each join of a plan: the number of its filter, or why it
//! has none. Placement writes it, EXPLAIN and the report show it.

use std::fmt;

use serde::{Serialize, Serializer};

/// One join and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JoinVerdict {
    /// The join, as a person reads it: `Inner o_orderkey = l_orderkey`.
    pub join: String,
    /// What became of it.
    pub outcome: JoinOutcome,
}

impl fmt::Display for JoinVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            JoinOutcome::Placed { filter } => write!(f, "{}: filter {filter}", self.join),
            JoinOutcome::Refused(refusal) => write!(f, "{}: refused, {refusal}", self.join),
        }
    }
}

/// Whether a join got a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinOutcome {
    /// It has a build node and at least one probe node.
    Placed {
        /// Number of its filter.
        filter: u32,
    },
    /// It runs as it did before.
    Refused(Refusal),
}

/// Why a join has no filter. Serialized as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Runtime filters are switched off.
    Disabled,
    /// Rows of the probe side come out even without a match (Right, Full, RightAnti,
    /// RightMark): dropping them would lose them.
    ProbePreserved,
    /// `NOT IN`: one NULL on the probe side empties the result, so no probe row may
    /// be dropped.
    NullAware,
    /// A key is an expression, which cannot be followed to a place below.
    KeyNotColumn,
    /// The two sides of a key pair differ in type, so that equal values may hash apart.
    KeyTypesDiffer,
    /// The hash scheme does not cover the type, whose name it holds.
    KeyTypeUnsupported(String),
    /// A join operator that reads both sides at once, without the build-then-probe order
    /// that filters rely on.
    OperatorNotCovered(String),
    /// Nothing in the join's condition is an equality of a column of one side and one of
    /// the other.
    NoEqualKeys,
    /// A merge join whose first side is not sorted right below it: its rows come in as they
    /// are merged, so that the other side is read before they have all been seen.
    BuildNotSorted,
    /// A nested-loop join whose sides the distributed planner swaps afterwards: its build
    /// side would be read last.
    SidesSwapped,
    /// A hash join whose partition mode is still open.
    ModeUndecided,
    /// It runs over and over inside a recursive query.
    InRecursiveQuery,
    /// It belongs to a scalar subquery, which runs apart from its query.
    InScalarSubquery,
    /// A limit below the build side of a broadcast join: no place sees all that the
    /// join sees.
    BuildLimited,
    /// Probe rows cross no shuffle, so that dropping them early saves nothing.
    NoExchange,
    /// There is a shuffle below the probe side, but an operator in between (limit,
    /// window, expression, preserved join side, ...) does not let the key through.
    KeyNotFollowed,
    /// Nothing on the build side drops rows, so every probe row is likely to match.
    BuildNotSelective,
    /// The expected traffic of the filter exceeds its expected saving.
    FilterTooLarge,
    /// In one process a filter only saves hashing and copying, and the probe side is
    /// not known to be clearly larger than the build side.
    NotInOneProcess,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("disabled"),
            Self::ProbePreserved => f.write_str("probe side is preserved"),
            Self::NullAware => f.write_str("NULL-aware join"),
            Self::KeyNotColumn => f.write_str("key is not a plain column"),
            Self::KeyTypesDiffer => f.write_str("key types differ"),
            Self::KeyTypeUnsupported(name) => write!(f, "key type {name} is not supported"),
            Self::OperatorNotCovered(name) => {
                write!(f, "operator {name} reads both sides at once")
            }
            Self::NoEqualKeys => f.write_str("no equality of columns"),
            Self::BuildNotSorted => f.write_str("first side of the merge is not sorted below it"),
            Self::SidesSwapped => f.write_str("sides of the join will be swapped"),
            Self::ModeUndecided => f.write_str("partition mode of the join is not decided"),
            Self::InRecursiveQuery => f.write_str("inside a recursive query"),
            Self::InScalarSubquery => f.write_str("inside a scalar subquery"),
            Self::BuildLimited => f.write_str("build side ends in a limit"),
            Self::NoExchange => f.write_str("no hash exchange below the probe side"),
            Self::KeyNotFollowed => {
                f.write_str("key cannot be followed to a hash exchange of the probe side")
            }
            Self::BuildNotSelective => f.write_str("build side is not selective"),
            Self::FilterTooLarge => f.write_str("filter would be larger than what it saves"),
            Self::NotInOneProcess => f.write_str("cannot pay in one process"),
        }
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
