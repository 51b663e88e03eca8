//! The finished filter: which probe rows may have a partner on the build side.

use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use runtime_filter_bloom::{BloomError, BloomFilter, geometry};

use crate::bounds::{ColumnBounds, KeyBounds};
use crate::error::DecodeError;
use crate::hash::{HASH_SCHEME, canonical_slice};
use crate::key_set::KeySet;
use crate::partial::{Keys, Partial, check_hash_id, hash_id};
use crate::rice;
use crate::sizing::{self, Form, KeyFacts};
use crate::wire::{self, Header};

const MAGIC: [u8; 4] = *b"RFFL";

/// How large a filter may be, and how good it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizingPolicy {
    /// False positive probability to aim at, from 0 to 1.
    pub target_fpp: f64,
    /// Most bytes that the filter may take, its header not counted: 32 for each block, 8 for each key
    /// listed. One block is always granted. If it does not suffice for `target_fpp`, the filter is as
    /// large as it may be.
    pub max_bytes: usize,
    /// Most distinct keys that are listed one by one instead of in a Bloom filter.
    pub max_exact_keys: usize,
}

impl Default for SizingPolicy {
    /// 0.5 % false positives (12 bits a key), 16 MiB, 256 keys (2 kB, where a list is hardly larger
    /// than a Bloom filter and never wrong).
    fn default() -> Self {
        Self {
            target_fpp: 0.005,
            max_bytes: 16 << 20,
            max_exact_keys: 256,
        }
    }
}

/// What a [`RuntimeFilter`] is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterKind {
    /// The build side had no key that is not NULL.
    Empty,
    /// The hash of each key.
    Keys,
    /// A Bloom filter.
    Bloom,
}

/// Tells which probe rows may have a partner on the build side.
///
/// Never drops a row that has one, provided it was made from all of the build side: an incomplete
/// filter must not be used.
#[derive(Debug, Clone)]
pub struct RuntimeFilter {
    rows: u64,
    has_null_key: bool,
    distinct_keys: u64,
    seed: u64,
    bounds: KeyBounds,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Empty,
    /// Strictly ascending for the wire, as a set for probing.
    Keys(Vec<u64>, KeySet),
    Bloom(BloomFilter),
}

impl Content {
    fn of_keys(sorted: Vec<u64>) -> Self {
        let mut set = KeySet::with_capacity(sorted.len());
        set.extend(sorted.iter().copied());
        Self::Keys(sorted, set)
    }

    fn kind(&self) -> FilterKind {
        match self {
            Self::Empty => FilterKind::Empty,
            Self::Keys(..) => FilterKind::Keys,
            Self::Bloom(_) => FilterKind::Bloom,
        }
    }
}

impl RuntimeFilter {
    /// The filter for all the rows that `partial` saw, for probe keys hashed with the same seed.
    ///
    /// From a sparse partial the size follows the exact number of keys; a dense one is folded to the
    /// smallest size that reaches the target for its estimated number of keys.
    ///
    /// # Errors
    ///
    /// [`BloomError::OutOfMemory`] if the memory for the filter cannot be had.
    pub fn from_partial(partial: Partial, policy: &SizingPolicy) -> Result<Self, BloomError> {
        let form = sizing::for_target(&KeyFacts::of(&partial, policy), policy).form;
        Self::in_form(partial, form)
    }

