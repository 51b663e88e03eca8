//! The rate of false positives must be that of the model whatever the keys look like: a hash that lets
//! the shape of keys through fills some blocks more than others, and fuller blocks err far more often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use runtime_filter_bloom::{BloomFilter, HashId, expected_fpp, geometry, mix_in_place};
use runtime_filter_core::{HASH_SCHEME, KeyHasher};

const ROWS: u64 = 8192;
const MEMBERS: u64 = 1 << 20;

/// Each key occurs once in the sequence, so what follows the members is foreign.
type Shape = fn(std::ops::Range<u64>) -> Vec<ArrayRef>;

fn integers(range: std::ops::Range<u64>, key: impl Fn(u64) -> u64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(range.map(|i| key(i) as i64)))
}

fn strings(range: std::ops::Range<u64>) -> Vec<ArrayRef> {
    let mut builder = StringBuilder::new();
    for i in range {
        write!(builder, "order-{i:08}").unwrap();
        builder.append_value("");
    }
    vec![Arc::new(builder.finish())]
}

fn random(range: std::ops::Range<u64>) -> Vec<ArrayRef> {
    // A bijection, so still distinct.
    let mut values: Vec<u64> = range.collect();
    mix_in_place(&mut values, 0x00c0_ffee);
    vec![Arc::new(UInt64Array::from(values))]
}

/// How far from the model a rate may be: chance is a third of that.
const TOLERANCE: f64 = 0.05;

const SHAPES: [(&str, Shape); 9] = [
    ("sequential", |range| vec![integers(range, |i| i)]),
    ("strided by 2^12", |range| {
        vec![integers(range, |i| i << 12)]
    }),
    ("strided by 2^32", |range| {
        vec![integers(range, |i| i << 32)]
    }),
    ("random", random),
    ("strings", strings),
    ("sequential floats", |range| {
        vec![Arc::new(Float64Array::from_iter_values(
            range.map(|i| i as f64),
        ))]
    }),
    ("dates", |range| {
        vec![Arc::new(Date32Array::from_iter_values(
            range.map(|i| i as i32 - (1 << 20)),
        ))]
    }),
    ("pairs", |range| {
        vec![
            integers(range.clone(), |i| i >> 10),
            integers(range, |i| i & 1023),
        ]
    }),
    ("decimals", |range| {
        let values = range.map(|i| i128::from(i) * 100_000_000_000_000_000_000);
        vec![Arc::new(Decimal128Array::from_iter_values(values))]
    }),
];

/// Calls `each` with the hashes of the keys of a range, a batch at a time.
fn hashed(shape: Shape, seed: u64, range: std::ops::Range<u64>, mut each: impl FnMut(&[u64])) {
    let mut hashes = Vec::new();
    let mut hasher: Option<KeyHasher> = None;
    for from in range.clone().step_by(ROWS as usize) {
        let columns = shape(from..range.end.min(from + ROWS));
        let hasher = hasher.get_or_insert_with(|| {
            let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
            KeyHasher::try_new(&types, seed).unwrap()
        });
        hasher.hash_batch(&columns, &mut hashes).unwrap();
        each(&hashes);
    }
}

fn false_positives(filters: &[BloomFilter], hashes: &[u64], counts: &mut [u64], probe: &[u64]) {
    let mut bitmap = vec![0; hashes.len().div_ceil(64)];
    for ((filter, count), wanted) in filters.iter().zip(counts).zip(probe) {
        if *wanted > 0 {
            filter.probe_hashes(hashes, &mut bitmap).unwrap();
            *count += bitmap
                .iter()
                .map(|word| u64::from(word.count_ones()))
                .sum::<u64>();
        }
    }
}

#[test]
fn the_rate_of_false_positives_is_that_of_the_model_for_every_shape_of_keys() {
    const BITS: [u64; 3] = [8, 12, 16];
    // Enough for thousands of false positives of each; fewer where they are frequent.
    const PROBES: [u64; 3] = [1 << 20, 1 << 21, 1 << 23];
    let seed = 0x0123_4567_89ab_cdef;
    let id = HashId {
        scheme: HASH_SCHEME,
        seed,
    };
    let blocks = BITS.map(|bits| geometry::largest_at_most((MEMBERS * bits / 256) as u32));
    let mut wrong = Vec::new();
    for (name, shape) in SHAPES {
        let mut filters = blocks.map(|blocks| BloomFilter::with_blocks(blocks, id).unwrap());
        hashed(shape, seed, 0..MEMBERS, |hashes| {
            filters
                .iter_mut()
                .for_each(|filter| filter.insert_hashes(hashes));
        });
        let (mut counts, mut left) = ([0; 3], PROBES);
        hashed(shape, seed, MEMBERS..MEMBERS + PROBES[2], |hashes| {
            false_positives(&filters, hashes, &mut counts, &left);
            left = left.map(|left| left.saturating_sub(ROWS));
        });
        for (i, bits) in BITS.into_iter().enumerate() {
            let measured = counts[i] as f64 / PROBES[i] as f64;
            let ratio = measured / expected_fpp(blocks[i], MEMBERS);
            println!(
                "{name:20} {bits:2} bits a key: {:.4} %, {ratio:.3} of the model",
                measured * 100.0
            );
            if (ratio - 1.0).abs() > TOLERANCE {
                wrong.push((name, bits, ratio));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
