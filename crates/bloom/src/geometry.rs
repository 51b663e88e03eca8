//! Legal filter sizes, and how large a filter must be.
//!
//! Sizes are counted in blocks of 32 bytes. Legal are 1, 2, 3 and `m * 2^k` for `m` in 4..=7: at most
//! a quarter more than asked for, every divisor of a legal size is legal, and a filter can be folded
//! exactly to each of them.

use crate::kernel::BLOCK_BYTES;

/// Legal sizes: 1, 2, 3, then four for each power of two that keeps them in 32 bits.
const LEGAL_SIZES: u32 = 3 + 4 * 30;

/// The legal sizes in ascending order; `index` must be below [`LEGAL_SIZES`].
fn size_at(index: u32) -> u32 {
    match index {
        0..3 => index + 1,
        _ => (4 + (index - 3) % 4) << ((index - 3) / 4),
    }
}

/// Whether a filter may have `blocks` blocks.
pub fn is_legal(blocks: u32) -> bool {
    blocks != 0 && (blocks >> blocks.trailing_zeros()) <= 7
}

/// The largest legal size of at most `blocks` blocks; 1 if `blocks` is 0.
pub fn largest_at_most(blocks: u32) -> u32 {
    if blocks <= 3 {
        return blocks.max(1);
    }
    // Keeping the top three bits of a number leaves m * 2^k with m in 4..=7.
    let k = blocks.ilog2() - 2;
    (blocks >> k) << k
}

/// The largest legal size in blocks that takes at most `max_bytes` bytes; 1 (32 bytes) if none does.
pub fn largest_within(max_bytes: usize) -> u32 {
    largest_at_most(u32::try_from(max_bytes / BLOCK_BYTES).unwrap_or(u32::MAX))
}

/// The sizes that a filter of `blocks` blocks can be folded to, ascending, itself included.
pub fn fold_sizes(blocks: u32) -> impl Iterator<Item = u32> {
    (0..LEGAL_SIZES)
        .map(size_at)
        .take_while(move |&size| size <= blocks)
        .filter(move |&size| blocks.is_multiple_of(size))
}

