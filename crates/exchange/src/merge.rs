//! When a filter is complete: a state machine without clock, lock or network.
//!
//! ```text
//!            report of a new task,             last task of one
//!            tasks still missing               consistent count
//!           +-------+                         +-----------------> Complete(keys)
//!           v       |                         |
//!        Collecting +-------------------------+
//!                   |
//!                   +-- unknown task, two counts, a task twice,
//!                       an uncovered partition, lost worker -----> PassAll(reason)
//! ```
//!
//! Both ends are final: whatever arrives after one of them changes nothing.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use runtime_filter_core::{Partial, PartialBuilder};

use crate::verdict::PassAllReason;

/// What one build task says about one filter, once.
#[derive(Debug, Clone)]
pub struct TaskReport {
    /// Number of the task within its stage.
    pub task_index: u32,
    /// Tasks of that stage.
    pub task_count: u32,
    /// Partitions that the task runs.
    pub partition_count: u32,
    /// Partitions whose every row is in the keys.
    pub partitions_covered: u32,
    /// The keys seen, or why they are unknown.
    pub outcome: Result<Partial, PassAllReason>,
}

/// Tasks of one stage that a report may name. An outside number sizes nothing,
/// but one that no cluster has is a sign of corruption.
const MAX_TASKS: u32 = 1 << 20;

/// Result of [`Merge::offer`].
#[derive(Debug)]
pub enum Step {
    /// Tasks are still missing.
    Pending,
    /// Every task of one consistent count has arrived, each covering all its partitions.
    Complete(Box<Partial>),
    /// The filter can never be proven complete.
    PassAll(PassAllReason),
    /// The merge had ended before.
    Ignored,
}

/// Merge of one filter in one execution.
#[derive(Debug)]
pub struct Merge {
    task_count: Option<u32>,
    arrived: BTreeSet<u32>,
    /// `None` once the merge has ended.
    keys: Option<PartialBuilder>,
}

impl Merge {
    /// A merge that has heard of no task. `cap_blocks`: geometry of dense partials; `seed`: that of the
    /// execution. Partials of others end in pass-all.
    pub fn new(cap_blocks: u32, seed: u64) -> Self {
        Self {
            task_count: None,
            arrived: BTreeSet::new(),
            keys: Some(PartialBuilder::new(cap_blocks, seed)),
        }
    }

    /// Tasks that have reported so far.
    pub fn tasks_arrived(&self) -> usize {
        self.arrived.len()
    }

    /// Whether the merge has ended, one way or the other.
    pub fn has_ended(&self) -> bool {
        self.keys.is_none()
    }

    /// Takes one report.
    ///
    /// A task that reports twice may have seen different rows each time, and the
    /// first keys are merged already: that ends in pass-all, too.
    pub fn offer(&mut self, report: TaskReport) -> Step {
        // Only a report that fits puts them back. So nothing that goes wrong on the way,
        // not even a panic, leaves a merge that could complete without its keys.
        let Some(mut keys) = self.keys.take() else {
            return Step::Ignored;
        };
        let consistent = (1..=MAX_TASKS).contains(&report.task_count)
            && report.task_index < report.task_count
            // A task of no partition has seen nothing that it could vouch for.
            && report.partition_count > 0
            && report.partitions_covered <= report.partition_count
            && *self.task_count.get_or_insert(report.task_count) == report.task_count
            && self.arrived.insert(report.task_index);
        if !consistent {
            return Step::PassAll(PassAllReason::InconsistentTasks);
        }
        let partial = match report.outcome {
            Err(reason) => return Step::PassAll(reason),
            Ok(_) if report.partitions_covered != report.partition_count => {
                return Step::PassAll(PassAllReason::BuildCancelled);
            }
            Ok(partial) => partial,
        };
        if let Err(error) = keys.merge(&partial) {
            return Step::PassAll(PassAllReason::of_merge(&error));
        }
        if self.arrived.len() < report.task_count as usize {
            self.keys = Some(keys);
            return Step::Pending;
        }
        Step::Complete(Box::new(keys.finish()))
    }

    /// Ends the merge without a filter, unless it has ended before.
    pub fn fail(&mut self, reason: PassAllReason) -> Step {
        match self.keys.take() {
            Some(_) => Step::PassAll(reason),
            None => Step::Ignored,
        }
    }

    /// Tells the hasher all that a later step could depend on, for a model checker: states that
    /// tell the same behave the same.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        // By name, so that a new field cannot be left out.
        let Self {
            task_count,
            arrived,
            keys,
        } = self;
        task_count.hash(into);
        arrived.hash(into);
        keys.as_ref().map(fingerprint_of_keys).hash(into);
    }
}

/// The encoded form of `keys`, which two builders share only if they hold the same keys.
pub(crate) fn fingerprint_of_keys(keys: &PartialBuilder) -> Vec<u8> {
    let mut bytes = Vec::new();
    keys.clone().finish().encode(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
