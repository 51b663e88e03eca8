//! What the filters have in common.

use crate::error::InsertError;

/// A set of keys that answers "absent" or "maybe present", and never "absent" for a key it holds.
///
/// Keys are given by their 64-bit hashes, which must be well mixed in all bits: with others the
/// filters answer correctly, but with more false positives than [`expected_fpp`](Self::expected_fpp).
pub trait Membership {
    /// The usual name of this kind of filter.
    fn name(&self) -> &'static str;

    /// The parameters that its size was turned into, for people: `"k = 7"`.
    fn shape(&self) -> String;

    /// Adds a key.
    ///
    /// # Errors
    ///
    /// [`InsertError`] from filters that can be full or must grow. The filter is then unchanged.
    fn insert(&mut self, hash: u64) -> Result<(), InsertError>;

    /// Whether the key may be present; `false` is certain.
    fn contains(&self, hash: u64) -> bool;

    /// How many of `hashes` may be present. For filters that are faster on batches than on keys.
    fn count_contained(&self, hashes: &[u64]) -> usize {
        hashes.iter().filter(|&&hash| self.contains(hash)).count()
    }

    /// Memory of the content in bytes, without what an allocation or the struct itself adds.
    fn byte_len(&self) -> usize;

    /// The false positive probability (0 to 1) by the formula for this kind, when it holds `items`
    /// distinct keys. It knows nothing of what was really inserted.
    fn expected_fpp(&self, items: u64) -> f64;
}

/// A [`Membership`] that can forget keys.
pub trait Removable: Membership {
    /// Removes one insertion of a key; `false`, and nothing changed, if it is certainly absent.
    ///
    /// Only remove keys that were inserted. Removing a false positive takes away what belongs to
    /// other keys, which may then be denied: no filter can tell.
    fn remove(&mut self, hash: u64) -> bool;
}
