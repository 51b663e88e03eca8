#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::hash::KeyHasher;
use crate::partial::PartialBuilder;

const SEED: u64 = 77;
const LIMIT: usize = 1 << 20;

fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
    range
        .map(|i| rapidhash::v3::rapidhash_v3(&i.to_le_bytes()))
        .collect()
}

fn filter_of(cap: u32, hashes: &[u64], has_null: bool, policy: &SizingPolicy) -> RuntimeFilter {
    let mut builder = PartialBuilder::new(cap, SEED);
    builder.insert(hashes, None).unwrap();
    if has_null {
        builder
            .insert(&[0], Some(&NullBuffer::new_null(1)))
            .unwrap();
    }
    RuntimeFilter::from_partial(builder.finish(), policy).unwrap()
}

fn encode(filter: &RuntimeFilter) -> Vec<u8> {
    let mut out = Vec::new();
    filter.encode(&mut out);
    out
}

fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = runtime_filter_bloom::checksum64(
        runtime_filter_bloom::checksum64(0, &bytes[..40]),
        &bytes[48..],
    );
    bytes[40..48].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Raw hashes of `hashes` have all bits: every test here feeds them to both ends as they are.
fn kept(filter: &RuntimeFilter, hashes: &[u64]) -> usize {
    filter.keep_mask(hashes, None, false).count_set_bits()
}

#[test]
fn an_empty_filter_drops_everything() {
    let filter = filter_of(8, &[], false, &SizingPolicy::default());
    assert_eq!(
        (filter.kind(), filter.kind_name()),
        (FilterKind::Empty, "empty")
    );
    assert_eq!((filter.byte_len(), filter.estimated_fpp()), (48, 0.0));
    let mut bitmap = vec![u64::MAX; 9];
    filter.probe(&hashes(0..70), &mut bitmap);
    assert_eq!(bitmap, [0, 0]);
    let validity = NullBuffer::from(vec![true, false]);
    let mask = filter.keep_mask(&[1, 2], Some(&validity), true);
    assert_eq!(mask.iter().collect::<Vec<_>>(), [false, false]);
}

#[test]
fn few_keys_are_held_exactly() {
    let keys = hashes(0..256);
    let filter = filter_of(1 << 12, &keys, false, &SizingPolicy::default());
    assert_eq!(
        (filter.kind_name(), filter.distinct_keys(), filter.rows()),
        ("keys", 256, 256)
    );
    assert_eq!((filter.seed(), filter.hash_scheme()), (SEED, 2));
    assert_eq!(kept(&filter, &keys), 256);
    assert_eq!(kept(&filter, &hashes(256..100_000)), 0);
    let mut bitmap = Vec::new();
    filter.probe(&[keys[3], 1, keys[4]], &mut bitmap);
    assert_eq!(bitmap, [0b101]);
}

#[test]
fn more_keys_go_into_a_bloom_filter_of_the_right_size() {
    let keys = hashes(0..10_000);
    let policy = SizingPolicy {
        target_fpp: 0.01,
        ..Default::default()
    };
    let filter = filter_of(1 << 20, &keys, false, &policy);
    assert_eq!(
        (filter.kind_name(), filter.distinct_keys()),
        ("bloom", 10_000)
    );
    // At 1 % this layout needs about 10.5 bits a key, and sizes are at most a quarter apart.
    assert!(
        (13_000..17_000).contains(&filter.byte_len()),
        "{}",
        filter.byte_len()
    );
    assert_eq!(filter.byte_len(), encode(&filter).len());
    assert!(filter.estimated_fpp() < 0.0101);
    assert_eq!(kept(&filter, &keys), 10_000);
    let wrong = kept(&filter, &hashes(10_000..110_000)) as f64 / 100_000.0;
    assert!(wrong < 0.012, "{wrong}");
}

#[test]
fn a_dense_partial_is_folded_to_what_its_keys_need() {
    let keys = hashes(0..12_000);
    let policy = SizingPolicy {
        target_fpp: 0.05,
        ..Default::default()
    };
    // Built anew it would take 384 blocks; of the sizes that divide 1792, the next is 448.
    let folded = filter_of(7 << 8, &keys, false, &policy);
    assert_eq!(folded.kind(), FilterKind::Bloom);
    assert!(folded.estimated_fpp() <= 0.055);
    assert_eq!(runtime_filter_bloom::geometry_for(12_000, 0.05, LIMIT), 384);
    assert_eq!(
        folded.byte_len(),
        48 + runtime_filter_bloom::HEADER_LEN + 448 * 32
    );
    assert_eq!(kept(&folded, &keys), 12_000);
}

