//! Sorted hashes on the wire: the first as it is, then the differences, each as a LEB128 varint.

use crate::error::DecodeError;

/// Bytes that a varint takes.
fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// First value, then differences. Wrapping only spares a panic path: the input ascends.
fn deltas(sorted: &[u64]) -> impl Iterator<Item = u64> {
    let first = sorted.first().copied();
    first
        .into_iter()
        .chain(sorted.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])))
}

/// Bytes that [`write()`] appends.
pub(crate) fn encoded_len(sorted: &[u64]) -> usize {
    deltas(sorted).map(varint_len).sum()
}

/// Bytes that `count` distinct uniform hashes are expected to take.
///
/// Their differences are close to exponentially distributed with mean `2^64 / count`; a varint has a
/// byte more for each power of `2^7` that its value reaches, so the expected length is
/// `1 + sum over j from 1 to 9 of exp(-2^(7j) * count / 2^64)` bytes a hash: 6.8 at a million.
pub(crate) fn expected_len(count: u64) -> f64 {
    let density = count as f64 / 2f64.powi(64);
    let more: f64 = (1..10).map(|j| (-(2f64.powi(7 * j)) * density).exp()).sum();
    count as f64 * (1.0 + more)
}

/// Appends strictly ascending hashes to `out`.
pub(crate) fn write(sorted: &[u64], out: &mut Vec<u8>) {
    for mut delta in deltas(sorted) {
        while delta >= 0x80 {
            out.push(delta as u8 | 0x80);
            delta >>= 7;
        }
        out.push(delta as u8);
    }
}

/// Reads `count` hashes, which must fill `bytes`. Takes memory only once `bytes` could hold as many.
pub(crate) fn read(bytes: &[u8], count: u64) -> Result<Vec<u64>, DecodeError> {
    let got = bytes.len() as u64;
    if count > got {
        return Err(DecodeError::Truncated { needed: count, got });
    }
    let mut hashes = Vec::with_capacity(count as usize);
    let mut rest = bytes;
    let mut last = None;
    for _ in 0..count {
        let delta = read_varint(&mut rest)?;
        let hash = match last {
            None => delta,
            Some(_) if delta == 0 => return Err(DecodeError::Malformed("a repeated hash")),
            Some(last) => delta
                .checked_add(last)
                .ok_or(DecodeError::Malformed("a hash of more than 64 bits"))?,
        };
        hashes.push(hash);
        last = Some(hash);
    }
    if !rest.is_empty() {
        return Err(DecodeError::Malformed("bytes after the last hash"));
    }
    Ok(hashes)
}

fn read_varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, tail)) = rest.split_first() else {
            return Err(DecodeError::Malformed("fewer hashes than announced"));
        };
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
            break;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Malformed("a varint no encoder writes"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    fn encode(sorted: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        write(sorted, &mut out);
        out
    }

    #[test]
    fn bytes_are_as_documented() {
        assert!(encode(&[]).is_empty());
        assert_eq!(encode(&[0, 1, 129, 429]), [0, 1, 0x80, 1, 0xac, 2]);
        assert_eq!(
            encode(&[u64::MAX]),
            [255, 255, 255, 255, 255, 255, 255, 255, 255, 1]
        );
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        for (bytes, count) in [
            (&[1u8, 0][..], 2u64),                                        // repeated
            (&[1, 1], 1),                                                 // too long
            (&[1], 2),                                                    // too short
            (&[0x80], 1),                                                 // cut off
            (&[0x80, 0], 1),                                              // not minimal
            (&[255, 255, 255, 255, 255, 255, 255, 255, 255, 2], 1),       // 65 bits
            (&[255, 255, 255, 255, 255, 255, 255, 255, 255, 0x81, 0], 1), // 11 bytes
            (&[255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1], 2),    // sum of 65 bits
            (&[1], u64::MAX),
        ] {
            assert!(read(bytes, count).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn expected_len_is_within_one_per_cent_for_hashes() {
        for count in [1_000u64, 100_000] {
            let mut hashes: Vec<u64> = (0..count)
                .map(|i| rapidhash::v3::rapidhash_v3(&i.to_le_bytes()))
                .collect();
            hashes.sort_unstable();
            let ratio = encoded_len(&hashes) as f64 / expected_len(count);
            assert!((ratio - 1.0).abs() < 0.01, "{count}: {ratio}");
        }
        assert_eq!(expected_len(0), 0.0);
    }

    proptest! {
        #[test]
        fn round_trip(keys in btree_set(prop_oneof![any::<u64>(), 0u64..300], 0..200)) {
            let sorted: Vec<u64> = keys.into_iter().collect();
            let bytes = encode(&sorted);
            prop_assert_eq!(bytes.len(), encoded_len(&sorted));
            prop_assert_eq!(read(&bytes, sorted.len() as u64).unwrap(), sorted);
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100), count in 0u64..110) {
            if let Ok(hashes) = read(&bytes, count) {
                prop_assert_eq!(encode(&hashes), bytes);
            }
        }
    }
}
