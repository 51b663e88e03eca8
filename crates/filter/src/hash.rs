//! Key columns to one 64-bit hash a row: hash scheme 2.
//!
//! Hashes meet across processes, machines and Arrow encodings, so the scheme is part of the wire
//! contract: any change of results takes a new [`HASH_SCHEME`]. `conformance/hash-v2.csv` holds test
//! vectors, `conformance/hash_v2.py` a second implementation that wrote them.
//!
//! What is hashed is the logical value, never its encoding. Two values that a join holds equal hash
//! alike; some that it holds unequal do too (`-0.0` and `0.0`, all NaN), which is safe.
//!
//! # Definitions
//!
//! All arithmetic is on unsigned 64-bit integers modulo 2^64; `>>` shifts in zeros.
//!
//! ```text
//! mix(x):   x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
//!           x = (x ^ (x >> 27)) * 0x94d049bb133111eb
//!           x ^ (x >> 31)
//!
//! K1..K4:   Ki = mix(seed + i * 0x9e3779b97f4a7c15)
//! ```
//!
//! `mix` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
//! Generators, 2014, with the constants of Stafford's variant 13), K1 to K4 are the first outputs of
//! that generator.
//!
//! # One column
//!
//! | Type | Hash of a value `v` |
//! |------|---------------------|
//! | Int8 to Int64, Date32/64, Time32/64, Timestamp, Duration | `mix(v ^ K1)`, `v` sign-extended to 64 bits, in the unit of the type |
//! | UInt8 to UInt64 | `mix(v ^ K1)`, `v` zero-extended |
//! | Boolean | `mix(v ^ K1)`, `v` 0 or 1 |
//! | Float16/32/64 | `mix(v ^ K1)`, `v` the IEEE 754 bits of the value widened to 64 bits, where -0.0 is 0 and every NaN is `0x7ff8000000000000` |
//! | Decimal32/64/128/256 | below, `v` the unscaled value |
//! | Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView, FixedSizeBinary | `rapidhash_v3(bytes, seed = K2)` |
//! | Dictionary of any of the above, any key type | hash of the value referred to |
//!
//! Decimals: sign-extend `v` to 256 bits and cut it in limbs of 64 bits, lowest first. Keep the lowest
//! 1, 2 or 4 limbs, the fewest from which sign extension restores `v`. Then `h = mix(limb0 ^ K1)`, and
//! for each further limb in order `h = mix(h ^ limb)`. So the width does not matter; the scale is not
//! hashed and must agree on both sides.
//!
//! `rapidhash_v3` is rapidhash version 3 of Nicolas De Carli with its default secrets, the C function
//! `rapidhash_withSeed(bytes, length, seed)`; it is the same on every platform.
//!
//! # Several columns
//!
//! With `h_0 .. h_n` the hashes of a row's columns: `t = h_0`, then for `i` from 1 to `n`
//! `t = mix(t * 0x9e3779b97f4a7c15 + h_i + K3)`. A key of one column is hashed as that column.
//!
//! # NULL
//!
//! A row with a NULL in any key column hashes to K4, whatever its other columns hold.
//!
//! # The last step
//!
//! Of the result so far, that of one column, of several or of a NULL alike, bits 32 to 39 are cleared:
//! `h & 0xffffff00ffffffff`. So 56 bits are left, and a hash in a sorted list takes a byte less. A Bloom
//! filter has no use for the others: its lanes read the low 32 bits, and its block index, by
//! multiply-shift from the high 32, can still reach `2^24` places. Among these `n` blocks share their
//! keys evenly if `n` is a power of two, else to within `n / 2^24` of the mean: 3 % at `2^19` blocks
//! (16 MiB), a quarter at `2^22` (128 MiB). So only filters beyond that have noticeably more false
//! positives than their size would allow, and none has a false negative.

use std::borrow::Cow;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, ByteView, DictionaryArray, GenericByteArray,
    GenericByteViewArray, PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::*;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline, rapidhash_v3_seeded};
use runtime_filter_bloom::mix_in_place;

use crate::error::{HashError, UnsupportedKey};

/// Identifies the hash scheme of this module. Hashes of different schemes must never meet.
pub const HASH_SCHEME: u32 = 2;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// The bits that a hash may have set.
const HASH_BITS: u64 = 0xffff_ff00_ffff_ffff;

const NAN_BITS: u64 = 0x7ff8_0000_0000_0000;

