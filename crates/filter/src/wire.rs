//! The frame that partials and filters share, version 2. All integers are little-endian.
//!
//! | offset | bytes | content |
//! |-------:|------:|---------|
//! | 0      | 4     | magic |
//! | 4      | 2     | version, 2 |
//! | 6      | 1     | kind of body |
//! | 7      | 1     | flags: 1 if a row had a NULL key, 2 if [bounds](crate::bounds) come before the body |
//! | 8      | 4     | hash scheme |
//! | 12     | 4     | partial: cap in blocks; filter: 0 |
//! | 16     | 8     | rows |
//! | 24     | 8     | distinct keys |
//! | 32     | 8     | hash seed |
//! | 40     | 8     | `checksum64` of all that follows, chained onto that of bytes 0 to 39 |
//! | 48     |       | bounds, if any, and body |

use runtime_filter_bloom::checksum64;

use crate::bounds::KeyBounds;
use crate::error::DecodeError;
use crate::hash::HASH_SCHEME;

/// Bytes in front of the body.
pub(crate) const HEADER_LEN: usize = 48;

const VERSION: u16 = 2;
const CHECKED_LEN: usize = 40;
const HAS_NULL: u8 = 1;
const HAS_BOUNDS: u8 = 2;

/// What the header says, magic, version and scheme apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) has_null: bool,
    pub(crate) cap_blocks: u32,
    pub(crate) rows: u64,
    pub(crate) distinct: u64,
    pub(crate) seed: u64,
}

/// Appends a frame, its body written by `body`.
pub(crate) fn write(
    magic: [u8; 4],
    header: &Header,
    bounds: &KeyBounds,
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&magic);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let mut flags = 0;
    if header.has_null {
        flags |= HAS_NULL;
    }
    if bounds.columns().is_some() {
        flags |= HAS_BOUNDS;
    }
    out.extend_from_slice(&[header.kind, flags]);
    out.extend_from_slice(&HASH_SCHEME.to_le_bytes());
    out.extend_from_slice(&header.cap_blocks.to_le_bytes());
    for field in [header.rows, header.distinct, header.seed] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    let header_sum = checksum64(0, &out[start..]);
    // Room for the checksum, which is known only once the body is written.
    out.extend_from_slice(&[0; 8]);
    let payload = out.len();
    bounds.write(out);
    body(out);
    let sum = checksum64(header_sum, &out[payload..]);
    out[start + CHECKED_LEN..payload].copy_from_slice(&sum.to_le_bytes());
}

/// Checks a frame and splits it in header, bounds and body. Allocates nothing but the bounds, which
/// are small.
pub(crate) fn read<'a>(
    magic: [u8; 4],
    expected: &'static str,
    bytes: &'a [u8],
) -> Result<(Header, KeyBounds, &'a [u8]), DecodeError> {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(DecodeError::Truncated {
            needed: HEADER_LEN as u64,
            got: bytes.len() as u64,
        });
    };
    let words = header.as_chunks::<8>().0;
    let field = |word: usize| u64::from_le_bytes(words[word]);
    let [m0, m1, m2, m3, v0, v1, kind, flags] = words[0];
    if [m0, m1, m2, m3] != magic {
        return Err(DecodeError::Magic { expected });
    }
    let found = u16::from_le_bytes([v0, v1]);
    if found != VERSION {
        return Err(DecodeError::Version {
            found,
            supported: VERSION,
        });
    }
    let scheme = field(1) as u32;
    if scheme != HASH_SCHEME {
        return Err(DecodeError::HashScheme {
            found: scheme,
            supported: HASH_SCHEME,
        });
    }
    if checksum64(checksum64(0, &header[..CHECKED_LEN]), body) != field(5) {
        return Err(DecodeError::Checksum);
    }
    if flags > HAS_NULL | HAS_BOUNDS {
        return Err(DecodeError::Malformed("unknown flags"));
    }
    let header = Header {
        kind,
        has_null: flags & HAS_NULL != 0,
        cap_blocks: (field(1) >> 32) as u32,
        rows: field(2),
        distinct: field(3),
        seed: field(4),
    };
    let (bounds, body) = match (flags & HAS_BOUNDS != 0, header.rows) {
        (true, rows) => KeyBounds::read(body, rows)?,
        (false, 0) => (KeyBounds::NoRows, body),
        (false, _) => (KeyBounds::Unknown, body),
    };
    Ok((header, bounds, body))
}
