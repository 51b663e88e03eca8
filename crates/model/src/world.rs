//! What can happen in a cluster, and what must hold.
//!
//! ```text
//!   coordinator                        stream                          worker
//!   Hub per execution     to_worker      ->  [Begin, Verdict, End]        Registry
//!   CoordinatorEnd    <-  to_coordinator     [Began, Interest, Partial]   WorkerEnd
//!                                                                         build tasks, probes
//! ```

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime_filter_core::{PartialBuilder, SizingPolicy};
use runtime_filter_exchange::wire::{self, proto};
use runtime_filter_exchange::{
    Announcement, BuildTask, CoordinatorEnd, Execution, ExecutionId, ExecutionSettings,
    FilterPolicy, Hub, Hubs, PassAllReason, Registry, SizeRule, TaskReport, Uplink, Verdict,
    VerdictSink, WorkerEnd,
};
use tokio::sync::{oneshot, watch};

use crate::scenario::{Fault, Scenario};

/// The one coordinator.
const COORDINATOR: u64 = 7;

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the coordinator.
    Down,
    /// From the worker.
    Up,
}

/// A task of a filter: execution, filter, worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task(u8, u8, u8);

/// A stream: worker, and number of the stream at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Line(u8, u8);

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The coordinator begins an execution at every worker.
    Begin(u8),
    /// It gives up waiting for a worker's Began.
    BeginTimeout(u8, u8),
    /// The first message of a stream arrives.
    Deliver(Line, Way),
    /// The first message of a stream is lost.
    Drop(Line, Way),
    /// The first message of a stream arrives, and will again.
    Duplicate(Line, Way),
    /// The first two messages of a stream change places.
    Reorder(Line, Way),
    /// A stream carries nothing more from now on.
    Break(Line),
    /// An end of a stream that broke notices.
    Notice(Line, Way),
    /// A worker dies and starts again.
    Crash(u8),
    /// The next partition of a build task ends.
    Seal(Task),
    /// The next partition of a build task ends early.
    Abandon(Task),
    /// The first partition of a build task is run again.
    Rerun(Task),
    /// A build task will never be polled again.
    Unpolled(Task),
    /// A probe asks for its filter.
    Ask(Task),
    /// A probe gives up waiting.
    Timeout(Task),
    /// The query ends.
    End(u8),
}

/// What a probe was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// A filter.
    Filter,
    /// To pass all.
    PassAll(PassAllReason),
    /// Nothing, so far.
    Nothing,
}

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $rule:literal;)*) => {
        /// A rule that does not hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Violation { $($(#[$doc])* $name,)* }

        impl Violation {
            /// The rule, in words.
            pub const fn rule(self) -> &'static str {
                match self { $(Self::$name => $rule,)* }
            }
        }
    };
}

violations! {
    /// A filter was decided on before every partition of every task was in.
    Incomplete = "no filter unless every task has covered all its partitions";
    /// A filter drops a row that was on the build side.
    LosesKeys = "a filter has the keys of every row";
    /// A probe was told one thing, and then another.
    Changed = "what a probe is told stays so";
    /// Nothing went wrong, and a probe passes all.
    Needless = "without a fault every probe is told a filter";
    /// An end refuses a message of the other.
    Protocol = "either end understands the other";
    /// A probe waits and nothing more can happen.
    Waiting = "every probe that waits is told or gives up";
    /// An execution has begun and cannot end.
    Unfinished = "every query ends";
    /// A process still knows of an execution that has ended.
    Registered = "nothing stays registered after the end";
    /// A stream still owes an answer of an execution that has ended.
    Owed = "no answer is owed after the end";
}

fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One direction of a stream.
#[derive(Debug)]
struct Pipe<M> {
    messages: VecDeque<M>,
    cut: bool,
}

type Shared<M> = Arc<Mutex<Pipe<M>>>;

fn pipe<M>() -> Shared<M> {
    Arc::new(Mutex::new(Pipe {
        messages: VecDeque::new(),
        cut: false,
    }))
}

