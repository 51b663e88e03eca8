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
    decide(partial(&[3, 1, 2, 2]), &policy, remote)
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
    assert_eq!(passing(&decide(partial(&[9]), &forced, 1000)), [9]);
}

#[test]
fn no_keys_give_a_filter_that_drops_all() {
    let verdict = decide(partial(&[]), &policy(1), 1);
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
    let Verdict::Filter(filter) = decide(partial(&[1, 2, 3]), &policy, 0) else {
        panic!("a pass-all");
    };
    assert_eq!(filter.kind(), FilterKind::Bloom);
}
