#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::registry::BuildTask;
use crate::testing::{RecordingSink, SETTINGS, partial_in, passing, policy, reason};
use crate::verdict::Verdict;

fn request(filters: &[u32]) -> ExecutionRequest {
    ExecutionRequest {
        max_filter_bytes: SETTINGS.max_filter_bytes,
        filters: filters.iter().map(|id| policy(*id)).collect(),
    }
}

fn nodes(active: &ActiveExecution) -> Arc<Execution> {
    active.registry().execution(&active.id()).unwrap()
}

fn task(filter: u32, index: u32) -> BuildTask {
    BuildTask {
        filter,
        index,
        count: 2,
        partitions: 3,
    }
}

/// The verdict that a probe gets which waits for it in a task of its own.
fn waiting(mut receiver: watch::Receiver<Option<Verdict>>) -> tokio::task::JoinHandle<Verdict> {
    tokio::spawn(async move {
        let verdict = timeout(Duration::from_secs(20), receiver.wait_for(Option::is_some));
        verdict.await.expect("in time").unwrap().clone().unwrap()
    })
}

#[tokio::test]
async fn two_tasks_of_three_partitions_make_a_filter_for_a_waiting_probe() {
    let exchange = InProcessExchange::new();
    let active = exchange.begin(request(&[1]));
    let execution = nodes(&active);
    let receiver = execution.verdict(1);
    let probe = waiting(receiver.clone());
    tokio::task::yield_now().await;

    let partitions: [(u32, u32, &[u64]); 6] = [
        (1, 2, &[10, 20]),
        (0, 0, &[10, 10]),
        (0, 2, &[]),
        (1, 0, &[30]),
        (0, 1, &[20, 40]),
        (1, 1, &[50, 10, 50]),
    ];
    for (index, partition, hashes) in partitions {
        assert!(receiver.borrow().is_none(), "not all tasks have ended");
        let keys = partial_in(execution.settings(), hashes);
        execution.seal(task(1, index), partition, keys);
    }
    let verdict = probe.await.unwrap();
    assert_eq!(passing(&verdict), [10, 20, 30, 40, 50]);
    let Verdict::Filter(filter) = &verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!((filter.rows(), filter.distinct_keys()), (10, 5));
    assert_eq!(filter.seed(), execution.settings().seed);

    let records = active.hub().records();
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].build_tasks, records[0].build_rows), (2, 10));
    assert_eq!(records[0].distinct_keys, Some(5));
    assert_eq!(active.hub().traffic(), (0, 0), "nothing crosses a network");
}

#[test]
fn a_probe_after_the_verdict_is_served_at_once() {
    let exchange = InProcessExchange::new();
    let active = exchange.begin(request(&[1]));
    let execution = nodes(&active);
    for index in 0..2 {
        for partition in 0..3 {
            let keys = partial_in(execution.settings(), &[u64::from(index)]);
            execution.seal(task(1, index), partition, keys);
        }
    }
    let verdict = execution.verdict(1).borrow().clone().unwrap();
    assert_eq!(passing(&verdict), [0, 1]);
}

#[test]
fn an_abandoned_partition_passes_all_without_a_wait_for_the_others() {
    let exchange = InProcessExchange::new();
    let active = exchange.begin(request(&[1, 2]));
    let execution = nodes(&active);
    let (receiver, other) = (execution.verdict(1), execution.verdict(2));
    let keys = partial_in(execution.settings(), &[1]);
    execution.seal(task(1, 0), 0, keys);
    execution.abandon(task(1, 0), PassAllReason::BuildFailed);
    assert_eq!(
        reason(&receiver.borrow().clone().unwrap()),
        PassAllReason::BuildFailed
    );
    assert!(other.borrow().is_none());
}

#[test]
fn a_probe_of_a_filter_not_of_the_plan_passes_all() {
    let exchange = InProcessExchange::new();
    let active = exchange.begin(request(&[1]));
    let verdict = nodes(&active).verdict(9).borrow().clone().unwrap();
    assert_eq!(reason(&verdict), PassAllReason::Malformed);
}

