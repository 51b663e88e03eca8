//! The state of a process that runs build and probe nodes.
//!
//! A process takes part in an execution from the coordinator's Begin to its End.
//! Nodes that ask for any other execution get nothing and stay inert, so that a
//! straggler cannot bring state back to life after the End.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use runtime_filter_core::{Partial, PartialBuilder, largest_within};
use tokio::sync::watch;

use crate::id::ExecutionId;
use crate::merge::{TaskReport, fingerprint_of_keys};
use crate::sync::{Mutex, MutexGuard};
use crate::verdict::{Announcement, PassAllReason, Verdict};

/// What every process of one execution must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionSettings {
    /// Seed of every key hash.
    pub seed: u64,
    /// Upper bound of one filter, in bytes; fixes the geometry of dense partials.
    pub max_filter_bytes: usize,
}

impl ExecutionSettings {
    /// Blocks of a dense partial.
    pub fn cap_blocks(&self) -> u32 {
        largest_within(self.max_filter_bytes)
    }
}

/// The way from this process to the hub of an execution. Must not block.
pub trait Uplink: Send + Sync {
    /// A build task has something to say.
    fn report(&self, execution: ExecutionId, filter: u32, report: TaskReport);
    /// A probe of `filter` is in this process.
    fn interest(&self, execution: ExecutionId, filter: u32);
}

/// Executions that this process takes part in.
///
/// One small lock: it is taken once per node stream, never per batch.
#[derive(Default)]
pub struct Registry {
    executions: Mutex<HashMap<ExecutionId, Arc<Execution>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("executions", &self.len())
            .finish()
    }
}

impl Registry {
    /// A registry of no execution.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionId, Arc<Execution>>> {
        self.executions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// This process takes part in `id` from now on. `None` if it does already.
    pub fn begin(
        &self,
        id: ExecutionId,
        settings: ExecutionSettings,
        uplink: Arc<dyn Uplink>,
    ) -> Option<Arc<Execution>> {
        let mut executions = self.lock();
        if executions.contains_key(&id) {
            return None;
        }
        let execution = Arc::new(Execution {
            id,
            settings,
            uplink,
            state: Mutex::default(),
        });
        executions.insert(id, Arc::clone(&execution));
        Some(execution)
    }

    /// The execution, if it has begun and not ended.
    pub fn execution(&self, id: &ExecutionId) -> Option<Arc<Execution>> {
        self.lock().get(id).cloned()
    }

    /// The execution is over: waiting probes pass all, its state is let go.
    pub fn end(&self, id: &ExecutionId, reason: PassAllReason) {
        let ended = self.lock().remove(id);
        if let Some(execution) = ended {
            execution.end(reason);
        }
    }

    /// Ends every execution of one coordinator.
    pub fn end_coordinator(&self, coordinator: u64, reason: PassAllReason) {
        let ids: Vec<_> = self
            .lock()
            .keys()
            .filter(|id| id.coordinator == coordinator)
            .copied()
            .collect();
        for id in ids {
            self.end(&id, reason);
        }
    }

    /// Executions in progress.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no execution is in progress.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Tells the hasher all that what the registry does next could depend on, for a model checker:
    /// registries that tell the same behave the same.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        let executions = self.lock().clone();
        for (id, execution) in executions.into_iter().collect::<BTreeMap<_, _>>() {
            id.hash(into);
            execution.fingerprint(into);
        }
    }
}

/// One build task of one filter, as its partitions see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildTask {
    /// Number of the filter in its plan.
    pub filter: u32,
    /// Number of the task within its stage.
    pub index: u32,
    /// Tasks of that stage.
    pub count: u32,
    /// Partitions of this task.
    pub partitions: u32,
}

/// What a process knows of one of its build tasks.
#[derive(Default)]
enum Build {
    /// Nothing yet.
    #[default]
    Unseen,
    /// Some of its partitions.
    Collecting(BuildState),
    /// All of them; the keys are on their way.
    Reported,
    /// Something went wrong and is on its way: nothing more to say.
    Unknown,
}

struct BuildState {
    task: BuildTask,
    sealed: Vec<bool>,
    missing: u32,
    keys: PartialBuilder,
}

