//! What is known of the values of a key's columns: few distinct values, or the least and the greatest.
//!
//! A storage layer that keeps statistics of its blocks can leave out blocks that no key lies in; hashes
//! tell it nothing. Each column is at one of four levels, and merging only ever climbs:
//!
//! ```text
//! Nothing  ->  Values (at most 64)  ->  Range (least, greatest)  ->  Unknown
//! ```
//!
//! So the result does not depend on the order in which rows and partials come. A column whose values
//! have been seen only in part is unknown: bounds that miss a row would lose it.
//!
//! # Encoding
//!
//! Between header and body of a frame, if flag 2 of its header is set; all integers little-endian:
//!
//! | bytes | content |
//! |------:|---------|
//! | 2     | bytes of what follows |
//! | 1     | columns |
//! |       | for each: a byte for the level (0 unknown, 1 nothing, 2 range of integers, 3 of bytes, 4 values that are integers, 5 bytes), then two values, or a byte with their number and the values in ascending order |
//!
//! A value is a byte with its length and that many bytes: an integer in two's complement, as short as
//! sign extension allows, or the bytes themselves.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::*;

use crate::error::DecodeError;

/// Most distinct values that are listed, and most bytes of them together.
pub const MAX_VALUES: usize = 64;
const MAX_VALUES_BYTES: usize = 1024;

/// Most bytes of a bound. Longer values are cut: a lower bound down, an upper one up.
const MAX_BOUND_BYTES: usize = 64;
/// An upper bound is cut at a character, and the next character may be longer by that.
const MAX_UPPER_BYTES: usize = MAX_BOUND_BYTES + 3;

/// Rows up to which values are listed and byte strings compared: both look at each row, where the
/// bounds of integers cost next to nothing. A larger build side is unlikely to be narrow.
const MAX_ROWS: u64 = 1 << 16;

const UNKNOWN: u8 = 0;
const NOTHING: u8 = 1;
const INT_RANGE: u8 = 2;
const BYTES_RANGE: u8 = 3;
const INT_VALUES: u8 = 4;
const BYTES_VALUES: u8 = 5;

/// A value of a key column, in the order of its type. The type itself is known to both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyValue {
    /// An integer, a date or time in its unit, or the unscaled value of a decimal.
    Int(i128),
    /// A string or binary value, ordered as bytes.
    Bytes(Vec<u8>),
}

/// What is known of the values of one key column, NULLs aside.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ColumnBounds {
    /// No value was seen: all rows are NULL.
    Nothing,
    /// Exactly these values, ascending; one to [`MAX_VALUES`].
    Values(Vec<KeyValue>),
    /// Each value lies between these, both included.
    Range {
        /// At most the least value.
        min: KeyValue,
        /// At least the greatest value.
        max: KeyValue,
    },
    /// Any value may have been seen.
    Unknown,
}

impl ColumnBounds {
    /// The least and the greatest value that there may be; `None` if there is none or it is unknown.
    pub fn range(&self) -> Option<(&KeyValue, &KeyValue)> {
        match self {
            Self::Values(values) => values.first().zip(values.last()),
            Self::Range { min, max } => Some((min, max)),
            Self::Nothing | Self::Unknown => None,
        }
    }

    fn is_bytes(&self) -> bool {
        matches!(self.range(), Some((KeyValue::Bytes(_), _)))
    }

    fn merge(&mut self, other: &Self) {
        let merged = match (&*self, other) {
            (Self::Nothing, _) => other.clone(),
            (_, Self::Nothing) => return,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            _ if self.is_bytes() != other.is_bytes() => Self::Unknown,
            (Self::Values(ours), Self::Values(theirs)) => {
                let mut union = ours.clone();
                union.extend(theirs.iter().cloned());
                union.sort_unstable();
                union.dedup();
                Self::Values(union).within_size()
            }
            _ => match (self.range(), other.range()) {
                (Some((a, b)), Some((c, d))) => Self::Range {
                    min: a.min(c).clone(),
                    max: b.max(d).clone(),
                },
                _ => Self::Unknown,
            },
        };
        *self = merged;
    }

