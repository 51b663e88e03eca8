#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use runtime_filter_core::Keys;

use super::*;
use crate::hub::VerdictSink;
use crate::testing::{RecordingUplink, SETTINGS, in_time, partial, passing, policy, reason};

const ID: ExecutionId = ExecutionId {
    coordinator: 7,
    sequence: 1,
};

/// Task 1 of 2, with three partitions.
const TASK: BuildTask = BuildTask {
    filter: 5,
    index: 1,
    count: 2,
    partitions: 3,
};

fn begin() -> (Registry, Arc<Execution>, Arc<RecordingUplink>) {
    let (registry, uplink) = (Registry::new(), Arc::new(RecordingUplink::default()));
    let execution = registry
        .begin(ID, SETTINGS, Arc::clone(&uplink) as _)
        .unwrap();
    (registry, execution, uplink)
}

/// The only report that was made, which must say that the keys of [`TASK`] are unknown.
#[track_caller]
fn only_reason(uplink: &RecordingUplink) -> PassAllReason {
    let reports = uplink.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let (filter, report) = &reports[0];
    assert_eq!((*filter, report.task_index), (5, 1));
    assert_eq!(report.partitions_covered, 0);
    *report.outcome.as_ref().unwrap_err()
}

fn filter_verdict(hashes: &[u64]) -> Verdict {
    crate::decide::decide(partial(hashes), &policy(5), 0).verdict
}

#[test]
fn the_last_partition_reports_the_whole_task_within_its_call() {
    let (_registry, execution, uplink) = begin();
    execution.seal(TASK, 2, partial(&[4, 4]));
    execution.seal(TASK, 0, partial(&[9, 1]));
    assert_eq!(uplink.reports().len(), 0);
    execution.seal(TASK, 1, partial(&[]));
    let reports = uplink.reports();
    assert_eq!(reports.len(), 1);
    let (filter, report) = &reports[0];
    assert_eq!(*filter, 5);
    assert_eq!((report.task_index, report.task_count), (1, 2));
    assert_eq!((report.partition_count, report.partitions_covered), (3, 3));
    let keys = report.outcome.as_ref().unwrap();
    assert_eq!(keys.keys(), &Keys::Sparse(vec![1, 4, 9]));
    assert_eq!(keys.rows(), 4);
}

#[test]
fn tasks_and_filters_do_not_mix() {
    let (_registry, execution, uplink) = begin();
    let one = BuildTask {
        partitions: 1,
        ..TASK
    };
    execution.seal(BuildTask { index: 0, ..one }, 0, partial(&[1]));
    execution.seal(one, 0, partial(&[2]));
    execution.seal(BuildTask { filter: 6, ..one }, 0, partial(&[3]));
    let said: Vec<_> = uplink
        .reports()
        .into_iter()
        .map(|(filter, r)| (filter, r.task_index, r.outcome.unwrap().keys().clone()))
        .collect();
    assert_eq!(
        said,
        [
            (5, 0, Keys::Sparse(vec![1])),
            (5, 1, Keys::Sparse(vec![2])),
            (6, 1, Keys::Sparse(vec![3])),
        ]
    );
}

#[test]
fn an_abandoned_task_says_so_once_whatever_its_other_partitions_do() {
    let (_registry, execution, uplink) = begin();
    execution.seal(TASK, 0, partial(&[1]));
    execution.abandon(TASK, PassAllReason::BuildFailed);
    assert_eq!(only_reason(&uplink), PassAllReason::BuildFailed);
    execution.abandon(TASK, PassAllReason::BuildCancelled);
    execution.seal(TASK, 1, partial(&[2]));
    execution.seal(TASK, 2, partial(&[3]));
    execution.seal(TASK, 0, partial(&[1]));
    assert_eq!(only_reason(&uplink), PassAllReason::BuildFailed);
}

#[test]
fn an_abandoned_task_says_so_even_as_the_first() {
    let (_registry, execution, uplink) = begin();
    execution.abandon(TASK, PassAllReason::UnsupportedKey);
    for partition in 0..3 {
        execution.seal(TASK, partition, partial(&[1]));
    }
    assert_eq!(only_reason(&uplink), PassAllReason::UnsupportedKey);
}

