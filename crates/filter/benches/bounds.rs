//! What the bounds of the keys add to the build of a filter:
//!
//! ```text
//! cargo bench -p runtime-filter-core --bench bounds
//! ```
//!
//! Nanoseconds a row over batches of 8,192 rows, the best of rounds in which all contenders take turns:
//! hashing, inserting what was hashed, and by how much inserting one hash over and over, which takes next
//! to nothing, takes longer with bounds.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::*;
use runtime_filter_core::{KeyHasher, PartialBuilder};

const ROWS: usize = 8192;
const BATCHES: usize = 24;

/// Whole numbers in no order.
fn numbers(batch: usize) -> impl Iterator<Item = i64> {
    (0..ROWS).map(move |row| {
        ((row + batch * ROWS) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 >> 24
    })
}

type Make = fn(usize) -> ArrayRef;

fn subjects() -> Vec<(&'static str, Make)> {
    let int64: Make = |batch| Arc::new(Int64Array::from_iter_values(numbers(batch)));
    let nulls: Make = |batch| {
        let some = |(row, n)| (row % 10 != 3).then_some(n);
        Arc::new(Int64Array::from_iter(numbers(batch).enumerate().map(some)))
    };
    let date: Make = |batch| {
        let days = numbers(batch).map(|n| n as i32);
        let days: ArrayRef = Arc::new(Int32Array::from_iter_values(days));
        cast(&days, &DataType::Date32).unwrap()
    };
    let few: Make = |batch| Arc::new(Int64Array::from_iter_values(numbers(batch).map(|n| n & 31)));
    let decimal: Make = |batch| {
        let values = numbers(batch).map(i128::from);
        Arc::new(Decimal128Array::from_iter_values(values))
    };
    let text: Make = |batch| {
        let values = numbers(batch).map(|n| format!("{:013}", n & 0xfff_ffff_ffff));
        Arc::new(StringArray::from_iter_values(values))
    };
    vec![
        ("Int64", int64),
        ("Int64, 10 % NULL", nulls),
        ("Int64, 32 values", few),
        ("Date32", date),
        ("Decimal128", decimal),
        ("Utf8, 13 B", text),
    ]
}

fn main() {
    println!(
        "{:18} {:>8} {:>8} {:>8}  {:>10} {:>10}",
        "", "hash", "insert", "bounds", "of hash", "of both"
    );
    for (name, make) in subjects() {
        let batches: Vec<[ArrayRef; 1]> = (0..BATCHES).map(|batch| [make(batch)]).collect();
        let types = [batches[0][0].data_type().clone()];
        let mut hasher = KeyHasher::try_new(&types, 42).unwrap();
        let mut hashes = vec![vec![]; BATCHES];
        let mut valid = vec![None; BATCHES];
        let rows = (BATCHES * ROWS) as f64;
        let same = vec![vec![1; ROWS]; BATCHES];
        let rounds: Vec<[f64; 4]> = (0..41)
            .map(|_| {
                let start = Instant::now();
                for (i, batch) in batches.iter().enumerate() {
                    valid[i] = hasher.hash_batch(black_box(batch), &mut hashes[i]).unwrap();
                }
                let hash = start.elapsed().as_nanos() as f64 / rows;
                let insert = |with_bounds: bool, hashes: &[Vec<u64>]| {
                    let mut builder = PartialBuilder::new(1 << 19, 42);
                    let start = Instant::now();
                    for (i, batch) in batches.iter().enumerate() {
                        let valid = valid[i].as_ref();
                        match with_bounds {
                            true => builder.insert_batch(batch, &hashes[i], valid).unwrap(),
                            false => builder.insert(&hashes[i], valid).unwrap(),
                        }
                    }
                    let taken = start.elapsed().as_nanos() as f64 / rows;
                    black_box(builder.rows());
                    taken
                };
                [
                    hash,
                    insert(false, &hashes),
                    insert(false, &same),
                    insert(true, &same),
                ]
            })
            .collect();
        let best = |of: usize| rounds.iter().map(|r| r[of]).fold(f64::MAX, f64::min);
        let (hash, insert, bounds) = (best(0), best(1), best(3) - best(2));
        println!(
            "{name:18} {hash:5.2} ns {insert:5.2} ns {bounds:5.2} ns  {:8.1} % {:8.1} %",
            100.0 * bounds / hash,
            100.0 * bounds / (hash + insert)
        );
    }
}