    /// A list that has grown too long gives its range.
    fn within_size(self) -> Self {
        if let Self::Values(values) = &self
            && (values.len() > MAX_VALUES || listed_bytes(values) > MAX_VALUES_BYTES)
        {
            return self.without_values();
        }
        self
    }

    fn without_values(self) -> Self {
        match self {
            Self::Values(values) => match (values.first(), values.last()) {
                (Some(min), Some(max)) => Self::Range {
                    min: min.clone(),
                    max: max.clone(),
                },
                _ => Self::Unknown,
            },
            other => other,
        }
    }

    /// Takes in the rows of one batch; `rows` counts them and all before. `list`: while they are few,
    /// keep the values themselves.
    fn observe(&mut self, array: &ArrayRef, rows: u64, list: bool) {
        if matches!(self, Self::Unknown) || array.null_count() == array.len() {
            return;
        }
        if rows > MAX_ROWS && !array.data_type().is_primitive() {
            *self = Self::Unknown;
            return;
        }
        match array.data_type() {
            DataType::Int8 => self.observe_ints::<Int8Type>(array, list),
            DataType::Int16 => self.observe_ints::<Int16Type>(array, list),
            DataType::Int32 => self.observe_ints::<Int32Type>(array, list),
            DataType::Int64 => self.observe_ints::<Int64Type>(array, list),
            DataType::UInt8 => self.observe_ints::<UInt8Type>(array, list),
            DataType::UInt16 => self.observe_ints::<UInt16Type>(array, list),
            DataType::UInt32 => self.observe_ints::<UInt32Type>(array, list),
            DataType::UInt64 => self.observe_ints::<UInt64Type>(array, list),
            DataType::Date32 => self.observe_ints::<Date32Type>(array, list),
            DataType::Decimal32(..) => self.observe_ints::<Decimal32Type>(array, list),
            DataType::Decimal64(..) => self.observe_ints::<Decimal64Type>(array, list),
            DataType::Decimal128(..) => self.observe_ints::<Decimal128Type>(array, list),
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => self.observe_ints::<TimestampSecondType>(array, list),
                TimeUnit::Millisecond => self.observe_ints::<TimestampMillisecondType>(array, list),
                TimeUnit::Microsecond => self.observe_ints::<TimestampMicrosecondType>(array, list),
                TimeUnit::Nanosecond => self.observe_ints::<TimestampNanosecondType>(array, list),
            },
            DataType::Utf8 => {
                let values = array.as_string::<i32>().iter().flatten();
                self.observe_bytes(values.map(str::as_bytes), true, list);
            }
            DataType::LargeUtf8 => {
                let values = array.as_string::<i64>().iter().flatten();
                self.observe_bytes(values.map(str::as_bytes), true, list);
            }
            DataType::Utf8View => {
                let values = array.as_string_view().iter().flatten();
                self.observe_bytes(values.map(str::as_bytes), true, list);
            }
            DataType::Binary => {
                self.observe_bytes(array.as_binary::<i32>().iter().flatten(), false, list);
            }
            DataType::LargeBinary => {
                self.observe_bytes(array.as_binary::<i64>().iter().flatten(), false, list);
            }
            DataType::BinaryView => {
                self.observe_bytes(array.as_binary_view().iter().flatten(), false, list);
            }
            // Floats: -0.0 and NaN have more than one order. The rest: not worth it.
            _ => *self = Self::Unknown,
        }
    }

    fn observe_ints<T: ArrowPrimitiveType<Native: Into<i128>>>(
        &mut self,
        array: &ArrayRef,
        list: bool,
    ) {
        let Some(array) = array.as_primitive_opt::<T>() else {
            *self = Self::Unknown;
            return;
        };
        if list && let Some(values) = few_ints(array) {
            self.merge(&Self::Values(
                values
                    .into_iter()
                    .map(|v| KeyValue::Int(v.into()))
                    .collect(),
            ));
            return;
        }
        self.merge(&match least_and_greatest(array) {
            Some((min, max)) => Self::Range {
                min: KeyValue::Int(min.into()),
                max: KeyValue::Int(max.into()),
            },
            _ => Self::Unknown,
        });
    }

    fn observe_bytes<'a>(
        &mut self,
        values: impl Iterator<Item = &'a [u8]> + Clone,
        is_text: bool,
        list: bool,
    ) {
        if list && let Some(values) = few_bytes(values.clone()) {
            self.merge(
                &Self::Values(
                    values
                        .into_iter()
                        .map(|v| KeyValue::Bytes(v.to_vec()))
                        .collect(),
                )
                .within_size(),
            );
            return;
        }
        let mut range: Option<(&[u8], &[u8])> = None;
        for value in values {
            match &mut range {
                None => range = Some((value, value)),
                Some((min, _)) if value < *min => *min = value,
                Some((_, max)) if value > *max => *max = value,
                Some(_) => (),
            }
        }
        let Some((min, max)) = range else {
            return;
        };
        self.merge(&match cut_up(max, is_text) {
            Some(max) => Self::Range {
                min: KeyValue::Bytes(cut_down(min, is_text).to_vec()),
                max: KeyValue::Bytes(max),
            },
            None => Self::Unknown,
        });
    }
}