#[test]
fn the_size_limit_holds_for_every_kind() {
    let keys = hashes(0..10_000);
    for max_bytes in [0, 32, 100, 1000, 10_000] {
        for cap in [1 << 8, 1 << 20] {
            for max_exact_keys in [0, usize::MAX] {
                let policy = SizingPolicy {
                    target_fpp: 0.001,
                    max_bytes,
                    max_exact_keys,
                };
                let filter = filter_of(cap, &keys, false, &policy);
                assert!(
                    filter.byte_len() <= 48 + runtime_filter_bloom::HEADER_LEN + max_bytes.max(32)
                );
                assert_eq!(kept(&filter, &keys), keys.len());
                assert!(RuntimeFilter::decode(&encode(&filter), max_bytes).is_ok());
            }
        }
    }
    let policy = SizingPolicy {
        max_bytes: 80,
        ..Default::default()
    };
    assert_eq!(
        filter_of(8, &keys[..10], false, &policy).kind(),
        FilterKind::Keys
    );
    assert_eq!(
        filter_of(8, &keys[..11], false, &policy).kind(),
        FilterKind::Bloom
    );
}

#[test]
fn null_keys_follow_the_join() {
    let keys = hashes(0..2);
    let rows = [keys[0], 0, hashes(9..10)[0], 0];
    let validity = NullBuffer::from(vec![true, false, true, false]);
    let policy = SizingPolicy::default();
    for (build_null, null_equals_null, wanted) in [
        (false, false, [true, false, false, false]),
        (false, true, [true, false, false, false]),
        (true, false, [true, false, false, false]),
        (true, true, [true, true, false, true]),
    ] {
        let filter = filter_of(8, &keys, build_null, &policy);
        assert_eq!(filter.has_null_key(), build_null);
        let mask = filter.keep_mask(&rows, Some(&validity), null_equals_null);
        assert_eq!(mask.iter().collect::<Vec<_>>(), wanted);
    }
    // Nothing but NULL on the build side: its NULLs may match, nothing else does.
    let filter = filter_of(8, &[], true, &policy);
    assert_eq!((filter.kind(), filter.rows()), (FilterKind::Empty, 1));
    let mask = filter.keep_mask(&rows, Some(&validity), true);
    assert_eq!(mask.iter().collect::<Vec<_>>(), [false, true, false, true]);
}

#[test]
fn bits_that_no_hash_has_matter_at_neither_end() {
    let raw = hashes(0..300);
    for max_exact_keys in [0, 1000] {
        let policy = SizingPolicy {
            max_exact_keys,
            ..Default::default()
        };
        let canonical: Vec<u64> = raw
            .iter()
            .map(|&hash| crate::hash::canonical(hash))
            .collect();
        let dirty: Vec<u64> = canonical.iter().map(|hash| hash | 0xff << 32).collect();
        let from: Vec<RuntimeFilter> = [&raw, &canonical, &dirty]
            .map(|keys| filter_of(1 << 10, keys, false, &policy))
            .into();
        assert!(from.iter().all(|filter| encode(filter) == encode(&from[0])));
        for probe in [&raw, &canonical, &dirty] {
            assert_eq!(kept(&from[0], probe), 300);
        }
        let foreign = hashes(1000..21_000);
        let cleared: Vec<u64> = foreign
            .iter()
            .map(|&hash| crate::hash::canonical(hash))
            .collect();
        assert_eq!(
            from[0].keep_mask(&foreign, None, false),
            from[0].keep_mask(&cleared, None, false)
        );
    }
}

#[test]
fn validity_of_another_length_keeps_every_row() {
    let filter = filter_of(8, &[], false, &SizingPolicy::default());
    let mask = filter.keep_mask(&[1, 2, 3], Some(&NullBuffer::new_null(2)), false);
    assert_eq!(mask.count_set_bits(), 3);
}

#[test]
fn masks_work_across_word_boundaries_and_on_sliced_validity() {
    let keys = hashes(0..200);
    let filter = filter_of(64, &keys, false, &SizingPolicy::default());
    let validity = NullBuffer::from((0..210).map(|i| i % 3 != 0).collect::<Vec<_>>());
    let sliced = validity.slice(10, 200);
    let mask = filter.keep_mask(&keys, Some(&sliced), false);
    assert!(mask.iter().eq(sliced.iter()));
}

