#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use runtime_filter_core::Keys;

use super::*;
use crate::testing::{CAP_BLOCKS, SETTINGS, partial, report, unknown};

fn merge() -> Merge {
    Merge::new(CAP_BLOCKS, SETTINGS.seed)
}

fn complete(step: Step) -> Partial {
    match step {
        Step::Complete(keys) => *keys,
        step => panic!("{step:?}"),
    }
}

fn pass_all(step: Step) -> PassAllReason {
    match step {
        Step::PassAll(reason) => reason,
        step => panic!("{step:?}"),
    }
}

#[track_caller]
fn assert_pending(step: Step) {
    assert!(matches!(step, Step::Pending), "{step:?}");
}

#[track_caller]
fn assert_ignored(step: Step) {
    assert!(matches!(step, Step::Ignored), "{step:?}");
}

#[test]
fn the_last_task_completes_with_the_union() {
    let mut merge = merge();
    assert_pending(merge.offer(report(2, 3, &[30, 10, 30])));
    assert_pending(merge.offer(report(0, 3, &[20])));
    assert!(!merge.has_ended());
    let keys = complete(merge.offer(report(1, 3, &[10, 40])));
    assert_eq!(keys.keys(), &Keys::Sparse(vec![10, 20, 30, 40]));
    assert_eq!((keys.rows(), keys.distinct_keys()), (6, 4));
    assert_eq!(merge.tasks_arrived(), 3);
    assert!(merge.has_ended());
}

#[test]
fn a_task_without_rows_counts_as_arrived() {
    let mut merge = merge();
    assert_pending(merge.offer(report(0, 2, &[])));
    let keys = complete(merge.offer(report(1, 2, &[])));
    assert_eq!(keys.keys(), &Keys::Sparse(vec![]));
    assert_eq!(keys.rows(), 0);
}

#[test]
fn after_the_end_everything_is_ignored() {
    let mut completed = merge();
    complete(completed.offer(report(0, 1, &[1])));
    let mut failed = merge();
    pass_all(failed.fail(PassAllReason::WorkerLost));
    for mut merge in [completed, failed] {
        assert_ignored(merge.offer(report(0, 1, &[1])));
        assert_ignored(merge.offer(unknown(0, 2, PassAllReason::BuildFailed)));
        assert_ignored(merge.fail(PassAllReason::Ended));
    }
}

#[test]
fn a_failure_ends_a_merge_that_waits() {
    let mut merge = merge();
    assert_pending(merge.offer(report(0, 2, &[1])));
    assert_eq!(
        pass_all(merge.fail(PassAllReason::WorkerLost)),
        PassAllReason::WorkerLost
    );
    assert_ignored(merge.offer(report(1, 2, &[2])));
}

#[test]
fn what_does_not_fit_is_refused_with_its_reason() {
    let ok = report(1, 2, &[5]);
    let with = |change: fn(&mut TaskReport)| {
        let mut report = ok.clone();
        change(&mut report);
        report
    };
    let inconsistent = PassAllReason::InconsistentTasks;
    for (second, reason) in [
        (with(|r| r.task_index = 0), inconsistent),
        (with(|r| r.task_count = 3), inconsistent),
        (with(|r| r.task_index = 2), inconsistent),
        (with(|r| r.task_index = u32::MAX), inconsistent),
        (with(|r| r.partitions_covered = 2), inconsistent),
        (
            with(|r| (r.partition_count, r.partitions_covered) = (0, 0)),
            inconsistent,
        ),
        (
            with(|r| r.partition_count = 2),
            PassAllReason::BuildCancelled,
        ),
        (
            with(|r| r.partitions_covered = 0),
            PassAllReason::BuildCancelled,
        ),
        (
            with(|r| r.outcome = Err(PassAllReason::UnsupportedKey)),
            PassAllReason::UnsupportedKey,
        ),
        (
            with(|r| {
                r.outcome = Ok(PartialBuilder::new(CAP_BLOCKS / 2, SETTINGS.seed).finish());
            }),
            PassAllReason::Malformed,
        ),
        // Hashes of another seed would not find the keys they stand for.
        (
            with(|r| {
                r.outcome = Ok(PartialBuilder::new(CAP_BLOCKS, SETTINGS.seed + 1).finish());
            }),
            PassAllReason::Malformed,
        ),
    ] {
        let mut merge = merge();
        assert_pending(merge.offer(report(0, 2, &[4])));
        assert_eq!(pass_all(merge.offer(second.clone())), reason, "{second:?}");
        assert!(merge.has_ended());
        assert_ignored(merge.offer(ok.clone()));
    }
}

