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
    /// `h1 + i * h2 + (i^3 - i) / 6`, which has neither fault (Dillinger, Manolios: Bloom Filters in
    /// Probabilistic Verification, 2004).
    Enhanced,
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
    let bend = u64::from(probing == Probing::Enhanced);
    let mut step = 1 + scale(hash.rotate_left(32), len.saturating_sub(1));
    let mut next = scale(hash, len);
    (0..u64::from(count)).map(move |i| {
        let position = next;
        // Subtracting is cheaper than dividing, and mostly happens once or not at all.
        step += bend * i;
        while step >= len {
            step -= len;
        }
        next += step;
        if next >= len {
            next -= len;
        }
        position as usize
    })
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
    fn enhanced_positions_computed_by_hand() {
        // Steps 25, 26, 28, 31 from 50, and 1, 2, 4, 7, 11 from 0.
        let enhanced = |hash, len| positions(hash, len, 5, Probing::Enhanced).collect::<Vec<_>>();
        assert_eq!(enhanced(0x8000_0000_4000_0000, 100), [50, 75, 1, 29, 60]);
        assert_eq!(enhanced(0, 10), [0, 1, 3, 7, 4]);
        assert_eq!(enhanced(u64::MAX, 1), [0; 5]);
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
