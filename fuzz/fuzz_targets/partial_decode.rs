//! `Partial::decode` on any input: no panic, no allocation beyond the limit, nothing accepted but what
//! `encode` writes.
//!
//! ```text
//! cargo +nightly fuzz run partial_decode -- -max_total_time=600 -malloc_limit_mb=8 -max_len=70000
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime_filter_core::Partial;

mod sign;

fuzz_target!(|data: &[u8]| {
    check(data);
    if let Some(signed) = sign::outer(b"RFPT", data) {
        check(&signed);
        if let Some(signed) = sign::inner(b"RFPT", data) {
            check(&signed);
        }
        if let Some(signed) = sign::bounded(b"RFPT", data) {
            check(&signed);
        }
    }
});

fn check(bytes: &[u8]) {
    if let Ok(partial) = Partial::decode(bytes, 1 << 16) {
        let mut again = Vec::new();
        partial.encode(&mut again);
        assert_eq!(again, bytes);
        assert_eq!(partial.encoded_len(), bytes.len());
    }
}
