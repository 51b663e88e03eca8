#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use proptest::prelude::*;

use super::*;
use crate::{FilterKind, PartialBuilder, RuntimeFilter};

const CAP: usize = 16 << 20;

fn sparse(distinct: u64) -> KeyFacts {
    KeyFacts {
        distinct,
        list_bytes: Some(rice::expected_len(distinct).ceil() as u64),
        dense_blocks: None,
    }
}

fn stakes(receivers: u64, probe_bytes: u64) -> Stakes {
    Stakes {
        receivers,
        probe_bytes,
        keep: 0.0,
        max_cost_share: 0.5,
    }
}

/// The documented formula, written anew: bytes with that filter.
fn formula(candidate: &Candidate, stakes: &Stakes) -> f64 {
    let (p, k) = (stakes.probe_bytes as f64, stakes.keep);
    candidate.bytes as f64 * stakes.receivers as f64 + p * (k + (1.0 - k) * candidate.fpp)
}

/// Every legal size, without the code under test: 1, 2, 3 and m * 2^k.
fn brute_force(keys: &KeyFacts, max_bytes: usize) -> Vec<Candidate> {
    let mut sizes = vec![1u32, 2, 3];
    for k in 0..30 {
        sizes.extend((4..=7).map(|m| m << k));
    }
    let fits = |size: &u32| *size == 1 || u64::from(*size) * 32 <= max_bytes as u64;
    let folds = |size: &u32| keys.dense_blocks.is_none_or(|dense| dense % size == 0);
    let mut all: Vec<Candidate> = sizes
        .into_iter()
        .filter(|size| fits(size) && folds(size))
        .map(|size| Candidate {
            form: Form::Bloom(size),
            bytes: (48 + runtime_filter_bloom::HEADER_LEN) as u64 + u64::from(size) * 32,
            fpp: expected_fpp(size, keys.distinct),
        })
        .collect();
    if let Some(bytes) = keys.list_bytes {
        all.push(Candidate {
            form: Form::Keys,
            bytes: 48 + bytes,
            fpp: 0.0,
        });
    }
    all
}

fn facts() -> impl Strategy<Value = KeyFacts> {
    let distinct = prop_oneof![1u64..2000, 1u64..1_000_000_000];
    let dense = prop_oneof![
        Just(None),
        Just(Some(1u32 << 19)),
        Just(Some(7 << 8)),
        Just(Some(1))
    ];
    (distinct, any::<bool>(), dense).prop_map(|(distinct, listed, dense_blocks)| KeyFacts {
        list_bytes: sparse(distinct)
            .list_bytes
            .filter(|_| listed && dense_blocks.is_none()),
        distinct,
        dense_blocks,
    })
}

fn any_stakes() -> impl Strategy<Value = Stakes> {
    let probe_bytes = prop_oneof![0u64..10_000, 0u64..10_000_000_000, any::<u64>()];
    let unit = || prop_oneof![0.0..=1.0, Just(0.0), Just(1.0)];
    (0u64..200, probe_bytes, unit(), unit()).prop_map(
        |(receivers, probe_bytes, keep, max_cost_share)| Stakes {
            receivers,
            probe_bytes,
            keep,
            max_cost_share,
        },
    )
}