    /// The filter for all the rows that `partial` saw, made as `form` says.
    ///
    /// Holds every key whatever `form` is: one that the keys do not fit is replaced by the next that
    /// they do. Keys that are not known one by one cannot be listed, and are folded to the smallest size
    /// of at least what was asked for; no size exceeds that of the partial.
    ///
    /// # Errors
    ///
    /// [`BloomError::OutOfMemory`] if the memory for the filter cannot be had.
    pub fn in_form(mut partial: Partial, form: Form) -> Result<Self, BloomError> {
        let seed = partial.seed();
        let (rows, has_null_key) = (partial.rows(), partial.has_null());
        let distinct_keys = partial.distinct_keys();
        let bounds = partial.take_bounds();
        let content = match (partial.into_keys(), form) {
            (Keys::Sparse(hashes), _) if hashes.is_empty() => Content::Empty,
            (Keys::Sparse(hashes), Form::Keys | Form::Empty) => Content::of_keys(hashes),
            (Keys::Sparse(hashes), Form::Bloom(blocks)) => {
                let blocks = geometry::largest_at_most(blocks);
                let mut filter = BloomFilter::with_blocks(blocks, hash_id(seed))?;
                filter.insert_hashes(&hashes);
                Content::Bloom(filter)
            }
            (Keys::Dense(filter), _) if filter.is_empty() => Content::Empty,
            (Keys::Dense(filter), Form::Bloom(blocks)) if blocks < filter.blocks() => {
                match geometry::fold_sizes(filter.blocks()).find(|&size| size >= blocks) {
                    Some(size) => Content::Bloom(filter.fold_to(size)?),
                    None => Content::Bloom(filter),
                }
            }
            (Keys::Dense(filter), _) => Content::Bloom(filter),
        };
        Ok(Self {
            rows,
            has_null_key,
            distinct_keys,
            seed,
            bounds,
            content,
        })
    }

    /// What the filter is made of.
    pub fn kind(&self) -> FilterKind {
        self.content.kind()
    }

