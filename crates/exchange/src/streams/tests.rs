#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use super::*;
use crate::registry::ExecutionSettings;
use crate::testing::{RecordingSink, RecordingUplink, SETTINGS, partial, policy, reason, report};
use crate::verdict::{Announcement, Verdict};

const COORDINATOR: u64 = 7;

fn id(sequence: u64) -> ExecutionId {
    ExecutionId {
        coordinator: COORDINATOR,
        sequence,
    }
}

fn begin(sequence: u64) -> proto::ToWorker {
    wire::begin(id(sequence), &SETTINGS)
}

/// A worker's end that has been greeted, and its registry.
fn worker() -> (WorkerEnd, Arc<Registry>) {
    let registry = Arc::new(Registry::new());
    let mut end = WorkerEnd::new(Arc::clone(&registry), Arc::<RecordingUplink>::default());
    let welcome = end.handle(wire::hello(COORDINATOR)).unwrap();
    assert_eq!(welcome, Some(wire::welcome()));
    (end, registry)
}

#[test]
fn an_execution_lasts_from_begin_to_end() {
    let (mut end, registry) = worker();
    assert_eq!(end.handle(begin(1)).unwrap(), Some(wire::began(1)));
    let execution = registry.execution(&id(1)).unwrap();
    let verdict = execution.verdict(0);
    assert_eq!(end.handle(wire::end(1)).unwrap(), None);
    assert!(registry.is_empty());
    let told = verdict.borrow().clone().unwrap();
    assert_eq!(reason(&told), PassAllReason::Ended);
}

#[test]
fn a_begin_after_its_end_begins_nothing() {
    let (mut end, registry) = worker();
    assert_eq!(end.handle(wire::end(1)).unwrap(), None);
    assert_eq!(end.handle(begin(1)).unwrap(), None);
    assert!(registry.is_empty());
    // Others do, also after as many Ends as are remembered.
    for sequence in 2..REMEMBERED_ENDS as u64 * 2 {
        assert_eq!(
            end.handle(begin(sequence)).unwrap(),
            Some(wire::began(sequence))
        );
        assert_eq!(end.handle(wire::end(sequence)).unwrap(), None);
        assert_eq!(end.handle(begin(sequence)).unwrap(), None);
        assert!(end.ended.len() <= REMEMBERED_ENDS);
    }
    assert!(registry.is_empty());
}

#[test]
fn a_second_begin_leaves_the_first_as_it_is() {
    let (mut end, registry) = worker();
    end.handle(begin(1)).unwrap().unwrap();
    let first = registry.execution(&id(1)).unwrap();
    assert_eq!(end.handle(begin(1)).unwrap(), None);
    assert!(Arc::ptr_eq(&first, &registry.execution(&id(1)).unwrap()));
    // Nor does another stream of the same coordinator end what it did not begin.
    let mut other = WorkerEnd::new(Arc::clone(&registry), Arc::<RecordingUplink>::default());
    other.handle(wire::hello(COORDINATOR)).unwrap().unwrap();
    assert_eq!(other.handle(begin(1)).unwrap(), None);
    drop(other);
    assert_eq!(registry.len(), 1);
}

#[test]
fn a_stream_that_ends_takes_its_executions_along() {
    let (mut end, registry) = worker();
    end.handle(begin(1)).unwrap().unwrap();
    let verdict = registry.execution(&id(1)).unwrap().verdict(0);
    drop(end);
    assert!(registry.is_empty());
    let told = verdict.borrow().clone().unwrap();
    assert_eq!(reason(&told), PassAllReason::CoordinatorLost);
}

#[test]
fn a_worker_refuses_what_is_not_the_protocol() {
    let (mut end, _) = worker();
    let empty = proto::ToWorker { message: None };
    assert!(end.handle(wire::hello(COORDINATOR)).is_err());
    assert!(end.handle(empty.clone()).is_err());
    let mut new = WorkerEnd::new(Arc::default(), Arc::<RecordingUplink>::default());
    assert!(new.handle(empty).is_err());
    assert!(new.handle(begin(1)).is_err(), "without a Hello");
    let mut old = wire::hello(COORDINATOR);
    let Some(proto::to_worker::Message::Hello(hello)) = &mut old.message else {
        panic!("{old:?}");
    };
    hello.hash_scheme += 1;
    assert!(new.handle(old).is_err(), "another hash scheme");
}

#[test]
fn executions_of_one_stream_are_bounded() {
    let (mut end, registry) = worker();
    for sequence in 0..MAX_EXECUTIONS as u64 {
        end.handle(begin(sequence)).unwrap().unwrap();
    }
    assert!(end.handle(begin(MAX_EXECUTIONS as u64)).is_err());
    assert_eq!(registry.len(), MAX_EXECUTIONS);
    drop(end);
    assert!(registry.is_empty());
}

