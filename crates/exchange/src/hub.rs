//! The coordinator's side of one execution: partials in, verdicts out.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, TryLockError};

use crate::decide::{Basis, FilterPolicy, decide};
use crate::merge::{Merge, Step, TaskReport};
use crate::registry::ExecutionSettings;
use crate::sync::{Mutex, MutexGuard};
use crate::verdict::{Announcement, PassAllReason, Verdict};

/// A process with probes, as the hub sees it.
pub trait VerdictSink: Send + Sync {
    /// Hands over the verdict of one filter. Must not block.
    /// Returns the bytes put on a network, zero in one process.
    fn deliver(&self, filter: u32, announcement: &Announcement) -> u64;

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
    /// What the verdict was based on; `None` unless the keys were complete.
    pub basis: Option<Basis>,
    /// Remote processes that were sent a filter.
    pub receivers: u64,
    /// Remote processes that were told to pass all, because the copies sent before had used up what
    /// the filter may cost.
    pub receivers_refused: u64,
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
    /// What is left of the bytes that copies of the filter may cost; `None` for any number.
    budget: Option<f64>,
    /// The verdict, for those who come later.
    announcement: Option<Announcement>,
}

impl FilterState {
    /// Sends one receiver the verdict, or a pass-all where the filter would cost more than it may.
    /// Returns the bytes put on a network.
    fn tell(&mut self, sink: &dyn VerdictSink, announcement: &Announcement) -> u64 {
        let filter = self.record.id;
        let Verdict::Filter(runtime_filter) = announcement.verdict() else {
            return sink.deliver(filter, announcement);
        };
        if !sink.is_remote() {
            return sink.deliver(filter, announcement);
        }
        if let Some(left) = &mut self.budget {
            let bytes = runtime_filter.byte_len() as f64;
            // Those that the filter was sized for are weighed already.
            let foreseen = self.record.basis.map_or(0, |basis| basis.receivers as u64);
            if self.record.receivers >= foreseen && bytes > *left {
                self.record.receivers_refused += 1;
                let refusal = Verdict::PassAll(PassAllReason::TooLarge);
                return sink.deliver(filter, &Announcement::new(refusal));
            }
            *left -= bytes;
        }
        self.record.receivers += 1;
        sink.deliver(filter, announcement)
    }
}

#[derive(Default)]
struct HubState {
    filters: BTreeMap<u32, FilterState>,
    bytes_up: u64,
    bytes_down: u64,
    /// Processes that are expected to subscribe over a network.
    expected_receivers: usize,
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
    fn publish(&mut self, filter: u32, announcement: &Announcement) {
        let Some(state) = self.undecided(filter) else {
            return;
        };
        state.record.verdict = Some(announcement.verdict().clone());
        state.announcement = Some(announcement.clone());
        let receivers: Vec<_> = state.receivers.values().cloned().collect();
        let sent: u64 = receivers
            .iter()
            .map(|receiver| state.tell(receiver.as_ref(), announcement))
            .sum();
        self.bytes_down += sent;
    }

    /// Processes that a filter will be sent to over a network, as far as one can tell: those that asked
    /// for it, and those that can be expected to.
    fn remote_receivers(&self, filter: u32) -> usize {
        let subscribed = self.filters.get(&filter).map_or(0, |state| {
            let remote = state.receivers.values().filter(|sink| sink.is_remote());
            remote.count()
        });
        subscribed.max(self.expected_receivers)
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
                basis: None,
                receivers: 0,
                receivers_refused: 0,
            };
            let state = FilterState {
                record,
                receivers: HashMap::new(),
                budget: policy.budget(),
                announcement: None,
            };
            filters.insert(id, state);
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

    /// So many processes take part over a network. Their probes subscribe when the engine polls them,
    /// which is mostly after the build side has ended and the filter is decided on: it is sized for all
    /// of them, whether they have asked or not.
    pub fn expect_receivers(&self, processes: usize) {
        self.lock().expected_receivers = processes;
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
        let sent = match state.filters.get_mut(&filter) {
            None => {
                let unknown = Verdict::PassAll(PassAllReason::Malformed);
                sink.deliver(filter, &Announcement::new(unknown))
            }
            Some(filter_state) => match filter_state.receivers.entry(receiver) {
                Entry::Occupied(_) => return,
                Entry::Vacant(entry) => {
                    entry.insert(Arc::clone(&sink));
                    match filter_state.announcement.clone() {
                        Some(announcement) => filter_state.tell(sink.as_ref(), &announcement),
                        None => 0,
                    }
                }
            },
        };
        state.bytes_down += sent;
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
        let remote = {
            let mut state = self.lock();
            if state.undecided(filter).is_none() {
                return;
            }
            state.remote_receivers(filter)
        };
        let rows = report.outcome.as_ref().map_or(0, |partial| partial.rows());
        let before = merge.tasks_arrived();
        let step = merge.offer(report);
        let arrived = merge.tasks_arrived() > before;
        let (mut distinct_keys, mut basis) = (None, None);
        let announcement = match step {
            Step::Pending | Step::Ignored => None,
            Step::PassAll(reason) => Some(Announcement::new(Verdict::PassAll(reason))),
            Step::Complete(keys) => {
                distinct_keys = Some(keys.distinct_keys());
                let decision = decide(*keys, policy, remote);
                basis = Some(decision.basis);
                let announcement = Announcement::new(decision.verdict);
                if remote > 0 {
                    // Here, where no one else waits; whoever sends it takes what is there.
                    let _ = announcement.encoded_filter();
                }
                Some(announcement)
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
        filter_state.record.basis = basis;
        if let Some(announcement) = announcement {
            state.publish(filter, &announcement);
        }
    }

    /// Nothing more can come for `filter`, or for any filter if `None`: those
    /// without a verdict pass all.
    pub fn fail(&self, filter: Option<u32>, reason: PassAllReason) {
        let failed = |id: &u32| filter.is_none_or(|filter| filter == *id);
        let mut state = self.lock();
        for id in self.merges.keys().filter(|id| failed(id)) {
            state.publish(*id, &Announcement::new(Verdict::PassAll(reason)));
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

    /// Tells the hasher all that what the hub does next could depend on, for a model checker: hubs
    /// that tell the same behave the same. What only reports read is left out.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        // By name, so that a new field cannot be left out.
        let Self {
            settings: _,
            merges,
            state: _,
        } = self;
        for (id, FilterMerge { policy: _, merge }) in merges {
            id.hash(into);
            let merge = merge.lock().unwrap_or_else(PoisonError::into_inner);
            merge.fingerprint(into);
        }
        let state = self.lock();
        let HubState {
            filters,
            bytes_up: _,
            bytes_down: _,
            expected_receivers,
            closed,
        } = &*state;
        for (id, filter) in filters {
            let FilterState {
                record,
                receivers,
                budget,
                announcement,
            } = filter;
            id.hash(into);
            record.receivers.hash(into);
            receivers.keys().collect::<BTreeSet<_>>().hash(into);
            budget.map(f64::to_bits).hash(into);
            announcement.is_some().hash(into);
            if let Some(announcement) = announcement {
                announcement.verdict().fingerprint(into);
            }
        }
        (expected_receivers, closed).hash(into);
    }
}

#[cfg(test)]
mod tests;