/// The least and the greatest value, NULLs aside.
fn least_and_greatest<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
) -> Option<(T::Native, T::Native)> {
    if array.null_count() > 0 {
        return arrow::compute::min(array).zip(arrow::compute::max(array));
    }
    // Arrow's kernels read the values once for either, and without wider instructions than any CPU
    // has they take three times as long as this.
    const LANES: usize = 8;
    let (chunks, rest) = array.values().as_chunks::<LANES>();
    let first = *array.values().first()?;
    let (mut least, mut greatest) = ([first; LANES], [first; LANES]);
    for chunk in chunks {
        for lane in 0..LANES {
            let value = chunk[lane];
            least[lane] = if value < least[lane] {
                value
            } else {
                least[lane]
            };
            greatest[lane] = if value > greatest[lane] {
                value
            } else {
                greatest[lane]
            };
        }
    }
    let mut range = (first, first);
    for &value in least.iter().chain(&greatest).chain(rest) {
        range.0 = if value < range.0 { value } else { range.0 };
        range.1 = if value > range.1 { value } else { range.1 };
    }
    Some(range)
}

fn listed_bytes(values: &[KeyValue]) -> usize {
    let len = |value: &KeyValue| match value {
        // Of up to 16 bytes each there can never be too many.
        KeyValue::Int(_) => 0,
        KeyValue::Bytes(bytes) => bytes.len(),
    };
    values.iter().map(len).sum()
}

/// The distinct values, ascending, unless they are more than [`MAX_VALUES`].
fn few_ints<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> Option<Vec<T::Native>>
where
    T::Native: Into<i128>,
{
    let key = |value: T::Native| -> i128 { value.into() };
    let mut found: Vec<T::Native> = Vec::with_capacity(MAX_VALUES);
    for value in array.iter().flatten() {
        if let Err(at) = found.binary_search_by_key(&key(value), |v| key(*v)) {
            if found.len() == MAX_VALUES {
                return None;
            }
            found.insert(at, value);
        }
    }
    Some(found)
}

/// The same for byte strings; `None` also if one is too long to be listed.
fn few_bytes<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Vec<&'a [u8]>> {
    let mut found: Vec<&[u8]> = Vec::with_capacity(MAX_VALUES);
    for value in values {
        if let Err(at) = found.binary_search(&value) {
            if found.len() == MAX_VALUES || value.len() > MAX_BOUND_BYTES {
                return None;
            }
            found.insert(at, value);
        }
    }
    Some(found)
}

/// The first [`MAX_BOUND_BYTES`] bytes, less a character that would be cut in two: not greater.
fn cut_down(value: &[u8], is_text: bool) -> &[u8] {
    if value.len() <= MAX_BOUND_BYTES {
        return value;
    }
    let mut end = MAX_BOUND_BYTES;
    // Bytes of the form 10xxxxxx continue a character.
    while is_text && end > 0 && value[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &value[..end]
}

/// The least short value that is greater than all that start like `value`; `value` itself if it is
/// short. `None` if there is none.
fn cut_up(value: &[u8], is_text: bool) -> Option<Vec<u8>> {
    if value.len() <= MAX_BOUND_BYTES {
        return Some(value.to_vec());
    }
    let cut = cut_down(value, is_text);
    if !is_text {
        let last = cut.iter().rposition(|&byte| byte < u8::MAX)?;
        let mut upper = cut[..=last].to_vec();
        upper[last] += 1;
        return Some(upper);
    }
    let mut upper = std::str::from_utf8(cut).ok()?.to_owned();
    // The order of UTF-8 as bytes is that of the characters.
    while let Some(last) = upper.pop() {
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            upper.push(next);
            return Some(upper.into_bytes());
        }
    }
    None
}