proptest! {
    #[test]
    fn the_choice_is_the_least_of_a_sweep(
        keys in facts(),
        stakes in any_stakes(),
        max_bytes in prop_oneof![0usize..100_000, Just(CAP)],
    ) {
        let p = stakes.probe_bytes as f64;
        let allowed = |c: &&Candidate| {
            c.bytes as f64 * stakes.receivers as f64 <= p * stakes.max_cost_share
        };
        let all = brute_force(&keys, max_bytes);
        let least = all
            .iter()
            .filter(allowed)
            .map(|c| formula(c, &stakes))
            .fold(f64::INFINITY, f64::min);
        let tolerance = 1e-9 * p.max(1.0);
        match choose(&keys.candidates(max_bytes), &stakes) {
            Ok(chosen) => {
                prop_assert!(all.contains(&chosen), "{chosen:?}");
                prop_assert!(allowed(&&chosen));
                prop_assert!((formula(&chosen, &stakes) - least).abs() <= tolerance);
                prop_assert!((stakes.expected_bytes(&chosen) - least).abs() <= tolerance);
                prop_assert!(stakes.expected_saving(&chosen) > 0.0);
                let sum = stakes.expected_saving(&chosen) + stakes.expected_bytes(&chosen);
                prop_assert!((sum - p).abs() <= tolerance);
            }
            Err(NotWorth::TooLarge) => {
                let without = Stakes { keep: 0.0, ..stakes };
                prop_assert!(all.iter().filter(allowed).all(|c| formula(c, &without) >= p - tolerance));
            }
            Err(NotWorth::NotSelective) => {
                prop_assert!(stakes.keep > 0.0);
                prop_assert!(least >= p - tolerance);
            }
        }
    }

    #[test]
    fn every_form_stays_within_the_limit(
        keys in facts(),
        max_bytes in 0usize..2_000_000,
        fpp in 0.0f64..1.0,
        max_exact_keys in 0usize..2000,
    ) {
        let limit = (48 + runtime_filter_bloom::HEADER_LEN + max_bytes.max(32)) as u64;
        let policy = SizingPolicy { target_fpp: fpp, max_bytes, max_exact_keys };
        let unlisted = KeyFacts { list_bytes: None, ..keys };
        for candidate in keys.candidates(max_bytes) {
            prop_assert!(candidate.form == Form::Keys || candidate.bytes <= limit);
            prop_assert!((0.0..=1.0).contains(&candidate.fpp));
        }
        let bytes: Vec<u64> = keys.candidates(max_bytes).iter().map(|c| c.bytes).collect();
        prop_assert!(bytes.is_sorted());
        for candidate in [for_target(&unlisted, &policy), for_local_probes(&unlisted, &policy)] {
            prop_assert!(candidate.bytes <= limit);
        }
    }

    #[test]
    fn more_receivers_never_get_a_larger_filter(keys in facts(), stakes in any_stakes()) {
        let candidates = keys.candidates(CAP);
        let mut last = u64::MAX;
        for receivers in [1, 2, 3, 4, 7, 8, 16, 100, 10_000, u64::MAX] {
            match choose(&candidates, &Stakes { receivers, ..stakes }) {
                Ok(chosen) => {
                    prop_assert!(chosen.bytes <= last, "{receivers}");
                    last = chosen.bytes;
                }
                // Once it is too dear it stays so.
                Err(_) => last = 0,
            }
        }
    }

    #[test]
    fn more_bytes_at_stake_never_get_a_worse_filter(keys in facts(), a in 0u64..1 << 40, b in 0u64..1 << 40) {
        let candidates = keys.candidates(CAP);
        let at = |bytes| choose(&candidates, &stakes(4, bytes)).map_or(1.0, |chosen| chosen.fpp);
        prop_assert!(at(a.max(b)) <= at(a.min(b)));
    }

    #[test]
    fn no_number_makes_it_panic(
        distinct in any::<u64>(),
        list_bytes in any::<Option<u64>>(),
        receivers in any::<u64>(),
        probe_bytes in any::<u64>(),
        keep in any::<f64>(),
        max_cost_share in any::<f64>(),
        fpp in any::<f64>(),
        max_bytes in any::<usize>(),
    ) {
        let keys = KeyFacts { distinct, list_bytes, dense_blocks: None };
        let policy = SizingPolicy { target_fpp: fpp, max_bytes, max_exact_keys: 0 };
        let stakes = Stakes { receivers, probe_bytes, keep, max_cost_share };
        if let Ok(chosen) = choose(&keys.candidates(max_bytes), &stakes) {
            prop_assert!(stakes.expected_bytes(&chosen).is_finite());
        }
        prop_assert!(for_target(&keys, &policy).bytes > 0);
        prop_assert!(for_local_probes(&keys, &policy).bytes > 0);
    }

    #[test]
    fn the_bytes_are_those_of_the_filter(count in 1u64..3000, cap in prop_oneof![Just(64u32), Just(1 << 12)]) {
        let mut builder = PartialBuilder::new(cap, 7);
        let hashes: Vec<u64> = (0..count).map(|i| rapidhash::v3::rapidhash_v3(&i.to_le_bytes())).collect();
        builder.insert(&hashes, None).unwrap();
        let partial = builder.finish();
        let policy = SizingPolicy { max_exact_keys: usize::MAX, ..SizingPolicy::default() };
        let facts = KeyFacts::of(&partial, &policy);
        let candidates = facts.candidates(32 << 10);
        prop_assert!(!candidates.is_empty());
        // What a frame adds to every form alike is not for this test to know.
        let mut overheads = candidates.iter().map(|candidate| {
            let filter = RuntimeFilter::in_form(partial.clone(), candidate.form).unwrap();
            let mut bitmap = Vec::new();
            filter.probe(&hashes, &mut bitmap);
            let found: u32 = bitmap.iter().map(|word| word.count_ones()).sum();
            assert_eq!(u64::from(found), count, "{candidate:?} lost a key");
            filter.byte_len() as u64 - candidate.bytes
        });
        let first = overheads.next().unwrap();
        prop_assert!(overheads.all(|overhead| overhead == first));
    }
}

