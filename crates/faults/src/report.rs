//! The totals of simulations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What simulations have shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Simulations.
    pub runs: u64,
    /// Queries that began.
    pub queries: u64,
    /// Those that failed because a process died, or were cancelled.
    pub queries_ended_early: u64,
    /// Probes by what they were told.
    pub probes: BTreeMap<String, u64>,
    /// Keys that were looked up in the filters that probes were told.
    pub keys_checked: u64,
    /// Faults that happened.
    pub faults: BTreeMap<String, u64>,
    /// Longest wait of a probe beyond what it was allowed.
    pub longest_overrun: Duration,
    /// Filters that drop a row, or that were decided on too early. Each line names its seed.
    pub wrong: Vec<String>,
    /// Waits that went on for longer than allowed. Each line names its seed.
    pub hangs: Vec<String>,
    /// Executions that stayed registered. Each line names its seed.
    pub leaks: Vec<String>,
    /// Probes that were not told a filter though nothing went wrong. Each line names its seed.
    pub needless: Vec<String>,
}

impl Report {
    /// Adds the totals of another.
    pub fn add(&mut self, other: Self) {
        let Self {
            runs,
            queries,
            queries_ended_early,
            probes,
            keys_checked,
            faults,
            longest_overrun,
            wrong,
            hangs,
            leaks,
            needless,
        } = other;
        self.runs += runs;
        self.queries += queries;
        self.queries_ended_early += queries_ended_early;
        for (told, count) in probes {
            *self.probes.entry(told).or_default() += count;
        }
        self.keys_checked += keys_checked;
        for (fault, count) in faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.longest_overrun = self.longest_overrun.max(longest_overrun);
        self.wrong.extend(wrong);
        self.hangs.extend(hangs);
        self.leaks.extend(leaks);
        self.needless.extend(needless);
    }

    /// Whether nothing was wrong, hung, leaked or passed all without need.
    pub fn is_clean(&self) -> bool {
        let found = [&self.wrong, &self.hangs, &self.leaks, &self.needless];
        found.iter().all(|lines| lines.is_empty())
    }

    /// Probes that were told a filter.
    pub fn filters(&self) -> u64 {
        self.probes.get(FILTER).copied().unwrap_or(0)
    }
}

/// What a probe was told, if it was told a filter.
pub(crate) const FILTER: &str = "a filter";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs, {} queries, {} of them ended early",
            self.runs, self.queries, self.queries_ended_early
        )?;
        writeln!(f, "faults:")?;
        for (fault, count) in &self.faults {
            writeln!(f, "{count:>12}  {fault}")?;
        }
        writeln!(f, "probes were told:")?;
        for (told, count) in &self.probes {
            writeln!(f, "{count:>12}  {told}")?;
        }
        writeln!(f, "{} keys looked up in filters", self.keys_checked)?;
        writeln!(
            f,
            "longest wait beyond the allowed one: {} ms",
            self.longest_overrun.as_millis()
        )?;
        for (what, lines) in [
            ("wrong filters", &self.wrong),
            ("hangs", &self.hangs),
            ("leaked registrations", &self.leaks),
            ("needless pass-alls", &self.needless),
        ] {
            writeln!(f, "{} {what}", lines.len())?;
            for line in lines.iter().take(20) {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}

/// A report that the hosts of a simulation write to.
#[derive(Debug)]
pub(crate) struct Shared {
    seed: u64,
    report: Mutex<Report>,
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            report: Mutex::new(Report {
                runs: 1,
                ..Report::default()
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, fault: &str) {
        *self.lock().faults.entry(fault.to_owned()).or_default() += 1;
    }

    pub(crate) fn told(&self, what: &str) {
        *self.lock().probes.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn wrong(&self, what: impl fmt::Display) {
        let line = format!("seed {}: {what}", self.seed);
        self.lock().wrong.push(line);
    }

    pub(crate) fn hang(&self, what: impl fmt::Display) {
        let line = format!("seed {}: {what}", self.seed);
        self.lock().hangs.push(line);
    }

    pub(crate) fn leak(&self, what: impl fmt::Display) {
        let line = format!("seed {}: {what}", self.seed);
        self.lock().leaks.push(line);
    }

    pub(crate) fn needless(&self, what: impl fmt::Display) {
        let line = format!("seed {}: {what}", self.seed);
        self.lock().needless.push(line);
    }

    /// A wait was allowed to take `allowed` and took `taken`.
    pub(crate) fn waited(&self, what: impl fmt::Display, allowed: Duration, taken: Duration) {
        let overrun = taken.saturating_sub(allowed);
        let longest = self.lock().longest_overrun.max(overrun);
        self.lock().longest_overrun = longest;
        if overrun > SLACK {
            self.hang(format!("{what} took {taken:?}, {allowed:?} were allowed"));
        }
    }
}

/// A wait that goes on for so much longer than allowed is a hang.
pub(crate) const SLACK: Duration = Duration::from_secs(2);
