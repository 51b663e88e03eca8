#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::sync::Barrier;

use super::*;
use crate::testing::{
    RecordingSink, SETTINGS, in_time, partial, passing, policy, reason, report, unknown,
};

fn hub(filters: &[u32]) -> Arc<Hub> {
    let policies = filters.iter().map(|id| policy(*id)).collect();
    Arc::new(Hub::new(SETTINGS, policies))
}

fn record(hub: &Hub, filter: u32) -> FilterRecord {
    let records = hub.records();
    records.into_iter().find(|r| r.id == filter).unwrap()
}

/// The lock that a thread holds while it merges `filter`.
fn merging(hub: &Hub, filter: u32) -> MutexGuard<'_, Merge> {
    hub.merges[&filter].merge.lock().unwrap()
}

#[test]
fn subscribers_before_and_after_the_verdict_get_it_once() {
    let hub = hub(&[1]);
    let (early, late) = (RecordingSink::local(), RecordingSink::local());
    hub.subscribe(1, 10, Arc::clone(&early) as _);
    hub.report(1, report(0, 2, &[5, 6]));
    assert_eq!(early.delivered().len(), 0);
    hub.report(1, report(1, 2, &[6, 7]));
    assert_eq!(passing(&early.only()), [5, 6, 7]);
    hub.subscribe(1, 11, Arc::clone(&late) as _);
    assert_eq!(passing(&late.only()), [5, 6, 7]);

    // Nothing of this is a reason to send again.
    hub.subscribe(1, 10, Arc::clone(&early) as _);
    hub.subscribe(1, 11, Arc::clone(&late) as _);
    hub.report(1, report(1, 2, &[8]));
    hub.fail(None, PassAllReason::WorkerLost);
    assert_eq!(passing(&early.only()), [5, 6, 7]);
    assert_eq!(passing(&late.only()), [5, 6, 7]);
}

#[test]
fn a_second_subscription_of_a_receiver_changes_nothing() {
    let hub = hub(&[1]);
    let (first, second) = (RecordingSink::remote(1), RecordingSink::remote(1));
    hub.subscribe(1, 10, Arc::clone(&first) as _);
    hub.subscribe(1, 10, Arc::clone(&second) as _);
    assert_eq!(Arc::strong_count(&second), 1);
    hub.report(1, report(0, 1, &[5]));
    assert_eq!(passing(&first.only()), [5]);
    assert_eq!(second.delivered().len(), 0);
    assert_eq!(hub.traffic(), (0, 1));
}

#[test]
fn each_filter_has_receivers_of_its_own() {
    let hub = hub(&[1, 2]);
    let (one, both) = (RecordingSink::local(), RecordingSink::local());
    hub.subscribe(1, 10, Arc::clone(&one) as _);
    hub.subscribe(1, 11, Arc::clone(&both) as _);
    hub.subscribe(2, 11, Arc::clone(&both) as _);
    hub.report(2, report(0, 1, &[9]));
    assert_eq!(one.delivered().len(), 0);
    let delivered = both.delivered();
    assert_eq!(delivered.len(), 1);
    assert_eq!((delivered[0].0, passing(&delivered[0].1)), (2, vec![9]));
}

#[test]
fn an_unsubscribed_receiver_gets_nothing_more_and_is_let_go() {
    let hub = hub(&[1, 2]);
    let (gone, stays) = (RecordingSink::local(), RecordingSink::local());
    for filter in [1, 2] {
        hub.subscribe(filter, 10, Arc::clone(&gone) as _);
        hub.subscribe(filter, 11, Arc::clone(&stays) as _);
    }
    assert_eq!(Arc::strong_count(&gone), 3);
    hub.unsubscribe(10);
    assert_eq!(Arc::strong_count(&gone), 1);
    hub.report(1, report(0, 1, &[1]));
    hub.fail(Some(2), PassAllReason::BuildFailed);
    assert_eq!(gone.delivered().len(), 0);
    assert_eq!(stays.delivered().len(), 2);
}