    /// The kind for reports: `"empty"`, `"keys"` or `"bloom"`.
    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            FilterKind::Empty => "empty",
            FilterKind::Keys => "keys",
            FilterKind::Bloom => "bloom",
        }
    }

    /// Rows of the build side, those with a NULL key included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether the build side had a row with a NULL key column.
    pub fn has_null_key(&self) -> bool {
        self.has_null_key
    }

    /// Distinct keys of the build side; an estimate if they were too many to list.
    pub fn distinct_keys(&self) -> u64 {
        self.distinct_keys
    }

    /// The hash scheme that probe keys must be hashed by.
    pub fn hash_scheme(&self) -> u32 {
        HASH_SCHEME
    }

    /// The seed that probe keys must be hashed with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bounds of each key column: over all of its values, those of rows with a NULL in another column
    /// included. `None` if none are known, or no row was seen.
    pub fn bounds(&self) -> Option<&[ColumnBounds]> {
        self.bounds.columns()
    }

    /// Bytes of the encoded form, header included.
    pub fn byte_len(&self) -> usize {
        wire::HEADER_LEN
            + self.bounds.encoded_len()
            + match &self.content {
                Content::Empty => 0,
                Content::Keys(sorted, _) => rice::encoded_len(sorted),
                Content::Bloom(filter) => runtime_filter_bloom::HEADER_LEN + filter.byte_len(),
            }
    }

    /// Probability (0 to 1) that a key not on the build side passes. 0 unless a Bloom filter: a
    /// collision of 64-bit hashes does not count. Reads the whole filter.
    pub fn estimated_fpp(&self) -> f64 {
        match &self.content {
            Content::Empty | Content::Keys(..) => 0.0,
            Content::Bloom(filter) => filter.estimated_fpp(),
        }
    }

    /// Looks up a batch of hashes: bit `i` of `bitmap` (word `i / 64`, least significant first) is set
    /// iff hash `i` may be on the build side. `bitmap` is resized to one bit a hash, rounded up to
    /// whole words, and overwritten; bits after the last hash are 0.
    ///
    /// The hashes should come from a [`KeyHasher`](crate::KeyHasher) of this scheme and seed. From
    /// others the bits that a hash never has are removed first, as they are from the keys.
    pub fn probe(&self, hashes: &[u64], bitmap: &mut Vec<u64>) {
        bitmap.resize(hashes.len().div_ceil(64), 0);
        let hashes = &canonical_slice(hashes)[..];
        match &self.content {
            Content::Empty => bitmap.fill(0),
            Content::Keys(_, set) => {
                for (word, chunk) in bitmap.iter_mut().zip(hashes.chunks(64)) {
                    *word = chunk.iter().enumerate().fold(0, |bits, (i, &hash)| {
                        bits | u64::from(set.contains(hash)) << i
                    });
                }
            }
            Content::Bloom(filter) => {
                if filter.probe_hashes(hashes, bitmap).is_err() {
                    // Not reached, the bitmap was just sized. Passing all rows is right all the same.
                    bitmap.fill(u64::MAX);
                }
            }
        }
    }

    /// Which rows of a batch to keep: a bit a row, set to keep. `hashes` and `validity` are what
    /// [`KeyHasher::hash_batch`](crate::KeyHasher::hash_batch) returned for the batch.
    ///
    /// A row with a NULL key column is kept iff the join holds NULLs equal (`null_equals_null`) and
    /// the build side had such a row. If `validity` is not as long as `hashes`, all rows are kept.
    pub fn keep_mask(
        &self,
        hashes: &[u64],
        validity: Option<&NullBuffer>,
        null_equals_null: bool,
    ) -> BooleanBuffer {
        if validity.is_some_and(|nulls| nulls.len() != hashes.len()) {
            return BooleanBuffer::new_set(hashes.len());
        }
        let mut words = Vec::new();
        self.probe(hashes, &mut words);
        // Arrow's bitmaps are bytes, least significant bit first: little-endian words.
        for word in &mut words {
            *word = word.to_le();
        }
        let found = BooleanBuffer::new(Buffer::from_vec(words), 0, hashes.len());
        match validity {
            None => found,
            Some(nulls) if null_equals_null && self.has_null_key => &found | &!nulls.inner(),
            Some(nulls) => &found & nulls.inner(),
        }
    }

    /// Appends the encoded form to `out`: a header of 48 bytes, with checksum, hash scheme and seed,
    /// then the bounds, if any, then nothing, the coded gaps of the sorted hashes, or the Bloom filter.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.byte_len());
        let header = Header {
            kind: self.kind() as u8,
            has_null: self.has_null_key,
            cap_blocks: 0,
            rows: self.rows,
            distinct: self.distinct_keys,
            seed: self.seed,
        };
        wire::write(MAGIC, &header, &self.bounds, out, |out| {
            match &self.content {
                Content::Empty => (),
                Content::Keys(sorted, _) => rice::write(sorted, out),
                Content::Bloom(filter) => filter.write_to(out),
            }
        });
    }

    /// Reads what [`encode`](Self::encode) wrote. Any input is safe: all sizes are checked before any
    /// memory is taken. `max_bytes` limits the content as [`SizingPolicy::max_bytes`] does.
    ///
    /// # Errors
    ///
    /// [`DecodeError::HashScheme`] if the sender hashes otherwise, [`DecodeError::TooLarge`] or
    /// [`BloomError::TooLarge`] over the limit, else by what is wrong with the input.
    pub fn decode(bytes: &[u8], max_bytes: usize) -> Result<Self, DecodeError> {
        const EMPTY: u8 = FilterKind::Empty as u8;
        const KEYS: u8 = FilterKind::Keys as u8;
        const BLOOM: u8 = FilterKind::Bloom as u8;
        let (header, bounds, body) = wire::read(MAGIC, "runtime filter", bytes)?;
        if header.cap_blocks != 0 {
            return Err(DecodeError::Malformed("a reserved field is not zero"));
        }
        if header.distinct > header.rows {
            return Err(DecodeError::Malformed("more keys than rows"));
        }
        let content = match header.kind {
            EMPTY if body.is_empty() && header.distinct == 0 => Content::Empty,
            EMPTY => return Err(DecodeError::Malformed("an empty filter with keys")),
            KEYS if header.distinct == 0 => {
                return Err(DecodeError::Malformed("a key list without keys"));
            }
            KEYS if header.distinct.saturating_mul(8) > max_bytes as u64 => {
                return Err(DecodeError::TooLarge {
                    bytes: header.distinct.saturating_mul(8),
                    limit: max_bytes as u64,
                });
            }
            KEYS => Content::of_keys(rice::read(body, header.distinct)?),
            BLOOM => {
                let filter = BloomFilter::from_bytes(body, max_bytes.max(32))?;
                check_hash_id(&filter, header.seed)?;
                Content::Bloom(filter)
            }
            _ => return Err(DecodeError::Malformed("an unknown kind of filter")),
        };
        Ok(Self {
            rows: header.rows,
            has_null_key: header.has_null,
            distinct_keys: header.distinct,
            seed: header.seed,
            bounds,
            content,
        })
    }
}

#[cfg(test)]
mod tests;