#[test]
fn a_first_report_of_an_impossible_count_is_refused() {
    for (index, count) in [(0, 0), (0, MAX_TASKS + 1), (0, u32::MAX)] {
        assert_eq!(
            pass_all(merge().offer(report(index, count, &[1]))),
            PassAllReason::InconsistentTasks,
            "{count}"
        );
    }
    assert_pending(merge().offer(report(MAX_TASKS - 1, MAX_TASKS, &[1])));
}

#[test]
fn an_unknown_last_task_does_not_complete() {
    let mut merge = merge();
    assert_pending(merge.offer(report(0, 2, &[1])));
    assert_eq!(
        pass_all(merge.offer(unknown(1, 2, PassAllReason::BuildFailed))),
        PassAllReason::BuildFailed
    );
}

/// A report as the generator draws it: the key set says which task it is of.
fn any_report() -> impl Strategy<Value = TaskReport> {
    (
        // Mostly one count, so that many sequences get far.
        prop_oneof![9 => Just(3u32), 1 => 0u32..5],
        0u32..4,
        vec(0u64..60, 0..6),
        prop_oneof![9 => Just((2u32, 2u32)), 1 => (0u32..3, 0u32..3)],
        prop_oneof![12 => Just(None), 1 => Just(Some(PassAllReason::BuildFailed))],
    )
        .prop_map(
            |(count, index, hashes, (partition_count, covered), fails)| TaskReport {
                task_index: index,
                task_count: count,
                partition_count,
                partitions_covered: covered,
                outcome: match fails {
                    None => Ok(partial(&hashes)),
                    Some(reason) => Err(reason),
                },
            },
        )
}

fn sparse(partial: &Partial) -> &[u64] {
    match partial.keys() {
        Keys::Sparse(hashes) => hashes,
        Keys::Dense(_) => panic!("dense"),
    }
}

/// Whether every report of `prefix` vouches for a task of its own of one and the same stage.
fn fits(prefix: &[TaskReport]) -> bool {
    let counts: BTreeSet<_> = prefix.iter().map(|r| r.task_count).collect();
    let indexes: BTreeSet<_> = prefix.iter().map(|r| r.task_index).collect();
    counts.len() == 1
        && indexes.len() == prefix.len()
        && prefix.iter().all(|r| {
            r.task_index < r.task_count
                && r.partition_count > 0
                && r.partition_count == r.partitions_covered
                && r.outcome.is_ok()
        })
}

/// Offers `reports` in order and checks each answer against the definition of complete.
/// Returns whether the merge completed.
fn check(reports: &[TaskReport]) -> std::result::Result<bool, TestCaseError> {
    let mut merge = merge();
    let (mut ended, mut completed) = (false, false);
    for n in 1..=reports.len() {
        let prefix = &reports[..n];
        let step = merge.offer(prefix[n - 1].clone());
        if ended {
            prop_assert!(matches!(step, Step::Ignored), "{:?} after the end", step);
        } else if !fits(prefix) {
            prop_assert!(matches!(step, Step::PassAll(_)), "{:?}", step);
            ended = true;
        } else if n < prefix[0].task_count as usize {
            prop_assert!(matches!(step, Step::Pending), "{:?}", step);
        } else {
            let Step::Complete(keys) = step else {
                return Err(TestCaseError::fail(format!("{step:?}")));
            };
            let partials = prefix.iter().map(|r| r.outcome.as_ref().unwrap());
            let union: BTreeSet<u64> = partials.clone().flat_map(sparse).copied().collect();
            prop_assert_eq!(sparse(&keys), union.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(keys.rows(), partials.map(Partial::rows).sum::<u64>());
            (ended, completed) = (true, true);
        }
        prop_assert_eq!(merge.has_ended(), ended);
    }
    Ok(completed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn complete_only_after_one_full_consistent_set(reports in vec(any_report(), 1..8)) {
        check(&reports)?;
    }

    #[test]
    fn any_order_of_a_full_set_completes(
        reports in (1u32..9).prop_flat_map(|count| {
            let reports = (0..count).map(move |index| {
                vec(0u64..60, 0..6).prop_map(move |hashes| report(index, count, &hashes))
            });
            reports.collect::<Vec<_>>().prop_shuffle()
        }),
    ) {
        prop_assert!(check(&reports)?);
    }

    #[test]
    fn an_incomplete_set_never_completes_whatever_repeats(
        (present, picks) in (subsequence(vec![0u32, 1, 2, 3, 4], 0..5), vec(0usize..5, 0..12)),
    ) {
        let reports: Vec<_> = picks
            .iter()
            .filter_map(|&pick| present.get(pick))
            .map(|&index| report(index, 5, &[u64::from(index)]))
            .collect();
        prop_assert!(!check(&reports)?);
    }
}
