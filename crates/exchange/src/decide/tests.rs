#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use runtime_filter_core::{FilterKind, SizingPolicy};

use super::*;
use crate::testing::{SETTINGS, partial, passing, policy, reason};

/// The hashes 1, 2 and 3: a header of 48 bytes, and 55 bits for each.
const BYTES: u64 = 69;

fn decide_at(probe_bytes: Option<u64>, max_cost_share: f64, remote: usize) -> Verdict {
    let policy = FilterPolicy {
        probe_bytes,
        max_cost_share,
        ..policy(1)
    };
    decide(partial(&[3, 1, 2, 2]), &policy, remote).verdict
}

#[test]
fn the_filter_is_that_of_the_keys_and_their_seed() {
    let verdict = decide_at(None, 0.5, 1);
    assert_eq!(passing(&verdict), [1, 2, 3]);
    let Verdict::Filter(filter) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(filter.seed(), SETTINGS.seed);
    assert_eq!((filter.rows(), filter.distinct_keys()), (4, 3));
    assert_eq!(filter.kind(), FilterKind::Keys);
    assert_eq!(filter.byte_len() as u64, BYTES);
}

#[test]
fn the_cost_is_a_copy_for_each_remote_receiver() {
    // At half of 276 bytes, two copies of 69 just do and a third does not.
    for remote in 0..=2 {
        assert_eq!(passing(&decide_at(Some(276), 0.5, remote)), [1, 2, 3]);
    }
    for (probe_bytes, remote) in [(276, 3), (275, 2), (137, 1), (0, 1)] {
        assert_eq!(
            reason(&decide_at(Some(probe_bytes), 0.5, remote)),
            PassAllReason::TooLarge,
            "{probe_bytes} {remote}"
        );
    }
}

#[test]
fn without_statistics_or_a_network_no_cost_is_too_high() {
    assert_eq!(passing(&decide_at(None, 0.0, 1000)), [1, 2, 3]);
    assert_eq!(passing(&decide_at(Some(0), 0.0, 0)), [1, 2, 3]);
}

#[test]
fn force_sends_whatever_the_cost() {
    let forced = FilterPolicy {
        probe_bytes: Some(0),
        max_cost_share: 0.0,
        force: true,
        ..policy(1)
    };
    assert_eq!(passing(&decide(partial(&[9]), &forced, 1000).verdict), [9]);
}

#[test]
fn no_keys_give_a_filter_that_drops_all() {
    let verdict = decide(partial(&[]), &policy(1), 1).verdict;
    assert_eq!(passing(&verdict), [0u64; 0]);
    let Verdict::Filter(filter) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(filter.kind(), FilterKind::Empty);
}

#[test]
fn the_sizing_of_the_policy_is_used() {
    let policy = FilterPolicy {
        sizing: SizingPolicy {
            max_exact_keys: 2,
            ..policy(1).sizing
        },
        ..policy(1)
    };
    let Verdict::Filter(filter) = decide(partial(&[1, 2, 3]), &policy, 0).verdict else {
        panic!("a pass-all");
    };
    assert_eq!(filter.kind(), FilterKind::Bloom);
}

fn hashes(count: u64) -> Vec<u64> {
    (1..=count)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

fn auto(probe_bytes: Option<u64>) -> FilterPolicy {
    FilterPolicy {
        rule: SizeRule::Auto,
        probe_bytes,
        ..policy(1)
    }
}

fn bloom(decision: &Decision) -> &RuntimeFilter {
    let Verdict::Filter(filter) = &decision.verdict else {
        panic!("{decision:?}");
    };
    assert_eq!(filter.kind(), FilterKind::Bloom);
    filter
}

#[test]
fn auto_sends_the_form_of_the_fewest_bytes_and_says_why() {
    let keys = partial(&hashes(2000));
    let mut last = 0;
    for probe_bytes in [40_000, 400_000, 4_000_000] {
        let decision = decide(keys.clone(), &auto(Some(probe_bytes)), 4);
        let filter = bloom(&decision);
        let basis = decision.basis;
        assert_eq!((basis.rule, basis.receivers), ("bytes", 4));
        assert_eq!(basis.probe_bytes, Some(probe_bytes));
        assert_eq!(basis.candidate.bytes, filter.byte_len() as u64);
        assert_eq!(basis.sending_bytes, filter.byte_len() as f64 * 4.0);
        let wrong = probe_bytes as f64 * basis.candidate.fpp;
        let expected = basis.expected_bytes.unwrap();
        assert!((expected - basis.sending_bytes - wrong).abs() < 1e-6);
        assert!((basis.expected_saving.unwrap() + expected - probe_bytes as f64).abs() < 1e-6);
        assert!(filter.byte_len() > last, "more at stake, a better filter");
        last = filter.byte_len();
    }
}

#[test]
fn auto_sends_nothing_that_does_not_pay() {
    let keys = partial(&hashes(2000));
    let dear = decide(keys.clone(), &auto(Some(200)), 4);
    assert_eq!(reason(&dear.verdict), PassAllReason::TooLarge);
    assert_eq!(dear.basis.sending_bytes, 0.0);
    assert_eq!(dear.basis.expected_bytes, Some(200.0));
    assert_eq!(dear.basis.expected_saving, Some(0.0));

    let policy = FilterPolicy {
        probe_keys: Some(2000),
        ..auto(Some(1_000_000))
    };
    let useless = decide(keys.clone(), &policy, 4);
    assert_eq!(reason(&useless.verdict), PassAllReason::NotSelective);
    assert_eq!(useless.basis.keep, 1.0);

    let forced = FilterPolicy {
        force: true,
        ..policy
    };
    bloom(&decide(keys, &forced, 4));
}

#[test]
fn auto_falls_back_where_there_is_nothing_to_weigh() {
    let keys = partial(&hashes(2000));
    let policy = auto(None);
    let unknown = decide(keys.clone(), &policy, 4);
    assert_eq!(unknown.basis.rule, "default");
    assert_eq!(unknown.basis.expected_bytes, None);
    assert!(bloom(&unknown).estimated_fpp() <= policy.sizing.target_fpp * 1.1);
    // No copy crosses a network, so none is too large.
    let local = decide(keys, &auto(Some(0)), 0);
    assert_eq!(local.basis.rule, "local");
    assert!(bloom(&local).estimated_fpp() <= sizing::LOCAL_FPP * 1.1);
}

#[test]
fn a_forced_form_is_sent_whatever_it_costs() {
    let keys = partial(&hashes(2000));
    let decided = |form| {
        let policy = FilterPolicy {
            rule: SizeRule::Forced(form),
            max_cost_share: 0.0,
            ..auto(Some(0))
        };
        assert_eq!(policy.budget(), None);
        decide(keys.clone(), &policy, 1000)
    };
    let coarse = decided(ForcedForm::Bloom(0.3));
    let fine = decided(ForcedForm::Bloom(0.001));
    assert!(bloom(&coarse).byte_len() * 3 < bloom(&fine).byte_len());
    let Verdict::Filter(list) = decided(ForcedForm::Keys).verdict else {
        panic!("no filter");
    };
    assert_eq!(list.kind(), FilterKind::Keys);
    assert_eq!(
        reason(&decided(ForcedForm::Nothing).verdict),
        PassAllReason::NotSelective
    );
}