impl Build {
    /// Takes in the keys of a partition. Returns what the task has to report now, if
    /// anything.
    fn seal(
        &mut self,
        task: BuildTask,
        partition: u32,
        keys: &Partial,
        settings: &ExecutionSettings,
    ) -> Option<Result<PartialBuilder, PassAllReason>> {
        // Only a partition that fits puts the state back. So nothing that goes wrong on
        // the way, not even a panic, leaves a task that could report without its keys.
        let mut build = match std::mem::replace(self, Self::Unknown) {
            Self::Unknown => return None,
            // A partition that ends twice has been run twice, and may have seen other
            // rows the second time.
            Self::Reported => return Some(Err(PassAllReason::InconsistentTasks)),
            Self::Collecting(build) => build,
            Self::Unseen if (1..=MAX_PARTITIONS).contains(&task.partitions) => BuildState {
                task,
                sealed: vec![false; task.partitions as usize],
                missing: task.partitions,
                keys: PartialBuilder::new(settings.cap_blocks(), settings.seed),
            },
            Self::Unseen => return Some(Err(PassAllReason::InconsistentTasks)),
        };
        match build.sealed.get_mut(partition as usize) {
            Some(sealed) if !*sealed && build.task == task => *sealed = true,
            _ => return Some(Err(PassAllReason::InconsistentTasks)),
        }
        if let Err(error) = build.keys.merge(keys) {
            return Some(Err(PassAllReason::of_merge(&error)));
        }
        build.missing -= 1;
        if build.missing > 0 {
            *self = Self::Collecting(build);
            return None;
        }
        *self = Self::Reported;
        Some(Ok(build.keys))
    }

    /// Gives the task up. Returns the reason to report, once for all its partitions.
    fn abandon(&mut self, reason: PassAllReason) -> Option<PassAllReason> {
        match std::mem::replace(self, Self::Unknown) {
            Self::Unknown => None,
            // A second run, whose rows may not be those that were reported.
            Self::Reported => Some(PassAllReason::InconsistentTasks),
            Self::Unseen | Self::Collecting(_) => Some(reason),
        }
    }

    fn fingerprint(&self, into: &mut impl Hasher) {
        std::mem::discriminant(self).hash(into);
        match self {
            Self::Unseen | Self::Reported | Self::Unknown => {}
            Self::Collecting(BuildState {
                task,
                sealed,
                missing,
                keys,
            }) => (task, sealed, missing, fingerprint_of_keys(keys)).hash(into),
        }
    }
}

#[derive(Default)]
struct ExecutionState {
    verdicts: HashMap<u32, watch::Sender<Option<Verdict>>>,
    /// By filter and index of the task: a process runs a task under one shape only.
    /// Each has a lock of its own, under which its keys are merged.
    builds: HashMap<(u32, u32), Arc<Mutex<Build>>>,
    deadlines: HashMap<(u32, u32), Instant>,
    ended: Option<PassAllReason>,
}

/// One execution within one process.
pub struct Execution {
    id: ExecutionId,
    settings: ExecutionSettings,
    uplink: Arc<dyn Uplink>,
    // Taken once per partition and filter, never per batch, and for a look-up only. No
    // uplink call is made under it: the in-process uplink comes straight back with a verdict.
    state: Mutex<ExecutionState>,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Partitions of one task that a build node may name; more is a sign of corruption.
const MAX_PARTITIONS: u32 = 1 << 16;

impl Execution {
    fn lock(&self) -> MutexGuard<'_, ExecutionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name of the execution.
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// What all its processes agree on.
    pub fn settings(&self) -> &ExecutionSettings {
        &self.settings
    }

    /// The verdict of `filter`, now or later. The first call of a filter tells
    /// the hub that this process wants it.
    pub fn verdict(&self, filter: u32) -> watch::Receiver<Option<Verdict>> {
        let (receiver, first) = {
            let mut state = self.lock();
            let ended = state.ended;
            let mut first = false;
            let sender = state.verdicts.entry(filter).or_insert_with(|| {
                first = ended.is_none();
                watch::Sender::new(ended.map(Verdict::PassAll))
            });
            (sender.subscribe(), first)
        };
        if first {
            self.uplink.interest(self.id, filter);
        }
        receiver
    }

