//! `BloomFilter::from_bytes` on any input: no panic, no allocation beyond the limit (the command's
//! `-malloc_limit_mb`), nothing accepted but what `to_bytes` writes.
//!
//! ```text
//! cargo +nightly fuzz run bloom_from_bytes -- -max_total_time=600 -malloc_limit_mb=4 -max_len=70000
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime_filter_bloom::{BloomFilter, HEADER_LEN, checksum64};

const LIMIT: usize = 1 << 20;
/// Bytes of the header in front of its checksum.
const CHECKED: usize = HEADER_LEN - 8;

fuzz_target!(|data: &[u8]| {
    accepted_only_if_canonical(data);
    // A random input has the right checksum once in 2^64: give it one, to see what lies behind.
    let mut signed = data.to_vec();
    if signed.len() < HEADER_LEN {
        return;
    }
    signed[..8].copy_from_slice(b"RFBF\x02\0\0\0");
    let sum = checksum64(checksum64(0, &signed[..CHECKED]), &signed[HEADER_LEN..]);
    signed[CHECKED..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
    if accepted_only_if_canonical(&signed) {
        // A wrong checksum on something otherwise right.
        signed[CHECKED + usize::from(data[0] % 8)] ^= 1 << (data[1] % 8);
        assert!(BloomFilter::from_bytes(&signed, LIMIT).is_err());
    }
});

fn accepted_only_if_canonical(bytes: &[u8]) -> bool {
    let Ok(filter) = BloomFilter::from_bytes(bytes, LIMIT) else {
        return false;
    };
    assert!(filter.byte_len() <= LIMIT);
    assert_eq!(filter.to_bytes(), bytes);
    let mut bitmap = [0];
    assert!(filter.probe_hashes(&[0, u64::MAX, 1 << 32], &mut bitmap).is_ok());
    assert!((0.0..=1.0).contains(&filter.estimated_fpp()));
    true
}
