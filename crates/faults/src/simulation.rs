//! How a plan is run, and what must hold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use turmoil::{Builder, Sim};

use crate::cluster::{
    Cluster, SETTLE, WorkerSlot, coordinator, proxy, proxy_name, relock, worker, worker_name,
};
use crate::plan::{Event, Plan};
use crate::report::{Report, Shared};

/// Steps of the simulated clock.
const TICK: Duration = Duration::from_millis(10);
/// No query takes that long.
const TOO_LONG: Duration = Duration::from_secs(120);

const COORDINATOR: &str = "coordinator";

/// Runs the simulation of `seed`.
pub fn run(seed: u64) -> Report {
    let plan = Plan::draw(seed);
    let shared = Arc::new(Shared::new(seed));
    let workers = plan.workers.len();
    let cluster = Arc::new(Cluster {
        shared: Arc::clone(&shared),
        workers: (0..workers).map(|_| WorkerSlot::default()).collect(),
        finished: AtomicBool::new(false),
        links: Mutex::default(),
        plan,
    });
    simulate(&cluster);
    shared.lock().clone()
}

fn simulate(cluster: &Arc<Cluster>) {
    let shared = &cluster.shared;
    let plan = &cluster.plan;
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .enable_random_order()
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(3_600))
        .min_message_latency(plan.latency.0)
        .max_message_latency(plan.latency.1)
        .tcp_capacity(1 << 16)
        .build();
    for number in 0..plan.workers.len() {
        let of_host = Arc::clone(cluster);
        sim.host(worker_name(number), move || {
            worker(Arc::clone(&of_host), number)
        });
        if plan.workers[number].proxy.is_some() {
            let of_host = Arc::clone(cluster);
            sim.host(proxy_name(number), move || {
                proxy(Arc::clone(&of_host), number)
            });
        }
    }
    let of_host = Arc::clone(cluster);
    sim.host(COORDINATOR, move || coordinator(Arc::clone(&of_host)));

    let mut run = Run {
        cluster,
        down: BTreeSet::new(),
        coordinator_down: false,
    };
    let mut events = plan.events.iter().peekable();
    loop {
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= sim.elapsed()) {
            shared.count(event.name());
            run.happen(&mut sim, *event);
        }
        let over = cluster.finished.load(Ordering::Relaxed) || run.coordinator_down;
        if over && events.peek().is_none() {
            break;
        }
        if let Err(error) = sim.step() {
            shared.hang(format!("a host ended: {error}"));
            return;
        }
        if sim.elapsed() > TOO_LONG {
            shared.hang("the queries have not ended");
            return;
        }
    }
    run.settle(&mut sim);
}

struct Run<'a> {
    cluster: &'a Arc<Cluster>,
    /// Workers that have died and not started again.
    down: BTreeSet<usize>,
    coordinator_down: bool,
}

impl Run<'_> {
    /// What the coordinator sees of a worker.
    fn peer(&self, worker: usize) -> String {
        match self.cluster.plan.workers[worker].proxy {
            Some(_) => proxy_name(worker),
            None => worker_name(worker),
        }
    }

    fn happen(&mut self, sim: &mut Sim<'_>, event: Event) {
        match event {
            Event::Partition(w) => sim.partition(COORDINATOR, self.peer(w)),
            Event::PartitionDown(w) => sim.partition_oneway(COORDINATOR, self.peer(w)),
            Event::PartitionUp(w) => sim.partition_oneway(self.peer(w), COORDINATOR),
            Event::Repair(w) => sim.repair(COORDINATOR, self.peer(w)),
            Event::Hold(w) => sim.hold(COORDINATOR, self.peer(w)),
            Event::Release(w) => sim.release(COORDINATOR, self.peer(w)),
            Event::Slow(w, millis) => {
                let latency = Duration::from_millis(millis);
                sim.set_link_latency(COORDINATOR, self.peer(w), latency);
            }
            Event::Crash(w) => {
                if self.down.insert(w) {
                    sim.crash(worker_name(w));
                    *relock(&self.cluster.workers[w].registry) = None;
                }
            }
            Event::Restart(w) => {
                if self.down.remove(&w) {
                    sim.bounce(worker_name(w));
                }
            }
            Event::CrashCoordinator => {
                if !self.coordinator_down {
                    self.coordinator_down = true;
                    sim.crash(COORDINATOR);
                    *relock(&self.cluster.links) = None;
                }
            }
        }
    }

    fn registered(&self) -> Vec<(usize, usize)> {
        let registered = self.cluster.workers.iter().enumerate().map(|(w, slot)| {
            let registry = relock(&slot.registry);
            (w, registry.as_ref().map_or(0, |registry| registry.len()))
        });
        registered.filter(|(_, left)| *left > 0).collect()
    }

    fn steps(&self, sim: &mut Sim<'_>, time: Duration) {
        let until = sim.elapsed() + time;
        while sim.elapsed() < until && !self.registered().is_empty() {
            if let Err(error) = sim.step() {
                self.cluster.shared.hang(format!("a host ended: {error}"));
                return;
            }
        }
    }

    /// Every query has ended: what is left anywhere is a leak.
    fn settle(&self, sim: &mut Sim<'_>) {
        let shared = &self.cluster.shared;
        if let Some(links) = &*relock(&self.cluster.links)
            && links.executions() > 0
        {
            shared.leak(format!("{} at the coordinator's hubs", links.executions()));
        }
        self.steps(sim, SETTLE);
        let proxied = |worker: usize| self.cluster.plan.workers[worker].proxy.is_some();
        for (worker, left) in self.registered() {
            // A proxy may have lost the End; only the end of the stream makes good for that.
            if !proxied(worker) {
                shared.leak(format!("{left} at worker {worker}"));
            }
        }
        if self.registered().is_empty() {
            return;
        }
        if !self.coordinator_down {
            sim.crash(COORDINATOR);
        }
        self.steps(sim, SETTLE);
        for (worker, left) in self.registered() {
            let what = format!("{left} at worker {worker} without a coordinator");
            shared.leak(what);
        }
    }
}

/// Runs the simulations of `seeds`, on `threads` threads. `progress` is told how many have ended.
pub fn run_many(
    seeds: std::ops::Range<u64>,
    threads: usize,
    progress: impl Fn(u64) + Sync,
) -> Report {
    let total = Mutex::new(Report::default());
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = run(seed);
                    let runs = {
                        let mut total = relock(&total);
                        total.add(report);
                        total.runs
                    };
                    progress(runs);
                }
            });
        }
    });
    total.into_inner().unwrap_or_default()
}