/// The smallest legal size in blocks at which `ndv` distinct keys are expected to give a false
/// positive probability of at most `fpp`, but never more than `max_bytes` bytes.
///
/// `fpp` is a share between 0 and 1. One that no size reaches (0, negative, NaN) gives the largest
/// size allowed, as does more keys than fit: compare [`expected_fpp`] to know what was reached.
pub fn geometry_for(ndv: u64, fpp: f64, max_bytes: usize) -> u32 {
    let cap = largest_within(max_bytes);
    // expected_fpp falls with size, so bisect over the legal sizes.
    let (mut low, mut high) = (0, LEGAL_SIZES);
    while low < high {
        let middle = low + (high - low) / 2;
        if size_at(middle) >= cap || expected_fpp(size_at(middle), ndv) <= fpp {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    size_at(low.min(LEGAL_SIZES - 1)).min(cap)
}

/// The expected false positive probability (0 to 1) of a filter of `blocks` blocks that holds `ndv`
/// distinct keys.
///
/// The number of keys in a block is Poisson distributed with mean `ndv / blocks`; a block that holds
/// `i` keys answers a foreign hash wrongly with probability `(1 - (31/32)^i)^8`, as each key sets one
/// of 32 bits in each of 8 lanes. The result is the mean over that mixture (Putze, Sanders, Singler:
/// Cache-, Hash- and Space-Efficient Bloom Filters, 2007, section 3, for blocked filters; the lane
/// term is that of a split block). Above 1024 keys a block the mean stands in for the mixture.
///
/// A model of many blocks: with a few, whose loads are bound to add up, it errs to the larger side (one
/// block of 20 keys: 0.40 % where 0.24 % is true).
pub fn expected_fpp(blocks: u32, ndv: u64) -> f64 {
    let load = ndv as f64 / f64::from(blocks.max(1));
    let hit = |keys: f64| (1.0 - (31.0f64 / 32.0).powf(keys)).powi(8);
    if load > 1024.0 {
        return hit(load);
    }
    // Weights relative to that of the mode need no factorials and cannot overflow.
    let mode = load.floor();
    let spread = 10.0 * load.sqrt() + 40.0;
    let (mut weights, mut sum) = (1.0, hit(mode));
    let (mut weight, mut keys) = (1.0, mode);
    while keys < mode + spread {
        keys += 1.0;
        weight *= load / keys;
        weights += weight;
        sum += weight * hit(keys);
    }
    (weight, keys) = (1.0, mode);
    while keys > 0.0 && keys > mode - spread {
        weight *= keys / load;
        keys -= 1.0;
        weights += weight;
        sum += weight * hit(keys);
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn legal_sizes_ascend_and_match_the_predicate() {
        let sizes: Vec<u32> = (0..LEGAL_SIZES).map(size_at).collect();
        assert_eq!(sizes[..12], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]);
        assert_eq!(sizes[sizes.len() - 1], 7 << 29);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        for blocks in 0..5000 {
            assert_eq!(is_legal(blocks), sizes.contains(&blocks), "{blocks}");
        }
    }

    #[test]
    fn every_divisor_of_a_legal_size_is_legal() {
        for size in (0..60).map(size_at) {
            let divisors: Vec<u32> = (1..=size.min(1 << 16)).filter(|d| size % d == 0).collect();
            assert!(divisors.iter().all(|&d| is_legal(d)));
            if size <= 1 << 16 {
                assert_eq!(fold_sizes(size).collect::<Vec<_>>(), divisors);
            }
        }
    }

    #[test]
    fn largest_within_never_exceeds_the_budget() {
        assert_eq!(largest_within(0), 1);
        assert_eq!(largest_within(31), 1);
        assert_eq!(largest_within(64), 2);
        assert_eq!(largest_within(9 * 32 + 31), 8);
        assert_eq!(largest_within(1 << 20), 1 << 15);
        assert_eq!(largest_within(usize::MAX), 7 << 29);
    }

    #[test]
    fn expected_fpp_agrees_with_published_values() {
        // Bits a key against per cent, as measured for this layout with a million keys.
        for (bits, percent) in [(8, 3.32), (10, 1.26), (12, 0.542), (16, 0.132)] {
            let ndv = 1_000_000u64;
            let blocks = u32::try_from(ndv * bits / 256).unwrap();
            let got = expected_fpp(blocks, ndv) * 100.0;
            assert!((got / percent - 1.0).abs() < 0.01, "{bits}: {got}");
        }
    }

    #[test]
    fn expected_fpp_of_the_extremes() {
        assert_eq!(expected_fpp(1, 0), 0.0);
        assert_eq!(expected_fpp(0, 0), 0.0);
        assert!(expected_fpp(1, u64::MAX) > 0.999_999);
        assert!(expected_fpp(7 << 29, 1) < 1e-12);
        // The switch from the mixture to its mean is no visible step.
        let step = expected_fpp(1, 1025) - expected_fpp(1, 1024);
        assert!(step.abs() < 1e-9, "{step}");
    }

    #[test]
    fn odd_targets_give_a_usable_size() {
        assert_eq!(geometry_for(0, 0.01, 1 << 20), 1);
        assert_eq!(geometry_for(1 << 40, 0.01, 1 << 20), 1 << 15);
        assert_eq!(geometry_for(1000, f64::NAN, 1 << 10), 32);
        assert_eq!(geometry_for(1000, 0.0, 1 << 10), 32);
        assert_eq!(geometry_for(1000, 1.0, 1 << 10), 1);
        assert_eq!(geometry_for(1000, 0.01, 0), 1);
    }

    proptest! {
        #[test]
        fn geometry_for_is_the_smallest_that_suffices(
            ndv in 0u64..50_000_000,
            fpp in 0.0001f64..0.5,
            max_bytes in 32usize..100_000_000,
        ) {
            let blocks = geometry_for(ndv, fpp, max_bytes);
            let wanted = (0..LEGAL_SIZES).map(size_at).find(|&size| expected_fpp(size, ndv) <= fpp);
            prop_assert_eq!(blocks, wanted.unwrap().min(largest_within(max_bytes)));
        }

        #[test]
        fn largest_at_most_is_legal_and_tight(blocks in 1u32..) {
            let size = largest_at_most(blocks);
            prop_assert!(is_legal(size) && size <= blocks);
            prop_assert!((0..LEGAL_SIZES).map(size_at).all(|s| s <= size || s > blocks));
        }
    }
}