#[test]
fn a_failure_of_all_touches_only_what_is_undecided() {
    let hub = hub(&[1, 2, 3]);
    let sink = RecordingSink::local();
    for filter in [1, 2, 3] {
        hub.subscribe(filter, 10, Arc::clone(&sink) as _);
    }
    hub.report(1, report(0, 1, &[4]));
    hub.report(2, unknown(0, 2, PassAllReason::BuildFailed));
    hub.report(3, report(0, 2, &[4]));
    hub.fail(None, PassAllReason::WorkerLost);
    let verdicts = sink.delivered();
    assert_eq!(
        verdicts.iter().map(|v| v.0).collect::<Vec<_>>(),
        [1, 2, 3],
        "one each"
    );
    assert_eq!(passing(&verdicts[0].1), [4]);
    assert_eq!(reason(&verdicts[1].1), PassAllReason::BuildFailed);
    assert_eq!(reason(&verdicts[2].1), PassAllReason::WorkerLost);
    // Too late to complete.
    hub.report(3, report(1, 2, &[5]));
    assert_eq!(
        reason(&record(&hub, 3).verdict.unwrap()),
        PassAllReason::WorkerLost
    );
    assert_eq!(record(&hub, 3).build_tasks, 1);
}

#[test]
fn a_failure_of_one_filter_leaves_the_others_waiting() {
    let hub = hub(&[1, 2]);
    hub.fail(Some(1), PassAllReason::UnsupportedKey);
    assert_eq!(
        reason(&record(&hub, 1).verdict.unwrap()),
        PassAllReason::UnsupportedKey
    );
    assert!(record(&hub, 2).verdict.is_none());
    hub.report(2, report(0, 1, &[3]));
    assert_eq!(passing(&record(&hub, 2).verdict.unwrap()), [3]);
}

#[test]
fn after_the_close_nothing_changes_and_sinks_are_gone() {
    let hub = hub(&[1, 2]);
    let (early, late) = (RecordingSink::remote(7), RecordingSink::remote(7));
    hub.subscribe(1, 10, Arc::clone(&early) as _);
    hub.subscribe(2, 10, Arc::clone(&early) as _);
    hub.report(1, report(0, 1, &[1]));
    hub.report(2, report(0, 2, &[1, 1]));
    hub.close();
    assert_eq!(Arc::strong_count(&early), 1);
    assert!(
        merging(&hub, 2).has_ended(),
        "the keys of an end are let go"
    );

    hub.report(2, report(1, 2, &[2]));
    hub.fail(None, PassAllReason::WorkerLost);
    hub.subscribe(1, 11, Arc::clone(&late) as _);
    hub.subscribe(2, 11, Arc::clone(&late) as _);
    hub.subscribe(99, 11, Arc::clone(&late) as _);
    assert_eq!(Arc::strong_count(&late), 1);
    assert_eq!(late.delivered().len(), 0);
    assert_eq!(passing(&early.only()), [1]);
    // What was known stays readable.
    assert_eq!(passing(&record(&hub, 1).verdict.unwrap()), [1]);
    let two = record(&hub, 2);
    assert_eq!((two.build_tasks, two.build_rows), (1, 2));
    assert!(two.verdict.is_none());
    assert_eq!(hub.traffic(), (0, 7));
}

#[test]
fn a_filter_that_is_not_of_the_plan_passes_all_and_is_not_kept() {
    let hub = hub(&[1]);
    let sink = RecordingSink::remote(9);
    hub.subscribe(8, 10, Arc::clone(&sink) as _);
    hub.report(8, report(0, 1, &[1]));
    hub.fail(Some(8), PassAllReason::BuildFailed);
    assert_eq!(sink.delivered().len(), 1);
    assert_eq!(sink.delivered()[0].0, 8);
    assert_eq!(reason(&sink.only()), PassAllReason::Malformed);
    assert_eq!(Arc::strong_count(&sink), 1);
    assert_eq!(hub.records().len(), 1);
    assert!(record(&hub, 1).verdict.is_none());
    assert_eq!(hub.traffic(), (0, 9), "it crossed the network all the same");
}

#[test]
fn traffic_is_what_was_added_and_delivered() {
    let hub = hub(&[1, 2]);
    hub.add_bytes_up(100);
    hub.add_bytes_up(20);
    hub.add_bytes_down(3);
    hub.subscribe(1, 10, RecordingSink::remote(1_000));
    hub.subscribe(1, 11, RecordingSink::remote(20_000));
    hub.subscribe(1, 12, RecordingSink::local());
    assert_eq!(hub.traffic(), (120, 3));
    hub.report(1, report(0, 1, &[1]));
    assert_eq!(hub.traffic(), (120, 21_003));
    hub.subscribe(1, 13, RecordingSink::remote(300_000));
    assert_eq!(hub.traffic(), (120, 321_003));
}