#[test]
fn each_fault_has_its_own_error() {
    let good = encode(&filter_of(8, &[1, 5], true, &SizingPolicy::default()));
    assert_eq!(good[..16], *b"RFFL\x02\0\x01\x01\x02\0\0\0\0\0\0\0");
    assert_eq!(
        good[16..40],
        [
            3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0
        ]
    );
    // Two gaps of 55 bits, see `rice`: 1, and 5 - 1 - 1.
    assert_eq!(good[48..], [3, 0, 0, 0, 0, 0, 0x80, 3, 0, 0, 0, 0, 0, 0]);
    let decode = |bytes: Vec<u8>| RuntimeFilter::decode(&reseal(bytes), LIMIT).unwrap_err();
    let damaged = |at: usize, with: u8| {
        let mut bytes = good.clone();
        bytes[at] = with;
        decode(bytes)
    };
    assert_eq!(
        damaged(3, b'T'),
        DecodeError::Magic {
            expected: "runtime filter"
        }
    );
    assert_eq!(
        damaged(4, 9),
        DecodeError::Version {
            found: 9,
            supported: 2
        }
    );
    assert_eq!(
        damaged(8, 0),
        DecodeError::HashScheme {
            found: 0,
            supported: 2
        }
    );
    for (at, with) in [(6, 0), (6, 3), (7, 4), (12, 1), (16, 1), (61, 0x80)] {
        assert!(
            matches!(damaged(at, with), DecodeError::Malformed(_)),
            "{at}"
        );
    }
    assert!(matches!(damaged(6, 2), DecodeError::Bloom(_)));
    assert_eq!(
        damaged(24, 3),
        DecodeError::Truncated {
            needed: 21,
            got: 14
        }
    );
    let error = RuntimeFilter::decode(&good, 15).unwrap_err();
    assert_eq!(
        error,
        DecodeError::TooLarge {
            bytes: 16,
            limit: 15
        }
    );
    let mut flipped = good.clone();
    flipped[33] ^= 1;
    assert_eq!(
        RuntimeFilter::decode(&flipped, LIMIT).unwrap_err(),
        DecodeError::Checksum
    );
    let bloom = encode(&filter_of(
        64,
        &hashes(0..300),
        false,
        &SizingPolicy::default(),
    ));
    let error = RuntimeFilter::decode(&bloom, 100).unwrap_err();
    assert!(matches!(
        error,
        DecodeError::Bloom(BloomError::TooLarge { limit: 100, .. })
    ));
}

#[test]
fn the_filter_inside_must_be_of_the_frame_s_hash() {
    let policy = SizingPolicy::default();
    let good = encode(&filter_of(64, &hashes(0..300), false, &policy));
    assert!(RuntimeFilter::decode(&good, LIMIT).is_ok());
    let mut foreign = good;
    foreign[32] ^= 1;
    let error = RuntimeFilter::decode(&reseal(foreign), LIMIT).unwrap_err();
    assert!(matches!(error, DecodeError::Malformed(_)), "{error}");
    // Lists name the seed in the frame alone.
    let mut list = encode(&filter_of(64, &[1, 5], false, &policy));
    list[32] ^= 1;
    let decoded = RuntimeFilter::decode(&reseal(list), LIMIT).unwrap();
    assert_eq!(decoded.seed(), SEED ^ 1);
}

#[test]
fn every_truncation_and_every_flipped_bit_is_an_error() {
    let policy = SizingPolicy {
        max_bytes: 128,
        max_exact_keys: 8,
        ..Default::default()
    };
    for keys in [0, 5, 100] {
        let good = encode(&filter_of(8, &hashes(0..keys), true, &policy));
        for len in 0..good.len() {
            assert!(RuntimeFilter::decode(&good[..len], LIMIT).is_err());
        }
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(RuntimeFilter::decode(&bytes, LIMIT).is_err(), "bit {bit}");
        }
        let longer = [&good[..], &[0]].concat();
        assert!(RuntimeFilter::decode(&longer, LIMIT).is_err());
    }
}

