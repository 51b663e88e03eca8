#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const CAP: u32 = 8;
const LIMIT: usize = 1 << 20;
const SEED: u64 = 0x5eed;

fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
    range
        .map(|i| rapidhash::v3::rapidhash_v3(&i.to_le_bytes()))
        .collect()
}

fn build(cap: u32, hashes: &[u64]) -> Partial {
    let mut builder = PartialBuilder::new(cap, SEED);
    builder.insert(hashes, None).unwrap();
    builder.finish()
}

fn encode(partial: &Partial) -> Vec<u8> {
    let mut out = Vec::new();
    partial.encode(&mut out);
    out
}

/// The frame with its checksum made right again, to get at the checks behind it.
fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = runtime_filter_bloom::checksum64(
        runtime_filter_bloom::checksum64(0, &bytes[..40]),
        &bytes[48..],
    );
    bytes[40..48].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn distinct_keys_rows_and_nulls_are_counted() {
    let mut builder = PartialBuilder::new(CAP, SEED);
    builder.insert(&[5, 3, 5], None).unwrap();
    let validity = NullBuffer::from(vec![true, false, true]);
    builder.insert(&[3, 77, 4], Some(&validity)).unwrap();
    let partial = builder.finish();
    assert_eq!(partial.keys(), &Keys::Sparse(vec![3, 4, 5]));
    assert_eq!(
        (partial.rows(), partial.has_null(), partial.distinct_keys()),
        (6, true, 3)
    );
}

#[test]
fn validity_without_null_is_no_null() {
    let mut builder = PartialBuilder::new(CAP, SEED);
    builder
        .insert(&[1, 2], Some(&NullBuffer::new_valid(2)))
        .unwrap();
    assert!(!builder.finish().has_null());
}

#[test]
fn rows_beyond_a_short_validity_are_kept_as_keys() {
    let mut builder = PartialBuilder::new(CAP, SEED);
    builder
        .insert(&[1, 2, 3], Some(&NullBuffer::from(vec![false])))
        .unwrap();
    assert_eq!(builder.finish().keys(), &Keys::Sparse(vec![2, 3]));
}

#[test]
fn a_key_of_hash_zero_is_a_key() {
    assert_eq!(build(CAP, &[0, 9, 0]).keys(), &Keys::Sparse(vec![0, 9]));
}

#[test]
fn a_list_changes_to_a_filter_where_it_would_be_longer() {
    let most = max_sparse_keys(1024);
    assert!((rice::expected_len(most) / (1024.0 * 32.0) - 1.0).abs() < 0.01);
    let keys = hashes(0..most + 1);
    let sparse = build(1024, &keys[1..]);
    assert_eq!(sparse.distinct_keys(), most);
    assert!((sparse.encoded_len() as f64 / (1024.0 * 32.0) - 1.0).abs() < 0.02);
    let dense = build(1024, &keys);
    let Keys::Dense(filter) = dense.keys() else {
        panic!("not dense");
    };
    let mut wanted = BloomFilter::with_blocks(1024, hash_id(SEED)).unwrap();
    wanted.insert_hashes(&keys);
    assert_eq!(filter, &wanted);
    let ratio = dense.distinct_keys() as f64 / (most + 1) as f64;
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
}

#[test]
fn duplicates_stay_sparse_and_memory_bounded() {
    let mut builder = PartialBuilder::new(1024, SEED);
    let keys = hashes(0..100);
    for _ in 0..1000 {
        builder.insert(&keys, None).unwrap();
    }
    assert!(builder.memory_size() < 4096);
    assert_eq!(builder.rows(), 100_000);
    assert_eq!(builder.finish().distinct_keys(), 100);

    // The set holds 64 bits in each slot and has a power of two of them, so how well it fits varies.
    for cap in [1024, 4 << 12, 5 << 12, 6 << 12, 7 << 12] {
        let mut builder = PartialBuilder::new(cap, SEED);
        let bytes = cap as usize * 32;
        let mut peak = 0;
        for start in 0..bytes as u64 / 3000 {
            builder
                .insert(&hashes(start * 1000..(start + 1) * 1000), None)
                .unwrap();
            peak = peak.max(builder.memory_size());
        }
        // A chunk may come on top of it before it is noticed.
        assert!(peak <= 5 * bytes + 32 * CHUNK, "{cap}: {peak}");
        assert_eq!(builder.memory_size(), bytes);
    }
}