#[test]
fn a_partition_that_ends_twice_makes_its_task_inconsistent() {
    let (_registry, execution, uplink) = begin();
    execution.seal(TASK, 0, partial(&[1]));
    execution.seal(TASK, 0, partial(&[1]));
    assert_eq!(only_reason(&uplink), PassAllReason::InconsistentTasks);
    execution.seal(TASK, 1, partial(&[1]));
    execution.seal(TASK, 2, partial(&[1]));
    assert_eq!(uplink.reports().len(), 1, "said once");
}

#[test]
fn a_second_run_after_the_report_makes_the_task_inconsistent() {
    let second_runs: [fn(&Execution); 2] = [
        |execution| execution.seal(TASK, 1, partial(&[7])),
        |execution| execution.abandon(TASK, PassAllReason::BuildCancelled),
    ];
    for second_run in second_runs {
        let (_registry, execution, uplink) = begin();
        for partition in 0..3 {
            execution.seal(TASK, partition, partial(&[1]));
        }
        assert!(uplink.reports()[0].1.outcome.is_ok());
        for _ in 0..2 {
            second_run(&execution);
            assert_eq!(uplink.reports().len(), 2, "said once");
            assert_eq!(
                uplink.reports()[1].1.outcome.as_ref().unwrap_err(),
                &PassAllReason::InconsistentTasks
            );
        }
    }
}

#[test]
fn a_partition_that_does_not_fit_its_task_makes_it_inconsistent() {
    let wide = |partitions| BuildTask { partitions, ..TASK };
    for (task, partition) in [
        (TASK, 3),
        (TASK, u32::MAX),
        (wide(0), 0),
        (wide(MAX_PARTITIONS + 1), 0),
        (wide(u32::MAX), 0),
    ] {
        let (_registry, execution, uplink) = begin();
        execution.seal(task, partition, partial(&[1]));
        assert_eq!(
            only_reason(&uplink),
            PassAllReason::InconsistentTasks,
            "{task:?} {partition}"
        );
    }
    // The widest that may be.
    let (_registry, execution, uplink) = begin();
    execution.seal(wide(MAX_PARTITIONS), MAX_PARTITIONS - 1, partial(&[1]));
    assert_eq!(uplink.reports().len(), 0);
}

#[test]
fn one_task_under_two_shapes_is_inconsistent() {
    for other in [
        BuildTask {
            partitions: 1,
            ..TASK
        },
        BuildTask { count: 3, ..TASK },
    ] {
        let (_registry, execution, uplink) = begin();
        // Another partition, so that only the shape is at odds.
        execution.seal(TASK, 1, partial(&[1]));
        execution.seal(other, 0, partial(&[2]));
        assert_eq!(only_reason(&uplink), PassAllReason::InconsistentTasks);
    }
}

#[test]
fn keys_of_another_geometry_or_seed_are_malformed() {
    for foreign in [
        PartialBuilder::new(64, SETTINGS.seed),
        PartialBuilder::new(SETTINGS.cap_blocks(), SETTINGS.seed + 1),
    ] {
        let (_registry, execution, uplink) = begin();
        execution.seal(TASK, 0, foreign.finish());
        assert_eq!(only_reason(&uplink), PassAllReason::Malformed);
    }
}

