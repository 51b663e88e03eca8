//! Everything that happens in one simulation, drawn from a seed. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How long the coordinator waits for its workers when a query begins.
pub const BEGIN_TIMEOUT: Duration = Duration::from_millis(1_000);

/// What answers at the address of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A worker of this version.
    Sound,
    /// One that speaks another protocol.
    OtherProtocol,
    /// One that hashes differently.
    OtherHash,
    /// One that takes connections and never says anything.
    Silent,
}

/// Shares of the messages that a proxy does something to, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProxyPlan {
    /// Seed of its choices.
    pub seed: u64,
    /// Lost.
    pub lose: u8,
    /// Sent on twice.
    pub repeat: u8,
    /// Held back until after the next one.
    pub swap: u8,
    /// Held back for a while, with all after it.
    pub delay: u8,
    /// Filters and partials cut short, or with a bit flipped.
    pub damage: u8,
    /// The stream ends.
    pub abort: u8,
}

/// One worker.
#[derive(Debug, Clone)]
pub struct WorkerPlan {
    /// What answers first, and after each restart; the last one from then on.
    pub kinds: Vec<Kind>,
    /// What stands between the coordinator and it.
    pub proxy: Option<ProxyPlan>,
    /// The n-th connection of the coordinator to it ends, in the middle of a message, after so many
    /// bytes from the worker.
    pub cuts: Vec<Option<usize>>,
}

/// How a build partition ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Having seen all of its rows.
    Sealed,
    /// Before that.
    Abandoned,
    /// Not at all, as is legal.
    Never,
}

/// One partition of a build task.
#[derive(Debug, Clone)]
pub struct PartitionPlan {
    /// Key hashes of its rows.
    pub keys: Vec<u64>,
    /// When it ends, after the query has begun.
    pub after: Duration,
    /// How.
    pub ending: Ending,
}

/// One build task.
#[derive(Debug, Clone)]
pub struct BuildPlan {
    /// Where it runs.
    pub worker: usize,
    /// Its partitions.
    pub partitions: Vec<PartitionPlan>,
}

/// One probe.
#[derive(Debug, Clone, Copy)]
pub struct ProbePlan {
    /// Where it runs.
    pub worker: usize,
    /// When it asks, after the query has begun.
    pub after: Duration,
}

/// One filter.
#[derive(Debug, Clone)]
pub struct FilterPlan {
    /// The tasks of its build side.
    pub builds: Vec<BuildPlan>,
    /// Its probes.
    pub probes: Vec<ProbePlan>,
}

/// One query.
#[derive(Debug, Clone)]
pub struct QueryPlan {
    /// When it begins.
    pub at: Duration,
    /// Upper bound of one filter, in bytes.
    pub max_filter_bytes: usize,
    /// Its filters, by number.
    pub filters: Vec<FilterPlan>,
    /// How long its probes wait.
    pub wait: Duration,
    /// When it is cancelled, after its begin.
    pub cancel: Option<Duration>,
}

/// Something that happens to the network or to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Nothing passes between coordinator and worker, and what was on its way is lost.
    Partition(usize),
    /// Nothing passes to the worker.
    PartitionDown(usize),
    /// Nothing passes from the worker.
    PartitionUp(usize),
    /// The link carries again what is sent from now on.
    Repair(usize),
    /// What passes is held back.
    Hold(usize),
    /// What was held back arrives.
    Release(usize),
    /// Messages to and from the worker take so many milliseconds.
    Slow(usize, u64),
    /// A worker dies.
    Crash(usize),
    /// A worker that has died starts again.
    Restart(usize),
    /// The coordinator dies.
    CrashCoordinator,
}

impl Event {
    /// What it is called in the totals.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition(_) => "partition",
            Self::PartitionDown(_) => "partition to the worker",
            Self::PartitionUp(_) => "partition from the worker",
            Self::Repair(_) => "repair",
            Self::Hold(_) => "hold",
            Self::Release(_) => "release",
            Self::Slow(..) => "slow link",
            Self::Crash(_) => "worker killed",
            Self::Restart(_) => "worker restarted",
            Self::CrashCoordinator => "coordinator killed",
        }
    }
}

/// Everything that happens in one simulation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// The workers.
    pub workers: Vec<WorkerPlan>,
    /// The queries.
    pub queries: Vec<QueryPlan>,
    /// What happens, in order of time.
    pub events: Vec<(Duration, Event)>,
    /// Fastest and slowest message.
    pub latency: (Duration, Duration),
    /// Nothing goes wrong: every probe must be told a filter.
    pub faultless: bool,
}

fn millis(rng: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..=to))
}

