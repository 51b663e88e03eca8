//! The formulas against what the filters do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use runtime_filter_bloom::mix_in_place;
use runtime_filter_lab::{
    ClassicBloom, CountingBloom, CuckooFilter, Membership, ScalableBloom, Sizing, SplitBlock,
};

const ITEMS: u64 = 100_000;
const PROBES: u64 = 2_000_000;

fn hashes(first: u64, count: u64) -> Vec<u64> {
    let mut hashes: Vec<u64> = (first..first + count).collect();
    mix_in_place(&mut hashes, 0x5eed);
    hashes
}

fn filled<F: Membership>(mut filter: F, items: u64) -> F {
    for hash in hashes(0, items) {
        filter.insert(hash).unwrap();
    }
    filter
}

fn measured_fpp(filter: &impl Membership) -> f64 {
    filter.count_contained(&hashes(1 << 40, PROBES)) as f64 / PROBES as f64
}

fn assert_near(got: f64, wanted: f64, tolerance: f64) {
    assert!((got / wanted - 1.0).abs() < tolerance, "{got} {wanted}");
}

#[test]
fn ten_bits_a_key_give_0_82_per_cent_and_overfilled_twice_13_8() {
    let sizing = Sizing::for_bits_per_key(ITEMS, 10.0).unwrap();
    assert_eq!(sizing.hashes(), 7);
    let filter = filled(ClassicBloom::new(sizing).unwrap(), ITEMS);
    assert_near(measured_fpp(&filter), 0.0082, 0.03);
    assert_near(filter.estimated_items(), ITEMS as f64, 0.01);
    let filter = filled(filter, 2 * ITEMS);
    assert_near(measured_fpp(&filter), 0.138, 0.01);
    assert_near(filter.estimated_items(), 2.0 * ITEMS as f64, 0.01);
}

#[test]
fn every_filter_is_as_its_formula_says() {
    fn check(filter: impl Membership) {
        let name = filter.name();
        let filter = filled(filter, ITEMS);
        let expected = filter.expected_fpp(ITEMS);
        let measured = measured_fpp(&filter);
        assert!(
            (measured / expected - 1.0).abs() < 0.05,
            "{name}: {measured} {expected}"
        );
    }
    for fpp in [0.1, 0.01, 0.002] {
        let sizing = Sizing::for_fpp(ITEMS, fpp).unwrap();
        check(ClassicBloom::new(sizing).unwrap());
        check(CountingBloom::new(sizing).unwrap());
        check(ScalableBloom::new(ITEMS / 10, fpp).unwrap());
        check(CuckooFilter::for_fpp(ITEMS, fpp).unwrap());
        check(SplitBlock::for_fpp(ITEMS, fpp).unwrap());
    }
}

#[test]
fn a_scalable_filter_keeps_its_bound_far_beyond_its_first_layer() {
    let items = 50 * 5_000;
    let filter = filled(ScalableBloom::new(5_000, 0.01).unwrap(), items);
    assert_eq!(filter.layers(), 6);
    let expected = filter.expected_fpp(items);
    assert!(expected <= 0.01, "{expected}");
    assert_near(measured_fpp(&filter), expected, 0.03);
}

#[test]
fn a_scalable_filter_keeps_a_loose_bound_as_well() {
    for bound in [0.7, 0.3] {
        let filter = filled(ScalableBloom::new(ITEMS / 10, bound).unwrap(), ITEMS);
        let measured = measured_fpp(&filter);
        assert!(measured <= bound, "{measured} {bound}");
    }
}

#[test]
fn a_scalable_filter_keeps_a_tight_bound_from_a_small_first_layer() {
    let filter = filled(ScalableBloom::new(500, 0.001).unwrap(), ITEMS);
    let measured = measured_fpp(&filter);
    // 2000 hits are expected, so 5 % is more than two standard deviations.
    assert!(measured <= 0.001 * 1.05, "{measured}");
}