#[test]
fn partitions_that_end_at_once_make_one_report() {
    const PARTITIONS: u32 = 8;
    let task = BuildTask {
        partitions: PARTITIONS,
        ..TASK
    };
    for _ in 0..100 {
        let (_registry, execution, uplink) = begin();
        let start = Arc::new(Barrier::new(PARTITIONS as usize));
        let threads: Vec<_> = (0..PARTITIONS)
            .map(|partition| {
                let (execution, start) = (Arc::clone(&execution), Arc::clone(&start));
                std::thread::spawn(move || {
                    let keys = partial(&[u64::from(partition), 50]);
                    start.wait();
                    execution.seal(task, partition, keys);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let reports = uplink.reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(
            reports[0].1.outcome.as_ref().unwrap().keys(),
            &Keys::Sparse(vec![0, 1, 2, 3, 4, 5, 6, 7, 50])
        );
    }
}

#[test]
fn a_task_being_merged_holds_up_nothing_but_its_own_partitions() {
    let (registry, execution, uplink) = begin();
    execution.seal(TASK, 0, partial(&[1]));
    let build = execution.build(&TASK).unwrap();
    let merging = build.lock().unwrap();
    in_time({
        let execution = Arc::clone(&execution);
        move || {
            let other = BuildTask {
                filter: 6,
                partitions: 1,
                ..TASK
            };
            execution.seal(other, 0, partial(&[2]));
            execution.deadline(5, 1, Duration::from_secs(1));
            let receiver = execution.verdict(5);
            execution.deliver(5, filter_verdict(&[1]));
            assert_eq!(passing(&receiver.borrow().clone().unwrap()), [1]);
            registry.end(&ID, PassAllReason::Ended);
        }
    });
    drop(merging);
    assert_eq!(uplink.reports().len(), 1);
    assert_eq!(uplink.reports()[0].0, 6);
}

/// Counts how often it is woken.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a probe sees that waits for filter 5 while `decide` happens.
fn woken_by(decide: impl FnOnce(&Registry, &Execution)) -> Verdict {
    let (registry, execution, _uplink) = begin();
    let alarm = Arc::new(Alarm::default());
    let waker = Waker::from(Arc::clone(&alarm));
    let mut context = Context::from_waker(&waker);
    let mut receiver = execution.verdict(5);
    let mut wait = pin!(receiver.wait_for(Option::is_some));
    assert!(wait.as_mut().poll(&mut context).is_pending());
    assert_eq!(alarm.0.load(Ordering::SeqCst), 0);
    decide(&registry, &execution);
    assert_eq!(alarm.0.load(Ordering::SeqCst), 1, "woken");
    match wait.as_mut().poll(&mut context) {
        Poll::Ready(Ok(verdict)) => verdict.clone().unwrap(),
        Poll::Ready(Err(_)) => panic!("closed without a verdict"),
        Poll::Pending => panic!("still waiting"),
    }
}

#[test]
fn a_waiting_probe_wakes_on_the_verdict() {
    let verdict = woken_by(|_, execution| execution.deliver(5, filter_verdict(&[3, 8])));
    assert_eq!(passing(&verdict), [3, 8]);
}

#[test]
fn a_waiting_probe_wakes_on_the_end_with_its_reason() {
    let verdict = woken_by(|registry, _| registry.end(&ID, PassAllReason::CoordinatorLost));
    assert_eq!(reason(&verdict), PassAllReason::CoordinatorLost);
    let verdict = woken_by(|registry, _| {
        registry.end_coordinator(ID.coordinator, PassAllReason::CoordinatorLost);
    });
    assert_eq!(reason(&verdict), PassAllReason::CoordinatorLost);
}

#[test]
fn a_verdict_of_another_filter_wakes_nobody() {
    let (_registry, execution, _uplink) = begin();
    let receiver = execution.verdict(5);
    execution.deliver(6, filter_verdict(&[1]));
    assert!(!receiver.has_changed().unwrap());
    assert!(receiver.borrow().is_none());
}

#[test]
fn the_first_verdict_stands() {
    let (registry, execution, _uplink) = begin();
    let mut receiver = execution.verdict(5);
    execution.deliver(5, filter_verdict(&[3]));
    assert_eq!(passing(&receiver.borrow_and_update().clone().unwrap()), [3]);
    execution.deliver(5, filter_verdict(&[4]));
    execution.deliver(5, Verdict::PassAll(PassAllReason::TooLarge));
    assert!(!receiver.has_changed().unwrap());
    registry.end(&ID, PassAllReason::Ended);
    assert_eq!(passing(&receiver.borrow().clone().unwrap()), [3]);
}

#[test]
fn a_verdict_before_the_first_probe_is_kept_for_it_and_not_asked_for() {
    let (_registry, execution, uplink) = begin();
    execution.deliver(5, filter_verdict(&[3]));
    assert_eq!(
        passing(&execution.verdict(5).borrow().clone().unwrap()),
        [3]
    );
    assert_eq!(uplink.interests(), [0u32; 0]);
}

#[test]
fn interest_is_sent_once_a_filter() {
    let (_registry, execution, uplink) = begin();
    for filter in [5, 6, 5, 5, 6] {
        let _ = execution.verdict(filter);
    }
    assert_eq!(uplink.interests(), [5, 6]);
}

#[test]
fn begin_twice_is_refused_and_the_first_stays() {
    let (registry, execution, _uplink) = begin();
    let other = ExecutionSettings {
        seed: 1,
        ..SETTINGS
    };
    let second = Arc::new(RecordingUplink::default());
    assert!(
        registry
            .begin(ID, other, Arc::clone(&second) as _)
            .is_none()
    );
    assert_eq!(Arc::strong_count(&second), 1);
    let found = registry.execution(&ID).unwrap();
    assert!(Arc::ptr_eq(&found, &execution));
    assert_eq!(found.settings().seed, SETTINGS.seed);
    assert_eq!((found.id(), registry.len()), (ID, 1));
}

#[test]
fn nothing_is_left_after_the_end() {
    let (registry, execution, uplink) = begin();
    let receiver = execution.verdict(5);
    execution.seal(TASK, 0, partial(&[1]));
    execution.deadline(5, 1, Duration::from_secs(1));
    registry.end(&ID, PassAllReason::Ended);
    assert!(registry.is_empty());
    assert!(registry.execution(&ID).is_none());
    {
        let state = execution.lock();
        assert_eq!((state.builds.len(), state.deadlines.len()), (0, 0));
    }
    let weak = Arc::downgrade(&execution);
    drop(execution);
    assert!(weak.upgrade().is_none());
    assert_eq!(Arc::strong_count(&uplink), 1);
    // Who still holds a receiver knows why nothing came.
    let verdict = receiver.borrow().clone().unwrap();
    assert_eq!(reason(&verdict), PassAllReason::Ended);
    // The id is free again, and of no memory.
    let again = registry.begin(ID, SETTINGS, uplink).unwrap();
    assert!(again.verdict(5).borrow().is_none());
}

#[test]
fn a_straggler_after_the_end_gets_nothing_and_leaves_nothing() {
    let (registry, execution, uplink) = begin();
    execution.seal(TASK, 0, partial(&[1]));
    execution.seal(TASK, 1, partial(&[1]));
    registry.end(&ID, PassAllReason::Ended);
    execution.seal(TASK, 2, partial(&[1]));
    execution.seal(TASK, 2, partial(&[1]));
    execution.abandon(TASK, PassAllReason::BuildFailed);
    execution.abandon(BuildTask { index: 0, ..TASK }, PassAllReason::BuildFailed);
    assert_eq!(uplink.reports().len(), 0);
    let late = execution.verdict(5);
    assert_eq!(
        reason(&late.borrow().clone().unwrap()),
        PassAllReason::Ended
    );
    execution.deliver(5, filter_verdict(&[1]));
    execution.deliver(6, filter_verdict(&[1]));
    assert_eq!(
        reason(&execution.verdict(5).borrow().clone().unwrap()),
        PassAllReason::Ended
    );
    assert_eq!(
        reason(&execution.verdict(6).borrow().clone().unwrap()),
        PassAllReason::Ended
    );
    assert_eq!(uplink.interests(), [0u32; 0]);
    assert_eq!(execution.lock().builds.len(), 0);
    // Neither an end nor an execution comes of an end that has been.
    registry.end(&ID, PassAllReason::CoordinatorLost);
    assert!(registry.is_empty());
}

#[test]
fn only_executions_of_the_lost_coordinator_end() {
    let registry = Registry::new();
    let begin = |coordinator, sequence| {
        let id = ExecutionId {
            coordinator,
            sequence,
        };
        let uplink = Arc::new(RecordingUplink::default());
        registry.begin(id, SETTINGS, uplink).unwrap()
    };
    let (lost_a, lost_b, stays) = (begin(7, 1), begin(7, 2), begin(8, 1));
    let receivers = [&lost_a, &lost_b, &stays].map(|execution| execution.verdict(5));
    registry.end_coordinator(7, PassAllReason::CoordinatorLost);
    let decided: Vec<bool> = receivers.iter().map(|r| r.borrow().is_some()).collect();
    assert_eq!(decided, [true, true, false]);
    assert_eq!(registry.len(), 1);
    assert!(Arc::ptr_eq(
        &registry.execution(&stays.id()).unwrap(),
        &stays
    ));
}

#[test]
fn partitions_of_a_task_share_the_deadline_that_the_first_sets() {
    let (_registry, execution, _uplink) = begin();
    let before = Instant::now();
    let first = execution.deadline(5, 0, Duration::from_secs(100));
    let after = Instant::now();
    assert!(first >= before + Duration::from_secs(100));
    assert!(first <= after + Duration::from_secs(100));
    assert_eq!(execution.deadline(5, 0, Duration::from_secs(1)), first);
    assert_eq!(execution.deadline(5, 0, Duration::from_secs(900)), first);
    // Another task, and another filter, start a wait of their own.
    assert!(execution.deadline(5, 1, Duration::from_secs(500)) > first);
    assert!(execution.deadline(6, 0, Duration::from_secs(1)) < first);
}

#[test]
fn an_endless_wait_is_cut_to_a_day() {
    let (_registry, execution, _uplink) = begin();
    let day = Duration::from_secs(86_400);
    let deadline = execution.deadline(5, 0, Duration::MAX);
    assert!(deadline <= Instant::now() + day);
    assert!(deadline > Instant::now() + day / 2);
}

/// An uplink that comes straight back to its execution, as the in-process one does.
#[derive(Default)]
struct Echo(OnceLock<Weak<Execution>>);

impl Echo {
    fn answer(&self, filter: u32) {
        let execution = self.0.get().unwrap().upgrade().unwrap();
        execution.deliver(filter, filter_verdict(&[1]));
        execution.deadline(filter, 0, Duration::ZERO);
        let other = BuildTask {
            filter: filter + 1,
            partitions: 2,
            ..TASK
        };
        execution.seal(other, 0, partial(&[]));
        execution.abandon(TASK, PassAllReason::BuildFailed);
        assert!(execution.verdict(filter).borrow().is_some());
    }
}

impl Uplink for Echo {
    fn report(&self, _: ExecutionId, filter: u32, _: TaskReport) {
        if filter == TASK.filter {
            self.answer(filter);
        }
    }

    fn interest(&self, _: ExecutionId, filter: u32) {
        if filter == TASK.filter {
            self.answer(filter);
        }
    }
}

#[test]
fn no_lock_is_held_while_the_uplink_is_called() {
    let calls: [fn(&Execution); 3] = [
        |execution| {
            let _ = execution.verdict(TASK.filter);
        },
        |execution| {
            for partition in 0..3 {
                execution.seal(TASK, partition, partial(&[1]));
            }
        },
        |execution| execution.abandon(TASK, PassAllReason::BuildFailed),
    ];
    for call in calls {
        in_time(move || {
            let (registry, echo) = (Registry::new(), Arc::new(Echo::default()));
            let execution = registry
                .begin(ID, SETTINGS, Arc::clone(&echo) as _)
                .unwrap();
            echo.0.set(Arc::downgrade(&execution)).unwrap();
            call(&execution);
            let verdict = execution.verdict(TASK.filter).borrow().clone();
            assert_eq!(passing(&verdict.unwrap()), [1]);
        });
    }
}

#[test]
fn a_local_sink_keeps_no_execution_alive() {
    let (registry, execution, _uplink) = begin();
    let sink = LocalSink(Arc::downgrade(&execution));
    let receiver = execution.verdict(5);
    assert!(!sink.is_remote());
    assert_eq!(sink.deliver(5, &Announcement::new(filter_verdict(&[2]))), 0);
    assert_eq!(passing(&receiver.borrow().clone().unwrap()), [2]);
    registry.end(&ID, PassAllReason::Ended);
    drop(execution);
    assert!(sink.0.upgrade().is_none());
    assert_eq!(sink.deliver(5, &Announcement::new(filter_verdict(&[2]))), 0);
}