/// The filter of the hashes 1, 2 and 3 takes 69 bytes: a header of 48, and 3 times 55 bits.
fn decided_with(remote: u64, local: u64, force: bool) -> Verdict {
    let policy = FilterPolicy {
        probe_bytes: Some(276),
        max_cost_share: 0.5,
        force,
        ..policy(1)
    };
    let hub = Hub::new(SETTINGS, vec![policy]);
    let sink = RecordingSink::local();
    hub.subscribe(1, 0, Arc::clone(&sink) as _);
    for receiver in 1..=remote {
        hub.subscribe(1, receiver, RecordingSink::remote(69));
    }
    for receiver in 1..=local {
        hub.subscribe(1, 1_000 + receiver, RecordingSink::local());
    }
    hub.report(1, report(0, 1, &[1, 2, 3]));
    let record = record(&hub, 1);
    assert_eq!(record.distinct_keys, Some(3), "whatever the verdict");
    sink.only()
}

#[test]
fn only_remote_receivers_cost() {
    assert_eq!(passing(&decided_with(2, 50, false)), [1, 2, 3]);
    assert_eq!(
        reason(&decided_with(3, 0, false)),
        PassAllReason::TooLarge,
        "207 bytes for a saving of 138"
    );
    assert_eq!(passing(&decided_with(3, 0, true)), [1, 2, 3]);
}

#[test]
fn an_unsubscribed_receiver_costs_nothing() {
    let policy = FilterPolicy {
        probe_bytes: Some(138),
        max_cost_share: 0.5,
        ..policy(1)
    };
    let hub = Hub::new(SETTINGS, vec![policy]);
    hub.subscribe(1, 1, RecordingSink::remote(69));
    hub.subscribe(1, 2, RecordingSink::remote(69));
    hub.unsubscribe(2);
    hub.report(1, report(0, 1, &[1, 2, 3]));
    assert_eq!(passing(&record(&hub, 1).verdict.unwrap()), [1, 2, 3]);
}

#[test]
fn records_count_tasks_rows_and_keys() {
    let hub = hub(&[4, 2]);
    let ids: Vec<u32> = hub.records().iter().map(|r| r.id).collect();
    assert_eq!(ids, [2, 4]);
    hub.report(2, report(0, 2, &[1, 1, 2]));
    let waiting = record(&hub, 2);
    assert_eq!((waiting.build_tasks, waiting.build_rows), (1, 3));
    assert_eq!(waiting.distinct_keys, None);
    assert!(waiting.verdict.is_none());
    hub.report(2, report(1, 2, &[2, 3]));
    let complete = record(&hub, 2);
    assert_eq!((complete.build_tasks, complete.build_rows), (2, 5));
    assert_eq!(complete.distinct_keys, Some(3));
    let Some(Verdict::Filter(filter)) = complete.verdict else {
        panic!("no filter");
    };
    assert_eq!(filter.seed(), SETTINGS.seed);
    assert_eq!(record(&hub, 4).build_tasks, 0);
}

#[test]
fn a_task_that_comes_twice_counts_once_and_passes_all() {
    let hub = hub(&[1]);
    hub.report(1, report(0, 2, &[1]));
    hub.report(1, report(0, 2, &[1]));
    let record = record(&hub, 1);
    assert_eq!((record.build_tasks, record.build_rows), (1, 1));
    assert_eq!(record.distinct_keys, None);
    assert_eq!(
        reason(&record.verdict.unwrap()),
        PassAllReason::InconsistentTasks
    );
}

#[test]
fn a_report_of_some_partitions_only_passes_all() {
    let hub = hub(&[1]);
    let half = TaskReport {
        task_index: 0,
        task_count: 1,
        partition_count: 2,
        partitions_covered: 1,
        outcome: Ok(partial(&[1])),
    };
    hub.report(1, half);
    assert_eq!(
        reason(&record(&hub, 1).verdict.unwrap()),
        PassAllReason::BuildCancelled
    );
}