#[test]
fn the_smallest_caps_work() {
    for cap in [0, 1, 9] {
        let partial = build(cap, &hashes(0..1000));
        let wanted = [1, 1, 8][[0, 1, 9].iter().position(|&c| c == cap).unwrap()];
        assert_eq!(partial.cap_blocks(), wanted);
        assert!(matches!(partial.keys(), Keys::Dense(filter) if filter.blocks() == wanted));
        assert_eq!(Partial::decode(&encode(&partial), LIMIT).unwrap(), partial);
    }
}

#[test]
fn partials_of_different_caps_do_not_merge() {
    let mut partial = build(8, &[1]);
    let before = partial.clone();
    let error = BloomError::GeometryMismatch { this: 8, other: 16 };
    assert_eq!(partial.merge(build(16, &[2])), Err(error.clone()));
    assert_eq!(partial, before);
    assert_eq!(PartialBuilder::new(8, SEED).merge(&before), Ok(()));
    assert_eq!(
        PartialBuilder::new(8, SEED).merge(&build(16, &[2])),
        Err(error)
    );
}

#[test]
fn partials_of_different_seeds_do_not_merge() {
    let id = |seed| HashId {
        scheme: HASH_SCHEME,
        seed,
    };
    let error = BloomError::HashMismatch {
        this: id(SEED),
        other: id(SEED + 1),
    };
    let keys = hashes(0..200);
    // Sparse and dense in every combination.
    for (ours, theirs) in [(2, 2), (2, 200), (200, 2), (200, 200)] {
        let mut partial = build(CAP, &keys[..ours]);
        let before = partial.clone();
        let mut foreign = PartialBuilder::new(CAP, SEED + 1);
        foreign.insert(&keys[..theirs], None).unwrap();
        let foreign = foreign.finish();
        assert_eq!((partial.seed(), foreign.seed()), (SEED, SEED + 1));
        assert_eq!(partial.merge(foreign.clone()), Err(error.clone()));
        assert_eq!(partial, before);
        let mut builder = PartialBuilder::new(CAP, SEED);
        builder.merge(&before).unwrap();
        assert_eq!(builder.merge(&foreign), Err(error.clone()));
        assert_eq!(builder.finish(), before);
    }
}

#[test]
fn the_filter_inside_must_be_of_the_frame_s_hash() {
    let good = encode(&build(CAP, &hashes(0..200)));
    assert!(Partial::decode(&good, LIMIT).is_ok());
    // The frame says another seed.
    let mut framed = good.clone();
    framed[32] ^= 1;
    // The filter does: of another seed, of another scheme.
    let inner = |scheme, seed| {
        let mut filter = BloomFilter::with_blocks(CAP, HashId { scheme, seed }).unwrap();
        filter.insert_hashes(&hashes(0..200));
        [&good[..48], &filter.to_bytes()].concat()
    };
    assert_eq!(inner(HASH_SCHEME, SEED), good);
    for bytes in [
        framed,
        inner(HASH_SCHEME, SEED + 1),
        inner(HASH_SCHEME + 1, SEED),
    ] {
        let error = Partial::decode(&reseal(bytes), LIMIT).unwrap_err();
        assert!(matches!(error, DecodeError::Malformed(_)), "{error}");
    }
}