fn send<M>(pipe: &Shared<M>, message: M) {
    let mut pipe = relock(pipe);
    if !pipe.cut {
        pipe.messages.push_back(message);
    }
}

struct PipeUplink(Shared<proto::ToCoordinator>);

impl Uplink for PipeUplink {
    fn report(&self, execution: ExecutionId, filter: u32, report: TaskReport) {
        send(&self.0, wire::partial(execution.sequence, filter, &report));
    }

    fn interest(&self, execution: ExecutionId, filter: u32) {
        send(&self.0, wire::interest(execution.sequence, filter));
    }
}

struct PipeSink {
    sequence: u64,
    to_worker: Shared<proto::ToWorker>,
}

impl VerdictSink for PipeSink {
    fn deliver(&self, filter: u32, announcement: &Announcement) -> u64 {
        let message = wire::verdict(self.sequence, filter, announcement);
        let bytes = wire::wire_len(&message);
        send(&self.to_worker, message);
        bytes
    }

    fn is_remote(&self) -> bool {
        true
    }
}

struct Stream {
    to_worker: Shared<proto::ToWorker>,
    to_coordinator: Shared<proto::ToCoordinator>,
    /// `None` once the worker has noticed the end of the stream, or died.
    worker: Option<WorkerEnd>,
    coordinator: CoordinatorEnd,
    broken: bool,
}

struct Worker {
    registry: Arc<Registry>,
    streams: Vec<Stream>,
}

/// Whether a worker takes part.
enum Begun {
    Asked {
        stream: u8,
        answer: oneshot::Receiver<()>,
    },
    TakesPart {
        stream: u8,
    },
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    NotBegun,
    Beginning,
    Running,
    Ended,
}

/// What a task holds of its execution: looked up in its first step.
type Held = Option<Option<Arc<Execution>>>;

#[derive(Default)]
struct Build {
    held: Held,
    /// Partitions that have ended.
    ended: u8,
    /// Those whose every row was seen.
    covered: u8,
    /// Its process died.
    dead: bool,
    unpolled: bool,
}

#[derive(Default)]
struct Probe {
    held: Held,
    answer: Option<watch::Receiver<Option<Verdict>>>,
    told: Option<Verdict>,
    /// It runs on, or is no more.
    ended: bool,
}

struct Run {
    phase: Phase,
    hub: Option<Arc<Hub>>,
    begun: Vec<Begun>,
    /// By filter, then by worker.
    builds: Vec<Vec<Build>>,
    probes: Vec<Vec<Option<Probe>>>,
    /// A process that ran a task of it died, so the query fails.
    fails: bool,
}

/// A coordinator, its workers and what runs on them.
pub struct World<'a> {
    scenario: &'a Scenario,
    hubs: Arc<Hubs>,
    runs: Vec<Run>,
    workers: Vec<Worker>,
    faults: u8,
    timeouts: bool,
    lost_end: bool,
    refused_message: bool,
    changed: bool,
}

/// What every process of an execution agrees on; each has a seed of its own.
fn settings(execution: u8) -> ExecutionSettings {
    ExecutionSettings {
        seed: 100 + u64::from(execution),
        max_filter_bytes: 1 << 12,
    }
}

fn policy(filter: u8) -> FilterPolicy {
    FilterPolicy {
        id: u32::from(filter),
        rule: SizeRule::Fixed,
        sizing: SizingPolicy {
            // A list of keys: what is missing in it is seen to be missing.
            max_exact_keys: 64,
            max_bytes: 1 << 12,
            ..SizingPolicy::default()
        },
        probe_bytes: None,
        probe_keys: None,
        max_cost_share: 0.5,
        force: true,
    }
}

fn id(execution: u8) -> ExecutionId {
    ExecutionId {
        coordinator: COORDINATOR,
        sequence: u64::from(execution),
    }
}

/// The hash of the one key in a partition.
fn key(task: Task, partition: u8) -> u64 {
    let Task(execution, filter, worker) = task;
    1 + u64::from(partition)
        + 2 * (u64::from(worker) + 3 * (u64::from(filter) + 2 * u64::from(execution)))
}