/// A coordinator's end with execution 1 of one filter in progress.
fn coordinator() -> (CoordinatorEnd, Arc<Hubs>, Arc<Hub>) {
    let hubs = Arc::new(Hubs::default());
    let hub = Arc::new(Hub::new(SETTINGS, vec![policy(0)]));
    hubs.insert(1, Arc::clone(&hub));
    (CoordinatorEnd::new(0, Arc::clone(&hubs)), hubs, hub)
}

fn no_sink(_: u64) -> Arc<dyn VerdictSink> {
    panic!("nobody subscribes");
}

#[test]
fn a_begin_is_answered_by_its_own_began() {
    let (end, ..) = coordinator();
    let mut begun = end.begin(id(1));
    end.handle(wire::began(2), no_sink).unwrap();
    assert!(begun.try_recv().is_err());
    end.handle(wire::began(1), no_sink).unwrap();
    assert_eq!(begun.try_recv(), Ok(()));
    // A repeated answer is nobody's.
    end.handle(wire::began(1), no_sink).unwrap();
}

#[test]
fn partials_become_a_verdict_for_whoever_asked() {
    let (end, _, hub) = coordinator();
    drop(end.begin(id(1)));
    let sink = RecordingSink::local();
    let asked = Arc::clone(&sink);
    end.handle(wire::interest(1, 0), |sequence| {
        assert_eq!(sequence, 1);
        asked
    })
    .unwrap();
    // Of another execution: that has ended already.
    end.handle(wire::interest(2, 0), no_sink).unwrap();
    end.handle(wire::partial(2, 0, &report(0, 1, &[9])), no_sink)
        .unwrap();
    assert!(sink.delivered().is_empty());
    end.handle(wire::partial(1, 0, &report(0, 1, &[9])), no_sink)
        .unwrap();
    assert_eq!(crate::testing::passing(&sink.only()), [9]);
    let (up, _) = hub.traffic();
    assert!(up > 0);
}

#[test]
fn a_lost_worker_ends_the_wait_for_it() {
    let (end, hubs, hub) = coordinator();
    let other = Arc::new(Hub::new(SETTINGS, vec![policy(0)]));
    hubs.insert(2, Arc::clone(&other));
    let mut begun = end.begin(id(1));
    end.lost();
    assert!(!end.is_open());
    assert!(begun.try_recv().is_err());
    let verdict = hub.records()[0].verdict.clone().unwrap();
    assert_eq!(reason(&verdict), PassAllReason::WorkerLost);
    assert!(other.records()[0].verdict.is_none(), "it took no part");
    // A stream that has ended begins nothing, and leaves nothing behind.
    assert!(end.begin(id(2)).try_recv().is_err());
    end.lost();
    assert!(other.records()[0].verdict.is_none());
}

#[test]
fn an_execution_that_has_ended_is_not_failed_by_a_worker_lost_later() {
    let (end, _, hub) = coordinator();
    drop(end.begin(id(1)));
    end.end(id(1));
    end.lost();
    assert!(hub.records()[0].verdict.is_none());
}

#[test]
fn a_coordinator_refuses_what_is_not_the_protocol() {
    let (end, ..) = coordinator();
    assert!(end.handle(wire::welcome(), no_sink).is_err());
    let empty = proto::ToCoordinator { message: None };
    assert!(end.handle(empty, no_sink).is_err());
}

#[test]
fn a_verdict_reaches_the_probes_of_its_execution_alone() {
    let (mut end, registry) = worker();
    let settings: ExecutionSettings = SETTINGS;
    let verdicts = [1, 2].map(|sequence| {
        end.handle(begin(sequence)).unwrap().unwrap();
        registry.execution(&id(sequence)).unwrap().verdict(0)
    });
    let hub = Hub::new(settings, vec![policy(0)]);
    let sink = RecordingSink::remote(1);
    hub.subscribe(0, 0, Arc::clone(&sink) as _);
    let mut keys = report(0, 1, &[]);
    keys.outcome = Ok(partial(&[3, 5]));
    hub.report(0, keys);
    let announcement = Announcement::new(sink.only());
    end.handle(wire::verdict(1, 0, &announcement)).unwrap();
    end.handle(wire::verdict(9, 0, &announcement)).unwrap();
    let told = verdicts.map(|verdict| verdict.borrow().clone());
    assert_eq!(crate::testing::passing(told[0].as_ref().unwrap()), [3, 5]);
    assert!(told[1].is_none());
    assert!(matches!(told[0], Some(Verdict::Filter(_))));
}