#[test]
fn a_filter_being_computed_holds_up_nothing_but_its_own_reports() {
    let hub = hub(&[1, 2]);
    let sink = RecordingSink::remote(1);
    let computing = merging(&hub, 1);
    in_time({
        let (hub, sink) = (Arc::clone(&hub), Arc::clone(&sink));
        move || {
            hub.subscribe(1, 10, Arc::clone(&sink) as _);
            hub.subscribe(2, 10, Arc::clone(&sink) as _);
            hub.report(2, report(0, 1, &[2]));
            hub.add_bytes_up(1);
            assert_eq!(hub.records().len(), 2);
            assert_eq!(passing(&sink.only()), [2]);
            hub.fail(None, PassAllReason::WorkerLost);
            assert_eq!(reason(&sink.delivered()[1].1), PassAllReason::WorkerLost);
            hub.unsubscribe(10);
            hub.close();
        }
    });
    drop(computing);
    assert_eq!(Arc::strong_count(&sink), 1);
}

/// Runs `decide` while a report of the only task of filter 1 is about to be merged, and checks
/// that it does not wait, that its outcome stands, and that the keys are let go.
fn raced_by(decide: fn(&Hub)) -> FilterRecord {
    let hub = hub(&[1]);
    hub.report(1, report(0, 2, &[1]));
    let computing = merging(&hub, 1);
    let reporter = std::thread::spawn({
        let hub = Arc::clone(&hub);
        move || hub.report(1, report(1, 2, &[2]))
    });
    in_time({
        let hub = Arc::clone(&hub);
        move || decide(&hub)
    });
    assert!(!computing.has_ended(), "another thread has them");
    drop(computing);
    reporter.join().unwrap();
    assert!(merging(&hub, 1).has_ended());
    record(&hub, 1)
}

#[test]
fn a_failure_overtakes_a_merge_and_stands() {
    let record = raced_by(|hub| hub.fail(Some(1), PassAllReason::WorkerLost));
    assert_eq!(reason(&record.verdict.unwrap()), PassAllReason::WorkerLost);
    assert_eq!((record.build_tasks, record.build_rows), (1, 1));
}

#[test]
fn a_close_overtakes_a_merge_and_stands() {
    let record = raced_by(Hub::close);
    assert!(record.verdict.is_none());
    assert_eq!((record.build_tasks, record.build_rows), (1, 1));
}

#[test]
fn a_panic_under_a_merge_never_completes_the_filter() {
    let hub = hub(&[1, 2]);
    hub.report(1, report(0, 2, &[1]));
    let _ = std::thread::spawn({
        let hub = Arc::clone(&hub);
        move || {
            let mut merge = merging(&hub, 1);
            // Where a panic within `offer` leaves it: without keys.
            let _ = merge.fail(PassAllReason::Ended);
            panic!("for the test");
        }
    })
    .join();
    hub.report(1, report(1, 2, &[2]));
    assert!(record(&hub, 1).verdict.is_none());
    hub.report(2, report(0, 1, &[3]));
    assert_eq!(passing(&record(&hub, 2).verdict.unwrap()), [3]);
    hub.fail(None, PassAllReason::WorkerLost);
    assert_eq!(
        reason(&record(&hub, 1).verdict.unwrap()),
        PassAllReason::WorkerLost
    );
}

#[test]
fn whatever_the_threads_do_each_receiver_gets_one_verdict() {
    const TASKS: u32 = 4;
    const RECEIVERS: u64 = 4;
    for round in 0..150 {
        let hub = hub(&[1]);
        let start = Arc::new(Barrier::new((TASKS as usize) + RECEIVERS as usize + 1));
        let mut threads = Vec::new();
        for task in 0..TASKS {
            let (hub, start) = (Arc::clone(&hub), Arc::clone(&start));
            threads.push(std::thread::spawn(move || {
                start.wait();
                hub.report(1, report(task, TASKS, &[u64::from(task)]));
            }));
        }
        let mut sinks = Vec::new();
        for receiver in 0..RECEIVERS {
            let (hub, start) = (Arc::clone(&hub), Arc::clone(&start));
            let sink = RecordingSink::remote(10);
            sinks.push(Arc::clone(&sink));
            threads.push(std::thread::spawn(move || {
                start.wait();
                hub.subscribe(1, receiver, sink);
            }));
        }
        let failing = round % 2 == 1;
        let failer = {
            let (hub, start) = (Arc::clone(&hub), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                if failing {
                    hub.fail(None, PassAllReason::WorkerLost);
                }
            })
        };
        threads.push(failer);
        for thread in threads {
            thread.join().unwrap();
        }
        let verdict = record(&hub, 1).verdict.unwrap();
        for sink in &sinks {
            match (&verdict, &sink.only()) {
                (Verdict::Filter(_), got) => assert_eq!(passing(got), [0, 1, 2, 3]),
                (Verdict::PassAll(_), got) => assert_eq!(reason(got), PassAllReason::WorkerLost),
            }
        }
        assert!(failing || matches!(verdict, Verdict::Filter(_)));
        assert_eq!(hub.traffic(), (0, 40));
    }
}

