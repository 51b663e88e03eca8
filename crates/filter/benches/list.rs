//! Encoding and decoding a sparse partial, and its size:
//!
//! ```text
//! cargo bench -p runtime-filter-core --bench list -- --quick
//! ```
//!
//! The times include the checksum. Criterion's throughput is in keys.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::DataType;
use criterion::{BenchmarkId, Criterion, Throughput};
use runtime_filter_core::{KeyHasher, Keys, Partial, PartialBuilder};

fn partial(keys: i64) -> Partial {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys));
    let mut hashes = Vec::new();
    let mut hasher = KeyHasher::try_new(&[DataType::Int64], 42).unwrap();
    hasher.hash_batch(&[column], &mut hashes).unwrap();
    let mut builder = PartialBuilder::new(1 << 19, 42);
    builder.insert(&hashes, None).unwrap();
    let partial = builder.finish();
    assert!(matches!(partial.keys(), Keys::Sparse(_)));
    partial
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for (name, keys) in [("1e3", 1_000), ("1e5", 100_000), ("1e6", 1_000_000)] {
        let partial = partial(keys);
        let mut bytes = Vec::new();
        partial.encode(&mut bytes);
        println!(
            "{name} keys: {:.3} bytes a key",
            bytes.len() as f64 / keys as f64
        );
        let mut group = criterion.benchmark_group("list");
        group.throughput(Throughput::Elements(keys as u64));
        group.bench_function(BenchmarkId::new("encode", name), |b| {
            b.iter(|| {
                bytes.clear();
                partial.encode(&mut bytes);
            });
        });
        group.bench_function(BenchmarkId::new("decode", name), |b| {
            b.iter(|| Partial::decode(&bytes, 1 << 24).unwrap());
        });
        group.finish();
    }
    criterion.final_summary();
}