#[test]
fn no_keys_cost_a_header() {
    let none = sparse(0);
    let candidates = none.candidates(CAP);
    assert_eq!(candidates.len(), 1);
    assert_eq!((candidates[0].form, candidates[0].fpp), (Form::Empty, 0.0));
    assert_eq!(choose(&candidates, &stakes(4, 10_000)), Ok(candidates[0]));
    assert_eq!(
        choose(&candidates, &stakes(4, 300)),
        Err(NotWorth::TooLarge),
        "192 bytes to spare 300 leave less than the share"
    );
    // Dense keys that turn out to be none are no less empty.
    let dense = KeyFacts {
        dense_blocks: Some(64),
        list_bytes: None,
        ..none
    };
    assert_eq!(dense.candidates(CAP), candidates);
}

#[test]
fn one_key_is_listed_or_not_sent() {
    let candidates = sparse(1).candidates(CAP);
    let at = |probe_bytes| choose(&candidates, &stakes(4, probe_bytes)).map(|c| c.form);
    assert_eq!(at(0), Err(NotWorth::TooLarge));
    assert_eq!(at(1_000_000), Ok(Form::Keys));
    assert_eq!(at(u64::MAX), Ok(Form::Keys));
}

#[test]
fn a_thousand_million_keys_are_sent_only_for_more_than_they_take() {
    let keys = KeyFacts {
        list_bytes: None,
        ..sparse(1_000_000_000)
    };
    let at = |cap| choose(&keys.candidates(cap), &stakes(4, u64::MAX));
    // In 16 MiB every bit would be set.
    assert_eq!(at(CAP), Err(NotWorth::TooLarge));
    let chosen = at(usize::MAX).unwrap();
    assert!(chosen.fpp < 1e-8, "{chosen:?}");
}

#[test]
fn the_size_follows_what_is_at_stake() {
    // 10 000 keys for 4 receivers: from 4 bits a key, through 10 and 16, to the list.
    let at = |probe_bytes| {
        let chosen = choose(&sparse(10_000).candidates(CAP), &stakes(4, probe_bytes)).unwrap();
        (chosen.form, chosen.fpp)
    };
    let per_key = |form| match form {
        Form::Bloom(blocks) => f64::from(blocks) * 256.0 / 10_000.0,
        other => panic!("{other:?}"),
    };
    let (coarse, fpp) = at(150_000);
    assert!(
        (3.0..8.0).contains(&per_key(coarse)) && fpp > 0.03,
        "{coarse:?} {fpp}"
    );
    let (middle, fpp) = at(3_000_000);
    assert!(
        (9.0..14.0).contains(&per_key(middle)) && fpp < 0.02,
        "{middle:?} {fpp}"
    );
    let (fine, _) = at(100_000_000);
    assert!(per_key(fine) > 16.0, "{fine:?}");
    assert_eq!(at(1 << 50).0, Form::Keys);
}

