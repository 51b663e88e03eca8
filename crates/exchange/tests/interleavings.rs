//! The locks of the exchange under a scheduler that tries one order of turns after another:
//! every order where there are at most [`EVERY`], and otherwise that many in depth-first
//! order and as many drawn from a fixed seed. A thread that can never go on is a deadlock,
//! which fails the test; so do a probe that is never told and a future that never resolves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};

use runtime_filter_core::{Partial, PartialBuilder, SizingPolicy};
use runtime_filter_exchange::{
    Announcement, BuildTask, CoordinatorEnd, Execution, ExecutionId, ExecutionRequest,
    ExecutionSettings, FilterPolicy, Hub, Hubs, InProcessExchange, PassAllReason, Registry,
    SizeRule, TaskReport, Uplink, Verdict, VerdictSink, wire,
};
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Runner, future::block_on, thread};

/// Orders that are tried in each way.
const EVERY: usize = 20_000;

const SEED: u64 = 0x5eed;

const ID: ExecutionId = ExecutionId {
    coordinator: 7,
    sequence: 1,
};

const SETTINGS: ExecutionSettings = ExecutionSettings {
    seed: 0x5eed,
    max_filter_bytes: 1 << 16,
};

fn explore(scenario: &str, f: fn()) {
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        Runner::new(scheduler, shuttle::Config::default()).run(f)
    };
    let tried = run(Box::new(DfsScheduler::new(Some(EVERY), false)));
    if tried < EVERY {
        println!("{scenario}: every order, {tried}");
        return;
    }
    let drawn = run(Box::new(RandomScheduler::new_from_seed(SEED, EVERY)));
    let few_turns = run(Box::new(PctScheduler::new_from_seed(SEED, 3, EVERY)));
    println!("{scenario}: {} orders", tried + drawn + few_turns);
}

fn policy(id: u32) -> FilterPolicy {
    FilterPolicy {
        id,
        rule: SizeRule::Fixed,
        sizing: SizingPolicy {
            target_fpp: 0.005,
            max_bytes: SETTINGS.max_filter_bytes,
            max_exact_keys: 256,
        },
        probe_bytes: None,
        probe_keys: None,
        max_cost_share: 0.5,
        force: false,
    }
}

fn partial(settings: &ExecutionSettings, hashes: &[u64]) -> Partial {
    let mut builder = PartialBuilder::new(settings.cap_blocks(), settings.seed);
    builder.insert(hashes, None).unwrap();
    builder.finish()
}

fn keys(hash: u64) -> Partial {
    partial(&SETTINGS, &[hash])
}

fn report(task_index: u32, task_count: u32, hashes: &[u64]) -> TaskReport {
    TaskReport {
        task_index,
        task_count,
        partition_count: 1,
        partitions_covered: 1,
        outcome: Ok(partial(&SETTINGS, hashes)),
    }
}

fn task(partitions: u32) -> BuildTask {
    BuildTask {
        filter: 0,
        index: 0,
        count: 1,
        partitions,
    }
}

/// Those of `0..64` that pass.
fn passing(verdict: &Verdict) -> Vec<u64> {
    let Verdict::Filter(filter) = verdict else {
        return (0..64).collect();
    };
    let hashes: Vec<u64> = (0..64).collect();
    let mut bitmap = Vec::new();
    filter.probe(&hashes, &mut bitmap);
    hashes
        .into_iter()
        .filter(|hash| bitmap[0] >> hash & 1 == 1)
        .collect()
}

fn decided(execution: &Execution, filter: u32) -> Option<Verdict> {
    execution.verdict(filter).borrow().clone()
}

fn waited_for(execution: &Execution, filter: u32) -> Verdict {
    let mut verdict = execution.verdict(filter);
    let told = block_on(async { verdict.wait_for(Option::is_some).await.unwrap().clone() });
    told.unwrap()
}

/// What a worker says to its coordinator.
#[derive(Default)]
struct Said {
    reports: Mutex<Vec<TaskReport>>,
    interest: Mutex<Vec<u32>>,
}

impl Uplink for Said {
    fn report(&self, _: ExecutionId, _: u32, report: TaskReport) {
        self.reports.lock().unwrap().push(report);
    }

    fn interest(&self, _: ExecutionId, filter: u32) {
        self.interest.lock().unwrap().push(filter);
    }
}

/// A process with a probe, on the far side of a network.
#[derive(Default)]
struct Told(Mutex<Vec<Verdict>>);