/// Hashes the key columns of batches, by hash scheme 2 (see the [module](self)).
///
/// Keeps scratch space between batches, so keep one for each stream.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array};
/// use arrow::datatypes::DataType;
/// use runtime_filter_core::KeyHasher;
///
/// let mut hasher = KeyHasher::try_new(&[DataType::Int32], 42)?;
/// let keys: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(7)]));
/// let mut hashes = Vec::new();
/// let validity = hasher.hash_batch(&[keys], &mut hashes)?;
/// assert_eq!(hashes.len(), 3);
/// assert_eq!(hashes[0], hashes[2]);
/// assert_eq!(validity.map(|nulls| nulls.null_count()), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyHasher {
    types: Vec<DataType>,
    seed: u64,
    constants: Constants,
    /// Hashes of the second and later columns, one column at a time.
    column: Vec<u64>,
    /// Hashes of a dictionary's values.
    dictionary: Vec<u64>,
}

impl KeyHasher {
    /// A hasher for keys of these column types (a dictionary column is declared as Dictionary).
    ///
    /// Only hashes made with the same `seed` can be compared. Draw a fresh secret one for each query,
    /// so that nobody can choose keys that collide.
    ///
    /// # Errors
    ///
    /// [`UnsupportedKey`] if there are no columns or one of them is not
    /// [supported](Self::supports).
    pub fn try_new(types: &[DataType], seed: u64) -> Result<Self, UnsupportedKey> {
        if types.is_empty() {
            return Err(UnsupportedKey::NoColumns);
        }
        if let Some(position) = types.iter().position(|each| !Self::supports(each)) {
            return Err(UnsupportedKey::Type {
                position,
                data_type: types[position].clone(),
            });
        }
        Ok(Self {
            types: types.to_vec(),
            seed,
            constants: Constants::new(seed, types.len()),
            column: Vec::new(),
            dictionary: Vec::new(),
        })
    }

    /// Whether columns of this type can be hashed.
    ///
    /// Not supported: Null, intervals, run-end encoded and nested types, and dictionaries of these or
    /// of dictionaries.
    pub fn supports(data_type: &DataType) -> bool {
        match data_type {
            DataType::Dictionary(key, value) => key.is_integer() && is_plain(value),
            other => is_plain(other),
        }
    }

    /// The declared column types.
    pub fn types(&self) -> &[DataType] {
        &self.types
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Overwrites `out` with one hash for each row of `columns`, the key columns of one batch.
    ///
    /// Returns which rows have no NULL key column: `None` if that holds for all, else a bit a row,
    /// set where it holds. The hash of a row with a NULL is a constant, to be ignored.
    ///
    /// # Errors
    ///
    /// [`HashError`] if the columns differ from the declared types in number or type, or from each
    /// other in length; `out` is then empty.
    pub fn hash_batch(
        &mut self,
        columns: &[ArrayRef],
        out: &mut Vec<u64>,
    ) -> Result<Option<NullBuffer>, HashError> {
        out.clear();
        self.check(columns)?;
        let nulls: Vec<Option<NullBuffer>> = columns.iter().map(|c| c.logical_nulls()).collect();
        let constants = self.constants;
        for (position, array) in columns.iter().enumerate() {
            if position == 0 {
                hash_column(&constants, array, &mut self.dictionary, out);
                continue;
            }
            self.column.clear();
            hash_column(&constants, array, &mut self.dictionary, &mut self.column);
            for (tuple, hash) in out.iter_mut().zip(&self.column) {
                *tuple = tuple
                    .wrapping_mul(GOLDEN)
                    .wrapping_add(*hash)
                    .wrapping_add(constants.tuple);
            }
            mix_in_place(out, 0);
        }
        if columns.len() > 1 {
            keep(out, HASH_BITS);
        }
        let validity =
            NullBuffer::union_many(nulls.iter().map(Option::as_ref)).filter(|n| n.null_count() > 0);
        if let Some(validity) = &validity {
            mark_nulls(validity, constants.null, out);
        }
        Ok(validity)
    }

    fn check(&self, columns: &[ArrayRef]) -> Result<(), HashError> {
        if columns.len() != self.types.len() {
            return Err(HashError::ColumnCount {
                expected: self.types.len(),
                got: columns.len(),
            });
        }
        for (position, (array, declared)) in columns.iter().zip(&self.types).enumerate() {
            if array.data_type() != declared {
                return Err(HashError::ColumnType {
                    position,
                    expected: declared.clone(),
                    got: array.data_type().clone(),
                });
            }
            if array.len() != columns[0].len() {
                return Err(HashError::ColumnLength {
                    position,
                    expected: columns[0].len(),
                    got: array.len(),
                });
            }
        }
        Ok(())
    }
}

/// Clears the bits that a hash never has. Build and probe side must both do so, or keys are not found.
#[inline(always)]
pub(crate) fn canonical(hash: u64) -> u64 {
    hash & HASH_BITS
}

/// The hashes with the bits cleared that a hash never has: unchanged if a [`KeyHasher`] made them.
pub(crate) fn canonical_slice(hashes: &[u64]) -> Cow<'_, [u64]> {
    let any = hashes.iter().fold(0, |any, hash| any | hash);
    if any == canonical(any) {
        Cow::Borrowed(hashes)
    } else {
        Cow::Owned(hashes.iter().map(|&hash| canonical(hash)).collect())
    }
}

