//! What one build partition saw: its distinct key hashes, exactly while they are few.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use runtime_filter_bloom::{BloomError, BloomFilter, HashId, geometry};

use crate::bounds::{ColumnBounds, KeyBounds};
use crate::error::DecodeError;
use crate::hash::{HASH_SCHEME, canonical_slice};
use crate::key_set::KeySet;
use crate::rice;
use crate::wire::{self, Header};

const MAGIC: [u8; 4] = *b"RFPT";
const SPARSE: u8 = 0;
const DENSE: u8 = 1;

/// Hashes taken in before the size is looked at again.
const CHUNK: usize = 4096;

/// Most distinct hashes whose list is expected to be no longer on the wire than a Bloom filter of
/// `cap_blocks` blocks.
fn max_sparse_keys(cap_blocks: u32) -> u64 {
    let dense = geometry_bytes(cap_blocks);
    // A hash takes a byte at least, unless there are 2^49 of them.
    let (mut low, mut high) = (0, dense);
    while low < high {
        let middle = high - (high - low) / 2;
        if rice::expected_len(middle) <= dense as f64 {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The hash function of this build with that seed.
pub(crate) fn hash_id(seed: u64) -> HashId {
    HashId {
        scheme: HASH_SCHEME,
        seed,
    }
}

/// Whether a filter that came in a frame is of the hash function that the frame names.
pub(crate) fn check_hash_id(filter: &BloomFilter, seed: u64) -> Result<(), DecodeError> {
    if filter.hash_id() != hash_id(seed) {
        return Err(DecodeError::Malformed(
            "a Bloom filter of another hash scheme or seed than its frame",
        ));
    }
    Ok(())
}

fn geometry_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * 32
}

/// Collects the key hashes of one build partition, or of many partials.
///
/// Holds the distinct hashes in a set, until a list of them would be longer on the wire than a Bloom
/// filter of the cap size; then in such a filter. So memory is bounded however many rows come, by about
/// five times the cap (seven for the moment in which the set grows), and rows that repeat a key take
/// none.
///
/// ```
/// use runtime_filter_core::PartialBuilder;
///
/// let mut builder = PartialBuilder::new(1 << 10, 42);
/// builder.insert(&[7, 8, 7], None)?;
/// let partial = builder.finish();
/// assert_eq!((partial.rows(), partial.distinct_keys()), (3, 2));
/// # Ok::<(), runtime_filter_core::BloomError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PartialBuilder {
    rows: u64,
    has_null: bool,
    cap_blocks: u32,
    max_sparse: u64,
    seed: u64,
    bounds: KeyBounds,
    state: State,
    /// Hashes of the rows without NULL, of one batch.
    valid: Vec<u64>,
}

#[derive(Debug, Clone)]
enum State {
    Sparse(KeySet),
    Dense(BloomFilter),
}

impl PartialBuilder {
    /// A builder whose dense form has `cap_blocks` blocks of 32 bytes, rounded down to a legal size.
    ///
    /// All partials to be merged need the same cap. It must suit all their keys together, as filters
    /// sized for a share each saturate when merged; the result is folded down to what it needs. They
    /// need the same `seed`, too: that of the [`KeyHasher`](crate::KeyHasher).
    pub fn new(cap_blocks: u32, seed: u64) -> Self {
        let cap_blocks = geometry::largest_at_most(cap_blocks);
        Self {
            rows: 0,
            has_null: false,
            cap_blocks,
            max_sparse: max_sparse_keys(cap_blocks),
            seed,
            bounds: KeyBounds::NoRows,
            state: State::Sparse(KeySet::with_capacity(0)),
            valid: Vec::new(),
        }
    }

    /// Adds the rows of one batch, as [`KeyHasher::hash_batch`](crate::KeyHasher::hash_batch) gave
    /// them. Rows with a NULL are counted and remembered, but add no key. A row that `validity` is too
    /// short to speak of is taken as valid: a key too many is safe. From hashes of other sources the bits
    /// that a hash never has are removed, as [`RuntimeFilter::probe`](crate::RuntimeFilter::probe) does.
    ///
    /// Nothing is then known of the bounds of the keys: to have them,
    /// [`insert_batch`](Self::insert_batch).
    ///
    /// # Errors
    ///
    /// [`BloomError::OutOfMemory`] if the dense form cannot be had; the builder is then of no use, and
    /// its keys incomplete.
    pub fn insert(
        &mut self,
        hashes: &[u64],
        validity: Option<&NullBuffer>,
    ) -> Result<(), BloomError> {
        if !hashes.is_empty() {
            self.bounds = KeyBounds::Unknown;
        }
        self.insert_rows(hashes, validity)
    }

    /// As [`insert`](Self::insert), and takes in the bounds of `columns`, the key columns that were
    /// hashed.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn insert_batch(
        &mut self,
        columns: &[ArrayRef],
        hashes: &[u64],
        validity: Option<&NullBuffer>,
    ) -> Result<(), BloomError> {
        if columns.is_empty() || columns.iter().any(|column| column.len() != hashes.len()) {
            return self.insert(hashes, validity);
        }
        if !hashes.is_empty() {
            let rows = self.rows.saturating_add(hashes.len() as u64);
            self.bounds.observe(columns, rows);
        }
        self.insert_rows(hashes, validity)
    }

    fn insert_rows(
        &mut self,
        hashes: &[u64],
        validity: Option<&NullBuffer>,
    ) -> Result<(), BloomError> {
        self.rows = self.rows.saturating_add(hashes.len() as u64);
        match validity.filter(|nulls| nulls.null_count() > 0) {
            None => self.insert_keys(hashes),
            Some(nulls) => {
                let mut valid = std::mem::take(&mut self.valid);
                valid.clear();
                let flags = nulls.iter().chain(std::iter::repeat(true));
                valid.extend(
                    hashes
                        .iter()
                        .zip(flags)
                        .filter(|row| row.1)
                        .map(|row| *row.0),
                );
                self.has_null |= valid.len() < hashes.len();
                let done = self.insert_keys(&valid);
                self.valid = valid;
                done
            }
        }
    }

    /// Adds all that `partial` saw. To merge many partials, this takes time linear in their sizes.
    ///
    /// # Errors
    ///
    /// [`BloomError::GeometryMismatch`] if `partial` has another cap, [`BloomError::HashMismatch`] if it
    /// has another seed, nothing is then added;
    /// [`BloomError::OutOfMemory`] as for [`insert`](Self::insert).
    pub fn merge(&mut self, partial: &Partial) -> Result<(), BloomError> {
        check_merge(
            (self.cap_blocks, self.seed),
            (partial.cap_blocks, partial.seed),
        )?;
        match &partial.keys {
            Keys::Sparse(hashes) => self.insert_keys(hashes)?,
            Keys::Dense(filter) => self.make_dense()?.merge_from(filter)?,
        }
        self.rows = self.rows.saturating_add(partial.rows);
        self.bounds.merge(&partial.bounds, self.rows);
        self.has_null |= partial.has_null;
        Ok(())
    }

    fn insert_keys(&mut self, hashes: &[u64]) -> Result<(), BloomError> {
        let hashes = &canonical_slice(hashes)[..];
        // In chunks, so that a huge batch cannot outgrow the bound before it is noticed.
        for chunk in hashes.chunks(CHUNK) {
            match &mut self.state {
                State::Dense(filter) => filter.insert_hashes(chunk),
                State::Sparse(set) => {
                    set.extend(chunk.iter().copied());
                    if set.len() as u64 > self.max_sparse {
                        self.make_dense()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn make_dense(&mut self) -> Result<&mut BloomFilter, BloomError> {
        if let State::Sparse(set) = &mut self.state {
            let mut filter = BloomFilter::with_blocks(self.cap_blocks, hash_id(self.seed))?;
            let set = std::mem::replace(set, KeySet::with_capacity(0));
            filter.insert_hashes(&set.into_vec());
            self.state = State::Dense(filter);
        }
        match &mut self.state {
            State::Dense(filter) => Ok(filter),
            // Not reached: made dense above.
            State::Sparse(_) => Err(BloomError::OutOfMemory {
                blocks: self.cap_blocks,
            }),
        }
    }

    /// Rows seen so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of memory held.
    pub fn memory_size(&self) -> usize {
        let keys = match &self.state {
            State::Sparse(set) => set.byte_len(),
            State::Dense(filter) => filter.byte_len(),
        };
        keys + self.valid.capacity() * size_of::<u64>()
    }

    /// Ends the collection.
    pub fn finish(self) -> Partial {
        let keys = match self.state {
            State::Dense(filter) => Keys::Dense(filter),
            State::Sparse(set) => {
                let mut hashes = set.into_vec();
                hashes.sort_unstable();
                Keys::Sparse(hashes)
            }
        };
        Partial {
            rows: self.rows,
            has_null: self.has_null,
            cap_blocks: self.cap_blocks,
            seed: self.seed,
            bounds: self.bounds,
            keys,
        }
    }
}

/// Whether partials of these caps and seeds may be merged.
fn check_merge(this: (u32, u64), other: (u32, u64)) -> Result<(), BloomError> {
    if this.1 != other.1 {
        return Err(BloomError::HashMismatch {
            this: hash_id(this.1),
            other: hash_id(other.1),
        });
    }
    if this.0 != other.0 {
        return Err(BloomError::GeometryMismatch {
            this: this.0,
            other: other.0,
        });
    }
    Ok(())
}

/// The keys of a [`Partial`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// All distinct hashes, ascending.
    Sparse(Vec<u64>),
    /// A Bloom filter of the cap size that holds them.
    Dense(BloomFilter),
}

/// What one build partition, or several, saw: rows, whether a key was NULL, and the key hashes.
///
/// Equal for equal keys, in whatever order and grouping they were collected and merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    rows: u64,
    has_null: bool,
    cap_blocks: u32,
    seed: u64,
    bounds: KeyBounds,
    // Invariant: no more than `max_sparse_keys(cap_blocks)` hashes, or `cap_blocks` blocks of this
    // scheme and seed.
    keys: Keys,
}

impl Partial {
    /// Rows seen, those with a NULL key included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether any row had a NULL key column.
    pub fn has_null(&self) -> bool {
        self.has_null
    }

    /// The key hashes.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Size of the dense form, in blocks of 32 bytes.
    pub fn cap_blocks(&self) -> u32 {
        self.cap_blocks
    }

    /// The seed that the keys were hashed with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bounds of each key column; `None` if none are known, or no row was seen.
    pub fn bounds(&self) -> Option<&[ColumnBounds]> {
        self.bounds.columns()
    }

    pub(crate) fn take_bounds(&mut self) -> KeyBounds {
        std::mem::take(&mut self.bounds)
    }

    /// Takes the partial apart, for the keys.
    pub fn into_keys(self) -> Keys {
        self.keys
    }

    /// Number of distinct keys: exact (up to collisions of 64-bit hashes) while sparse, else the
    /// filter's estimate, but never more than the rows.
    pub fn distinct_keys(&self) -> u64 {
        match &self.keys {
            Keys::Sparse(hashes) => hashes.len() as u64,
            Keys::Dense(filter) => filter.estimated_ndv().min(self.rows),
        }
    }

    /// Adds all that `other` saw. Exact: the result equals the partial built from both sets of rows.
    ///
    /// Takes time linear in both sizes, so to merge many use [`PartialBuilder::merge`].
    ///
    /// # Errors
    ///
    /// [`BloomError::GeometryMismatch`] if `other` has another cap, [`BloomError::HashMismatch`] if it
    /// has another seed, [`BloomError::OutOfMemory`] if the dense form cannot be had; `self` is then
    /// unchanged.
    pub fn merge(&mut self, other: Self) -> Result<(), BloomError> {
        check_merge((self.cap_blocks, self.seed), (other.cap_blocks, other.seed))?;
        match (&mut self.keys, other.keys) {
            (Keys::Dense(ours), Keys::Dense(theirs)) => ours.merge_from(&theirs)?,
            (Keys::Dense(ours), Keys::Sparse(theirs)) => ours.insert_hashes(&theirs),
            (Keys::Sparse(ours), Keys::Dense(mut theirs)) => {
                theirs.insert_hashes(ours);
                self.keys = Keys::Dense(theirs);
            }
            (Keys::Sparse(ours), Keys::Sparse(theirs)) => {
                let union = union(ours, &theirs);
                self.keys = if union.len() as u64 > max_sparse_keys(self.cap_blocks) {
                    let mut filter = BloomFilter::with_blocks(self.cap_blocks, hash_id(self.seed))?;
                    filter.insert_hashes(&union);
                    Keys::Dense(filter)
                } else {
                    Keys::Sparse(union)
                };
            }
        }
        self.rows = self.rows.saturating_add(other.rows);
        self.bounds.merge(&other.bounds, self.rows);
        self.has_null |= other.has_null;
        Ok(())
    }

    /// Bytes that [`encode`](Self::encode) appends.
    pub fn encoded_len(&self) -> usize {
        wire::HEADER_LEN
            + self.bounds.encoded_len()
            + match &self.keys {
                Keys::Sparse(hashes) => rice::encoded_len(hashes),
                Keys::Dense(filter) => runtime_filter_bloom::HEADER_LEN + filter.byte_len(),
            }
    }

    /// Appends the encoded form to `out`: a header of 48 bytes, with checksum, hash scheme and seed, then
    /// the bounds, if any (some tens of bytes), then the sorted hashes as a list of coded gaps (4.7 bytes a key at a million, 5.9 at a thousand) or the
    /// Bloom filter.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        let (kind, distinct) = match &self.keys {
            Keys::Sparse(hashes) => (SPARSE, hashes.len() as u64),
            Keys::Dense(_) => (DENSE, 0),
        };
        let header = Header {
            kind,
            has_null: self.has_null,
            cap_blocks: self.cap_blocks,
            rows: self.rows,
            distinct,
            seed: self.seed,
        };
        wire::write(MAGIC, &header, &self.bounds, out, |out| match &self.keys {
            Keys::Sparse(hashes) => rice::write(hashes, out),
            Keys::Dense(filter) => filter.write_to(out),
        });
    }

    /// Reads what [`encode`](Self::encode) wrote. Any input is safe: all sizes are checked before any
    /// memory is taken. `max_filter_bytes` is the most that the dense form may take, be it in use or
    /// not; it bounds a list of hashes too.
    ///
    /// # Errors
    ///
    /// [`DecodeError::HashScheme`] if the sender hashes otherwise, [`DecodeError::TooLarge`] over the
    /// limit, else by what is wrong with the input.
    pub fn decode(bytes: &[u8], max_filter_bytes: usize) -> Result<Self, DecodeError> {
        let (header, bounds, body) = wire::read(MAGIC, "partial", bytes)?;
        let cap_blocks = header.cap_blocks;
        if !geometry::is_legal(cap_blocks) {
            return Err(DecodeError::Malformed("an illegal cap"));
        }
        let check = |bytes: u64, limit: u64| match bytes > limit {
            true => Err(DecodeError::TooLarge { bytes, limit }),
            false => Ok(()),
        };
        check(geometry_bytes(cap_blocks), max_filter_bytes as u64)?;
        let keys = match header.kind {
            SPARSE => {
                if header.distinct > header.rows {
                    return Err(DecodeError::Malformed("more keys than rows"));
                }
                check(
                    header.distinct.saturating_mul(8),
                    max_sparse_keys(cap_blocks).saturating_mul(8),
                )?;
                Keys::Sparse(rice::read(body, header.distinct)?)
            }
            DENSE => {
                let filter = BloomFilter::from_bytes(body, max_filter_bytes)?;
                if filter.blocks() != cap_blocks || header.distinct != 0 {
                    return Err(DecodeError::Malformed("a filter not of the cap size"));
                }
                check_hash_id(&filter, header.seed)?;
                Keys::Dense(filter)
            }
            _ => return Err(DecodeError::Malformed("an unknown kind of partial")),
        };
        Ok(Self {
            rows: header.rows,
            has_null: header.has_null,
            cap_blocks,
            seed: header.seed,
            bounds,
            keys,
        })
    }
}

/// Union of two strictly ascending lists.
fn union(left: &[u64], right: &[u64]) -> Vec<u64> {
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut i, mut j) = (0, 0);
    while i < left.len() && j < right.len() {
        let (a, b) = (left[i], right[j]);
        out.push(a.min(b));
        i += usize::from(a <= b);
        j += usize::from(b <= a);
    }
    out.extend_from_slice(&left[i..]);
    out.extend_from_slice(&right[j..]);
    out
}

#[cfg(test)]
mod tests;
