//! Every type in every shape that Arrow allows, against a second computation of the hashes that never
//! sees an array: it starts from the numbers that the arrays were made of.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::ScalarBuffer;
use arrow::compute::{cast, nullif};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{HASH_SCHEME, KeyHasher};
use arrow::datatypes::*;

const SEED: u64 = 0x5eed;

/// The scheme row by row, from its definition.
mod oracle {
    pub(super) fn mix(x: u64) -> u64 {
        let mut x = u128::from(x);
        x = (x ^ (x >> 30)) * 0xbf58_476d_1ce4_e5b9 % (1 << 64);
        x = (x ^ (x >> 27)) * 0x94d0_49bb_1331_11eb % (1 << 64);
        (x ^ (x >> 31)) as u64
    }

    pub(super) fn k(i: u64) -> u64 {
        mix(super::SEED.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(super) fn integer(value: i128) -> u64 {
        mix(value as u64 ^ k(1))
    }

    pub(super) fn float(value: f64) -> u64 {
        mix(k(1)
            ^ match value {
                0.0 => 0,
                _ if value.is_nan() => 0x7ff8_0000_0000_0000,
                _ => value.to_bits(),
            })
    }

    /// Of the 32 bytes of an unscaled value, the lowest first.
    pub(super) fn decimal(bytes: [u8; 32]) -> u64 {
        let sign = |byte: u8| if byte < 0x80 { 0 } else { 0xff };
        let count = [1, 2, 4].into_iter().find(|count| {
            let kept = count * 8;
            bytes[kept..]
                .iter()
                .all(|&byte| byte == sign(bytes[kept - 1]))
        });
        let limbs = bytes.chunks(8).take(count.unwrap());
        let limbs = limbs.map(|limb| u64::from_le_bytes(limb.try_into().unwrap()));
        limbs
            .fold(None, |hash, limb| Some(mix(limb ^ hash.unwrap_or(k(1)))))
            .unwrap()
    }

    pub(super) fn bytes(value: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(value, &rapidhash::v3::RapidSecrets::seed_cpp(k(2)))
    }

    /// Of a row, `None` being NULL.
    pub(super) fn row(columns: &[Option<u64>]) -> Option<u64> {
        let hashes: Option<Vec<u64>> = columns.iter().copied().collect();
        let tuple = hashes?.into_iter().reduce(|tuple, hash| {
            let scaled = u128::from(tuple) * 0x9e37_79b9_7f4a_7c15;
            mix(((scaled + u128::from(hash) + u128::from(k(3))) % (1 << 64)) as u64)
        });
        tuple.map(last_step)
    }

    pub(super) fn last_step(hash: u64) -> u64 {
        (hash >> 40 << 40) + hash % (1 << 32)
    }
}

/// A float whose kind depends on `raw`: zeros, NaN, infinities, and others.
fn float(raw: u64, bits: fn(u64) -> f64) -> f64 {
    match raw % 8 {
        0 => 0.0,
        1 => -0.0,
        2 => f64::INFINITY,
        _ => bits(raw >> 3),
    }
}

/// What the bits of a half float stand for.
fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    }
}

/// Text of 0 to 39 bytes: views hold some of it inline.
fn text(raw: u64) -> String {
    let letters = (0..raw % 40).map(|i| char::from(b'a' + ((raw >> (i % 32)) % 26) as u8));
    letters.collect()
}

fn fixed_bytes(raw: u64, width: usize) -> Vec<u8> {
    raw.to_le_bytes().into_iter().cycle().take(width).collect()
}

/// Decimals of 1, 2 or 4 limbs, at times at the edge between them.
fn wide(raw: u64) -> i256 {
    let small = i256::from_i128(i128::from(raw as i64));
    match raw % 7 {
        0 => i256::from_i128(i128::from(i64::MIN)),
        1 => i256::from_i128(i128::from(i64::MAX) + 1),
        2 => i256::from_i128(i128::MIN),
        3 => i256::from_i128(i128::MAX).wrapping_add(i256::ONE),
        4 => small << (raw % 192) as u8,
        _ => small >> (raw % 64) as u8,
    }
}