/// Clears the bits that are not in `bits`.
fn keep(hashes: &mut [u64], bits: u64) {
    if bits != u64::MAX {
        for hash in hashes {
            *hash &= bits;
        }
    }
}

/// Sets the hashes of the rows that `validity` calls NULL.
fn mark_nulls(validity: &NullBuffer, null: u64, hashes: &mut [u64]) {
    let words = validity.inner().bit_chunks();
    for (rows, word) in hashes.chunks_mut(64).zip(words.iter_padded()) {
        // Rows past the end are 0 in the last word.
        let mut nulls = !word & (u64::MAX >> (64 - rows.len()));
        while nulls != 0 {
            rows[nulls.trailing_zeros() as usize] = null;
            nulls &= nulls - 1;
        }
    }
}

/// The finaliser of splitmix64, as [`mix_in_place`] for many.
#[inline(always)]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the seed turns into.
#[derive(Debug, Clone, Copy)]
struct Constants {
    /// K1.
    fixed: u64,
    /// K2, as rapidhash wants it.
    bytes: RapidSecrets,
    /// K3.
    tuple: u64,
    /// K4, after the last step.
    null: u64,
    /// The bits that the hash of a column keeps: the last step is done at once if the key is one column.
    keep: u64,
}

impl Constants {
    fn new(seed: u64, columns: usize) -> Self {
        let k = |i: u64| mix(seed.wrapping_add(i.wrapping_mul(GOLDEN)));
        Self {
            fixed: k(1),
            bytes: RapidSecrets::seed_cpp(k(2)),
            tuple: k(3),
            null: canonical(k(4)),
            keep: if columns == 1 { HASH_BITS } else { u64::MAX },
        }
    }

    #[inline(always)]
    fn bytes(&self, value: &[u8]) -> u64 {
        // The most frequent lengths get a copy of their own, which has one branch instead of three.
        let hash = if (8..=16).contains(&value.len()) {
            rapidhash_v3_inline::<true, false, false>(value, &self.bytes)
        } else {
            rapidhash_v3_seeded(value, &self.bytes)
        };
        hash & self.keep
    }
}

/// The bits that stand for a float: one value for both zeros, one for all NaN.
#[inline(always)]
fn float_bits(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if value.is_nan() { NAN_BITS } else { bits }
}

/// From the hash of the lowest limb to that of a 128-bit decimal.
#[inline(always)]
fn finish_decimal128(hash: u64, value: i128) -> u64 {
    if i128::from(value as i64) == value {
        hash
    } else {
        mix(hash ^ (value >> 64) as u64)
    }
}

/// From the hash of the lowest limb to that of a 256-bit decimal.
fn finish_decimal256(hash: u64, value: i256) -> u64 {
    if let Some(value) = value.to_i128() {
        return finish_decimal128(hash, value);
    }
    let (low, high) = value.to_parts();
    [(low >> 64) as u64, high as u64, (high >> 64) as u64]
        .into_iter()
        .fold(hash, |hash, limb| mix(hash ^ limb))
}

/// Whether `hash_plain` knows the type. The two must list the same types.
fn is_plain(data_type: &DataType) -> bool {
    use DataType::*;
    data_type.is_integer()
        || data_type.is_floating()
        || matches!(
            data_type,
            Boolean
                | Date32
                | Date64
                | Time32(TimeUnit::Second | TimeUnit::Millisecond)
                | Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond)
                | Timestamp(_, _)
                | Duration(_)
                | Decimal32(_, _)
                | Decimal64(_, _)
                | Decimal128(_, _)
                | Decimal256(_, _)
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
                | FixedSizeBinary(_)
        )
}