fn weighed(probe_bytes: u64) -> Arc<Hub> {
    let policy = FilterPolicy {
        probe_bytes: Some(probe_bytes),
        max_cost_share: 0.5,
        ..policy(1)
    };
    Arc::new(Hub::new(SETTINGS, vec![policy]))
}

#[test]
fn receivers_that_come_after_the_verdict_are_weighed_too() {
    // Two copies of 69 bytes are paid for, a third is not.
    let hub = weighed(276);
    hub.subscribe(1, 0, RecordingSink::remote(69));
    hub.report(1, report(0, 1, &[1, 2, 3]));
    let (second, third) = (RecordingSink::remote(69), RecordingSink::remote(69));
    let local = RecordingSink::local();
    hub.subscribe(1, 1, Arc::clone(&second) as _);
    hub.subscribe(1, 2, Arc::clone(&third) as _);
    hub.subscribe(1, 3, Arc::clone(&local) as _);
    assert_eq!(passing(&second.only()), [1, 2, 3]);
    assert_eq!(reason(&third.only()), PassAllReason::TooLarge);
    assert_eq!(passing(&local.only()), [1, 2, 3], "costs nothing");
    let record = record(&hub, 1);
    assert_eq!((record.receivers, record.receivers_refused), (2, 1));
    assert!(matches!(record.verdict, Some(Verdict::Filter(_))));
}

#[test]
fn a_filter_is_weighed_for_those_that_are_expected() {
    for (processes, sent) in [(2, true), (3, false)] {
        let hub = weighed(276);
        hub.expect_receivers(processes);
        hub.report(1, report(0, 1, &[1, 2, 3]));
        let sink = RecordingSink::remote(69);
        hub.subscribe(1, 0, Arc::clone(&sink) as _);
        let record = record(&hub, 1);
        assert_eq!(record.basis.unwrap().receivers, processes);
        assert_eq!(record.receivers, u64::from(sent));
        match sent {
            true => assert_eq!(passing(&sink.only()), [1, 2, 3]),
            false => assert_eq!(reason(&sink.only()), PassAllReason::TooLarge),
        }
    }
}

#[test]
fn all_receivers_share_one_encoded_filter() {
    let hub = hub(&[1]);
    hub.expect_receivers(3);
    let sinks = [1, 2, 3].map(|_| RecordingSink::remote(69));
    hub.subscribe(1, 0, Arc::clone(&sinks[0]) as _);
    hub.subscribe(1, 1, Arc::clone(&sinks[1]) as _);
    hub.report(1, report(0, 1, &[1, 2, 3]));
    hub.subscribe(1, 2, Arc::clone(&sinks[2]) as _);
    let encoded: Vec<_> = sinks.iter().flat_map(|sink| sink.encoded()).collect();
    assert_eq!(encoded.len(), 3);
    for bytes in &encoded {
        assert_eq!(bytes.len(), 69);
        assert_eq!(bytes.as_ptr(), encoded[0].as_ptr(), "a copy");
    }
}

/// Asks whether a filter that is delivered has been encoded before.
#[derive(Default)]
struct EncodedBefore(Mutex<Option<bool>>);

impl VerdictSink for EncodedBefore {
    fn deliver(&self, _: u32, announcement: &Announcement) -> u64 {
        *self.0.lock().unwrap() = Some(announcement.is_encoded());
        0
    }

    fn is_remote(&self) -> bool {
        true
    }
}

#[test]
fn the_filter_is_encoded_before_the_hub_is_locked_and_only_for_a_network() {
    let encoded_before = |processes| {
        let hub = hub(&[1]);
        hub.expect_receivers(processes);
        hub.report(1, report(0, 1, &[1]));
        let sink = Arc::new(EncodedBefore::default());
        hub.subscribe(1, 0, Arc::clone(&sink) as _);
        sink.0.lock().unwrap().take()
    };
    assert_eq!(encoded_before(1), Some(true));
    assert_eq!(encoded_before(0), Some(false));
}
