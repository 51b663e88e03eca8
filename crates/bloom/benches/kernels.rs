//! Build, probe, merge and fold at five sizes, beside other crates' filters, a plain AVX2 loop and the
//! least that any probe must do:
//!
//! ```text
//! cargo bench -p runtime-filter-bloom --bench kernels
//! ```
//!
//! Times are for a batch of 8,192 hashes. Only compare within one run; `bars` gives steadier ratios.

#![allow(unsafe_code, missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use runtime_filter_bloom::{BloomFilter, HashId, Kernel};
use runtime_filter_lab::{
    ClassicBloom, CountingBloom, CuckooFilter, Membership, ScalableBloom, Sizing,
};
use support::{BATCH, Batches, SIZES, SbbfRs, Table, keys_of};

/// Times `run` on a fresh batch each time, made outside the clock.
fn on_batches(
    group: &mut BenchmarkGroup<'_, WallTime>,
    contender: &str,
    size: &str,
    mut batch: impl FnMut() -> Vec<u64>,
    mut run: impl FnMut(&[u64]),
) {
    group.bench_function(BenchmarkId::new(contender, size), |bencher| {
        bencher.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                let hashes = batch();
                let start = Instant::now();
                run(black_box(&hashes));
                spent += start.elapsed();
            }
            spent
        });
    });
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(15)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .throughput(Throughput::Elements(BATCH as u64));
    group
}

fn build(criterion: &mut Criterion) {
    let mut group = group(criterion, "build");
    for (size, blocks) in SIZES {
        let mut batches = Batches::new();
        let mut batch = || batches.misses().to_vec();
        for kernel in Kernel::available() {
            let mut filter = support::ours(blocks);
            on_batches(&mut group, kernel.name(), size, &mut batch, |hashes| {
                filter.insert_hashes_by(kernel, hashes);
            });
        }
        #[cfg(target_arch = "x86_64")]
        if Kernel::avx2().is_some() {
            let mut table = Table::filled(blocks);
            on_batches(&mut group, "plain avx2 loop", size, &mut batch, |hashes| {
                // SAFETY: the CPU has AVX2.
                unsafe { support::plain_avx2::insert(&mut table, hashes) };
            });
        }
        let mut sbbf = SbbfRs::filled(blocks);
        on_batches(&mut group, "sbbf-rs", size, &mut batch, |hashes| {
            sbbf.insert(hashes);
        });
        let mut parquet = support::parquet(blocks);
        on_batches(&mut group, "parquet", size, &mut batch, |hashes| {
            hashes.iter().for_each(|hash| parquet.insert(hash));
        });
        let mut fast = support::fastbloom_empty(blocks);
        on_batches(&mut group, "fastbloom", size, &mut batch, |hashes| {
            for &hash in hashes {
                fast.insert_hash(hash);
            }
        });
    }
}

fn probe(criterion: &mut Criterion) {
    for kind in ["hit", "miss"] {
        let mut group = group(criterion, &format!("probe {kind}"));
        for (size, blocks) in SIZES {
            let mut batches = Batches::new();
            let mut batch = || match kind {
                "hit" => batches.hits(keys_of(blocks)).to_vec(),
                _ => batches.misses().to_vec(),
            };
            let mut bitmap = vec![0u64; BATCH / 64];
            let filter = support::ours(blocks);
            for kernel in Kernel::available() {
                on_batches(&mut group, kernel.name(), size, &mut batch, |hashes| {
                    filter.probe_hashes_by(kernel, hashes, &mut bitmap).unwrap();
                });
            }
            drop(filter);
            #[cfg(target_arch = "x86_64")]
            if Kernel::avx2().is_some() {
                let table = Table::filled(blocks);
                // SAFETY, thrice: the CPU has AVX2.
                on_batches(&mut group, "plain avx2 loop", size, &mut batch, |hashes| {
                    unsafe { support::plain_avx2::probe(&table, hashes, &mut bitmap) };
                });
                on_batches(&mut group, "load only", size, &mut batch, |hashes| {
                    black_box(unsafe { support::plain_avx2::load_only(&table, hashes) });
                });
                on_batches(
                    &mut group,
                    "load only, prefetched",
                    size,
                    &mut batch,
                    |hashes| {
                        black_box(unsafe {
                            support::plain_avx2::load_only_prefetched(&table, hashes)
                        });
                    },
                );
            }
            let sbbf = SbbfRs::filled(blocks);
            on_batches(&mut group, "sbbf-rs", size, &mut batch, |hashes| {
                sbbf.probe(hashes, &mut bitmap);
            });
            drop(sbbf);
            let parquet = support::parquet(blocks);
            on_batches(&mut group, "parquet", size, &mut batch, |hashes| {
                support::to_bitmap(hashes, &mut bitmap, |hash| parquet.check(&hash));
            });
            drop(parquet);
            let fast = support::fastbloom(blocks);
            on_batches(&mut group, "fastbloom", size, &mut batch, |hashes| {
                support::to_bitmap(hashes, &mut bitmap, |hash| fast.contains_hash(hash));
            });
        }
    }
}

