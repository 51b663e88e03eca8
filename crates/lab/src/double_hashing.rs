//! Many hashes out of one.

/// How the positions of a key follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probing {
    /// `h1 + i * h2` (Kirsch, Mitzenmacher: Less Hashing, Same Performance, 2006).
    ///
    /// Keys whose steps are alike share more positions than independent ones would, and a step that
    /// has a divisor in common with the table may come round. Measured, that adds up to about 1.5/m
    /// to the false positive probability.
    Double,
    /// A hash of its own for each position: the `i`-th output of splitmix64 seeded with the hash.
    ///
    /// Slower, and free of that fault: any two or three numbers per key give a table of `m` cells only
    /// so many different sets of positions, which shows in small tables of low probability.
    Independent,
}

/// The positions of a key in a table of `len` cells, modulo `len`, for `i` in `0..count`.
///
/// The high half of the hash leads in `h1` and the low half in `h2`, so that the two are
/// independent. `h2` is 1 to `len - 1`: a multiple of `len` would put all positions in one cell.
#[inline]
pub(crate) fn positions(
    hash: u64,
    len: u64,
    count: u32,
    probing: Probing,
) -> impl Iterator<Item = usize> {
    let step = 1 + scale(hash.rotate_left(32), len.saturating_sub(1));
    let mut next = scale(hash, len);
    (0..u64::from(count)).map(move |i| {
        if probing == Probing::Independent {
            return scale(splitmix(hash, i), len) as usize;
        }
        let position = next;
        // Subtracting is cheaper than dividing, and happens at most once.
        next += step;
        if next >= len {
            next -= len;
        }
        position as usize
    })
}

/// Output number `i` of splitmix64 (Steele, Lea, Flood, 2014) seeded with `hash`.
fn splitmix(hash: u64, i: u64) -> u64 {
    let mut x = hash.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// `hash` brought from 64 bits down to `0..range`, without a division; 0 if `range` is 0.
fn scale(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn all(hash: u64, len: u64, count: u32) -> Vec<usize> {
        positions(hash, len, count, Probing::Double).collect()
    }

    #[test]
    fn positions_computed_by_hand() {
        // h1 = 100 * 1/2 = 50; h2 = 1 + 99 * 1/4 = 25.
        assert_eq!(all(0x8000_0000_4000_0000, 100, 4), [50, 75, 0, 25]);
        assert_eq!(all(0, 100, 3), [0, 1, 2]);
        assert_eq!(all(u64::MAX, 100, 3), [99, 98, 97]);
        assert_eq!(all(u64::MAX, 1, 3), [0, 0, 0]);
    }

    #[test]
    fn independent_positions_are_those_of_splitmix() {
        // The published first outputs for seed 1234567, brought down to 0..2^32 by their high halves.
        let published = [
            6457827717110365317u64,
            3203168211198807973,
            9817491932198370423,
        ];
        let got: Vec<usize> = positions(1_234_567, 1 << 32, 3, Probing::Independent).collect();
        assert_eq!(got, published.map(|output| (output >> 32) as usize));
    }

    proptest! {
        #[test]
        fn positions_are_in_range_and_follow_the_formula(
            hash: u64,
            len in 1u64..1 << 34,
            count in 1u32..64,
        ) {
            let positions = all(hash, len, count);
            let step = positions.get(1).map_or(0, |&second| {
                (second as u64 + len - positions[0] as u64) % len
            });
            prop_assert!(len == 1 || count == 1 || step != 0);
            for (i, &position) in positions.iter().enumerate() {
                let wanted = (positions[0] as u128 + i as u128 * u128::from(step)) % u128::from(len);
                prop_assert_eq!(position as u128, wanted);
            }
        }
    }
}
