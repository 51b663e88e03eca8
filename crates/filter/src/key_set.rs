//! A set of 64-bit hashes.

/// Open addressing with linear probing over a power of two of slots, 0 marking a free one.
///
/// Members are hashes already, so their low bits pick the slot. Not the high bits: partials list their
/// hashes in ascending order, and filling a table in slot order makes it one long run.
#[derive(Debug, Clone)]
pub(crate) struct KeySet {
    slots: Vec<u64>,
    /// Members other than 0.
    len: usize,
    has_zero: bool,
}

impl KeySet {
    /// An empty set, at most half full once it holds `keys` hashes.
    pub(crate) fn with_capacity(keys: usize) -> Self {
        Self {
            slots: vec![0; keys.saturating_mul(2).next_power_of_two().max(16)],
            len: 0,
            has_zero: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len + usize::from(self.has_zero)
    }

    /// Bytes of memory held.
    pub(crate) fn byte_len(&self) -> usize {
        self.slots.len() * size_of::<u64>()
    }

    /// Position of `hash`, or of the free slot where it belongs. `hash` must not be 0.
    #[inline]
    fn slot(&self, hash: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        // Ends, as a quarter of the slots is free.
        while self.slots[at] != hash && self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    pub(crate) fn contains(&self, hash: u64) -> bool {
        if hash == 0 {
            return self.has_zero;
        }
        self.slots[self.slot(hash)] == hash
    }

    #[inline]
    pub(crate) fn insert(&mut self, hash: u64) {
        if hash == 0 {
            self.has_zero = true;
            return;
        }
        let at = self.slot(hash);
        if self.slots[at] == 0 {
            self.slots[at] = hash;
            self.len += 1;
            if self.len > self.slots.len() / 4 * 3 {
                self.grow();
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![0; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, larger);
        for hash in old.into_iter().filter(|&hash| hash != 0) {
            let at = self.slot(hash);
            self.slots[at] = hash;
        }
    }

    /// The members in no order.
    pub(crate) fn into_vec(mut self) -> Vec<u64> {
        self.slots.retain(|&hash| hash != 0);
        if self.has_zero {
            self.slots.push(0);
        }
        self.slots
    }
}

impl Extend<u64> for KeySet {
    fn extend<I: IntoIterator<Item = u64>>(&mut self, hashes: I) {
        for hash in hashes {
            self.insert(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(
            keys in vec(prop_oneof![any::<u64>(), 0u64..40, (0u64..40).prop_map(|k| k << 32)], 0..400),
            capacity in 0usize..50,
        ) {
            let mut set = KeySet::with_capacity(capacity);
            let wanted: BTreeSet<u64> = keys.iter().copied().collect();
            set.extend(keys.iter().copied());
            prop_assert_eq!(set.len(), wanted.len());
            for key in 0..80 {
                prop_assert_eq!(set.contains(key), wanted.contains(&key));
            }
            prop_assert!(keys.iter().all(|&key| set.contains(key)));
            let mut members = set.into_vec();
            members.sort_unstable();
            prop_assert_eq!(members, wanted.into_iter().collect::<Vec<_>>());
        }
    }
}