#[test]
fn each_fault_has_its_own_error() {
    let good = encode(&build(CAP, &[1, 5]));
    assert_eq!(good[..16], *b"RFPT\x02\0\0\0\x02\0\0\0\x08\0\0\0");
    // Two gaps of 55 bits, see `rice`: 1, and 5 - 1 - 1.
    assert_eq!(good[48..], [3, 0, 0, 0, 0, 0, 0x80, 3, 0, 0, 0, 0, 0, 0]);
    let damaged = |at: usize, with: u8| {
        let mut bytes = good.clone();
        bytes[at] = with;
        Partial::decode(&reseal(bytes), LIMIT).unwrap_err()
    };
    assert_eq!(
        damaged(0, 0),
        DecodeError::Magic {
            expected: "partial"
        }
    );
    assert_eq!(
        damaged(4, 1),
        DecodeError::Version {
            found: 1,
            supported: 2
        }
    );
    assert_eq!(
        damaged(8, 1),
        DecodeError::HashScheme {
            found: 1,
            supported: 2
        }
    );
    for (at, with) in [(6, 7), (7, 2), (12, 9), (16, 1), (61, 0x80)] {
        assert!(
            matches!(damaged(at, with), DecodeError::Malformed(_)),
            "{at}"
        );
    }
    assert!(matches!(damaged(6, 1), DecodeError::Bloom(_)));
    let mut flipped = good.clone();
    flipped[48] ^= 1;
    assert_eq!(Partial::decode(&flipped, LIMIT), Err(DecodeError::Checksum));
    assert!(matches!(
        Partial::decode(&good[..47], LIMIT),
        Err(DecodeError::Truncated { .. })
    ));
    let too_large = DecodeError::TooLarge {
        bytes: 256,
        limit: 255,
    };
    assert_eq!(Partial::decode(&good, 255), Err(too_large));
    assert!(Partial::decode(&good, 256).is_ok());
}

#[test]
fn announced_keys_are_limited_before_memory_is_taken() {
    let mut bytes = encode(&build(CAP, &[1, 5]));
    bytes[16..32].copy_from_slice(&[0xff; 16]);
    let error = Partial::decode(&reseal(bytes.clone()), LIMIT).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { .. }));
    bytes[24..32].copy_from_slice(&20u64.to_le_bytes());
    // 20 hashes take 52 bits each at least.
    let error = Partial::decode(&reseal(bytes), LIMIT).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Truncated {
            needed: 130,
            got: 14
        }
    );
}

#[test]
fn every_truncation_and_every_flipped_bit_is_an_error() {
    for keys in [hashes(0..10), hashes(0..200)] {
        let good = encode(&build(CAP, &keys));
        for len in 0..good.len() {
            assert!(Partial::decode(&good[..len], LIMIT).is_err());
        }
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Partial::decode(&bytes, LIMIT).is_err(), "bit {bit}");
        }
    }
}

proptest! {
    #[test]
    fn merging_equals_building_at_once(
        parts in vec((vec(0u64..100, 0..60), any::<bool>()), 1..8),
        cap in prop_oneof![Just(1u32), Just(4), Just(40)],
    ) {
        let parts: Vec<Vec<u64>> = parts
            .into_iter()
            .map(|(keys, few)| keys.into_iter().map(|k| if few { k % 5 } else { k }).collect())
            .map(|keys: Vec<u64>| keys.iter().map(|k| rapidhash::v3::rapidhash_v3(&k.to_le_bytes())).collect())
            .collect();
        let whole = build(cap, &parts.concat());
        let partials: Vec<Partial> = parts.iter().map(|keys| build(cap, keys)).collect();
        let mut pairwise = partials[0].clone();
        for partial in &partials[1..] {
            pairwise.merge(partial.clone()).unwrap();
        }
        prop_assert_eq!(&pairwise, &whole);
        let mut builder = PartialBuilder::new(cap, SEED);
        for partial in partials.iter().rev() {
            let sent = encode(partial);
            prop_assert_eq!(sent.len(), partial.encoded_len());
            builder.merge(&Partial::decode(&sent, LIMIT).unwrap()).unwrap();
        }
        prop_assert_eq!(builder.finish(), whole);
    }

    #[test]
    fn no_input_panics(bytes in vec(any::<u8>(), 48..150), kind in 0u8..3, distinct in 0u64..40) {
        let _ = Partial::decode(&bytes, LIMIT);
        let mut framed = encode(&build(CAP, &[1]));
        framed.truncate(48);
        framed[6] = kind;
        framed[16..24].fill(0x7f);
        framed[24..32].copy_from_slice(&distinct.to_le_bytes());
        framed.extend_from_slice(&bytes);
        if let Ok(partial) = Partial::decode(&reseal(framed.clone()), LIMIT) {
            prop_assert_eq!(encode(&partial), reseal(framed));
        }
    }
}