/// Appends one hash a row. Rows that are NULL get an arbitrary one.
fn hash_column(
    constants: &Constants,
    array: &ArrayRef,
    dictionary: &mut Vec<u64>,
    out: &mut Vec<u64>,
) {
    let DataType::Dictionary(key, _) = array.data_type() else {
        return hash_plain(constants, array, out);
    };
    macro_rules! gather {
        ($key:ty) => {
            hash_dictionary(constants, array.as_dictionary::<$key>(), dictionary, out)
        };
    }
    match key.as_ref() {
        DataType::Int8 => gather!(Int8Type),
        DataType::Int16 => gather!(Int16Type),
        DataType::Int32 => gather!(Int32Type),
        DataType::Int64 => gather!(Int64Type),
        DataType::UInt8 => gather!(UInt8Type),
        DataType::UInt16 => gather!(UInt16Type),
        DataType::UInt32 => gather!(UInt32Type),
        DataType::UInt64 => gather!(UInt64Type),
        // No dictionary has another key type.
        _ => out.resize(out.len() + array.len(), constants.null),
    }
}

fn hash_dictionary<K: ArrowDictionaryKeyType>(
    constants: &Constants,
    array: &DictionaryArray<K>,
    dictionary: &mut Vec<u64>,
    out: &mut Vec<u64>,
) {
    let values = array.values();
    // A dictionary larger than the batch (a slice, or one shared by many batches) is mostly unused
    // here, so look up first and hash only what is used.
    if values.len() > array.len()
        && let Ok(used) = arrow::compute::take(values.as_ref(), array.keys(), None)
    {
        return hash_plain(constants, &used, out);
    }
    dictionary.clear();
    hash_plain(constants, values, dictionary);
    // Keys under NULL may be anything, also out of bounds: cut to the next power of two, up to which the
    // dictionary is filled up, they need no branch.
    let mask = values.len().next_power_of_two() - 1;
    dictionary.resize(mask + 1, constants.null);
    let hashes = &dictionary[..=mask];
    let keys = array.keys().values().iter();
    out.extend(keys.map(|key| hashes[key.as_usize() & mask]));
}

// Out of line: inlined next to its like, its loop runs out of registers.
#[inline(never)]
fn hash_bytes<T: ByteArrayType>(
    constants: &Constants,
    array: &GenericByteArray<T>,
    out: &mut Vec<u64>,
) {
    let offsets = array.value_offsets();
    let Some((first, ends)) = offsets.split_first() else {
        return;
    };
    let mut start = first.as_usize();
    let mut rest = array.value_data().get(start..).unwrap_or_default();
    out.extend(ends.iter().map(|end| {
        let end = end.as_usize();
        // In bounds, as Arrow has checked; asking again spares a panic path.
        let Some((value, tail)) = rest.split_at_checked(end.wrapping_sub(start)) else {
            return constants.null;
        };
        (start, rest) = (end, tail);
        constants.bytes(value)
    }));
}

// Out of line for the same reason.
#[inline(never)]
fn hash_views<T: ByteViewType>(
    constants: &Constants,
    array: &GenericByteViewArray<T>,
    out: &mut Vec<u64>,
) {
    const INLINE: usize = 12;
    let buffers = array.data_buffers();
    let first = buffers.first().map_or(&[][..], |buffer| buffer.as_slice());
    out.extend(array.views().iter().map(|&view| {
        let length = view as u32 as usize;
        if length <= INLINE {
            return constants.bytes(&view.to_le_bytes()[4..4 + length]);
        }
        let view = ByteView::from(view);
        // Mostly there is just one.
        let buffer = match view.buffer_index {
            0 => first,
            other => buffers
                .get(other as usize)
                .map_or(&[][..], |buffer| buffer.as_slice()),
        };
        match buffer.get(view.offset as usize..view.offset as usize + length) {
            Some(value) => constants.bytes(value),
            None => constants.null,
        }
    }));
}