/// A column without NULL of the values that `raws` stand for, and their hashes.
fn column(data_type: &DataType, raws: &[u64]) -> (ArrayRef, Vec<u64>) {
    use DataType::*;
    macro_rules! integers {
        ($type:ty) => {{
            type Native = <$type as ArrowPrimitiveType>::Native;
            let values: Vec<Native> = raws.iter().map(|&raw| raw as Native).collect();
            let hashes = values.iter().map(|&v| oracle::integer(v as i128)).collect();
            let array = PrimitiveArray::<$type>::new(ScalarBuffer::from(values), None);
            (
                Arc::new(array.with_data_type(data_type.clone())) as ArrayRef,
                hashes,
            )
        }};
    }
    let texts = || raws.iter().map(|&raw| text(raw));
    let all_bytes = |values: &dyn Fn(u64) -> Vec<u8>| -> Vec<u64> {
        raws.iter()
            .map(|&raw| oracle::bytes(&values(raw)))
            .collect()
    };
    let text_hashes = || all_bytes(&|raw| text(raw).into_bytes());
    match data_type {
        Boolean => (
            Arc::new(BooleanArray::from_iter(
                raws.iter().map(|raw| Some(raw % 2 == 1)),
            )),
            raws.iter()
                .map(|&raw| oracle::integer(i128::from(raw % 2)))
                .collect(),
        ),
        Int8 => integers!(Int8Type),
        Int16 => integers!(Int16Type),
        Int32 => integers!(Int32Type),
        Int64 => integers!(Int64Type),
        UInt8 => integers!(UInt8Type),
        UInt16 => integers!(UInt16Type),
        UInt32 => integers!(UInt32Type),
        UInt64 => integers!(UInt64Type),
        Date32 => integers!(Date32Type),
        Date64 => integers!(Date64Type),
        Time32(TimeUnit::Second) => integers!(Time32SecondType),
        Time32(_) => integers!(Time32MillisecondType),
        Time64(TimeUnit::Microsecond) => integers!(Time64MicrosecondType),
        Time64(_) => integers!(Time64NanosecondType),
        Timestamp(TimeUnit::Second, _) => integers!(TimestampSecondType),
        Timestamp(TimeUnit::Millisecond, _) => integers!(TimestampMillisecondType),
        Timestamp(TimeUnit::Microsecond, _) => integers!(TimestampMicrosecondType),
        Timestamp(TimeUnit::Nanosecond, _) => integers!(TimestampNanosecondType),
        Duration(TimeUnit::Second) => integers!(DurationSecondType),
        Duration(TimeUnit::Millisecond) => integers!(DurationMillisecondType),
        Duration(TimeUnit::Microsecond) => integers!(DurationMicrosecondType),
        Duration(TimeUnit::Nanosecond) => integers!(DurationNanosecondType),
        Decimal32(..) => integers!(Decimal32Type),
        Decimal64(..) => integers!(Decimal64Type),
        Decimal128(..) => {
            let values: Vec<i128> = raws.iter().map(|&raw| wide(raw).as_i128()).collect();
            let hash = |v: &i128| oracle::decimal(i256::from_i128(*v).to_le_bytes());
            let hashes = values.iter().map(hash).collect();
            let array = Decimal128Array::from(values).with_data_type(data_type.clone());
            (Arc::new(array), hashes)
        }
        Decimal256(..) => {
            let values: Vec<i256> = raws.iter().map(|&raw| wide(raw)).collect();
            let hashes = values
                .iter()
                .map(|v| oracle::decimal(v.to_le_bytes()))
                .collect();
            let array = Decimal256Array::from(values).with_data_type(data_type.clone());
            (Arc::new(array), hashes)
        }
        Float16 => {
            type Half = <Float16Type as ArrowPrimitiveType>::Native;
            let array = raws.iter().map(|&raw| Half::from_bits(raw as u16));
            let hashes = raws
                .iter()
                .map(|&raw| oracle::float(half_value(raw as u16)));
            (
                Arc::new(Float16Array::from_iter_values(array)),
                hashes.collect(),
            )
        }
        Float32 => {
            let value = |raw: &u64| float(*raw, |bits| f32::from_bits(bits as u32).into());
            let array = raws.iter().map(|raw| value(raw) as f32);
            let hashes = raws.iter().map(|raw| oracle::float(value(raw)));
            (
                Arc::new(Float32Array::from_iter_values(array)),
                hashes.collect(),
            )
        }
        Float64 => {
            let value = |raw: &u64| float(*raw, |bits| f64::from_bits(bits << 3 | 5));
            let hashes = raws.iter().map(|raw| oracle::float(value(raw)));
            let array = Float64Array::from_iter_values(raws.iter().map(value));
            (Arc::new(array), hashes.collect())
        }
        Utf8 => (
            Arc::new(StringArray::from_iter_values(texts())),
            text_hashes(),
        ),
        LargeUtf8 => (
            Arc::new(LargeStringArray::from_iter_values(texts())),
            text_hashes(),
        ),
        Binary => (
            Arc::new(BinaryArray::from_iter_values(texts())),
            text_hashes(),
        ),
        LargeBinary => (
            Arc::new(LargeBinaryArray::from_iter_values(texts())),
            text_hashes(),
        ),
        Utf8View => {
            // Several buffers.
            let mut builder = StringViewBuilder::new().with_fixed_block_size(100);
            texts().for_each(|text| builder.append_value(text));
            (Arc::new(builder.finish()), text_hashes())
        }
        BinaryView => {
            let mut builder = BinaryViewBuilder::new().with_fixed_block_size(100);
            texts().for_each(|text| builder.append_value(text));
            (Arc::new(builder.finish()), text_hashes())
        }
        FixedSizeBinary(width) => {
            let bytes = |raw| fixed_bytes(raw, *width as usize);
            let values = raws.iter().map(|&raw| Some(bytes(raw)));
            let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *width);
            (Arc::new(array.unwrap()), all_bytes(&bytes))
        }
        other => panic!("no column of {other}"),
    }
}

