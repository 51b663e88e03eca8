#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Sizes in blocks: the smallest, odd ones, and one beyond the bound for prefetching.
const SIZES: [usize; 8] = [1, 2, 3, 5, 7, 64, 640, 5 << 13];

fn hashes(from: u64, count: usize) -> Vec<u64> {
    let mut values: Vec<u64> = (from..).take(count).collect();
    mix_in_place(&mut values, 0x9e37_79b9_7f4a_7c15);
    values
}

/// Straight from the specification, a hash and a lane at a time.
fn contains(blocks: &[Block], hash: u64) -> bool {
    let block = &blocks[((u128::from(hash >> 32) * blocks.len() as u128) >> 32) as usize];
    (0..8).all(|lane| {
        let bit = (hash as u32).wrapping_mul(SALTS[lane]) >> 27;
        block.0[lane] >> bit & 1 == 1
    })
}

fn filter_of(kernel: Kernel, size: usize, hashes: &[u64]) -> Vec<Block> {
    let mut blocks = vec![Block::default(); size];
    insert(kernel, &mut blocks, hashes);
    blocks
}

#[test]
fn every_kernel_of_the_cpu_is_tested() {
    assert_eq!(Kernel::available().next(), Some(Kernel::best()));
    assert_eq!(Kernel::available().last(), Some(Kernel::portable()));
    let names: Vec<_> = Kernel::available().map(Kernel::name).collect();
    println!("kernels: {names:?}");
}

#[test]
fn every_kernel_answers_as_the_specification_at_every_length() {
    for kernel in Kernel::available() {
        for size in SIZES {
            let members = hashes(0, size * 8);
            let blocks = filter_of(kernel, size, &members);
            // Half of the probes are members, and all remainders of a chunk occur.
            for length in (0..=200).chain([511, 512, 513]) {
                let probes: Vec<u64> = hashes(0, length)
                    .into_iter()
                    .zip(hashes(1 << 40, length))
                    .enumerate()
                    .map(|(i, (member, other))| if i % 2 == 0 { member } else { other })
                    .collect();
                let mut bitmap = vec![u64::MAX; length.div_ceil(CHUNK) + 1];
                probe::<false>(kernel, &blocks, &probes, &mut bitmap);
                for (i, &hash) in probes.iter().enumerate() {
                    let got = bitmap[i / 64] >> (i % 64) & 1 == 1;
                    assert_eq!(
                        got,
                        contains(&blocks, hash),
                        "{kernel:?} {size} {length} {i}"
                    );
                }
                if length % CHUNK != 0 {
                    assert_eq!(bitmap[length / CHUNK] >> (length % CHUNK), 0);
                }
                assert_eq!(*bitmap.last().unwrap(), u64::MAX, "a word past the last");
            }
        }
    }
}

#[test]
fn extreme_hashes_stay_in_bounds() {
    let extremes = [0, u64::MAX, u64::MAX << 32, u64::from(u32::MAX), 1 << 63, 1].repeat(40);
    for kernel in Kernel::available() {
        for size in SIZES {
            let blocks = filter_of(kernel, size, &extremes);
            let mut bitmap = vec![0; extremes.len().div_ceil(CHUNK)];
            probe::<false>(kernel, &blocks, &extremes, &mut bitmap);
            let found: u32 = bitmap.iter().map(|word| word.count_ones()).sum();
            assert_eq!(found as usize, extremes.len());
        }
    }
}

#[test]
fn without_blocks_nothing_is_present() {
    for kernel in Kernel::available() {
        insert(kernel, &mut [], &[1, 2]);
        let mut bitmap = [u64::MAX];
        probe::<false>(kernel, &[], &[1, 2], &mut bitmap);
        assert_eq!(bitmap, [0]);
    }
}

#[test]
fn a_bitmap_too_short_is_filled_and_no_more() {
    for kernel in Kernel::available() {
        let keys = hashes(0, 300);
        let blocks = filter_of(kernel, 64, &keys);
        let mut bitmap = [0; 2];
        probe::<false>(kernel, &blocks, &keys, &mut bitmap);
        assert_eq!(bitmap, [u64::MAX; 2]);
    }
}

#[test]
fn mixing_gives_the_published_values() {
    // The first outputs of splitmix64 seeded with 1234567: the finaliser of seed + i * golden.
    let wanted = [
        6457827717110365317u64,
        3203168211198807973,
        9817491932198370423,
    ];
    let golden = 0x9e37_79b9_7f4a_7c15u64;
    let seeds = [1u64, 2, 3].map(|i| golden.wrapping_mul(i).wrapping_add(1_234_567));
    let mut values = seeds;
    mix_in_place(&mut values, 0);
    assert_eq!(values, wanted);
    let mut values = seeds.map(|seed| seed ^ 77);
    mix_in_place(&mut values, 77);
    assert_eq!(values, wanted);
}

proptest! {
    #[test]
    fn all_kernels_give_the_same_bits(
        members in vec(any::<u64>(), 0..300),
        others in vec(any::<u64>(), 0..300),
        size in 0..SIZES.len(),
        before in vec(any::<u64>(), 10),
        group in 1usize..9,
        key: u64,
    ) {
        let size = SIZES[size];
        let reference = Kernel::portable();
        let blocks = filter_of(reference, size, &members);
        let more = filter_of(reference, size, &others);
        let probes = [members.clone(), others].concat();
        let answers = |kernel| {
            let mut plain = before.clone();
            probe::<false>(kernel, &blocks, &probes, &mut plain);
            let mut anded = before.clone();
            probe::<true>(kernel, &blocks, &probes, &mut anded);
            let mut merged = blocks.clone();
            merge(kernel, &mut merged, &more);
            let mut four = vec![Block::default(); size];
            merge_four(kernel, &mut four, [&blocks, &more, &blocks, &merged]);
            let mut folded = vec![Block::default(); size.div_ceil(group)];
            fold(kernel, &merged, group, &mut folded);
            let mut mixed = probes.clone();
            mix(kernel, &mut mixed, key);
            let numbers = (count_ones(kernel, &merged), sum_of_products(kernel, &merged).to_bits());
            (filter_of(kernel, size, &members), plain, anded, merged, four, folded, mixed, numbers)
        };
        let wanted = answers(reference);
        for kernel in Kernel::available() {
            prop_assert!(answers(kernel) == wanted, "{:?} differs", kernel);
        }
        // And the reference itself: AND is what it says.
        for (word, before) in before.iter().enumerate().take(probes.len().div_ceil(CHUNK)) {
            prop_assert_eq!(wanted.2[word], wanted.1[word] & before);
        }
    }
}
