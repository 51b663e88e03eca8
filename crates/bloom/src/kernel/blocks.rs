//! Memory for blocks, aligned to cache lines.

use std::ops::{Deref, DerefMut};

use super::Block;

/// As many blocks as were asked for, the first at the start of a cache line: so that loads of 64 bytes,
/// which merging uses, touch one line each (measured: a quarter faster in the second-level cache).
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    // Invariant: `len` is at most twice the number of lines.
    lines: Vec<Line>,
    len: usize,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line([Block; 2]);

impl Blocks {
    /// `len` blocks without a bit set; `None` if the memory cannot be had.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(2)).ok()?;
        lines.resize(len.div_ceil(2), Line::default());
        Some(Self { lines, len })
    }
}

impl Deref for Blocks {
    type Target = [Block];

    fn deref(&self) -> &[Block] {
        // SAFETY: a line is two blocks, without padding as 2 * 32 = 64; there are enough of them by the
        // invariant; and they are borrowed as long as the result.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut [Block] {
        // SAFETY: as above, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Blocks {}