impl<'a> World<'a> {
    /// A cluster in which nothing has happened.
    pub fn new(scenario: &'a Scenario) -> Self {
        let run = |_| Run {
            phase: Phase::NotBegun,
            hub: None,
            begun: Vec::new(),
            builds: (0..scenario.filters)
                .map(|_| (0..scenario.workers).map(|_| Build::default()).collect())
                .collect(),
            probes: (0..scenario.filters)
                .map(|f| {
                    (0..scenario.workers)
                        .map(|w| scenario.has_probe(f, w).then(Probe::default))
                        .collect()
                })
                .collect(),
            fails: false,
        };
        Self {
            scenario,
            hubs: Arc::default(),
            runs: (0..scenario.executions).map(run).collect(),
            workers: (0..scenario.workers)
                .map(|_| Worker {
                    registry: Arc::default(),
                    streams: Vec::new(),
                })
                .collect(),
            faults: 0,
            timeouts: false,
            lost_end: false,
            refused_message: false,
            changed: false,
        }
    }

    /// All that can happen next.
    pub fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (e, run) in (0u8..).zip(&self.runs) {
            self.enabled_of_run(e, run, &mut actions);
        }
        for (w, worker) in (0u8..).zip(&self.workers) {
            for (s, stream) in (0u8..).zip(&worker.streams) {
                self.enabled_of_stream(Line(w, s), stream, &mut actions);
            }
            if self.may(Fault::Crash) && worker.streams.iter().any(|s| s.worker.is_some()) {
                actions.push(Action::Crash(w));
            }
        }
        actions
    }

    fn may(&self, fault: Fault) -> bool {
        self.faults < self.scenario.faults && self.scenario.kinds.contains(&fault)
    }

    fn enabled_of_run(&self, e: u8, run: &Run, actions: &mut Vec<Action>) {
        match run.phase {
            Phase::NotBegun => {
                // One after the other; whether the one before has ended does not matter.
                let next = e == 0 || self.runs[usize::from(e) - 1].phase != Phase::NotBegun;
                if next {
                    actions.push(Action::Begin(e));
                }
                return;
            }
            Phase::Beginning => {
                if self.scenario.timers {
                    for (w, begun) in (0u8..).zip(&run.begun) {
                        if matches!(begun, Begun::Asked { .. }) {
                            actions.push(Action::BeginTimeout(e, w));
                        }
                    }
                }
                if self.may(Fault::Cancel) {
                    actions.push(Action::End(e));
                }
                return;
            }
            Phase::Running => {
                let mut probes = run.probes.iter().flatten().flatten();
                if run.fails || self.may(Fault::Cancel) || probes.all(|probe| probe.ended) {
                    actions.push(Action::End(e));
                }
            }
            Phase::Ended => {}
        }
        for f in 0..self.scenario.filters {
            for w in 0..self.scenario.workers {
                let task = Task(e, f, w);
                let build = &run.builds[usize::from(f)][usize::from(w)];
                let goes_on = run.phase == Phase::Running || self.scenario.stragglers;
                if goes_on && !build.dead && !build.unpolled {
                    if build.ended < self.scenario.partitions {
                        actions.push(Action::Seal(task));
                        if self.may(Fault::Abandon) {
                            actions.push(Action::Abandon(task));
                        }
                        if self.may(Fault::Unpolled) {
                            actions.push(Action::Unpolled(task));
                        }
                    }
                    if build.ended > 0 && self.may(Fault::Rerun) {
                        actions.push(Action::Rerun(task));
                    }
                }
                match &run.probes[usize::from(f)][usize::from(w)] {
                    Some(probe) if probe.ended => {}
                    Some(probe) if probe.answer.is_none() && goes_on => {
                        actions.push(Action::Ask(task));
                    }
                    Some(probe) if probe.answer.is_some() && self.scenario.timers => {
                        actions.push(Action::Timeout(task));
                    }
                    _ => {}
                }
            }
        }
    }

    fn enabled_of_stream(&self, line: Line, stream: &Stream, actions: &mut Vec<Action>) {
        let down = relock(&stream.to_worker).messages.len();
        let up = relock(&stream.to_coordinator).messages.len();
        let open = [
            (Way::Down, down, stream.worker.is_some()),
            (Way::Up, up, stream.coordinator.is_open()),
        ];
        for (way, messages, receives) in open {
            if !receives {
                continue;
            }
            if messages > 0 {
                actions.push(Action::Deliver(line, way));
                if self.may(Fault::Drop) {
                    actions.push(Action::Drop(line, way));
                }
                if self.may(Fault::Duplicate) {
                    actions.push(Action::Duplicate(line, way));
                }
            }
            if messages > 1 && self.may(Fault::Reorder) {
                actions.push(Action::Reorder(line, way));
            }
            if stream.broken {
                actions.push(Action::Notice(line, way));
            }
        }
        if !stream.broken && self.may(Fault::Break) {
            actions.push(Action::Break(line));
        }
    }

    /// Lets `action`, one of [`enabled`](Self::enabled), happen.
    pub fn apply(&mut self, action: Action) {
        match action {
            Action::Begin(e) => self.begin(e),
            Action::BeginTimeout(e, w) => {
                self.timeouts = true;
                self.give_up(e, w);
            }
            Action::Deliver(line, way) => self.deliver(line, way, false),
            Action::Duplicate(line, way) => {
                self.faults += 1;
                self.deliver(line, way, true);
            }
            Action::Drop(line, way) => {
                self.faults += 1;
                let stream = self.stream(line);
                match way {
                    Way::Up => drop(relock(&stream.to_coordinator).messages.pop_front()),
                    Way::Down => {
                        let lost = relock(&stream.to_worker).messages.pop_front();
                        let end = lost.and_then(|lost| lost.message);
                        if matches!(end, Some(proto::to_worker::Message::End(_))) {
                            self.lost_end = true;
                        }
                    }
                }
            }
            Action::Reorder(line, way) => {
                self.faults += 1;
                let stream = self.stream(line);
                match way {
                    Way::Up => relock(&stream.to_coordinator).messages.swap(0, 1),
                    Way::Down => relock(&stream.to_worker).messages.swap(0, 1),
                }
            }
            Action::Break(line) => {
                self.faults += 1;
                self.stream(line).cut();
            }
            Action::Notice(line, Way::Down) => self.stream(line).worker_notices(),
            Action::Notice(line, Way::Up) => self.stream(line).coordinator_notices(),
            Action::Crash(w) => self.crash(w),
            Action::Seal(task) => {
                let partition = self.build(task).ended;
                self.seal(task, partition);
                let build = self.build(task);
                build.ended += 1;
                build.covered += 1;
            }
            Action::Abandon(task) => {
                self.faults += 1;
                if let Some(execution) = self.execution_of_build(task) {
                    execution.abandon(self.build_task(task), PassAllReason::BuildCancelled);
                }
                self.build(task).ended += 1;
            }
            Action::Rerun(task) => {
                self.faults += 1;
                self.seal(task, 0);
            }
            Action::Unpolled(task) => {
                self.faults += 1;
                self.build(task).unpolled = true;
            }
            Action::Ask(task) => self.ask(task),
            Action::Timeout(task) => {
                self.timeouts = true;
                if let Some(probe) = self.probe(task) {
                    probe.ended = true;
                }
            }
            Action::End(e) => self.end(e),
        }
        self.settle();
    }

    fn run(&mut self, e: u8) -> &mut Run {
        &mut self.runs[usize::from(e)]
    }

    fn stream(&mut self, Line(w, s): Line) -> &mut Stream {
        &mut self.workers[usize::from(w)].streams[usize::from(s)]
    }

    fn build(&mut self, Task(e, f, w): Task) -> &mut Build {
        &mut self.run(e).builds[usize::from(f)][usize::from(w)]
    }

    fn probe(&mut self, Task(e, f, w): Task) -> Option<&mut Probe> {
        self.run(e).probes[usize::from(f)][usize::from(w)].as_mut()
    }

    /// What `Links::begin` of the transport does, as far as it is of one step.
    fn begin(&mut self, e: u8) {
        let filters = (0..self.scenario.filters).map(policy).collect();
        let hub = Arc::new(Hub::new(settings(e), filters));
        hub.expect_receivers(self.workers.len());
        self.hubs.insert(u64::from(e), Arc::clone(&hub));
        let mut begun = Vec::new();
        for (w, worker) in (0u64..).zip(&mut self.workers) {
            let open = worker
                .streams
                .last()
                .is_some_and(|s| s.coordinator.is_open());
            if !open || self.scenario.dial_again {
                let receiver = 8 * w + worker.streams.len() as u64;
                let stream = Stream::dial(receiver, &worker.registry, &self.hubs);
                match stream {
                    Some(stream) => worker.streams.push(stream),
                    None => self.refused_message = true,
                }
            }
            let number = worker.streams.len().saturating_sub(1) as u8;
            match worker.streams.last() {
                Some(stream) => {
                    let answer = stream.coordinator.begin(id(e));
                    send(&stream.to_worker, wire::begin(id(e), hub.settings()));
                    begun.push(Begun::Asked {
                        stream: number,
                        answer,
                    });
                }
                None => begun.push(Begun::Refused),
            }
        }
        let run = self.run(e);
        run.hub = Some(hub);
        run.begun = begun;
        run.phase = Phase::Beginning;
    }

    /// The Begin of a worker is given up.
    fn give_up(&mut self, e: u8, w: u8) {
        let given_up = std::mem::replace(&mut self.run(e).begun[usize::from(w)], Begun::Refused);
        if let Begun::Asked { stream, .. } = given_up {
            self.stream(Line(w, stream)).end(id(e));
        }
    }

    fn end(&mut self, e: u8) {
        let run = self.run(e);
        let normal = run.fails || run.probes.iter().flatten().flatten().all(|p| p.ended);
        run.phase = Phase::Ended;
        if let Some(hub) = &run.hub {
            hub.close();
        }
        if !normal {
            self.faults += 1;
        }
        self.hubs.remove(u64::from(e));
        for w in 0..self.scenario.workers {
            let begun = &mut self.run(e).begun[usize::from(w)];
            let begun = std::mem::replace(begun, Begun::Refused);
            if let Begun::Asked { stream, .. } | Begun::TakesPart { stream } = begun {
                self.stream(Line(w, stream)).end(id(e));
            }
        }
    }

    fn deliver(&mut self, line: Line, way: Way, again: bool) {
        let stream = self.stream(line);
        let refused = match way {
            Way::Down => {
                let message = take(&stream.to_worker, again);
                let (Some(message), Some(worker)) = (message, &mut stream.worker) else {
                    return;
                };
                match worker.handle(message) {
                    Ok(Some(answer)) => {
                        send(&stream.to_coordinator, answer);
                        false
                    }
                    Ok(None) => false,
                    Err(_) => true,
                }
            }
            Way::Up => {
                let Some(message) = take(&stream.to_coordinator, again) else {
                    return;
                };
                let to_worker = &stream.to_worker;
                let sink = |sequence| -> Arc<dyn VerdictSink> {
                    Arc::new(PipeSink {
                        sequence,
                        to_worker: Arc::clone(to_worker),
                    })
                };
                stream.coordinator.handle(message, sink).is_err()
            }
        };
        self.refused_message |= refused;
    }

    fn crash(&mut self, w: u8) {
        self.faults += 1;
        let worker = &mut self.workers[usize::from(w)];
        for stream in &mut worker.streams {
            stream.cut();
            relock(&stream.to_worker).messages.clear();
            stream.worker = None;
        }
        worker.registry = Arc::default();
        for run in &mut self.runs {
            // Tasks are placed once every worker has answered or was given up.
            if !matches!(run.phase, Phase::Running | Phase::Ended) {
                continue;
            }
            run.fails |= run.phase == Phase::Running;
            for builds in &mut run.builds {
                builds[usize::from(w)].dead = true;
                builds[usize::from(w)].held = None;
            }
            for probes in &mut run.probes {
                if let Some(probe) = &mut probes[usize::from(w)] {
                    probe.ended = true;
                    probe.held = None;
                    probe.answer = None;
                    probe.told = None;
                }
            }
        }
    }

    fn build_task(&self, Task(_, f, w): Task) -> BuildTask {
        BuildTask {
            filter: u32::from(f),
            index: u32::from(w),
            count: u32::from(self.scenario.workers),
            partitions: u32::from(self.scenario.partitions),
        }
    }

    fn look_up(&self, Task(e, _, w): Task) -> Option<Arc<Execution>> {
        self.workers[usize::from(w)].registry.execution(&id(e))
    }

    fn execution_of_build(&mut self, task: Task) -> Option<Arc<Execution>> {
        let found = self.look_up(task);
        self.build(task).held.get_or_insert(found).clone()
    }

    fn seal(&mut self, task: Task, partition: u8) {
        let Some(execution) = self.execution_of_build(task) else {
            return;
        };
        let settings = execution.settings();
        let mut keys = PartialBuilder::new(settings.cap_blocks(), settings.seed);
        // Never fails: a list of one key needs no filter.
        let _ = keys.insert(&[key(task, partition)], None);
        execution.seal(self.build_task(task), u32::from(partition), keys.finish());
    }

    fn ask(&mut self, task: Task) {
        let found = self.look_up(task);
        let answer = found
            .as_ref()
            .map(|execution| execution.verdict(u32::from(task.1)));
        if let Some(probe) = self.probe(task) {
            probe.held = Some(found);
            probe.ended = answer.is_none();
            probe.answer = answer;
        }
    }

    /// What follows from an event without another.
    fn settle(&mut self) {
        for e in 0..self.scenario.executions {
            self.settle_begin(e);
        }
        for run in &mut self.runs {
            for probe in run.probes.iter_mut().flatten().flatten() {
                let Some(answer) = &probe.answer else {
                    continue;
                };
                let now = answer.borrow().clone();
                let same = match (&probe.told, &now) {
                    (None, _) => true,
                    (Some(Verdict::Filter(before)), Some(Verdict::Filter(now))) => {
                        Arc::ptr_eq(before, now)
                    }
                    (Some(Verdict::PassAll(before)), Some(Verdict::PassAll(now))) => before == now,
                    _ => false,
                };
                self.changed |= !same;
                probe.ended |= now.is_some();
                probe.told = now;
            }
        }
    }

    fn settle_begin(&mut self, e: u8) {
        if self.run(e).phase != Phase::Beginning {
            return;
        }
        for w in 0..self.scenario.workers {
            let begun = &mut self.run(e).begun[usize::from(w)];
            let Begun::Asked { stream, answer } = begun else {
                continue;
            };
            match answer.try_recv() {
                Ok(()) => *begun = Begun::TakesPart { stream: *stream },
                Err(oneshot::error::TryRecvError::Empty) => {}
                Err(oneshot::error::TryRecvError::Closed) => self.give_up(e, w),
            }
        }
        let run = self.run(e);
        if run.begun.iter().any(|b| matches!(b, Begun::Asked { .. })) {
            return;
        }
        run.phase = Phase::Running;
        if run.begun.iter().any(|b| matches!(b, Begun::Refused))
            && let Some(hub) = &run.hub
        {
            hub.fail(None, PassAllReason::WorkerUnavailable);
        }
    }

    /// What the probes have been told.
    pub fn seen(&self) -> impl Iterator<Item = Seen> {
        let probes = self.runs.iter().flat_map(|run| &run.probes).flatten();
        probes.flatten().map(|probe| match &probe.told {
            Some(Verdict::Filter(_)) => Seen::Filter,
            Some(Verdict::PassAll(reason)) => Seen::PassAll(*reason),
            None => Seen::Nothing,
        })
    }

    /// A number that two states share only if everything that can follow is the same.
    pub fn fingerprint(&self) -> u64 {
        let into = &mut DefaultHasher::new();
        // By name, so that a new field cannot be left out.
        let Self {
            scenario: _,
            hubs,
            runs,
            workers,
            faults,
            timeouts,
            lost_end,
            refused_message,
            changed,
        } = self;
        (
            hubs.len(),
            faults,
            timeouts,
            lost_end,
            refused_message,
            changed,
        )
            .hash(into);
        for run in runs {
            run.fingerprint(into);
        }
        for Worker { registry, streams } in workers {
            registry.fingerprint(into);
            streams.len().hash(into);
            for stream in streams {
                stream.fingerprint(into);
            }
        }
        into.finish()
    }

    /// The rules that do not hold. `at_rest`: nothing more can happen; then the streams are
    /// closed to see what stays.
    pub fn violations(&mut self, at_rest: bool) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (e, run) in (0u8..).zip(&self.runs) {
            self.violations_of_run(e, run, &mut violations);
        }
        if self.changed {
            violations.push(Violation::Changed);
        }
        if self.refused_message {
            violations.push(Violation::Protocol);
        }
        if at_rest {
            self.violations_at_rest(&mut violations);
        }
        violations
    }

    fn violations_of_run(&self, e: u8, run: &Run, violations: &mut Vec<Violation>) {
        let covered = |filter: usize| {
            let mut builds = run.builds[filter].iter();
            builds.all(|build| build.covered == self.scenario.partitions)
        };
        let records = run.hub.as_ref().map(|hub| hub.records());
        for record in records.into_iter().flatten() {
            let filter = matches!(record.verdict, Some(Verdict::Filter(_)));
            if filter && !covered(record.id as usize) {
                violations.push(Violation::Incomplete);
            }
        }
        for (f, probes) in (0u8..).zip(&run.probes) {
            for probe in probes.iter().flatten() {
                let Some(Verdict::Filter(filter)) = &probe.told else {
                    continue;
                };
                if !covered(usize::from(f)) {
                    violations.push(Violation::Incomplete);
                }
                let keys: Vec<u64> = (0..self.scenario.workers)
                    .flat_map(|w| (0..self.scenario.partitions).map(move |p| (w, p)))
                    .map(|(w, p)| key(Task(e, f, w), p))
                    .collect();
                let mut bitmap = Vec::new();
                filter.probe(&keys, &mut bitmap);
                let kept: u32 = bitmap.iter().map(|word| word.count_ones()).sum();
                if kept as usize != keys.len() {
                    violations.push(Violation::LosesKeys);
                }
            }
        }
        let faultless = self.faults == 0 && !self.timeouts;
        let passes_all = |probe: &Probe| matches!(probe.told, Some(Verdict::PassAll(_)));
        if faultless
            && !self.scenario.stragglers
            && run.probes.iter().flatten().flatten().any(passes_all)
        {
            violations.push(Violation::Needless);
        }
    }

    fn violations_at_rest(&mut self, violations: &mut Vec<Violation>) {
        let probes = self.runs.iter().flat_map(|run| &run.probes);
        let mut asked = probes.flatten().flatten().filter(|p| p.answer.is_some());
        if asked.any(|probe| !probe.ended) {
            violations.push(Violation::Waiting);
        }
        if self.runs.iter().any(|run| run.phase != Phase::Ended) {
            violations.push(Violation::Unfinished);
        }
        let streams = self.workers.iter().flat_map(|worker| &worker.streams);
        if streams.into_iter().any(|s| s.coordinator.executions() > 0) {
            violations.push(Violation::Owed);
        }
        let registered = |workers: &[Worker]| workers.iter().any(|w| !w.registry.is_empty());
        // An End that the network has lost is made good by the end of the stream only.
        let mut left = !self.lost_end && registered(&self.workers);
        for stream in self.workers.iter_mut().flat_map(|w| &mut w.streams) {
            stream.worker_notices();
            stream.coordinator_notices();
        }
        left |= registered(&self.workers) || !self.hubs.is_empty();
        if left {
            violations.push(Violation::Registered);
        }
    }
}

