//! The coordinator's side of one execution: partials in, verdicts out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decide::{FilterPolicy, decide};
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

struct FilterState {
    policy: FilterPolicy,
    merge: Merge,
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

/// Merges the partials of one execution and tells its processes the verdicts.
///
/// One lock, held for a merge step: reports of one execution are few (tasks x
/// filters), and a verdict must not overtake the subscription it answers.
pub struct Hub {
    settings: ExecutionSettings,
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
        let filters = policies
            .into_iter()
            .map(|policy| {
                let record = FilterRecord {
                    id: policy.id,
                    build_tasks: 0,
                    build_rows: 0,
                    distinct_keys: None,
                    verdict: None,
                };
                let merge = Merge::new(settings.cap_blocks());
                (
                    policy.id,
                    FilterState {
                        policy,
                        merge,
                        record,
                        receivers: HashMap::new(),
                    },
                )
            })
            .collect();
        Self {
            settings,
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

    // A panic while merging would leave a merge half done; every later answer of a
    // poisoned hub is still safe, since a verdict is only ever set after the merge.
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
        let Some(filter_state) = state.filters.get_mut(&filter) else {
            sink.deliver(filter, &Verdict::PassAll(PassAllReason::Malformed));
            return;
        };
        if filter_state
            .receivers
            .insert(receiver, Arc::clone(&sink))
            .is_some()
        {
            return;
        }
        if let Some(verdict) = filter_state.record.verdict.clone() {
            state.bytes_down += sink.deliver(filter, &verdict);
        }
    }

    /// A build task has reported.
    pub fn report(&self, filter: u32, report: TaskReport) {
        let mut state = self.lock();
        let Some(filter_state) = state.filters.get_mut(&filter) else {
            return;
        };
        let rows = report.outcome.as_ref().map_or(0, |partial| partial.rows());
        let before = filter_state.merge.tasks_arrived();
        let step = filter_state.merge.offer(report);
        if filter_state.merge.tasks_arrived() > before {
            filter_state.record.build_tasks += 1;
            filter_state.record.build_rows += rows;
        }
        self.advance(&mut state, filter, step);
    }

    /// Nothing more can come for `filter`, or for any filter if `None`: those
    /// without a verdict pass all.
    pub fn fail(&self, filter: Option<u32>, reason: PassAllReason) {
        let mut state = self.lock();
        let ids: Vec<u32> = match filter {
            Some(id) => vec![id],
            None => state.filters.keys().copied().collect(),
        };
        for id in ids {
            if let Some(filter_state) = state.filters.get_mut(&id) {
                let step = filter_state.merge.fail(reason);
                self.advance(&mut state, id, step);
            }
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
            let _ = filter_state.merge.fail(PassAllReason::Ended);
            filter_state.receivers.clear();
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

    fn advance(&self, state: &mut HubState, filter: u32, step: Step) {
        let Some(filter_state) = state.filters.get_mut(&filter) else {
            return;
        };
        let verdict = match step {
            Step::Pending | Step::Ignored => return,
            Step::PassAll(reason) => Verdict::PassAll(reason),
            Step::Complete(keys) => {
                filter_state.record.distinct_keys = Some(keys.distinct_keys());
                let remote = filter_state
                    .receivers
                    .values()
                    .filter(|r| r.is_remote())
                    .count();
                decide(*keys, self.settings.seed, &filter_state.policy, remote)
            }
        };
        filter_state.record.verdict = Some(verdict.clone());
        let receivers: Vec<_> = filter_state.receivers.values().cloned().collect();
        for receiver in receivers {
            state.bytes_down += receiver.deliver(filter, &verdict);
        }
    }
}