/// Every type that can be a key, dictionaries apart.
fn types() -> Vec<DataType> {
    use DataType::*;
    let units = [
        TimeUnit::Second,
        TimeUnit::Millisecond,
        TimeUnit::Microsecond,
        TimeUnit::Nanosecond,
    ];
    let mut types = vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Date32,
        Date64,
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        Time32(units[0]),
        Time32(units[1]),
        Time64(units[2]),
        Time64(units[3]),
        Decimal32(9, 2),
        Decimal64(18, 0),
        Decimal128(38, 10),
        Decimal256(76, -3),
        FixedSizeBinary(1),
        FixedSizeBinary(16),
        FixedSizeBinary(20),
    ];
    types.extend(units.map(|unit| Timestamp(unit, None)));
    types.extend(units.map(|unit| Timestamp(unit, Some("+01:00".into()))));
    types.extend(units.map(Duration));
    types
}

const KEY_TYPES: [DataType; 8] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::UInt8,
    DataType::UInt16,
    DataType::UInt32,
    DataType::UInt64,
];

/// One row of a column as a test draws it.
#[derive(Debug, Clone, Copy)]
struct Row {
    raw: u64,
    null: bool,
    /// Which of several ways to express the same is taken.
    way: u8,
}

/// A column of the rows, with values under its NULLs, and the hashes of the values.
fn plain(data_type: &DataType, rows: &[Row]) -> (ArrayRef, Vec<Option<u64>>) {
    let raws: Vec<u64> = rows.iter().map(|row| row.raw).collect();
    let (array, hashes) = column(data_type, &raws);
    let nulls = BooleanArray::from_iter(rows.iter().map(|row| Some(row.null)));
    let hashes = hashes
        .into_iter()
        .zip(rows)
        .map(|(hash, row)| (!row.null).then_some(hash));
    (nullif(&array, &nulls).unwrap(), hashes.collect())
}

/// The same rows as a dictionary: each value is there twice, some values are NULL, some unused.
/// NULL is a key, or the key of such a value.
fn dictionary(key: &DataType, data_type: &DataType, rows: &[Row]) -> ArrayRef {
    let last = Row {
        raw: 3,
        null: true,
        way: 0,
    };
    let unused = Row {
        raw: 99,
        null: false,
        way: 0,
    };
    let values: Vec<Row> = [rows, rows, &[last, unused]].concat();
    let (values, _) = plain(data_type, &values);
    let position = |(at, row): (usize, &Row)| match (row.null, row.way % 3) {
        (true, 0) => None,
        (true, 1) => Some(2 * rows.len() as u64),
        (_, way) => Some((at + rows.len() * usize::from(way % 2)) as u64),
    };
    let keys = UInt64Array::from_iter(rows.iter().enumerate().map(position));
    let keys = cast(&keys, key).unwrap();
    macro_rules! with_keys {
        ($($name:ident: $type:ty),*) => {
            match key {
                $(DataType::$name => {
                    let keys = keys.as_primitive::<$type>().clone();
                    Arc::new(DictionaryArray::try_new(keys, values).unwrap())
                })*
                other => panic!("no key of {other}"),
            }
        };
    }
    with_keys!(
        Int8: Int8Type, Int16: Int16Type, Int32: Int32Type, Int64: Int64Type,
        UInt8: UInt8Type, UInt16: UInt16Type, UInt32: UInt32Type, UInt64: UInt64Type
    )
}