    /// The instant until which probes of `filter` in task `task` may wait: one
    /// for all partitions of the task, set by the first that asks.
    pub fn deadline(&self, filter: u32, task: u32, wait: Duration) -> Instant {
        let now = Instant::now();
        // Far beyond any query, and far from what an Instant can hold.
        let wait = wait.min(Duration::from_secs(86_400));
        *self
            .lock()
            .deadlines
            .entry((filter, task))
            .or_insert(now + wait)
    }

    /// A partition of a build task has ended: `keys` holds all of its rows.
    /// The last partition of a task reports it, within this very call.
    pub fn seal(&self, task: BuildTask, partition: u32, keys: Partial) {
        let Some(build) = self.build(&task) else {
            return;
        };
        let outcome = build.lock().unwrap_or_else(PoisonError::into_inner).seal(
            task,
            partition,
            &keys,
            &self.settings,
        );
        // Under no lock: sorting the keys of a task may take a while.
        if let Some(outcome) = outcome {
            self.send(task, outcome.map(PartialBuilder::finish));
        }
    }

    /// A partition of a build task ended without having seen all of its rows.
    pub fn abandon(&self, task: BuildTask, reason: PassAllReason) {
        let Some(build) = self.build(&task) else {
            return;
        };
        let reason = build
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .abandon(reason);
        if let Some(reason) = reason {
            self.send(task, Err(reason));
        }
    }

    /// What is known of the task; `None` after the end.
    fn build(&self, task: &BuildTask) -> Option<Arc<Mutex<Build>>> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return None;
        }
        let build = state.builds.entry((task.filter, task.index)).or_default();
        Some(Arc::clone(build))
    }

    fn send(&self, task: BuildTask, outcome: Result<Partial, PassAllReason>) {
        let covered = if outcome.is_ok() { task.partitions } else { 0 };
        self.uplink.report(
            self.id,
            task.filter,
            TaskReport {
                task_index: task.index,
                task_count: task.count,
                partition_count: task.partitions,
                partitions_covered: covered,
                outcome,
            },
        );
    }

    /// The hub has decided. The first verdict of a filter stands.
    pub fn deliver(&self, filter: u32, verdict: Verdict) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let sender = state
            .verdicts
            .entry(filter)
            .or_insert_with(|| watch::Sender::new(None));
        sender.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(verdict);
            }
            first
        });
    }

    /// Tells the hasher all that what the execution does next could depend on, for a model checker:
    /// executions that tell the same behave the same. Clocks are left out: the model has none.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        let state = self.lock();
        // By name, so that a new field cannot be left out.
        let ExecutionState {
            verdicts,
            builds,
            deadlines: _,
            ended,
        } = &*state;
        for (filter, verdict) in verdicts.iter().collect::<BTreeMap<_, _>>() {
            let verdict = verdict.borrow();
            (filter, verdict.is_some()).hash(into);
            if let Some(verdict) = &*verdict {
                verdict.fingerprint(into);
            }
        }
        for (task, build) in builds.iter().collect::<BTreeMap<_, _>>() {
            task.hash(into);
            build
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .fingerprint(into);
        }
        ended.hash(into);
    }

    fn end(&self, reason: PassAllReason) {
        let mut state = self.lock();
        state.ended = Some(reason);
        state.builds.clear();
        state.deadlines.clear();
        for sender in state.verdicts.values() {
            sender.send_if_modified(|current| {
                let undecided = current.is_none();
                if undecided {
                    *current = Some(Verdict::PassAll(reason));
                }
                undecided
            });
        }
    }
}

/// Delivers to an execution of this process as long as something else keeps it.
#[derive(Debug, Clone)]
pub(crate) struct LocalSink(pub(crate) Weak<Execution>);

impl crate::hub::VerdictSink for LocalSink {
    fn deliver(&self, filter: u32, announcement: &Announcement) -> u64 {
        if let Some(execution) = self.0.upgrade() {
            execution.deliver(filter, announcement.verdict().clone());
        }
        0
    }

    fn is_remote(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