impl Plan {
    /// The plan of `seed`. One in eight is of a cluster in which nothing goes wrong.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let faultless = rng.random_range(0..8) == 0;
        let workers: Vec<_> = (0..rng.random_range(1..=3))
            .map(|_| worker(rng, faultless))
            .collect();
        let queries = (0..rng.random_range(1..=3))
            .map(|_| query(rng, workers.len(), faultless))
            .collect();
        let mut events = Vec::new();
        if !faultless {
            for _ in 0..rng.random_range(0..=4) {
                draw_events(rng, workers.len(), &mut events);
            }
            events.sort_by_key(|(at, _)| *at);
        }
        let fastest = rng.random_range(0..=5);
        let slowest = fastest + rng.random_range(0..=if faultless { 20 } else { 120 });
        Self {
            seed,
            workers,
            queries,
            events,
            latency: (
                Duration::from_millis(fastest),
                Duration::from_millis(slowest),
            ),
            faultless,
        }
    }
}

fn worker(rng: &mut StdRng, faultless: bool) -> WorkerPlan {
    if faultless {
        return WorkerPlan {
            kinds: vec![Kind::Sound],
            proxy: None,
            cuts: Vec::new(),
        };
    }
    let kind = |rng: &mut StdRng, foreign: f64| {
        if !rng.random_bool(foreign) {
            return Kind::Sound;
        }
        [Kind::OtherProtocol, Kind::OtherHash, Kind::Silent][rng.random_range(0..3)]
    };
    let kinds = vec![kind(rng, 0.05), kind(rng, 0.3)];
    let proxy = rng.random_bool(0.3).then(|| {
        let mut share = || {
            if rng.random_bool(0.5) {
                0
            } else {
                rng.random_range(1..=20)
            }
        };
        ProxyPlan {
            lose: share(),
            repeat: share(),
            swap: share(),
            delay: share(),
            damage: share(),
            abort: share() / 4,
            seed: rng.random(),
        }
    });
    let cuts = (0..2)
        .map(|_| rng.random_bool(0.15).then(|| rng.random_range(1..4_000)))
        .collect();
    WorkerPlan { kinds, proxy, cuts }
}

fn query(rng: &mut StdRng, workers: usize, faultless: bool) -> QueryPlan {
    let wait = match faultless {
        true => Duration::from_secs(60),
        false => millis(rng, 100, 4_000),
    };
    QueryPlan {
        // Where nothing goes wrong, the workers listen before the first query.
        at: millis(rng, if faultless { 100 } else { 0 }, 2_000),
        max_filter_bytes: 1 << rng.random_range(5..=16),
        filters: (0..rng.random_range(1..=3))
            .map(|_| filter(rng, workers, faultless))
            .collect(),
        wait,
        cancel: (!faultless && rng.random_bool(0.15)).then(|| millis(rng, 0, 2_000)),
    }
}

fn filter(rng: &mut StdRng, workers: usize, faultless: bool) -> FilterPlan {
    let builds = (0..rng.random_range(1..=4))
        .map(|_| BuildPlan {
            worker: rng.random_range(0..workers),
            partitions: (0..rng.random_range(1..=3))
                .map(|_| partition(rng, faultless))
                .collect(),
        })
        .collect();
    let probes = (0..rng.random_range(1..=4))
        .map(|_| ProbePlan {
            worker: rng.random_range(0..workers),
            after: millis(rng, 0, 2_000),
        })
        .collect();
    FilterPlan { builds, probes }
}

fn partition(rng: &mut StdRng, faultless: bool) -> PartitionPlan {
    let most = [0, 1, 10, 3_000][rng.random_range(0..4)];
    let keys = (0..rng.random_range(0..=most))
        .map(|_| rng.random())
        .collect();
    let ending = match rng.random_range(0..100) {
        _ if faultless => Ending::Sealed,
        0..=1 => Ending::Abandoned,
        2 => Ending::Never,
        _ => Ending::Sealed,
    };
    PartitionPlan {
        keys,
        after: millis(rng, 0, 1_500),
        ending,
    }
}

/// One fault and, mostly, its end.
fn draw_events(rng: &mut StdRng, workers: usize, events: &mut Vec<(Duration, Event)>) {
    let worker = rng.random_range(0..workers);
    let at = millis(rng, 0, 4_000);
    let until = at + millis(rng, 10, 8_000);
    let (fault, end) = match rng.random_range(0..20) {
        0..=3 => (Event::Partition(worker), Some(Event::Repair(worker))),
        4..=5 => (Event::PartitionDown(worker), Some(Event::Repair(worker))),
        6..=7 => (Event::PartitionUp(worker), Some(Event::Repair(worker))),
        8..=10 => (Event::Hold(worker), Some(Event::Release(worker))),
        11..=13 => (Event::Slow(worker, rng.random_range(50..600)), None),
        14..=18 => (Event::Crash(worker), Some(Event::Restart(worker))),
        _ => (Event::CrashCoordinator, None),
    };
    events.push((at, fault));
    if let Some(end) = end
        && rng.random_bool(0.7)
    {
        events.push((until, end));
    }
}