/// The column types of the end-to-end test. Each can hold every value from 0 to 99.
fn key_types() -> Vec<DataType> {
    let mut types = vec![
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date32,
        DataType::Date64,
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(TimeUnit::Nanosecond, None),
        DataType::Duration(TimeUnit::Second),
        DataType::Duration(TimeUnit::Millisecond),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Duration(TimeUnit::Nanosecond),
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 2),
        DataType::Decimal128(38, 2),
        DataType::Decimal256(76, 2),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::FixedSizeBinary(16),
        DataType::Boolean,
    ];
    let dictionaries: Vec<DataType> = [DataType::Int8, DataType::UInt16, DataType::Int64]
        .iter()
        .flat_map(|key| {
            [
                DataType::Utf8,
                DataType::LargeUtf8,
                DataType::Binary,
                DataType::Int64,
            ]
            .map(|value| DataType::Dictionary(Box::new(key.clone()), Box::new(value)))
        })
        .collect();
    types.extend(dictionaries);
    types
}

/// Values as a column of the type, with different values staying different (except as Boolean).
fn column(data_type: &DataType, values: &[Option<u8>]) -> ArrayRef {
    match data_type {
        DataType::Boolean => Arc::new(BooleanArray::from_iter(
            values.iter().map(|v| v.map(|v| v >= 50)),
        )),
        DataType::FixedSizeBinary(width) => {
            let rows = values.iter().map(|v| v.map(|v| vec![v; *width as usize]));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(rows, *width).unwrap())
        }
        DataType::Dictionary(key, value) => {
            let plain = column(value, values);
            cast(&plain, &DataType::Dictionary(key.clone(), value.clone())).unwrap()
        }
        DataType::Date64 => {
            let days = values.iter().map(|v| v.map(|v| i64::from(v) * 86_400_000));
            Arc::new(Date64Array::from_iter(days))
        }
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => {
            // Short and long ones, as views hold them differently.
            let text = values
                .iter()
                .map(|v| v.map(|v| "key".repeat(usize::from(v % 7)) + &v.to_string()));
            cast(&StringArray::from_iter(text), data_type).unwrap()
        }
        DataType::Date32 | DataType::Time32(_) | DataType::Float16 => {
            let ints = Int32Array::from_iter(values.iter().map(|v| v.map(i32::from)));
            cast(&ints, data_type).unwrap()
        }
        other => {
            let ints = Int64Array::from_iter(values.iter().map(|v| v.map(i64::from)));
            cast(&ints, other).unwrap()
        }
    }
}

fn columns(types: &[DataType], rows: &[Vec<Option<u8>>]) -> Vec<ArrayRef> {
    types
        .iter()
        .enumerate()
        .map(|(at, data_type)| {
            let values: Vec<Option<u8>> = rows.iter().map(|row| row[at]).collect();
            column(data_type, &values)
        })
        .collect()
}

/// What remains of a value in a column of the type.
fn logical(types: &[DataType], row: &[Option<u8>]) -> Vec<Option<u8>> {
    row.iter()
        .zip(types)
        .map(|(value, data_type)| match data_type {
            DataType::Boolean => value.map(|v| u8::from(v >= 50)),
            _ => *value,
        })
        .collect()
}

/// Builds in parts, sends, merges, sizes, sends and probes; compares with a hash join's answer.
fn end_to_end(
    types: &[DataType],
    build: &[Vec<Option<u8>>],
    probe: &[Vec<Option<u8>>],
    parts: usize,
    cap: u32,
    policy: &SizingPolicy,
) {
    let mut hasher = KeyHasher::try_new(types, SEED).unwrap();
    let mut out = Vec::new();
    let build_columns = columns(types, build);
    let mut merged = PartialBuilder::new(cap, SEED);
    for part in 0..parts {
        let (from, to) = (build.len() * part / parts, build.len() * (part + 1) / parts);
        let mut builder = PartialBuilder::new(cap, SEED);
        let batch: Vec<ArrayRef> = build_columns
            .iter()
            .map(|c| c.slice(from, to - from))
            .collect();
        let validity = hasher.hash_batch(&batch, &mut out).unwrap();
        builder.insert(&out, validity.as_ref()).unwrap();
        let mut sent = Vec::new();
        builder.finish().encode(&mut sent);
        merged
            .merge(&Partial::decode(&sent, LIMIT).unwrap())
            .unwrap();
    }
    let filter = RuntimeFilter::from_partial(merged.finish(), policy).unwrap();
    let filter = RuntimeFilter::decode(&encode(&filter), LIMIT).unwrap();
    assert_eq!(filter.rows(), build.len() as u64);

    let keys: HashSet<Vec<Option<u8>>> = build.iter().map(|row| logical(types, row)).collect();
    let validity = hasher.hash_batch(&columns(types, probe), &mut out).unwrap();
    for null_equals_null in [false, true] {
        let mask = filter.keep_mask(&out, validity.as_ref(), null_equals_null);
        assert_eq!(mask.len(), probe.len());
        for (row, kept) in probe.iter().zip(mask.iter()) {
            let has_null = row.contains(&None);
            let matches = keys.contains(&logical(types, row));
            if has_null {
                assert_eq!(kept, null_equals_null && filter.has_null_key(), "{row:?}");
                assert!(kept || !matches || !null_equals_null);
            } else if filter.kind() == FilterKind::Bloom {
                assert!(kept || !matches, "{types:?} {row:?}");
            } else {
                assert_eq!(kept, matches, "{types:?} {row:?}");
            }
        }
    }
}

