//! Names of executions.

use std::fmt;
use std::str::FromStr;

/// One execution of one plan.
///
/// The coordinator half is random per coordinator process, so that several
/// coordinators can share a worker; the sequence half counts its executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionId {
    /// Random number of the coordinator.
    pub coordinator: u64,
    /// Number of the execution within that coordinator.
    pub sequence: u64,
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.coordinator, self.sequence)
    }
}

/// A text that is not an [`ExecutionId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an execution id: expected 16 hexadecimal digits, '-' and a number")]
pub struct InvalidExecutionId(String);

impl FromStr for ExecutionId {
    type Err = InvalidExecutionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidExecutionId(text.chars().take(64).collect());
        let (coordinator, sequence) = text.split_once('-').ok_or_else(invalid)?;
        if coordinator.len() != 16 {
            return Err(invalid());
        }
        Ok(Self {
            coordinator: u64::from_str_radix(coordinator, 16).map_err(|_| invalid())?,
            sequence: sequence.parse().map_err(|_| invalid())?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn text_round_trips_and_other_text_is_refused() {
        let id = ExecutionId {
            coordinator: 0xfe,
            sequence: 12,
        };
        assert_eq!(id.to_string(), "00000000000000fe-12");
        assert_eq!(id.to_string().parse::<ExecutionId>().unwrap(), id);
        for bad in [
            "",
            "-",
            "fe-12",
            "00000000000000fe-",
            "00000000000000fe-x",
            "00000000000000fé-1",
        ] {
            assert!(bad.parse::<ExecutionId>().is_err(), "{bad}");
        }
    }
}
