//! The bars that the kernels must hold, each as the ratio of two contenders that take turns on the
//! same hashes, so that noise of the machine meets both:
//!
//! ```text
//! cargo bench -p runtime-filter-bloom --bench bars
//! ```
//!
//! Prints the median of the ratios of all rounds, and their quartiles. Exits with 1 if a bar is missed.

#![allow(unsafe_code, missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the bars are ratios to AVX2 loops, which this CPU lacks");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    if !x86::all() {
        std::process::exit(1);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::hint::black_box;
    use std::time::Instant;

    use crate::support::{self, BATCH, Batches, SbbfRs, Table, plain_avx2};
    use runtime_filter_bloom::{BloomFilter, HashId, Kernel};

    const ROUNDS: usize = 41;
    const ID: HashId = HashId { scheme: 0, seed: 0 };

    /// Runs both contenders in turn, `runs` times a round, each on a fresh batch, and returns the
    /// ratios of their times by round, ascending, with the nanoseconds a hash of the first.
    fn duel(
        runs: usize,
        mut batch: impl FnMut() -> Vec<u64>,
        mut ours: impl FnMut(&[u64]),
        mut theirs: impl FnMut(&[u64]),
    ) -> (Vec<f64>, f64) {
        let mut best = f64::INFINITY;
        let mut ratios: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let mut spent = [0.0f64; 2];
                for run in 0..runs {
                    // The one that comes second finds the hashes warmer: take turns in that, too.
                    for turn in [run % 2, 1 - run % 2] {
                        let hashes = batch();
                        let start = Instant::now();
                        match turn {
                            0 => ours(black_box(&hashes)),
                            _ => theirs(black_box(&hashes)),
                        }
                        spent[turn] += start.elapsed().as_secs_f64();
                    }
                }
                best = best.min(spent[0] * 1e9 / (runs * BATCH) as f64);
                spent[0] / spent[1]
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        (ratios, best)
    }

    /// Prints a ratio beside its bar; whether it holds.
    fn bar(name: &str, most: f64, (ratios, best): (Vec<f64>, f64)) -> bool {
        let at = |share: f64| ratios[(share * (ratios.len() - 1) as f64) as usize];
        let held = at(0.5) <= most;
        println!(
            "{:<52} {:>6.3} [{:.3} {:.3}]  at most {most:<5}  {:>6.2} ns  {}",
            name,
            at(0.5),
            at(0.25),
            at(0.75),
            best,
            if held { "held" } else { "MISSED" }
        );
        held
    }

    pub fn all() -> bool {
        println!(
            "ratio of times: median [quartiles], bar, best time of ours a hash (merge: a KiB)\n"
        );
        let mut held = true;
        held &= probes();
        held &= far_probes();
        held &= inserts();
        held &= merges();
        held
    }

    fn probes() -> bool {
        let (_, blocks) = support::SIZES[1];
        let filter = support::ours(blocks);
        let table = Table::filled(blocks);
        let sbbf = SbbfRs::filled(blocks);
        let parquet = support::parquet(blocks);
        let (mut left, mut right) = (vec![0u64; BATCH / 64], vec![0u64; BATCH / 64]);
        let mut batches = Batches::new();
        let mut held = true;
        for kind in ["hit", "miss"] {
            let mut batch = || match kind {
                "hit" => batches.hits(support::keys_of(blocks)).to_vec(),
                _ => batches.misses().to_vec(),
            };
            let mut ours = |hashes: &[u64]| filter.probe_hashes(hashes, &mut left).unwrap();
            held &= bar(
                &format!("probe 150 KB, {kind}, to sbbf-rs (2.2x faster)"),
                1.0 / 2.2,
                duel(40, &mut batch, &mut ours, |hashes| {
                    sbbf.probe(hashes, &mut right)
                }),
            );
            held &= bar(
                &format!("probe 150 KB, {kind}, to parquet (7x faster)"),
                1.0 / 7.0,
                duel(40, &mut batch, &mut ours, |hashes| {
                    support::to_bitmap(hashes, &mut right, |hash| parquet.check(&hash));
                }),
            );
            for (kernel, most) in [(Kernel::avx512(), 0.65), (Kernel::avx2(), 0.85)] {
                let Some(kernel) = kernel else { continue };
                held &= bar(
                    &format!("probe 150 KB, {kind}, {} to plain AVX2", kernel.name()),
                    most,
                    duel(
                        40,
                        &mut batch,
                        |hashes| filter.probe_hashes_by(kernel, hashes, &mut left).unwrap(),
                        // SAFETY: the CPU has AVX2, or it would have none of the kernels.
                        |hashes| unsafe { plain_avx2::probe(&table, hashes, &mut right) },
                    ),
                );
            }
        }
        held
    }

    fn far_probes() -> bool {
        let mut held = true;
        for (name, blocks) in [support::SIZES[3], support::SIZES[4]] {
            let filter = support::ours(blocks);
            let table = Table::filled(blocks);
            let mut bitmap = vec![0u64; BATCH / 64];
            let mut batches = Batches::new();
            for kernel in [Kernel::avx512(), Kernel::avx2()].into_iter().flatten() {
                held &= bar(
                    &format!("probe {name}, {} to load-only floor", kernel.name()),
                    1.3,
                    duel(
                        20,
                        || batches.misses().to_vec(),
                        |hashes| {
                            filter.probe_hashes_by(kernel, hashes, &mut bitmap).unwrap();
                        },
                        |hashes| {
                            // SAFETY: as above.
                            black_box(unsafe { plain_avx2::load_only_prefetched(&table, hashes) });
                        },
                    ),
                );
            }
        }
        held
    }

    fn inserts() -> bool {
        let mut held = true;
        for (name, blocks) in support::SIZES {
            let mut filter = support::ours(blocks);
            let mut table = Table::filled(blocks);
            let mut batches = Batches::new();
            held &= bar(
                &format!("insert {name}, to plain AVX2"),
                1.15,
                duel(
                    20,
                    || batches.misses().to_vec(),
                    |hashes| filter.insert_hashes(hashes),
                    // SAFETY: as above.
                    |hashes| unsafe { plain_avx2::insert(&mut table, hashes) },
                ),
            );
        }
        held
    }

    fn merges() -> bool {
        let mut held = true;
        for (name, blocks) in support::SIZES {
            let bytes = blocks as usize * 32;
            let others: Vec<BloomFilter> = (0..4).map(|_| support::ours(blocks)).collect();
            let mut merged = BloomFilter::with_blocks(blocks, ID).unwrap();
            let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
            let tables = [Table::filled(blocks), Table::filled(blocks)];
            let repeats = ((1 << 22) / bytes).max(1);
            // The duel counts a batch as so many hashes; here it is so many KiB.
            let per_kib = BATCH as f64 / (bytes as f64 / 1024.0 * repeats as f64);
            let copy = |target: &mut Vec<u8>, times: usize| {
                for _ in 0..repeats * times {
                    black_box(&mut *target).copy_from_slice(black_box(&source));
                }
            };
            let (ratios, best) = duel(
                5,
                Vec::new,
                |_| {
                    for _ in 0..repeats {
                        black_box(&mut merged)
                            .merge_from(black_box(&others[0]))
                            .unwrap();
                    }
                },
                |_| copy(&mut target, 1),
            );
            held &= bar(
                &format!("OR-merge {name}, to memcpy (0.8 of its speed)"),
                1.0 / 0.8,
                (ratios, best * per_kib),
            );
            held &= bar(
                &format!("OR-merge {name}, to reading both inputs"),
                1.25,
                duel(
                    5,
                    Vec::new,
                    |_| {
                        for _ in 0..repeats {
                            black_box(&mut merged)
                                .merge_from(black_box(&others[0]))
                                .unwrap();
                        }
                    },
                    |_| {
                        for _ in 0..repeats {
                            // SAFETY: as above.
                            black_box(unsafe { plain_avx2::read_both(&tables[0], &tables[1]) });
                        }
                    },
                ),
            );
            let four: Vec<&BloomFilter> = others.iter().collect();
            let (ratios, best) = duel(
                5,
                Vec::new,
                |_| {
                    for _ in 0..repeats {
                        black_box(&mut merged).merge_many(black_box(&four)).unwrap();
                    }
                },
                |_| copy(&mut target, 4),
            );
            held &= bar(
                &format!("OR-merge of four {name}, to four memcpy"),
                1.0 / 0.8,
                (ratios, best * per_kib),
            );
        }
        held
    }
}
