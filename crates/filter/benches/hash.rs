//! Hashing a batch of key columns, beside DataFusion's `create_hashes`:
//!
//! ```text
//! cargo bench -p runtime-filter-core --bench hash -- --quick
//! ```
//!
//! Before criterion's measurements it prints the ratios of both from runs that take turns, as noise of
//! the machine then meets both alike; with `--ratios` it prints nothing else.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::*;
use criterion::{BenchmarkId, Criterion, Throughput};
use datafusion_common::hash_utils::{RandomState, create_hashes};
use runtime_filter_core::KeyHasher;

/// Rows of a record batch.
const ROWS: usize = 8192;

/// Whole numbers in no order, as join keys mostly are.
fn numbers(salt: u64) -> impl Iterator<Item = i64> {
    (0..ROWS as u64).map(move |row| (row + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 >> 24)
}

fn text(long: bool) -> ArrayRef {
    let text = numbers(3).map(|n| match long {
        false => format!("{:013}", n & 0xfff_ffff_ffff),
        true => format!(
            "{:08x}-1111-2222-3333-{:012x}",
            n & 0xffff_ffff,
            n & 0xffff_ffff_ffff
        ),
    });
    let text =
        StringArray::from_iter_values(text.map(|t| t[..if long { 36 } else { 13 }].to_owned()));
    assert_eq!(text.value_data().len(), ROWS * if long { 36 } else { 13 });
    Arc::new(text)
}

fn subjects() -> Vec<(&'static str, Vec<ArrayRef>)> {
    let int64 = || -> ArrayRef { Arc::new(Int64Array::from_iter_values(numbers(1))) };
    let nullable = numbers(1)
        .enumerate()
        .map(|(row, n)| (row % 10 != 3).then_some(n));
    let narrow = || Int32Array::from_iter_values(numbers(2).map(|n| n as i32));
    let few = StringArray::from_iter_values(numbers(4).map(|n| format!("status {}", n & 63)));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let decimals = numbers(5).map(i128::from);
    vec![
        ("Int64", vec![int64()]),
        (
            "Int64, 10 % NULL",
            vec![Arc::new(Int64Array::from_iter(nullable))],
        ),
        ("Int32", vec![Arc::new(narrow())]),
        ("Date32", vec![cast(&narrow(), &DataType::Date32).unwrap()]),
        (
            "Decimal128",
            vec![Arc::new(Decimal128Array::from_iter_values(decimals))],
        ),
        (
            "Float64",
            vec![Arc::new(Float64Array::from_iter_values(
                numbers(6).map(|n| n as f64),
            ))],
        ),
        ("Utf8, 13 B", vec![text(false)]),
        ("Utf8, 36 B", vec![text(true)]),
        (
            "Utf8View, 13 B",
            vec![cast(&text(false), &DataType::Utf8View).unwrap()],
        ),
        (
            "Dictionary(Int32, Utf8)",
            vec![cast(&few, &dictionary).unwrap()],
        ),
        (
            "(Int64, Int64)",
            vec![int64(), Arc::new(Int64Array::from_iter_values(numbers(9)))],
        ),
        ("(Int64, Utf8)", vec![int64(), text(false)]),
    ]
}

struct Ours(KeyHasher, Vec<u64>);

impl Ours {
    fn new(columns: &[ArrayRef]) -> Self {
        let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
        Self(KeyHasher::try_new(&types, 42).unwrap(), Vec::new())
    }

    fn run(&mut self, columns: &[ArrayRef]) {
        let validity = self.0.hash_batch(black_box(columns), &mut self.1).unwrap();
        black_box((validity, self.1.last()));
    }
}

struct Theirs(RandomState, Vec<u64>);

impl Theirs {
    fn new() -> Self {
        Self(RandomState::with_seed(42), Vec::new())
    }

    fn run(&mut self, columns: &[ArrayRef]) {
        // As DataFusion does for each batch: rows that are NULL keep what was there.
        self.1.clear();
        self.1.resize(ROWS, 0);
        create_hashes(black_box(columns), &self.0, &mut self.1).unwrap();
        black_box(self.1.last());
    }
}

fn nanoseconds_a_row(mut run: impl FnMut()) -> f64 {
    const RUNS: usize = 20;
    let start = Instant::now();
    (0..RUNS).for_each(|_| run());
    start.elapsed().as_nanos() as f64 / (RUNS * ROWS) as f64
}

fn ratios() {
    const ROUNDS: usize = 101;
    println!(
        "{:26} {:>8} {:>14} {:>14}  quartiles",
        "", "ours", "create_hashes", "ours/theirs"
    );
    for (name, columns) in subjects() {
        let (mut ours, mut theirs) = (Ours::new(&columns), Theirs::new());
        let mut rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                let a = nanoseconds_a_row(|| ours.run(&columns));
                let b = nanoseconds_a_row(|| theirs.run(&columns));
                [a / b, a, b]
            })
            .collect();
        let mut quantile = |of: usize, share: f64| {
            rounds.sort_by(|x, y| x[of].total_cmp(&y[of]));
            rounds[(ROUNDS as f64 * share) as usize][of]
        };
        println!(
            "{name:26} {:5.2} ns {:11.2} ns {:14.2}  {:.2} to {:.2}",
            quantile(1, 0.5),
            quantile(2, 0.5),
            quantile(0, 0.5),
            quantile(0, 0.25),
            quantile(0, 0.75),
        );
    }
}

fn main() {
    ratios();
    if std::env::args().any(|argument| argument == "--ratios") {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (name, columns) in subjects() {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(ROWS as u64));
        let mut ours = Ours::new(&columns);
        group.bench_function(BenchmarkId::from_parameter("ours"), |b| {
            b.iter(|| ours.run(&columns))
        });
        let mut theirs = Theirs::new();
        group.bench_function(BenchmarkId::from_parameter("create_hashes"), |b| {
            b.iter(|| theirs.run(&columns));
        });
        group.finish();
    }
    criterion.final_summary();
}
