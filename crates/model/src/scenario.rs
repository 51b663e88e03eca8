//! How large a cluster is explored, and what goes wrong in it.

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A message is lost.
    Drop,
    /// A message comes twice.
    Duplicate,
    /// A message overtakes the one before it.
    Reorder,
    /// A stream breaks; either end notices at a time of its own.
    Break,
    /// A worker is killed and starts again, knowing nothing.
    Crash,
    /// The query is cancelled.
    Cancel,
    /// A build partition ends without having seen all of its rows.
    Abandon,
    /// A build partition is run a second time.
    Rerun,
    /// A build task is never polled, as is legal.
    Unpolled,
}

/// One cluster and one or two queries in it, explored to the end.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// Executions of one plan, one after the other or overlapping; at most 2.
    pub executions: u8,
    /// Workers; each runs one build task of each filter. At most 3.
    pub workers: u8,
    /// Filters of the plan; at most 2.
    pub filters: u8,
    /// Partitions of each build task; at most 2.
    pub partitions: u8,
    /// Workers that have a probe of a filter: those from the filter's number on.
    pub probes: u8,
    /// Most faults in one run.
    pub faults: u8,
    /// What they can be.
    pub kinds: &'static [Fault],
    /// Whether probes and Begins give up waiting. Without, nothing but the protocol ends a wait.
    pub timers: bool,
    /// Whether tasks go on after the query has ended.
    pub stragglers: bool,
    /// Whether each execution has a stream of its own, as when two queries dial at once.
    pub dial_again: bool,
}

const ALL: &[Fault] = &[
    Fault::Drop,
    Fault::Duplicate,
    Fault::Reorder,
    Fault::Break,
    Fault::Crash,
    Fault::Cancel,
    Fault::Abandon,
    Fault::Rerun,
    Fault::Unpolled,
];

/// What a TCP stream and a process can do; a wait must end without a timer under any of it.
const WITHOUT_TIMERS: &[Fault] = &[
    Fault::Break,
    Fault::Crash,
    Fault::Cancel,
    Fault::Abandon,
    Fault::Rerun,
];

const BASE: Scenario = Scenario {
    name: "",
    executions: 1,
    workers: 1,
    filters: 1,
    partitions: 1,
    probes: 1,
    faults: 0,
    kinds: ALL,
    timers: true,
    stragglers: false,
    dial_again: false,
};

impl Scenario {
    /// Those that every change is tested with; they take seconds.
    pub fn quick() -> Vec<Self> {
        vec![
            Self {
                name: "one worker, all faults",
                partitions: 2,
                faults: 2,
                stragglers: true,
                ..BASE
            },
            Self {
                name: "two workers, no timers",
                workers: 2,
                faults: 1,
                kinds: WITHOUT_TIMERS,
                timers: false,
                ..BASE
            },
            Self {
                name: "two workers, one fault",
                workers: 2,
                faults: 1,
                ..BASE
            },
        ]
    }

    /// Those of the command, the quick ones among them.
    pub fn all() -> Vec<Self> {
        let mut all = Self::quick();
        all.extend([
            Self {
                name: "two workers, two partitions, two faults",
                workers: 2,
                partitions: 2,
                faults: 2,
                ..BASE
            },
            Self {
                name: "two workers, two filters, one fault",
                workers: 2,
                filters: 2,
                faults: 1,
                ..BASE
            },
            Self {
                name: "three workers, one fault",
                workers: 3,
                faults: 1,
                ..BASE
            },
            Self {
                name: "two workers, two executions, one fault, no timers",
                executions: 2,
                workers: 2,
                faults: 1,
                kinds: WITHOUT_TIMERS,
                timers: false,
                ..BASE
            },
            Self {
                name: "two executions, two streams, one fault, stragglers",
                executions: 2,
                faults: 1,
                stragglers: true,
                dial_again: true,
                ..BASE
            },
            Self {
                name: "three workers, two filters, two partitions, no fault",
                workers: 3,
                filters: 2,
                partitions: 2,
                timers: false,
                ..BASE
            },
            Self {
                name: "three workers, two filters, two partitions, one fault, no timers",
                workers: 3,
                filters: 2,
                partitions: 2,
                faults: 1,
                kinds: WITHOUT_TIMERS,
                timers: false,
                ..BASE
            },
        ]);
        all
    }

    /// The scenario of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all()
            .into_iter()
            .find(|scenario| scenario.name == name)
    }

    /// Whether worker `worker` has a probe of `filter`.
    pub(crate) fn has_probe(&self, filter: u8, worker: u8) -> bool {
        (worker + self.workers - filter % self.workers) % self.workers < self.probes
    }
}