/// What is known of all columns of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum KeyBounds {
    /// No row has been seen.
    #[default]
    NoRows,
    /// At least one column is not unknown.
    Columns(Vec<ColumnBounds>),
    Unknown,
}

impl KeyBounds {
    pub(crate) fn columns(&self) -> Option<&[ColumnBounds]> {
        match self {
            Self::Columns(columns) => Some(columns),
            Self::NoRows | Self::Unknown => None,
        }
    }

    /// Takes in the rows of a batch; `rows` counts them and all before.
    pub(crate) fn observe(&mut self, columns: &[ArrayRef], rows: u64) {
        if matches!(self, Self::NoRows) {
            *self = match u8::try_from(columns.len()) {
                Ok(1..) => Self::Columns(vec![ColumnBounds::Nothing; columns.len()]),
                _ => Self::Unknown,
            };
        }
        if let Self::Columns(bounds) = self {
            if bounds.len() != columns.len() {
                *self = Self::Unknown;
                return;
            }
            let list = columns.len() == 1 && rows <= MAX_ROWS;
            for (bounds, array) in bounds.iter_mut().zip(columns) {
                let few = list && matches!(bounds, ColumnBounds::Nothing | ColumnBounds::Values(_));
                bounds.observe(array, rows, few);
            }
        }
        self.limit(rows);
    }

    /// Takes in what another saw; `rows` counts those of both.
    pub(crate) fn merge(&mut self, other: &Self, rows: u64) {
        match (&mut *self, other) {
            (_, Self::NoRows) => (),
            (Self::NoRows, _) => *self = other.clone(),
            (Self::Columns(ours), Self::Columns(theirs)) if ours.len() == theirs.len() => {
                for (ours, theirs) in ours.iter_mut().zip(theirs) {
                    ours.merge(theirs);
                }
            }
            _ => *self = Self::Unknown,
        }
        self.limit(rows);
    }

    /// Gives up what is only kept up to a number of rows, and columns that are all unknown.
    fn limit(&mut self, rows: u64) {
        let Self::Columns(columns) = self else {
            return;
        };
        if rows > MAX_ROWS {
            for column in columns.iter_mut() {
                *column = match column.is_bytes() {
                    true => ColumnBounds::Unknown,
                    false => std::mem::replace(column, ColumnBounds::Unknown).without_values(),
                };
            }
        }
        if columns.iter().all(|c| *c == ColumnBounds::Unknown) {
            *self = Self::Unknown;
        }
    }