/// What the textbooks have, 12 bits a key as well.
fn textbook(criterion: &mut Criterion) {
    let mut group = group(criterion, "textbook");
    // A build of the largest size takes these minutes.
    for (size, blocks) in &SIZES[..4] {
        let keys = keys_of(*blocks);
        let sizing = Sizing::for_bits_per_key(keys, 12.0).unwrap();
        let filters: [Box<dyn Membership>; 4] = [
            Box::new(ClassicBloom::new(sizing).unwrap()),
            Box::new(CountingBloom::for_bits_per_key(keys, 12.0).unwrap()),
            Box::new(ScalableBloom::for_bits_per_key(keys, keys, 12.0).unwrap()),
            Box::new(CuckooFilter::for_bits_per_key(keys, 12.0).unwrap()),
        ];
        for mut filter in filters {
            let start = Instant::now();
            let mut refused = 0;
            support::members(keys, |hashes| {
                refused += hashes
                    .iter()
                    .filter(|hash| filter.insert(**hash).is_err())
                    .count();
            });
            let build = start.elapsed().as_secs_f64() * 1e9 / keys as f64;
            println!(
                "textbook build/{}/{size}: {build:.1} ns a key, {refused} refused",
                filter.name()
            );
            let mut batches = Batches::new();
            let mut bitmap = vec![0u64; BATCH / 64];
            let batch = || batches.misses().to_vec();
            let name = format!("probe miss, {}", filter.name());
            on_batches(&mut group, &name, size, batch, |hashes| {
                support::to_bitmap(hashes, &mut bitmap, |hash| filter.contains(hash));
            });
        }
    }
}

fn merge_and_fold(criterion: &mut Criterion) {
    let mut group = group(criterion, "merge and fold");
    for (size, blocks) in SIZES {
        group.throughput(Throughput::Bytes(u64::from(blocks) * 32));
        let id = HashId { scheme: 0, seed: 0 };
        let others: Vec<BloomFilter> = (0..4).map(|_| support::ours(blocks)).collect();
        let mut merged = BloomFilter::with_blocks(blocks, id).unwrap();
        group.bench_function(BenchmarkId::new("merge one", size), |bencher| {
            bencher.iter(|| {
                black_box(&mut merged)
                    .merge_from(black_box(&others[0]))
                    .unwrap()
            });
        });
        let four: Vec<&BloomFilter> = others.iter().collect();
        group.bench_function(BenchmarkId::new("merge four at once", size), |bencher| {
            bencher.iter(|| black_box(&mut merged).merge_many(black_box(&four)).unwrap());
        });
        group.bench_function(BenchmarkId::new("fold to half", size), |bencher| {
            bencher.iter(|| black_box(&merged).fold_to(blocks / 2).unwrap());
        });
        group.bench_function(BenchmarkId::new("estimated fpp", size), |bencher| {
            bencher.iter(|| black_box(&merged).estimated_fpp());
        });
        let source = vec![1u8; blocks as usize * 32];
        let mut target = source.clone();
        group.bench_function(BenchmarkId::new("memcpy", size), |bencher| {
            bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
        });
        let mut fast = support::fastbloom(blocks);
        let other = fast.clone();
        group.bench_function(BenchmarkId::new("fastbloom union", size), |bencher| {
            bencher.iter(|| black_box(&mut fast).union(black_box(&other)));
        });
    }
}

criterion_group!(benches, build, probe, textbook, merge_and_fold);
criterion_main!(benches);
