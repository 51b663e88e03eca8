//! `RuntimeFilter::decode` on any input: no panic, no allocation beyond the limit, nothing accepted but
//! what `encode` writes.
//!
//! ```text
//! cargo +nightly fuzz run filter_decode -- -max_total_time=600 -malloc_limit_mb=8 -max_len=70000
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime_filter_core::RuntimeFilter;

mod sign;

fuzz_target!(|data: &[u8]| {
    check(data);
    if let Some(signed) = sign::outer(b"RFFL", data) {
        check(&signed);
        if let Some(signed) = sign::inner(b"RFFL", data) {
            check(&signed);
        }
        if let Some(signed) = sign::bounded(b"RFFL", data) {
            check(&signed);
        }
    }
});

fn check(bytes: &[u8]) {
    if let Ok(filter) = RuntimeFilter::decode(bytes, 1 << 16) {
        let mut again = Vec::new();
        filter.encode(&mut again);
        assert_eq!(again, bytes);
        assert_eq!(filter.byte_len(), bytes.len());
        let mut bitmap = Vec::new();
        filter.probe(&[0, u64::MAX, 1 << 32], &mut bitmap);
    }
}