/// The first message, left in its place if it shall come `again`.
fn take<M: Clone>(pipe: &Shared<M>, again: bool) -> Option<M> {
    let messages = &mut relock(pipe).messages;
    match again {
        true => messages.front().cloned(),
        false => messages.pop_front(),
    }
}

fn fingerprint_of_pipe<M: prost::Message>(pipe: &Shared<M>, into: &mut impl Hasher) {
    let pipe = relock(pipe);
    let Pipe { messages, cut } = &*pipe;
    (messages.len(), cut).hash(into);
    for message in messages {
        message.encode_to_vec().hash(into);
    }
}

fn fingerprint_of_held(held: &Held, into: &mut impl Hasher) {
    held.is_some().hash(into);
    if let Some(found) = held {
        found.is_some().hash(into);
        if let Some(execution) = found {
            execution.fingerprint(into);
        }
    }
}

impl Stream {
    /// A stream whose ends have agreed on the versions. `None` if they have not.
    fn dial(receiver: u64, registry: &Arc<Registry>, hubs: &Arc<Hubs>) -> Option<Self> {
        let (to_worker, to_coordinator) = (pipe(), pipe());
        let uplink = Arc::new(PipeUplink(Arc::clone(&to_coordinator)));
        let mut worker = WorkerEnd::new(Arc::clone(registry), uplink);
        let answer = worker.handle(wire::hello(COORDINATOR)).ok()??;
        (answer == wire::welcome()).then(|| Self {
            to_worker,
            to_coordinator,
            worker: Some(worker),
            coordinator: CoordinatorEnd::new(receiver, Arc::clone(hubs)),
            broken: false,
        })
    }

