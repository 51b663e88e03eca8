//! A checksum against accidents on the wire, not against forgery.

const LANE_SEEDS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0x3c6e_f372_fe94_f82a,
    0xdaa6_6d2c_7ddf_743f,
    0x78dd_e6e5_fd29_f054,
];
const STEP: u64 = 0xbf58_476d_1ce4_e5b9;

/// Checksum of `bytes`, chained onto `seed` (the checksum of what came before, or 0).
///
/// The input is read as little-endian 64-bit words, zero-padded at the end, dealt out to four lanes
/// so that the multiplications overlap. Each step of a lane (`rotl(lane ^ word, 29) * odd`) is a
/// bijection of the lane and of the word, and so is each step that joins the lanes: damage confined
/// to one aligned 8-byte word is always noticed, any other damage with probability 1 - 2^-64. The
/// length enters the sum, so padding cannot hide a truncation. The joining step is the finaliser of
/// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
pub fn checksum64(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = LANE_SEEDS;
    let (stripes, tail) = bytes.as_chunks::<32>();
    for stripe in stripes {
        absorb(&mut lanes, stripe);
    }
    if !tail.is_empty() {
        let mut last = [0u8; 32];
        last[..tail.len()].copy_from_slice(tail);
        absorb(&mut lanes, &last);
    }
    let start = finalise(seed ^ bytes.len() as u64);
    lanes
        .iter()
        .fold(start, |sum, lane| finalise(sum.wrapping_add(STEP) ^ lane))
}

#[inline]
fn absorb(lanes: &mut [u64; 4], stripe: &[u8; 32]) {
    for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
        *lane = (*lane ^ u64::from_le_bytes(*word))
            .rotate_left(29)
            .wrapping_mul(STEP);
    }
}

fn finalise(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_flipped_bit_changes_the_sum() {
        let bytes: Vec<u8> = (0..77).collect();
        let sum = checksum64(0, &bytes);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum64(0, &damaged), sum, "bit {bit}");
        }
    }

    #[test]
    fn zero_padding_is_not_invisible() {
        assert_ne!(checksum64(0, &[]), checksum64(0, &[0]));
        assert_ne!(checksum64(0, &[1]), checksum64(0, &[1, 0]));
        assert_ne!(checksum64(0, &[1]), checksum64(1, &[1]));
    }
}
