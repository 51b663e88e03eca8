//! Gives random bytes the magic, version, scheme and checksum of a frame: a random input gets past them
//! once in 2^64, and what lies behind is to be tested, too.

use runtime_filter_bloom::{HEADER_LEN as BLOOM_HEADER, checksum64};
use runtime_filter_core::HASH_SCHEME;

/// Bytes of a frame in front of its body, and of those in front of the checksum.
const HEADER: usize = 48;
const CHECKED: usize = 40;

/// `data` with the outer frame made right; `None` if it is too short for one.
pub fn outer(magic: &[u8; 4], data: &[u8]) -> Option<Vec<u8>> {
    let mut signed = data.to_vec();
    let header = signed.get_mut(..HEADER)?;
    header[..4].copy_from_slice(magic);
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[8..12].copy_from_slice(&HASH_SCHEME.to_le_bytes());
    let sum = checksum64(checksum64(0, &signed[..CHECKED]), &signed[HEADER..]);
    signed[CHECKED..HEADER].copy_from_slice(&sum.to_le_bytes());
    Some(signed)
}

/// As [`outer`], with the body made a Bloom filter.
pub fn inner(magic: &[u8; 4], data: &[u8]) -> Option<Vec<u8>> {
    let mut signed = data.to_vec();
    let seed: [u8; 8] = signed.get(32..40)?.try_into().ok()?;
    let body = signed.get_mut(HEADER..)?;
    let header = body.get_mut(..BLOOM_HEADER)?;
    header[..8].copy_from_slice(b"RFBF\x02\0\0\0");
    header[12..16].copy_from_slice(&HASH_SCHEME.to_le_bytes());
    header[16..24].copy_from_slice(&seed);
    let checked = BLOOM_HEADER - 8;
    let sum = checksum64(checksum64(0, &body[..checked]), &body[BLOOM_HEADER..]);
    body[checked..BLOOM_HEADER].copy_from_slice(&sum.to_le_bytes());
    outer(magic, &signed)
}

/// As [`outer`], with bounds in front of the body, of as many bytes as the input has or says.
pub fn bounded(magic: &[u8; 4], data: &[u8]) -> Option<Vec<u8>> {
    let mut signed = data.to_vec();
    let header = signed.get_mut(..HEADER)?;
    header[7] |= 2;
    let section = signed.get_mut(HEADER..)?;
    let there = section.len().checked_sub(2)?;
    let len = there.min(section[0].into());
    section[..2].copy_from_slice(&(len as u16).to_le_bytes());
    outer(magic, &signed)
}
