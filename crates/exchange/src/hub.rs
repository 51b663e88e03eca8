//! The coordinator's side of one execution: partials in, verdicts out.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::decide::{FilterPolicy, build, weigh};
use crate::merge::{Merge, Step, TaskReport};
use crate::registry::ExecutionSettings;
use crate::verdict::{PassAllReason, Verdict};

/// A process with probes, as the hub sees it.
pub trait VerdictSink: Send + Sync {
    /// Hands over the verdict of one filter. Must not block.
    /// Returns the bytes put on a network, zero in one process.
    fn deliver(&self, filter: u32, verdict: &Verdict) -> u64;

    /// Whether a delivered filter crosses a network.
    fn is_remote(&self) -> bool;
}

/// What is known about one filter of one execution, for its report.
#[derive(Debug, Clone)]
pub struct FilterRecord {
    /// Number of the filter in its plan.
    pub id: u32,
    /// Build tasks that reported.
    pub build_tasks: u64,
    /// Rows that went into the keys, over all tasks that reported them.
    pub build_rows: u64,
    /// Distinct keys; exact unless a partial was dense.
    pub distinct_keys: Option<u64>,
    /// `None` while tasks are missing.
    pub verdict: Option<Verdict>,
}

/// What it takes to compute the verdict of one filter.
struct FilterMerge {
    policy: FilterPolicy,
    // Held while keys are merged and the filter is built, which may take a while.
    // Taken before the hub's lock, never after it. A panic under it ends the merge.
    merge: Mutex<Merge>,
}

impl FilterMerge {
    /// Frees the keys of a filter that is decided. A thread that is merging them
    /// right now does so itself when it is done: whoever decides does not wait.
    fn let_go(&self) {
        let mut merge = match self.merge.try_lock() {
            Ok(merge) => merge,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let _ = merge.fail(PassAllReason::Ended);
    }
}

/// What the outside sees of one filter.
struct FilterState {
    record: FilterRecord,
    receivers: HashMap<u64, Arc<dyn VerdictSink>>,
}

#[derive(Default)]
struct HubState {
    filters: BTreeMap<u32, FilterState>,
    bytes_up: u64,
    bytes_down: u64,
    closed: bool,
}

impl HubState {
    /// The filter, while there is something to decide about it.
    fn undecided(&mut self, filter: u32) -> Option<&mut FilterState> {
        if self.closed {
            return None;
        }
        self.filters
            .get_mut(&filter)
            .filter(|state| state.record.verdict.is_none())
    }

    /// Tells everyone the verdict, unless there is one already.
    fn publish(&mut self, filter: u32, verdict: &Verdict) {
        let Some(state) = self.undecided(filter) else {
            return;
        };
        state.record.verdict = Some(verdict.clone());
        let sent: u64 = state
            .receivers
            .values()
            .map(|receiver| receiver.deliver(filter, verdict))
            .sum();
        self.bytes_down += sent;
    }
}

/// Merges the partials of one execution and tells its processes the verdicts.
///
/// One lock for all that is seen from outside, so that a verdict cannot overtake the
/// subscription it answers, and each receiver gets it once. Computing happens outside
/// of it, under a lock per filter: one large filter holds up neither another filter,
/// nor a failure, nor the end.
pub struct Hub {
    settings: ExecutionSettings,
    merges: BTreeMap<u32, FilterMerge>,
    state: Mutex<HubState>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// A hub that waits for the partials of `policies`.
    pub fn new(settings: ExecutionSettings, policies: Vec<FilterPolicy>) -> Self {
        let mut merges = BTreeMap::new();
        let mut filters = BTreeMap::new();
        for policy in policies {
            let id = policy.id;
            let record = FilterRecord {
                id,
                build_tasks: 0,
                build_rows: 0,
                distinct_keys: None,
                verdict: None,
            };
            let receivers = HashMap::new();
            filters.insert(id, FilterState { record, receivers });
            let merge = Mutex::new(Merge::new(settings.cap_blocks(), settings.seed));
            merges.insert(id, FilterMerge { policy, merge });
        }
        Self {
            settings,
            merges,
            state: Mutex::new(HubState {
                filters,
                ..HubState::default()
            }),
        }
    }

    /// What every process of the execution must agree on.
    pub fn settings(&self) -> &ExecutionSettings {
        &self.settings
    }

