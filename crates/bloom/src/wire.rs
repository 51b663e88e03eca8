//! The encoded form of a filter, version 2. All integers are little-endian.
//!
//! | offset | bytes | content |
//! |-------:|------:|---------|
//! | 0      | 4     | magic `RFBF` |
//! | 4      | 2     | version, 2 |
//! | 6      | 2     | reserved, 0 |
//! | 8      | 4     | number of blocks `n` |
//! | 12     | 4     | hash scheme |
//! | 16     | 8     | hash seed |
//! | 24     | 8     | [`checksum64`] of the payload, chained onto that of bytes 0 to 23 |
//! | 32     | 32 n  | payload: the blocks in order, each as eight lanes of 32 bits |

use crate::checksum::checksum64;
use crate::error::BloomError;
use crate::filter::{BloomFilter, HashId};
use crate::geometry;
use crate::kernel::BLOCK_BYTES;

/// Bytes that the encoded form adds to [`BloomFilter::byte_len`].
pub const HEADER_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"RFBF";
const VERSION: u16 = 2;
/// The part of the header that the checksum covers.
const CHECKED_LEN: usize = 24;

impl BloomFilter {
    /// The encoded form: a header of [`HEADER_LEN`] bytes, then [`byte_len`](Self::byte_len) bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out);
        out
    }

    /// Appends the encoded form to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.reserve(HEADER_LEN + self.byte_len());
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.blocks().to_le_bytes());
        out.extend_from_slice(&self.hash_id().scheme.to_le_bytes());
        out.extend_from_slice(&self.hash_id().seed.to_le_bytes());
        let header_sum = checksum64(0, &out[start..]);
        // Room for the checksum, which is known only once the payload is written.
        out.extend_from_slice(&[0; 8]);
        let payload = out.len();
        for block in self.as_blocks() {
            let mut bytes = [0u8; BLOCK_BYTES];
            for (four, lane) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(block.0) {
                *four = lane.to_le_bytes();
            }
            out.extend_from_slice(&bytes);
        }
        let sum = checksum64(header_sum, &out[payload..]);
        out[start + CHECKED_LEN..payload].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote. Any input is safe: all is checked before any
    /// memory is taken. The filter may take `max_bytes` bytes at most, its header not counted.
    ///
    /// # Errors
    ///
    /// [`BloomError::Magic`], [`Version`](BloomError::Version), [`Reserved`](BloomError::Reserved),
    /// [`IllegalBlocks`](BloomError::IllegalBlocks), [`TooLarge`](BloomError::TooLarge),
    /// [`Length`](BloomError::Length) or [`Checksum`](BloomError::Checksum), by what is wrong with the
    /// input; [`BloomError::OutOfMemory`] if the memory cannot be had.
    pub fn from_bytes(bytes: &[u8], max_bytes: usize) -> Result<Self, BloomError> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(BloomError::Length {
                expected: HEADER_LEN as u64,
                got: bytes.len(),
            });
        };
        let words = header.as_chunks::<8>().0;
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let [m0, m1, m2, m3, v0, v1, r0, r1] = words[0];
        if [m0, m1, m2, m3] != MAGIC {
            return Err(BloomError::Magic);
        }
        let found = u16::from_le_bytes([v0, v1]);
        if found != VERSION {
            return Err(BloomError::Version {
                found,
                supported: VERSION,
            });
        }
        if [r0, r1] != [0; 2] {
            return Err(BloomError::Reserved);
        }
        let blocks = word(1) as u32;
        let hash_id = HashId {
            scheme: (word(1) >> 32) as u32,
            seed: word(2),
        };
        if !geometry::is_legal(blocks) {
            return Err(BloomError::IllegalBlocks { blocks });
        }
        let size = u64::from(blocks) * BLOCK_BYTES as u64;
        if size > max_bytes as u64 {
            return Err(BloomError::TooLarge {
                bytes: size,
                limit: max_bytes,
            });
        }
        if payload.len() as u64 != size {
            return Err(BloomError::Length {
                expected: HEADER_LEN as u64 + size,
                got: bytes.len(),
            });
        }
        let header_sum = checksum64(0, &header[..CHECKED_LEN]);
        if checksum64(header_sum, payload) != word(3) {
            return Err(BloomError::Checksum);
        }
        let mut filter = Self::with_blocks(blocks, hash_id)?;
        let content = payload.as_chunks::<BLOCK_BYTES>().0;
        for (block, bytes) in filter.as_blocks_mut().iter_mut().zip(content) {
            for (lane, four) in block.0.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *lane = u32::from_le_bytes(*four);
            }
        }
        Ok(filter)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ID: HashId = HashId {
        scheme: 0x0403_0201,
        seed: 0x0807_0605_0403_0201,
    };

    fn sample(blocks: u32) -> BloomFilter {
        let mut filter = BloomFilter::with_blocks(blocks, ID).unwrap();
        filter.insert_hashes(&[0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
        filter
    }

    #[test]
    fn the_layout_is_as_documented() {
        let mut filter = BloomFilter::with_blocks(2, ID).unwrap();
        filter.insert_hashes(&[0x8000_0000_0000_0001]);
        let bytes = filter.to_bytes();
        assert_eq!(bytes.len(), HEADER_LEN + 64);
        assert_eq!(&bytes[..12], b"RFBF\x02\0\0\0\x02\0\0\0");
        assert_eq!(&bytes[12..24], [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(bytes[32..64].iter().all(|&byte| byte == 0));
        assert_eq!(&bytes[64..72], [0, 1, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn each_fault_has_its_own_error() {
        let good = sample(4).to_bytes();
        let damaged = |at: usize, with: u8| {
            let mut bytes = good.clone();
            bytes[at] = with;
            BloomFilter::from_bytes(&bytes, 1 << 20).unwrap_err()
        };
        assert_eq!(damaged(0, b'X'), BloomError::Magic);
        assert_eq!(
            damaged(4, 1),
            BloomError::Version {
                found: 1,
                supported: 2
            }
        );
        assert_eq!(damaged(6, 1), BloomError::Reserved);
        assert_eq!(damaged(7, 1), BloomError::Reserved);
        assert_eq!(damaged(8, 9), BloomError::IllegalBlocks { blocks: 9 });
        assert_eq!(
            damaged(8, 5),
            BloomError::Length {
                expected: 192,
                got: 160
            }
        );
        for (at, byte) in good.iter().enumerate().skip(12).take(12) {
            assert_eq!(damaged(at, !byte), BloomError::Checksum, "hash id");
        }
        assert_eq!(damaged(24, !good[24]), BloomError::Checksum);
        assert_eq!(damaged(40, !good[40]), BloomError::Checksum);
        assert_eq!(
            BloomFilter::from_bytes(&good, 127).unwrap_err(),
            BloomError::TooLarge {
                bytes: 128,
                limit: 127
            }
        );
        assert!(BloomFilter::from_bytes(&good, 128).is_ok());
    }

    #[test]
    fn a_huge_announced_size_takes_no_memory() {
        let mut bytes = sample(1).to_bytes();
        bytes[8..12].copy_from_slice(&(7u32 << 29).to_le_bytes());
        assert!(matches!(
            BloomFilter::from_bytes(&bytes, usize::MAX),
            Err(BloomError::Length { .. })
        ));
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_an_error() {
        let good = sample(3).to_bytes();
        for len in 0..good.len() {
            assert!(BloomFilter::from_bytes(&good[..len], 1 << 20).is_err());
        }
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                BloomFilter::from_bytes(&bytes, 1 << 20).is_err(),
                "bit {bit}"
            );
        }
        let longer = [good, vec![0]].concat();
        assert!(BloomFilter::from_bytes(&longer, 1 << 20).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(keys in vec(any::<u64>(), 0..300), shape in 4u32..8, scale in 0u32..6, prefix in vec(any::<u8>(), 0..9)) {
            let mut filter = BloomFilter::with_blocks(shape << scale, ID).unwrap();
            filter.insert_hashes(&keys);
            let mut out = prefix.clone();
            filter.write_to(&mut out);
            prop_assert_eq!(&out[..prefix.len()], &prefix);
            let decoded = BloomFilter::from_bytes(&out[prefix.len()..], filter.byte_len()).unwrap();
            prop_assert_eq!(decoded, filter);
        }

        #[test]
        fn no_input_panics(bytes in vec(any::<u8>(), 0..200), blocks in 0u32..9) {
            let _ = BloomFilter::from_bytes(&bytes, 1 << 20);
            let mut framed = sample(1).to_bytes();
            framed.truncate(8);
            framed.extend_from_slice(&blocks.to_le_bytes());
            framed.extend_from_slice(&[0; 12]);
            framed.extend_from_slice(&bytes);
            prop_assert!(BloomFilter::from_bytes(&framed, 1 << 20).is_err());
        }
    }
}