fn hash_plain(constants: &Constants, array: &ArrayRef, out: &mut Vec<u64>) {
    /// Hashes the 64 bits that `bits` takes of each value: all of them first, so that they can be
    /// mixed many at a time.
    fn fixed<'a, T: ArrowPrimitiveType>(
        constants: &Constants,
        array: &'a ArrayRef,
        out: &mut Vec<u64>,
        bits: impl FnMut(T::Native) -> u64,
    ) -> &'a [T::Native] {
        let array: &PrimitiveArray<T> = array.as_primitive();
        let start = out.len();
        out.extend(array.values().iter().copied().map(bits));
        mix_in_place(&mut out[start..], constants.fixed);
        array.values()
    }
    let start = out.len();
    macro_rules! fixed {
        ($type:ty, $bits:expr) => {
            fixed::<$type>(constants, array, out, $bits)
        };
    }
    macro_rules! integer {
        ($type:ty) => {{
            // `as` extends by the sign of the source type: zeros for unsigned ones.
            fixed!($type, |value| value as u64);
        }};
    }
    match array.data_type() {
        DataType::Boolean => {
            let values = array.as_boolean().values();
            let hashes = [0, 1].map(|value| mix(value ^ constants.fixed) & constants.keep);
            return out.extend(values.iter().map(|value| hashes[usize::from(value)]));
        }
        DataType::Int8 => integer!(Int8Type),
        DataType::Int16 => integer!(Int16Type),
        DataType::Int32 => integer!(Int32Type),
        DataType::Int64 => integer!(Int64Type),
        DataType::UInt8 => integer!(UInt8Type),
        DataType::UInt16 => integer!(UInt16Type),
        DataType::UInt32 => integer!(UInt32Type),
        DataType::UInt64 => integer!(UInt64Type),
        DataType::Date32 => integer!(Date32Type),
        DataType::Date64 => integer!(Date64Type),
        DataType::Time32(TimeUnit::Second) => integer!(Time32SecondType),
        DataType::Time32(TimeUnit::Millisecond) => integer!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => integer!(Time64MicrosecondType),
        DataType::Time64(TimeUnit::Nanosecond) => integer!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => integer!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => integer!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => integer!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => integer!(TimestampNanosecondType),
        DataType::Duration(TimeUnit::Second) => integer!(DurationSecondType),
        DataType::Duration(TimeUnit::Millisecond) => integer!(DurationMillisecondType),
        DataType::Duration(TimeUnit::Microsecond) => integer!(DurationMicrosecondType),
        DataType::Duration(TimeUnit::Nanosecond) => integer!(DurationNanosecondType),
        DataType::Decimal32(_, _) => integer!(Decimal32Type),
        DataType::Decimal64(_, _) => integer!(Decimal64Type),
        DataType::Decimal128(_, _) => {
            // Mostly none is wide, and one pass is enough.
            let mut wide = 0;
            let values = fixed!(Decimal128Type, |value| {
                wide |= (value >> 64) as i64 ^ (value as i64 >> 63);
                value as u64
            });
            if wide != 0 {
                for (hash, value) in out[start..].iter_mut().zip(values) {
                    *hash = finish_decimal128(*hash, *value);
                }
            }
        }
        DataType::Decimal256(_, _) => {
            let values = fixed!(Decimal256Type, |value| value.to_parts().0 as u64);
            for (hash, value) in out[start..].iter_mut().zip(values) {
                *hash = finish_decimal256(*hash, *value);
            }
        }
        DataType::Float16 => {
            fixed!(Float16Type, |value| float_bits(value.to_f64()));
        }
        DataType::Float32 => {
            fixed!(Float32Type, |value| float_bits(value.into()));
        }
        DataType::Float64 => {
            fixed!(Float64Type, float_bits);
        }
        DataType::Utf8 => return hash_bytes(constants, array.as_string::<i32>(), out),
        DataType::LargeUtf8 => return hash_bytes(constants, array.as_string::<i64>(), out),
        DataType::Utf8View => return hash_views(constants, array.as_string_view(), out),
        DataType::Binary => return hash_bytes(constants, array.as_binary::<i32>(), out),
        DataType::LargeBinary => return hash_bytes(constants, array.as_binary::<i64>(), out),
        DataType::BinaryView => return hash_views(constants, array.as_binary_view(), out),
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            return out.extend((0..array.len()).map(|row| constants.bytes(array.value(row))));
        }
        // Unreachable: `is_plain` refused it. A constant keeps the row count right.
        _ => out.resize(out.len() + array.len(), constants.null),
    }
    keep(&mut out[start..], constants.keep);
}

#[cfg(test)]
mod coverage;
#[cfg(test)]
mod tests;