    // What a panic leaves behind is safe to go on with: nothing is computed under this
    // lock, and a verdict is set before it is told.
    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process says that it has probes of `filter`. `receiver` tells processes
    /// apart; a second call of the same one changes nothing.
    pub fn subscribe(&self, filter: u32, receiver: u64, sink: Arc<dyn VerdictSink>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let verdict = match state.filters.get_mut(&filter) {
            None => Some(Verdict::PassAll(PassAllReason::Malformed)),
            Some(filter_state) => match filter_state.receivers.entry(receiver) {
                Entry::Occupied(_) => return,
                Entry::Vacant(entry) => {
                    entry.insert(Arc::clone(&sink));
                    filter_state.record.verdict.clone()
                }
            },
        };
        if let Some(verdict) = verdict {
            state.bytes_down += sink.deliver(filter, &verdict);
        }
    }

    /// A build task has reported.
    pub fn report(&self, filter: u32, report: TaskReport) {
        let Some(filter_merge) = self.merges.get(&filter) else {
            return;
        };
        self.merge(filter, filter_merge, report);
        // What decided meanwhile did not wait for this thread.
        if self.lock().undecided(filter).is_none() {
            filter_merge.let_go();
        }
    }

    fn merge(&self, filter: u32, filter_merge: &FilterMerge, report: TaskReport) {
        let policy = &filter_merge.policy;
        let mut merge = filter_merge
            .merge
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.lock().undecided(filter).is_none() {
            return;
        }
        let rows = report.outcome.as_ref().map_or(0, |partial| partial.rows());
        let before = merge.tasks_arrived();
        let step = merge.offer(report);
        let arrived = merge.tasks_arrived() > before;
        let mut distinct_keys = None;
        let built = match step {
            Step::Pending | Step::Ignored => None,
            Step::PassAll(reason) => Some(Err(reason)),
            Step::Complete(keys) => {
                distinct_keys = Some(keys.distinct_keys());
                Some(build(*keys, policy))
            }
        };

        let mut state = self.lock();
        let Some(filter_state) = state.undecided(filter) else {
            return;
        };
        if arrived {
            filter_state.record.build_tasks += 1;
            filter_state.record.build_rows += rows;
        }
        filter_state.record.distinct_keys = distinct_keys;
        if let Some(built) = built {
            // Counted only now: a process that subscribed meanwhile is sent the filter, too.
            let remote = filter_state
                .receivers
                .values()
                .filter(|receiver| receiver.is_remote())
                .count();
            state.publish(filter, &weigh(built, policy, remote));
        }
    }

    /// Nothing more can come for `filter`, or for any filter if `None`: those
    /// without a verdict pass all.
    pub fn fail(&self, filter: Option<u32>, reason: PassAllReason) {
        let failed = |id: &u32| filter.is_none_or(|filter| filter == *id);
        let mut state = self.lock();
        for id in self.merges.keys().filter(|id| failed(id)) {
            state.publish(*id, &Verdict::PassAll(reason));
        }
        drop(state);
        for (_, filter_merge) in self.merges.iter().filter(|(id, _)| failed(id)) {
            filter_merge.let_go();
        }
    }

    /// A process is gone: it receives nothing more.
    pub fn unsubscribe(&self, receiver: u64) {
        for filter_state in self.lock().filters.values_mut() {
            filter_state.receivers.remove(&receiver);
        }
    }

    /// The execution has ended: sinks are let go, what is known stays readable.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for filter_state in state.filters.values_mut() {
            filter_state.receivers.clear();
        }
        drop(state);
        for filter_merge in self.merges.values() {
            filter_merge.let_go();
        }
    }

    /// Bytes that workers sent for this execution.
    pub fn add_bytes_up(&self, bytes: u64) {
        self.lock().bytes_up += bytes;
    }

    /// Bytes that were sent to workers for this execution, verdicts aside.
    pub fn add_bytes_down(&self, bytes: u64) {
        self.lock().bytes_down += bytes;
    }

    /// Bytes received and sent so far.
    pub fn traffic(&self) -> (u64, u64) {
        let state = self.lock();
        (state.bytes_up, state.bytes_down)
    }

    /// What is known about each filter, by number.
    pub fn records(&self) -> Vec<FilterRecord> {
        self.lock()
            .filters
            .values()
            .map(|f| f.record.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests;