/// Hashes the columns and compares with what the oracle says of their rows.
fn check(columns: &[ArrayRef], wanted: &[Vec<Option<u64>>]) -> Result<(), TestCaseError> {
    let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
    prop_assert!(types.iter().all(KeyHasher::supports), "{types:?}");
    let mut out = Vec::new();
    let mut hasher = KeyHasher::try_new(&types, SEED).unwrap();
    let validity = hasher.hash_batch(columns, &mut out).unwrap();
    prop_assert_eq!(out.len(), columns[0].len());
    if let Some(validity) = &validity {
        prop_assert_eq!(validity.len(), out.len());
        prop_assert!(validity.null_count() > 0);
    }
    for (at, &hash) in out.iter().enumerate() {
        let row: Vec<Option<u64>> = wanted.iter().map(|column| column[at]).collect();
        let wanted = oracle::row(&row);
        let valid = validity
            .as_ref()
            .is_none_or(|validity| validity.is_valid(at));
        prop_assert_eq!(valid, wanted.is_some(), "{:?}, row {}", &types, at);
        let null = oracle::last_step(oracle::k(4));
        prop_assert_eq!(hash, wanted.unwrap_or(null), "{:?}, row {}", &types, at);
    }
    Ok(())
}

fn rows(most: usize) -> impl Strategy<Value = Vec<Row>> {
    let raw = prop_oneof![any::<u64>(), 0u64..50];
    let row = (
        raw,
        prop_oneof![4 => Just(false), 1 => Just(true)],
        any::<u8>(),
    );
    vec(
        row.prop_map(|(raw, null, way)| Row { raw, null, way }),
        0..most,
    )
}

/// Cuts the same rows out of each.
fn cut(rows: usize, from: usize, to: usize) -> (usize, usize) {
    let from = from.min(rows);
    (from, to.min(rows - from))
}

#[test]
fn there_is_an_oracle_for_every_type() {
    assert_eq!(types().len(), 43);
    assert_eq!(HASH_SCHEME, 2, "of which the oracle is");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_type_hashes_by_value_in_every_slice(
        rows in rows(60),
        key in 0..KEY_TYPES.len(),
        from in 0usize..20,
        len in 0usize..70,
    ) {
        let (from, len) = cut(rows.len(), from, len);
        for (at, data_type) in types().iter().enumerate() {
            let (array, wanted) = plain(data_type, &rows);
            let encoded = dictionary(&KEY_TYPES[(key + at) % 8], data_type, &rows);
            for array in [array, encoded] {
                check(std::slice::from_ref(&array), std::slice::from_ref(&wanted))?;
                let part = wanted[from..from + len].to_vec();
                check(&[array.slice(from, len)], &[part])?;
            }
        }
    }

    #[test]
    fn composite_keys_of_any_types_hash_by_value(
        columns in vec((rows(60), 0usize..43, proptest::option::of(0..KEY_TYPES.len())), 2..5),
        from in 0usize..20,
    ) {
        let shortest = columns.iter().map(|column| column.0.len()).min().unwrap();
        let from = from.min(shortest);
        let (arrays, wanted): (Vec<_>, Vec<_>) = columns
            .iter()
            .map(|(rows, data_type, key)| {
                // Each cut at another place to the same length.
                let (data_type, at) = (&types()[*data_type], rows.len() - shortest);
                let (array, wanted) = plain(data_type, rows);
                let array = match key {
                    Some(key) => dictionary(&KEY_TYPES[*key], data_type, rows),
                    None => array,
                };
                let len = shortest - from;
                (array.slice(at + from, len), wanted[at + from..].to_vec())
            })
            .unzip();
        check(&arrays, &wanted)?;
    }

    #[test]
    fn equal_text_hashes_alike_across_encodings_and_other_text_does_not(rows in rows(60)) {
        let hashes = |data_type: &DataType, key: Option<&DataType>| {
            let array = match key {
                Some(key) => dictionary(key, data_type, &rows),
                None => plain(data_type, &rows).0,
            };
            let mut out = Vec::new();
            let mut hasher = KeyHasher::try_new(&[array.data_type().clone()], SEED).unwrap();
            hasher.hash_batch(&[array], &mut out).unwrap();
            out
        };
        let wanted = hashes(&DataType::Utf8, None);
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in rows.iter().enumerate() {
                let equal = if a.null || b.null { a.null && b.null } else { text(a.raw) == text(b.raw) };
                prop_assert_eq!(wanted[i] == wanted[j], equal);
            }
        }
        use DataType::*;
        for encoding in [Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView] {
            prop_assert_eq!(&hashes(&encoding, None), &wanted);
            for key in &KEY_TYPES {
                prop_assert_eq!(&hashes(&encoding, Some(key)), &wanted);
            }
        }
    }
}