#[tokio::test]
async fn dropping_the_execution_ends_the_waits_and_leaves_nothing() {
    let exchange = InProcessExchange::new();
    let active = exchange.begin(request(&[1, 2]));
    let hub = Arc::clone(active.hub());
    let execution = nodes(&active);
    let probes = [1, 2].map(|filter| waiting(execution.verdict(filter)));
    let keys = partial_in(execution.settings(), &[1]);
    execution.seal(task(1, 0), 0, keys);
    let weak = Arc::downgrade(&execution);
    drop(execution);
    tokio::task::yield_now().await;
    assert_eq!(exchange.registry().len(), 1);

    let id = active.id();
    drop(active);
    for probe in probes {
        assert_eq!(reason(&probe.await.unwrap()), PassAllReason::Ended);
    }
    assert!(exchange.registry().is_empty());
    assert!(exchange.registry().execution(&id).is_none());
    assert!(weak.upgrade().is_none());
    // No cycle through the uplink either: only the report still reads the hub.
    assert_eq!(Arc::strong_count(&hub), 1);
    assert!(hub.records().iter().all(|r| r.verdict.is_none()));
    // Closed: what comes late is not kept.
    let late = RecordingSink::local();
    hub.subscribe(1, 5, Arc::clone(&late) as _);
    assert_eq!(Arc::strong_count(&late), 1);
}

#[test]
fn the_end_is_told_once_and_after_the_registry_has_let_go() {
    let exchange = InProcessExchange::new();
    let ends = Arc::new(AtomicUsize::new(0));
    let active = exchange.begin(request(&[])).on_end({
        let (ends, registry) = (Arc::clone(&ends), Arc::clone(exchange.registry()));
        move || {
            assert!(registry.is_empty());
            ends.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(ends.load(Ordering::Relaxed), 0);
    drop(active);
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    assert_eq!(Arc::strong_count(&ends), 1);
}

#[test]
fn each_execution_has_an_id_and_a_seed_of_its_own() {
    let exchange = InProcessExchange::new();
    let active: Vec<_> = (0..50).map(|_| exchange.begin(request(&[1]))).collect();
    let sequences: Vec<u64> = active.iter().map(|a| a.id().sequence).collect();
    assert_eq!(sequences, (1..=50).collect::<Vec<u64>>());
    assert!(
        active
            .iter()
            .all(|a| a.id().coordinator == exchange.coordinator())
    );
    let seeds: HashSet<u64> = active.iter().map(|a| a.hub().settings().seed).collect();
    assert_eq!(seeds.len(), 50);
    for active in &active {
        assert_eq!(nodes(active).settings(), active.hub().settings());
        assert_eq!(
            active.hub().settings().max_filter_bytes,
            SETTINGS.max_filter_bytes
        );
    }
    assert_eq!(exchange.registry().len(), 50);
    assert_ne!(
        exchange.coordinator(),
        InProcessExchange::new().coordinator()
    );
}

#[test]
fn executions_side_by_side_do_not_mix() {
    let exchange = InProcessExchange::new();
    let (first, second) = (exchange.begin(request(&[1])), exchange.begin(request(&[1])));
    let receivers = [&first, &second].map(|active| nodes(active).verdict(1));
    let whole = BuildTask {
        count: 1,
        partitions: 1,
        ..task(1, 0)
    };
    let execution = nodes(&second);
    execution.seal(whole, 0, partial_in(execution.settings(), &[2]));
    assert!(receivers[0].borrow().is_none());
    assert_eq!(passing(&receivers[1].borrow().clone().unwrap()), [2]);
    drop(second);
    assert_eq!(exchange.registry().len(), 1);
    let execution = nodes(&first);
    execution.seal(whole, 0, partial_in(execution.settings(), &[1]));
    assert_eq!(passing(&receivers[0].borrow().clone().unwrap()), [1]);
    assert_eq!(
        passing(&receivers[1].borrow().clone().unwrap()),
        [2],
        "a verdict outlives its execution"
    );
}