    /// Bytes that [`write`](Self::write) appends.
    pub(crate) fn encoded_len(&self) -> usize {
        let Self::Columns(columns) = self else {
            return 0;
        };
        let column = |column: &ColumnBounds| match column {
            ColumnBounds::Unknown | ColumnBounds::Nothing => 1,
            ColumnBounds::Range { min, max } => 1 + encoded_len(min) + encoded_len(max),
            ColumnBounds::Values(values) => 2 + values.iter().map(encoded_len).sum::<usize>(),
        };
        3 + columns.iter().map(column).sum::<usize>()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Self::Columns(columns) = self else {
            return;
        };
        // At most 255 columns of 137 bytes, or one of 64 values.
        let len = u16::try_from(self.encoded_len() - 2).unwrap_or(u16::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.push(columns.len() as u8);
        for column in columns {
            let bytes = column.is_bytes();
            match column {
                ColumnBounds::Unknown => out.push(UNKNOWN),
                ColumnBounds::Nothing => out.push(NOTHING),
                ColumnBounds::Range { min, max } => {
                    out.push(if bytes { BYTES_RANGE } else { INT_RANGE });
                    write_value(min, out);
                    write_value(max, out);
                }
                ColumnBounds::Values(values) => {
                    out.push(if bytes { BYTES_VALUES } else { INT_VALUES });
                    out.push(values.len() as u8);
                    values.iter().for_each(|value| write_value(value, out));
                }
            }
        }
    }

    /// Reads what [`write`](Self::write) wrote, and nothing else, for a key of which `rows` rows were
    /// seen. Returns what comes after it.
    pub(crate) fn read(bytes: &[u8], rows: u64) -> Result<(Self, &[u8]), DecodeError> {
        const WRONG: DecodeError = DecodeError::Malformed("key bounds that no sender writes");
        let (len, rest) = bytes.split_first_chunk::<2>().ok_or(WRONG)?;
        let (section, rest) = rest
            .split_at_checked(usize::from(u16::from_le_bytes(*len)))
            .ok_or(WRONG)?;
        let (&count, mut section) = section.split_first().ok_or(WRONG)?;
        let mut columns = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let level = take(&mut section, 1).ok_or(WRONG)?[0];
            let bytes = matches!(level, BYTES_RANGE | BYTES_VALUES);
            if rows > MAX_ROWS && (bytes || level == INT_VALUES) {
                return Err(WRONG);
            }
            columns.push(match level {
                UNKNOWN => ColumnBounds::Unknown,
                NOTHING => ColumnBounds::Nothing,
                INT_RANGE | BYTES_RANGE => {
                    let min = read_value(&mut section, bytes, MAX_BOUND_BYTES).ok_or(WRONG)?;
                    let max = read_value(&mut section, bytes, MAX_UPPER_BYTES).ok_or(WRONG)?;
                    if min > max {
                        return Err(WRONG);
                    }
                    ColumnBounds::Range { min, max }
                }
                INT_VALUES | BYTES_VALUES if count == 1 => {
                    let values = usize::from(take(&mut section, 1).ok_or(WRONG)?[0]);
                    let values = (0..values)
                        .map(|_| read_value(&mut section, bytes, MAX_BOUND_BYTES))
                        .collect::<Option<Vec<_>>>()
                        .ok_or(WRONG)?;
                    let fits = (1..=MAX_VALUES).contains(&values.len())
                        && listed_bytes(&values) <= MAX_VALUES_BYTES
                        && values.is_sorted_by(|a, b| a < b);
                    if !fits {
                        return Err(WRONG);
                    }
                    ColumnBounds::Values(values)
                }
                _ => return Err(WRONG),
            });
        }
        let known = columns.iter().any(|c| *c != ColumnBounds::Unknown);
        if !section.is_empty() || !known || rows == 0 {
            return Err(WRONG);
        }
        Ok((Self::Columns(columns), rest))
    }
}

fn int_len(value: i128) -> usize {
    let significant = 128 - (value ^ (value >> 127)).leading_zeros() as usize;
    // And the sign.
    significant / 8 + 1
}

fn encoded_len(value: &KeyValue) -> usize {
    1 + match value {
        KeyValue::Int(value) => int_len(*value),
        KeyValue::Bytes(bytes) => bytes.len(),
    }
}

fn write_value(value: &KeyValue, out: &mut Vec<u8>) {
    let int;
    let bytes = match value {
        KeyValue::Int(value) => {
            int = value.to_le_bytes();
            &int[..int_len(*value)]
        }
        KeyValue::Bytes(bytes) => bytes,
    };
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(taken)
}

fn read_value(from: &mut &[u8], bytes: bool, max_len: usize) -> Option<KeyValue> {
    let len = usize::from(take(from, 1)?[0]);
    let value = take(from, len)?;
    if bytes {
        return (len <= max_len).then(|| KeyValue::Bytes(value.to_vec()));
    }
    let negative = value.last()? & 0x80 != 0;
    let mut int = [if negative { 0xff } else { 0 }; 16];
    int.get_mut(..len)?.copy_from_slice(value);
    let int = i128::from_le_bytes(int);
    (int_len(int) == len).then_some(KeyValue::Int(int))
}

#[cfg(test)]
mod tests;