    fn end(&mut self, execution: ExecutionId) {
        self.coordinator.end(execution);
        send(&self.to_worker, wire::end(execution.sequence));
    }

    fn cut(&mut self) {
        self.broken = true;
        relock(&self.to_worker).cut = true;
        relock(&self.to_coordinator).cut = true;
    }

    fn worker_notices(&mut self) {
        self.worker = None;
        relock(&self.to_worker).messages.clear();
    }

    fn coordinator_notices(&mut self) {
        self.coordinator.lost();
        relock(&self.to_coordinator).messages.clear();
    }

    fn fingerprint(&self, into: &mut impl Hasher) {
        let Self {
            to_worker,
            to_coordinator,
            worker,
            coordinator,
            broken,
        } = self;
        fingerprint_of_pipe(to_worker, into);
        fingerprint_of_pipe(to_coordinator, into);
        (worker.is_some(), broken).hash(into);
        if let Some(worker) = worker {
            worker.fingerprint(into);
        }
        coordinator.fingerprint(into);
    }
}

impl Run {
    fn fingerprint(&self, into: &mut impl Hasher) {
        let Self {
            phase,
            hub,
            begun,
            builds,
            probes,
            fails,
        } = self;
        (phase, fails, hub.is_some()).hash(into);
        if let Some(hub) = hub {
            hub.fingerprint(into);
        }
        for begun in begun {
            match begun {
                Begun::Asked { stream, answer: _ } => (0, *stream).hash(into),
                Begun::TakesPart { stream } => (1, *stream).hash(into),
                Begun::Refused => (2, 0).hash(into),
            }
        }
        for build in builds.iter().flatten() {
            let Build {
                held,
                ended,
                covered,
                dead,
                unpolled,
            } = build;
            fingerprint_of_held(held, into);
            (ended, covered, dead, unpolled).hash(into);
        }
        for probe in probes.iter().flatten().flatten() {
            let Probe {
                held,
                answer,
                told,
                ended,
            } = probe;
            fingerprint_of_held(held, into);
            (answer.is_some(), told.is_some(), ended).hash(into);
            if let Some(told) = told {
                told.fingerprint(into);
            }
        }
    }
}
