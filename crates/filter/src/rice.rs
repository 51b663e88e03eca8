//! Sorted hashes on the wire: the gaps between them, Golomb-Rice coded.
//!
//! A hash has 56 bits that matter (see [`hash`](crate::hash)): its high 24 and its low 32, joined to
//! one number in which order is kept. Of `n` ascending numbers `v_0 .. v_(n-1)` the gaps are
//! `g_0 = v_0` and `g_i = v_i - v_(i-1) - 1`, so that no repeated hash can be written. Each gap is
//! written as its quotient by `2^b` in unary (that many bits 0, then a 1), then its low `b` bits, the
//! lowest first. Bits fill bytes from the least significant up; those after the last gap are 0.
//!
//! # The parameter
//!
//! `b = floor(log2(floor(C / n)))`, 0 if `n > C`, with `C = floor(2^56 * 2 ln phi)` and `phi` the golden
//! ratio. Gaps of uniform hashes are geometric with mean `2^56 / n`, for which the codes of Golomb
//! (Run-length encodings, 1966) in the powers of two of Rice (Some practical universal noiseless coding
//! techniques, 1979) are the best prefix codes of their family; that the best `b` changes at
//! multiples of `2 ln phi = 0.962` of the mean is from Kiely (Selecting the Golomb parameter in Rice
//! coding, 2004, for large means).
//!
//! # The size
//!
//! A uniform gap takes `b + 1 / (1 - exp(-n 2^b / 2^56))` bits on average: 4.7 bytes a key at a million
//! keys, 5.9 at a thousand, within 0.15 bits of the entropy. Whatever the gaps are, they sum up to less
//! than `2^56`, so the quotients to at most `2^56 / 2^b < 2.08 n`, and the whole takes less than
//! `b + 3.08` bits a key: chosen keys cannot blow it up, and no escape is needed.

use crate::error::DecodeError;

/// Bits of a hash that are kept.
const BITS: u32 = 56;

/// The greatest number that a hash can be compacted to.
const MAX: u64 = (1 << BITS) - 1;

/// `floor(2^56 * 2 ln phi)`.
const THRESHOLD: u64 = 69_349_932_672_790_604;

/// Removes the bits that a hash never has, keeping the order of hashes.
#[inline]
fn compact(hash: u64) -> u64 {
    (hash >> 40 << 32) | (hash & 0xffff_ffff)
}

/// Reverses [`compact`].
#[inline]
fn expand(value: u64) -> u64 {
    (value >> 32 << 40) | (value & 0xffff_ffff)
}

/// Low bits of each gap in a list of `count` hashes: 0 to 55.
fn parameter(count: u64) -> u32 {
    (THRESHOLD / count.max(1)).checked_ilog2().unwrap_or(0)
}

/// The gaps. Wrapping only spares a panic path: the input ascends.
fn gaps(sorted: &[u64]) -> impl Iterator<Item = u64> {
    let mut next = 0u64;
    sorted.iter().map(move |&hash| {
        let value = compact(hash);
        let gap = value.wrapping_sub(next);
        next = value.wrapping_add(1);
        gap
    })
}

/// Bytes that [`write()`] appends.
pub(crate) fn encoded_len(sorted: &[u64]) -> usize {
    let count = sorted.len() as u64;
    let b = parameter(count);
    let unary: u64 = gaps(sorted).map(|gap| (gap >> b) + 1).sum();
    (count * u64::from(b) + unary).div_ceil(8) as usize
}

/// Bytes that `count` distinct uniform hashes are expected to take; see the [module](self).
pub(crate) fn expected_len(count: u64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    let b = parameter(count);
    let share = count as f64 * 2f64.powi(b as i32 - BITS as i32);
    let bits = f64::from(b) - 1.0 / (-share).exp_m1();
    count as f64 * bits / 8.0
}

/// Appends hashes, strictly ascending and without the bits that a hash never has, to `out`.
pub(crate) fn write(sorted: &[u64], out: &mut Vec<u8>) {
    let b = parameter(sorted.len() as u64);
    // `pending` bits, fewer than 64, wait in the low end of `word`.
    let (mut word, mut pending) = (0u64, 0u32);
    let mut put = |bits: u64, len: u32| {
        word |= bits << pending;
        pending += len;
        if pending >= 64 {
            out.extend_from_slice(&word.to_le_bytes());
            pending -= 64;
            // What did not fit. At most 63 bits come at a time, so this shifts by 1 to 63.
            word = bits >> (len - pending);
        }
    };
    for gap in gaps(sorted) {
        let mut zeros = gap >> b;
        while zeros >= 63 {
            put(0, 63);
            zeros -= 63;
        }
        put(1 << zeros, zeros as u32 + 1);
        put(gap & ((1 << b) - 1), b);
    }
    out.extend_from_slice(&word.to_le_bytes()[..pending.div_ceil(8) as usize]);
}