impl VerdictSink for Told {
    fn deliver(&self, _: u32, announcement: &Announcement) -> u64 {
        self.0.lock().unwrap().push(announcement.verdict().clone());
        1
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// A worker in one execution, with nothing else to hold its locks.
fn worker() -> (Arc<Registry>, Arc<Execution>, Arc<Said>) {
    let registry = Arc::new(Registry::new());
    let said = Arc::new(Said::default());
    let uplink = Arc::clone(&said) as Arc<dyn Uplink>;
    let execution = registry.begin(ID, SETTINGS, uplink).unwrap();
    (registry, execution, said)
}

fn run_together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn partitions_that_end_together_are_reported_once_and_whole() {
    explore("three partitions end", || {
        let (_registry, execution, said) = worker();
        run_together(
            (0..3)
                .map(|partition| {
                    let execution = Arc::clone(&execution);
                    Box::new(move || {
                        execution.seal(task(3), partition, keys(u64::from(partition)));
                    }) as Box<dyn FnOnce() + Send>
                })
                .collect(),
        );
        let reports = said.reports.lock().unwrap();
        let [report] = reports.as_slice() else {
            panic!("{} reports", reports.len());
        };
        assert_eq!(report.partitions_covered, 3);
        assert_eq!(report.outcome.as_ref().unwrap().rows(), 3);
    });
}

#[test]
fn a_partition_that_gives_up_among_others_is_told_once_whatever_the_order() {
    explore("two partitions end, one gives up", || {
        let (_registry, execution, said) = worker();
        let [one, two, three] = std::array::from_fn(|_| Arc::clone(&execution));
        run_together(vec![
            Box::new(move || one.seal(task(3), 0, keys(0))),
            Box::new(move || two.seal(task(3), 1, keys(1))),
            Box::new(move || three.abandon(task(3), PassAllReason::BuildFailed)),
        ]);
        let reports = said.reports.lock().unwrap();
        let outcomes: Vec<_> = reports
            .iter()
            .map(|report| (report.partitions_covered, report.outcome.as_ref().err()))
            .collect();
        assert_eq!(outcomes, [(0, Some(&PassAllReason::BuildFailed))]);
    });
}

#[test]
fn a_partition_run_twice_never_stands_in_for_another() {
    explore("one partition ends twice, one once", || {
        let (_registry, execution, said) = worker();
        let [one, two, again] = std::array::from_fn(|_| Arc::clone(&execution));
        run_together(vec![
            Box::new(move || one.seal(task(2), 0, keys(0))),
            Box::new(move || two.seal(task(2), 1, keys(1))),
            Box::new(move || again.seal(task(2), 0, keys(0))),
        ]);
        let reports = said.reports.lock().unwrap();
        let whole = reports
            .iter()
            .filter_map(|report| report.outcome.as_ref().ok());
        for partial in whole {
            assert_eq!(partial.rows(), 2, "keys of both partitions, each once");
        }
        let given_up = reports.iter().filter(|report| report.outcome.is_err());
        assert_eq!(given_up.count(), 1, "the second run is told");
    });
}

#[test]
fn the_seal_of_the_last_partition_returns_after_the_verdict() {
    explore("two partitions end within one process", || {
        let exchange = InProcessExchange::new();
        let active = exchange.begin(ExecutionRequest {
            max_filter_bytes: SETTINGS.max_filter_bytes,
            filters: vec![policy(0)],
        });
        let hub = Arc::clone(active.hub());
        let execution = exchange.registry().execution(&active.id()).unwrap();
        let sealed = Arc::new(AtomicUsize::new(0));
        let mut threads: Vec<Box<dyn FnOnce() + Send>> = (0..2)
            .map(|partition| {
                let execution = Arc::clone(&execution);
                let sealed = Arc::clone(&sealed);
                let hub = Arc::clone(&hub);
                Box::new(move || {
                    let keys = partial(execution.settings(), &[u64::from(partition)]);
                    execution.seal(task(2), partition, keys);
                    if sealed.fetch_add(1, Ordering::SeqCst) == 1 {
                        // Not the execution's: another probe may be about to ask for it.
                        let verdict = hub.records()[0].verdict.clone();
                        assert_eq!(passing(&verdict.expect("decided by now")), [0, 1]);
                        assert_eq!(passing(&waited_for(&execution, 0)), [0, 1]);
                    }
                }) as Box<dyn FnOnce() + Send>
            })
            .collect();
        let probe = Arc::clone(&execution);
        threads.push(Box::new(move || {
            assert_eq!(passing(&waited_for(&probe, 0)), [0, 1]);
        }));
        run_together(threads);
        drop(active);
        assert!(exchange.registry().is_empty());
    });
}

#[test]
fn a_probe_that_comes_while_the_execution_ends_is_told() {
    explore("probe, verdict and end", || {
        let (registry, execution, said) = worker();
        let [probe, link] = std::array::from_fn(|_| Arc::clone(&execution));
        let ending = Arc::clone(&registry);
        run_together(vec![
            Box::new(move || match waited_for(&probe, 0) {
                Verdict::PassAll(reason) => assert!(
                    [PassAllReason::Ended, PassAllReason::TooLarge].contains(&reason),
                    "{reason}"
                ),
                Verdict::Filter(_) => panic!("nobody sent one"),
            }),
            Box::new(move || link.deliver(0, Verdict::PassAll(PassAllReason::TooLarge))),
            Box::new(move || ending.end(&ID, PassAllReason::Ended)),
        ]);
        assert!(registry.is_empty());
        assert!(
            decided(&execution, 1).is_some(),
            "told at once after the end"
        );
        assert!(said.interest.lock().unwrap().len() <= 1);
    });
}

#[test]
fn partitions_that_end_with_their_execution_leave_nothing() {
    explore("two partitions end while the execution does", || {
        let exchange = InProcessExchange::new();
        let active = exchange.begin(ExecutionRequest {
            max_filter_bytes: SETTINGS.max_filter_bytes,
            filters: vec![policy(0)],
        });
        let hub = Arc::clone(active.hub());
        let execution = exchange.registry().execution(&active.id()).unwrap();
        let mut threads: Vec<Box<dyn FnOnce() + Send>> = (0..2)
            .map(|partition| {
                let execution = Arc::clone(&execution);
                Box::new(move || {
                    let keys = partial(execution.settings(), &[u64::from(partition)]);
                    execution.seal(task(2), partition, keys);
                }) as Box<dyn FnOnce() + Send>
            })
            .collect();
        threads.push(Box::new(move || drop(active)));
        run_together(threads);
        assert!(exchange.registry().is_empty());
        assert!(decided(&execution, 0).is_some());
        if let Some(verdict @ Verdict::Filter(_)) = &hub.records()[0].verdict {
            assert_eq!(passing(verdict), [0, 1]);
        }
    });
}

#[test]
fn every_receiver_is_told_the_one_verdict_once() {
    explore("two reports, a lost worker and a receiver", || {
        let hub = Arc::new(Hub::new(SETTINGS, vec![policy(0)]));
        let told = Arc::new(Told::default());
        let [one, two, lost, receiver] = std::array::from_fn(|_| Arc::clone(&hub));
        let sink = Arc::clone(&told) as Arc<dyn VerdictSink>;
        run_together(vec![
            Box::new(move || one.report(0, report(0, 2, &[3]))),
            Box::new(move || two.report(0, report(1, 2, &[5]))),
            Box::new(move || lost.fail(None, PassAllReason::WorkerLost)),
            Box::new(move || receiver.subscribe(0, 1, sink)),
        ]);
        let told = told.0.lock().unwrap();
        let [verdict] = told.as_slice() else {
            panic!("told {} times", told.len());
        };
        let recorded = hub.records()[0].verdict.clone().unwrap();
        assert_eq!(passing(&recorded), passing(verdict));
        if let Verdict::Filter(_) = verdict {
            assert_eq!(passing(verdict), [3, 5]);
        }
    });
}

#[test]
fn a_worker_that_is_lost_while_it_begins_is_not_waited_for() {
    explore("a stream breaks while an execution begins", || {
        let hubs = Arc::new(Hubs::default());
        let hub = Arc::new(Hub::new(SETTINGS, vec![policy(0)]));
        hubs.insert(ID.sequence, Arc::clone(&hub));
        let end = Arc::new(CoordinatorEnd::new(1, Arc::clone(&hubs)));
        let [beginning, reading] = std::array::from_fn(|_| Arc::clone(&end));
        let asked = Arc::clone(&hub);
        run_together(vec![
            Box::new(move || {
                // Where it takes part, the breaking of the stream has to reach the hub.
                if block_on(beginning.begin(ID)).is_ok() {
                    asked.add_bytes_down(1);
                }
            }),
            Box::new(move || {
                let began = wire::began(ID.sequence);
                reading
                    .handle(began, |_| panic!("nobody is interested"))
                    .unwrap();
                reading.lost();
            }),
        ]);
        assert_eq!(end.executions(), 0);
        let took_part = hub.traffic().1 == 1;
        let verdict = hub.records()[0].verdict.clone();
        if took_part {
            assert!(matches!(
                verdict,
                Some(Verdict::PassAll(PassAllReason::WorkerLost))
            ));
        }
        hubs.remove(ID.sequence);
        assert!(hubs.is_empty());
    });
}

#[test]
fn two_streams_cannot_begin_one_execution_twice() {
    explore("two streams begin one execution, one ends it", || {
        let registry = Arc::new(Registry::new());
        let begun = Arc::new(AtomicUsize::new(0));
        run_together(
            (0..2)
                .map(|_| {
                    let registry = Arc::clone(&registry);
                    let begun = Arc::clone(&begun);
                    Box::new(move || {
                        let uplink = Arc::new(Said::default());
                        if registry.begin(ID, SETTINGS, uplink).is_some() {
                            begun.fetch_add(1, Ordering::SeqCst);
                        }
                    }) as Box<dyn FnOnce() + Send>
                })
                .collect(),
        );
        assert_eq!((begun.load(Ordering::SeqCst), registry.len()), (1, 1));
        let ending = Arc::clone(&registry);
        let other = Arc::clone(&registry);
        run_together(vec![
            Box::new(move || ending.end(&ID, PassAllReason::Ended)),
            Box::new(move || other.end_coordinator(ID.coordinator, PassAllReason::CoordinatorLost)),
        ]);
        assert!(registry.is_empty());
    });
}
