//! A checksum against accidents on the wire, not against forgery.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

/// Checksum of `bytes`, chained onto `seed` (the checksum of what came before, or 0).
///
/// It is rapidhash version 3 of Nicolas De Carli with its default secrets, the C function
/// `rapidhash_withSeed(bytes, length, seed)`: a hash of good quality that is the same on every
/// platform and runs at the speed of memory. Damage that does not know of it goes unnoticed once in
/// 2^64. The length enters the sum, so zeros at the end are not invisible.
pub fn checksum64(seed: u64, bytes: &[u8]) -> u64 {
    rapidhash_v3_seeded(bytes, &RapidSecrets::seed_cpp(seed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn one_and_two_flipped_bits_change_the_sum() {
        // Two cancelled each other in a sum of multiplications alone: bit 34 of one word against
        // bit 63 of the word 32 bytes on.
        let bytes: Vec<u8> = (0..77).collect();
        let sum = checksum64(0, &bytes);
        let flip = |bytes: &mut [u8], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
        let mut damaged = bytes.clone();
        for first in 0..bytes.len() * 8 {
            flip(&mut damaged, first);
            assert_ne!(checksum64(0, &damaged), sum, "bit {first}");
            for second in 0..first {
                flip(&mut damaged, second);
                assert_ne!(checksum64(0, &damaged), sum, "bits {second} and {first}");
                flip(&mut damaged, second);
            }
            flip(&mut damaged, first);
        }
    }

    #[test]
    fn zero_padding_is_not_invisible() {
        assert_ne!(checksum64(0, &[]), checksum64(0, &[0]));
        assert_ne!(checksum64(0, &[1]), checksum64(0, &[1, 0]));
        assert_ne!(checksum64(0, &[1]), checksum64(1, &[1]));
    }
}