/// The 64 bits from bit `at` on, of which at least 57 are right; 0 past the end.
#[inline(always)]
fn window(bytes: &[u8], at: u64) -> u64 {
    let rest = bytes.get((at / 8) as usize..).unwrap_or_default();
    let word = match rest.first_chunk::<8>() {
        Some(eight) => u64::from_le_bytes(*eight),
        None => rest
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    word >> (at % 8)
}

/// Reads `count` hashes, which must fill `bytes`. Takes memory only once `bytes` could hold as many.
/// What it accepts, [`write()`] writes.
pub(crate) fn read(bytes: &[u8], count: u64) -> Result<Vec<u64>, DecodeError> {
    let b = parameter(count);
    let got = bytes.len() as u64;
    let needed = count.saturating_mul(u64::from(b) + 1).div_ceil(8);
    if needed > got {
        return Err(DecodeError::Truncated { needed, got });
    }
    // Past the end only zeros are read, which end no quotient: so the end is looked at once a quotient
    // is found to be long, and once all is read.
    let end = got.saturating_mul(8);
    let low_mask = (1u64 << b) - 1;
    let mut hashes = Vec::with_capacity(count as usize);
    // The least value that the next hash can have, at most 2^56.
    let (mut at, mut next) = (0u64, 0u64);
    for _ in 0..count {
        let mut bits = window(bytes, at);
        let mut quotient = 0u64;
        while bits & ((1 << 57) - 1) == 0 {
            quotient += 57;
            at += 57;
            if at >= end {
                return Err(DecodeError::Malformed("fewer hashes than announced"));
            }
            if quotient > MAX >> b {
                return Err(DecodeError::Malformed("a hash of more than 56 bits"));
            }
            bits = window(bytes, at);
        }
        let zeros = bits.trailing_zeros();
        quotient += u64::from(zeros);
        at += u64::from(zeros) + 1;
        let low = if zeros + 1 + b <= 57 {
            bits >> zeros >> 1
        } else {
            window(bytes, at)
        } & low_mask;
        at += u64::from(b);
        // At most 2^56 + 57 * 2^55, plus 2^55, plus 2^56: no overflow.
        let value = (quotient << b) + low + next;
        if value > MAX {
            return Err(DecodeError::Malformed("a hash of more than 56 bits"));
        }
        hashes.push(expand(value));
        next = value + 1;
    }
    if at > end {
        return Err(DecodeError::Malformed("fewer hashes than announced"));
    }
    if end - at >= 8 {
        return Err(DecodeError::Malformed("bytes after the last hash"));
    }
    if end > at && window(bytes, at) != 0 {
        return Err(DecodeError::Malformed("padding that is not zero"));
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::hash::canonical;
    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn encode(sorted: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        write(sorted, &mut out);
        out
    }

    fn uniform(count: u64) -> Vec<u64> {
        let hash = |i: u64| rapidhash::v3::rapidhash_v3(&i.to_le_bytes());
        let keys: BTreeSet<u64> = (0..count).map(|i| canonical(hash(i))).collect();
        keys.into_iter().collect()
    }

    /// The format once more, bit by bit.
    fn slow_encode(sorted: &[u64]) -> Vec<u8> {
        let n = sorted.len() as f64;
        let ratio = 2f64.powi(56) * 2.0 * ((1.0 + 5f64.sqrt()) / 2.0).ln() / n;
        let b = ratio.log2().floor() as u32;
        let mut bits = Vec::new();
        let mut last = -1i64;
        for hash in sorted {
            let value = i64::try_from((hash >> 40) * (1 << 32) + hash % (1 << 32)).unwrap();
            let gap = value - last - 1;
            bits.extend(std::iter::repeat_n(false, (gap >> b) as usize));
            bits.push(true);
            bits.extend((0..b).map(|bit| gap >> bit & 1 == 1));
            last = value;
        }
        let byte = |eight: &[bool]| (0..eight.len()).map(|i| u8::from(eight[i]) << i).sum();
        bits.chunks(8).map(byte).collect()
    }

    #[test]
    fn bytes_are_as_documented() {
        assert!(encode(&[]).is_empty());
        // One hash has b = 55: no zero, the one, then 55 bits.
        assert_eq!(encode(&[0]), [1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(&[3]), [7, 0, 0, 0, 0, 0, 0]);
        // All of 56 bits: one zero, the one, 55 bits.
        let most = canonical(u64::MAX);
        assert_eq!(encode(&[most]), [254, 255, 255, 255, 255, 255, 255, 1]);
        // Two have b = 54; the second is next to the first.
        let two = [0, 1];
        assert_eq!(encode(&two), [1, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        for sorted in [uniform(300), uniform(1), (0..1000).collect()] {
            assert_eq!(encode(&sorted), slow_encode(&sorted));
        }
    }

    #[test]
    fn the_parameter_is_that_of_the_formula() {
        let wanted = [
            (0, 55),
            (1, 55),
            (2, 54),
            (3, 54),
            (4, 53),
            (1000, 45),
            (1_000_000, 36),
            (1 << 55, 0),
            (THRESHOLD, 0),
            (u64::MAX, 0),
        ];
        for (count, b) in wanted {
            assert_eq!(parameter(count), b, "{count}");
        }
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        let malformed = |bytes: &[u8], count, why| {
            assert_eq!(read(bytes, count), Err(DecodeError::Malformed(why)));
        };
        let one = encode(&[3]);
        malformed(&[&one[..], &[0]].concat(), 1, "bytes after the last hash");
        malformed(&[7, 0, 0, 0, 0, 0, 0, 1], 1, "bytes after the last hash");
        // A quotient of 1 leaves 7 bits of padding, one of 2 is beyond 56 bits.
        let mut two = encode(&[1 << 63]);
        assert_eq!(two, [2, 0, 0, 0, 0, 0, 0, 0]);
        two[7] = 2;
        malformed(&two, 1, "padding that is not zero");
        malformed(&[4, 0, 0, 0, 0, 0, 0, 0], 1, "a hash of more than 56 bits");
        // The largest hash has no successor.
        let bits: u128 = 1 << 3 | ((1 << 54) - 1) << 4 | 1 << 58;
        malformed(&bits.to_le_bytes()[..15], 2, "a hash of more than 56 bits");
        // No one anywhere, and a one too few bits before the end.
        malformed(&[0; 7], 1, "fewer hashes than announced");
        malformed(&[0; 100], 2, "a hash of more than 56 bits");
        malformed(&[2, 0, 0, 0, 0, 0, 0], 1, "fewer hashes than announced");
        malformed(&[0], 0, "bytes after the last hash");
        let needed = 7;
        let truncated = DecodeError::Truncated { needed, got: 6 };
        assert_eq!(read(&one[..6], 1), Err(truncated));
        for count in [1 << 40, 1 << 56, u64::MAX] {
            let error = read(&one, count).unwrap_err();
            assert!(matches!(error, DecodeError::Truncated { .. }), "{error}");
        }
    }

    #[test]
    fn expected_len_is_within_one_per_cent_for_hashes() {
        for (count, bytes_a_key) in [(1_000, 5.95), (100_000, 5.11), (1_000_000, 4.70)] {
            let got = encode(&uniform(count)).len() as f64;
            let ratio = got / expected_len(count);
            assert!((ratio - 1.0).abs() < 0.01, "{count}: {ratio}");
            assert!((got / count as f64 / bytes_a_key - 1.0).abs() < 0.01);
        }
        assert_eq!(expected_len(0), 0.0);
        // It ascends, so that it can be searched.
        let lens: Vec<f64> = (0..3000).map(expected_len).collect();
        assert!(lens.is_sorted());
    }

    #[test]
    fn no_choice_of_hashes_takes_more_than_the_bound() {
        let values: [fn(u64, u64) -> u64; 5] = [
            |i, _| i,                                           // all at the bottom
            |i, n| (1 << BITS) - n + i,                         // all at the top
            |i, n| if i + 1 < n { i } else { (1 << BITS) - 1 }, // one long gap
            |i, n| if 2 * i < n { i } else { (1 << BITS) - n + i },
            |i, n| ((1 << BITS) - 1) / n * (i + 1), // all gaps equal, and as long as can be
        ];
        for n in [1u64, 2, 3, 100, 721, 4096, 100_000] {
            for value in values {
                let sorted: Vec<u64> = (0..n).map(|i| expand(value(i, n))).collect();
                let bytes = encode(&sorted);
                assert_eq!(bytes.len(), encoded_len(&sorted));
                let bits = (f64::from(parameter(n)) + 3.08) * n as f64;
                assert!(bytes.len() as f64 <= bits / 8.0 + 1.0, "{n}");
                assert_eq!(read(&bytes, n).unwrap(), sorted);
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(keys in btree_set(prop_oneof![any::<u64>(), 0u64..300, Just(u64::MAX)], 0..200)) {
            let keys: BTreeSet<u64> = keys.into_iter().map(canonical).collect();
            let sorted: Vec<u64> = keys.into_iter().collect();
            let bytes = encode(&sorted);
            prop_assert_eq!(bytes.len(), encoded_len(&sorted));
            prop_assert_eq!(&bytes, &slow_encode(&sorted));
            prop_assert_eq!(read(&bytes, sorted.len() as u64).unwrap(), sorted);
        }

        #[test]
        fn no_input_panics_and_what_is_read_is_what_would_be_written(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(1)], 0..100),
            count in 0u64..20,
        ) {
            if let Ok(hashes) = read(&bytes, count) {
                prop_assert_eq!(encode(&hashes), bytes);
            }
        }

        /// Random bytes are hardly ever a list: damage one instead.
        #[test]
        fn a_damaged_list_is_refused_or_another_list(
            keys in btree_set(any::<u64>(), 1..50),
            flip in any::<usize>(),
            cut in 0usize..3,
        ) {
            let keys: BTreeSet<u64> = keys.into_iter().map(canonical).collect();
            let sorted: Vec<u64> = keys.into_iter().collect();
            let mut bytes = encode(&sorted);
            let bit = flip % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.truncate(bytes.len() - cut);
            if let Ok(hashes) = read(&bytes, sorted.len() as u64) {
                prop_assert!(hashes.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(hashes.iter().all(|&hash| hash == canonical(hash)));
                prop_assert_eq!(encode(&hashes), bytes);
            }
        }
    }
}