fn rows(width: usize) -> impl Strategy<Value = Vec<Vec<Option<u8>>>> {
    let value = prop_oneof![1 => Just(None), 9 => (0u8..100).prop_map(Some)];
    vec(vec(value, width), 0..150)
}

fn policies() -> impl Strategy<Value = SizingPolicy> {
    (
        prop_oneof![Just(0usize), Just(256)],
        prop_oneof![Just(40usize), Just(1 << 16)],
    )
        .prop_map(|(max_exact_keys, max_bytes)| SizingPolicy {
            target_fpp: 0.01,
            max_bytes,
            max_exact_keys,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_row_with_a_partner_is_dropped_for_any_type(
        build in rows(1),
        probe in rows(1),
        parts in 1usize..5,
        cap in prop_oneof![Just(1u32), Just(6), Just(1 << 10)],
        policy in policies(),
    ) {
        for data_type in key_types() {
            end_to_end(&[data_type], &build, &probe, parts, cap, &policy);
        }
    }

    #[test]
    fn no_row_with_a_partner_is_dropped_for_composite_keys(
        build in rows(3),
        probe in rows(3),
        types in vec(0..key_types().len(), 3),
        parts in 1usize..5,
        cap in prop_oneof![Just(1u32), Just(6), Just(1 << 10)],
        policy in policies(),
    ) {
        let types: Vec<DataType> = types.into_iter().map(|at| key_types()[at].clone()).collect();
        // Few random rows of three columns match by chance, so probe with the build rows as well.
        let probe = [probe, build.clone()].concat();
        end_to_end(&types, &build, &probe, parts, cap, &policy);
    }

    #[test]
    fn no_key_is_lost_whatever_bits_it_has(
        keys in vec(prop_oneof![any::<u64>(), 0u64..300, (0u64..300).prop_map(|k| k << 30)], 0..300),
        noise in any::<u64>(),
        cap in prop_oneof![Just(1u32), Just(6), Just(1 << 10)],
        policy in policies(),
    ) {
        let mut parts = PartialBuilder::new(cap, SEED);
        for part in keys.chunks(100) {
            let mut builder = PartialBuilder::new(cap, SEED);
            builder.insert(part, None).unwrap();
            let mut sent = Vec::new();
            builder.finish().encode(&mut sent);
            parts.merge(&Partial::decode(&sent, LIMIT).unwrap()).unwrap();
        }
        let filter = RuntimeFilter::from_partial(parts.finish(), &policy).unwrap();
        let filter = RuntimeFilter::decode(&encode(&filter), LIMIT).unwrap();
        prop_assert_eq!(kept(&filter, &keys), keys.len());
        // Nor when the ends differ in the bits that do not count.
        let noisy: Vec<u64> = keys.iter().map(|key| key ^ (noise & 0xff << 32)).collect();
        prop_assert_eq!(kept(&filter, &noisy), keys.len());
    }

    #[test]
    fn no_input_panics(bytes in vec(any::<u8>(), 48..150), kind in 0u8..4, distinct in 0u64..40) {
        let _ = RuntimeFilter::decode(&bytes, LIMIT);
        let mut framed = encode(&filter_of(8, &[1], false, &SizingPolicy::default()));
        framed.truncate(48);
        framed[6] = kind;
        framed[16..24].fill(0x7f);
        framed[24..32].copy_from_slice(&distinct.to_le_bytes());
        framed.extend_from_slice(&bytes);
        if let Ok(filter) = RuntimeFilter::decode(&reseal(framed.clone()), LIMIT) {
            prop_assert_eq!(encode(&filter), reseal(framed));
        }
    }
}
