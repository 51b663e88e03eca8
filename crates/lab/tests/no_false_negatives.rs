//! No filter ever denies a key that it holds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::collection::vec;
use proptest::prelude::*;
use runtime_filter_lab::{
    ClassicBloom, CountingBloom, CuckooFilter, Membership, Removable, ScalableBloom, Sizing,
    SplitBlock,
};

/// Filters far too small for the number of keys, as well as large enough.
fn all(items: u64, fpp: f64) -> Vec<Box<dyn Membership>> {
    let sizing = Sizing::for_fpp(items, fpp).unwrap();
    vec![
        Box::new(ClassicBloom::new(sizing).unwrap()),
        Box::new(CountingBloom::new(sizing).unwrap()),
        Box::new(ScalableBloom::new(items, fpp).unwrap()),
        Box::new(CuckooFilter::for_fpp(items, fpp).unwrap()),
        Box::new(SplitBlock::for_fpp(items, fpp).unwrap()),
    ]
}

fn removable(items: u64, fpp: f64) -> Vec<Box<dyn Removable>> {
    let sizing = Sizing::for_fpp(items, fpp).unwrap();
    vec![
        Box::new(CountingBloom::new(sizing).unwrap()),
        Box::new(CuckooFilter::for_fpp(items, fpp).unwrap()),
    ]
}

/// Mixed hashes, and ones so alike that they meet in buckets, counters and fingerprints.
fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..8,
        (0u64..8).prop_map(|high| high << 61),
        Just(u64::MAX),
    ]
}

proptest! {
    #[test]
    fn after_insertions(
        hashes in vec(hash(), 0..400),
        items in 1u64..300,
        fpp in prop_oneof![Just(0.9), Just(0.1), Just(1e-4)],
    ) {
        for mut filter in all(items, fpp) {
            // Also after an insertion that failed, whose key need not be there.
            let held: Vec<u64> =
                hashes.iter().copied().filter(|&hash| filter.insert(hash).is_ok()).collect();
            for &hash in &held {
                prop_assert!(filter.contains(hash), "{}", filter.name());
            }
            prop_assert_eq!(filter.count_contained(&held), held.len());
            if filter.name() != "cuckoo" {
                prop_assert_eq!(held.len(), hashes.len());
            }
        }
    }

    #[test]
    fn after_removals_of_other_keys(
        steps in vec((hash(), any::<bool>(), any::<prop::sample::Index>()), 0..400),
        items in 1u64..200,
        fpp in prop_oneof![Just(0.9), Just(0.1), Just(1e-4)],
    ) {
        for mut filter in removable(items, fpp) {
            let mut held = Vec::new();
            for &(hash, insert, index) in &steps {
                if insert || held.is_empty() {
                    if filter.insert(hash).is_ok() {
                        held.push(hash);
                    }
                } else {
                    let removed = held.swap_remove(index.index(held.len()));
                    prop_assert!(filter.remove(removed), "{}", filter.name());
                }
                if !filter.contains(hash) {
                    // What is denied cannot be removed, and trying does no harm.
                    prop_assert!(!filter.remove(hash));
                }
            }
            for hash in held {
                prop_assert!(filter.contains(hash), "{}", filter.name());
            }
        }
    }
}