#[test]
fn a_side_that_matches_altogether_is_not_selective() {
    let candidates = sparse(1000).candidates(CAP);
    let keeping = |keep| {
        let stakes = Stakes {
            keep,
            ..stakes(4, 10_000_000)
        };
        choose(&candidates, &stakes)
    };
    assert_eq!(keeping(1.0), Err(NotWorth::NotSelective));
    assert_eq!(keeping(2.0), Err(NotWorth::NotSelective));
    assert!(keeping(0.9).is_ok());
    assert!(keeping(0.9).unwrap().fpp > keeping(0.0).unwrap().fpp);
    assert_eq!(keeping(f64::NAN), keeping(0.0));
}

#[test]
fn keep_rates_are_shares() {
    assert_eq!(Stakes::keep_rate(10, None), 0.0);
    assert_eq!(Stakes::keep_rate(10, Some(40)), 0.25);
    assert_eq!(Stakes::keep_rate(10, Some(4)), 1.0);
    assert_eq!(Stakes::keep_rate(0, Some(0)), 0.0);
}

#[test]
fn a_share_that_is_no_number_allows_nothing() {
    let stakes = Stakes {
        max_cost_share: f64::NAN,
        ..stakes(1, u64::MAX)
    };
    assert_eq!(
        choose(&sparse(10).candidates(CAP), &stakes),
        Err(NotWorth::TooLarge)
    );
}

#[test]
fn local_probes_get_what_the_cache_holds() {
    let policy = SizingPolicy {
        max_bytes: CAP,
        ..SizingPolicy::default()
    };
    let at = |distinct| {
        let keys = KeyFacts {
            list_bytes: None,
            ..sparse(distinct)
        };
        for_local_probes(&keys, &policy)
    };
    assert!(at(10_000).fpp <= LOCAL_FPP);
    // 0.1 % would take more than the cache, 1 % does not: as good as fits.
    let edge = at(180_000);
    assert!(edge.bytes <= LOCAL_BYTES as u64 + 200 && (LOCAL_FPP..DEFAULT_FPP).contains(&edge.fpp));
    let large = at(1_000_000);
    assert!(large.bytes > LOCAL_BYTES as u64 && (LOCAL_FPP..=DEFAULT_FPP).contains(&large.fpp));
    assert_eq!(for_local_probes(&sparse(100), &policy).form, Form::Keys);
}

#[test]
fn a_form_that_the_keys_do_not_fit_holds_them_all_the_same() {
    let hashes: Vec<u64> = (0..5000u64)
        .map(|i| rapidhash::v3::rapidhash_v3(&i.to_le_bytes()))
        .collect();
    // Of 64 blocks, so that 5000 keys are dense.
    let mut builder = PartialBuilder::new(64, 7);
    builder.insert(&hashes, None).unwrap();
    let dense = builder.finish();
    assert!(matches!(dense.keys(), Keys::Dense(_)));
    for form in [
        Form::Keys,
        Form::Empty,
        Form::Bloom(9),
        Form::Bloom(0),
        Form::Bloom(u32::MAX),
    ] {
        let filter = RuntimeFilter::in_form(dense.clone(), form).unwrap();
        assert_eq!(filter.kind(), FilterKind::Bloom);
        let kept = filter.keep_mask(&hashes, None, false).count_set_bits();
        assert_eq!(kept, hashes.len(), "{form:?}");
    }
    let mut builder = PartialBuilder::new(1 << 12, 7);
    builder.insert(&hashes, None).unwrap();
    for form in [Form::Empty, Form::Bloom(9), Form::Bloom(0)] {
        let filter = RuntimeFilter::in_form(builder.clone().finish(), form).unwrap();
        assert_eq!(
            filter.keep_mask(&hashes, None, false).count_set_bits(),
            hashes.len()
        );
    }
}
