#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::ScalarBuffer;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SEED: u64 = 0x5eed;

fn hash(columns: &[ArrayRef]) -> (Vec<u64>, Option<NullBuffer>) {
    let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
    let mut out = vec![1, 2, 3];
    let validity = KeyHasher::try_new(&types, SEED)
        .unwrap()
        .hash_batch(columns, &mut out)
        .unwrap();
    (out, validity)
}

fn hashes_of(array: impl Array + 'static) -> Vec<u64> {
    hash(&[Arc::new(array)]).0
}

/// One row of the type that a conformance vector names.
fn parse(kind: &str, value: &str) -> ArrayRef {
    if let Some(types) = kind.strip_prefix("Dictionary(") {
        let (key, plain) = types.strip_suffix(')').unwrap().split_once(';').unwrap();
        let plain = parse(plain, value);
        let key = parse(key, "0").data_type().clone();
        let encoding = DataType::Dictionary(Box::new(key), Box::new(plain.data_type().clone()));
        return dictionary_of(&plain, &encoding);
    }
    let cast = |from: &str, to| arrow::compute::cast(&parse(from, value), &to).unwrap();
    let (kind, arguments) = match kind.split_once('(') {
        // Units are part of the name.
        Some((name, rest)) if !name.starts_with("Time") && name != "Duration" => {
            let rest = rest.strip_suffix(')').unwrap();
            (
                name,
                rest.split(';')
                    .map(|number| number.parse().unwrap())
                    .collect(),
            )
        }
        _ => (kind, Vec::<i32>::new()),
    };
    macro_rules! decimal {
        ($type:ty, $value:expr) => {{
            let array = PrimitiveArray::<$type>::from_iter_values([$value]);
            let array = match arguments[..] {
                [precision, scale] => array
                    .with_precision_and_scale(precision as u8, scale as i8)
                    .unwrap(),
                _ => array,
            };
            Arc::new(array)
        }};
    }
    fn one<T: ArrowPrimitiveType>(native: Option<T::Native>) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter([native]))
    }
    macro_rules! number {
        ($type:ty) => {
            one::<$type>((value != "\\N").then(|| value.parse().unwrap()))
        };
    }
    macro_rules! float {
        ($type:ty, $bits:ty) => {
            one::<$type>(Some(<$type as ArrowPrimitiveType>::Native::from_bits(
                <$bits>::from_str_radix(value, 16).unwrap(),
            )))
        };
    }
    match kind {
        "Int8" => number!(Int8Type),
        "Int16" => number!(Int16Type),
        "Int32" => number!(Int32Type),
        "Int64" => number!(Int64Type),
        "UInt8" => number!(UInt8Type),
        "UInt16" => number!(UInt16Type),
        "UInt32" => number!(UInt32Type),
        "UInt64" => number!(UInt64Type),
        "Boolean" => Arc::new(BooleanArray::from(vec![value == "1"])),
        "Date32" => number!(Date32Type),
        "Date64" => number!(Date64Type),
        "Time32(s)" => number!(Time32SecondType),
        "Time32(ms)" => number!(Time32MillisecondType),
        "Time64(us)" => number!(Time64MicrosecondType),
        "Time64(ns)" => number!(Time64NanosecondType),
        "Timestamp(s)" => number!(TimestampSecondType),
        "Timestamp(ms)" => number!(TimestampMillisecondType),
        "Timestamp(us)" => number!(TimestampMicrosecondType),
        "Timestamp(ns)" => number!(TimestampNanosecondType),
        "Duration(s)" => number!(DurationSecondType),
        "Duration(ms)" => number!(DurationMillisecondType),
        "Duration(us)" => number!(DurationMicrosecondType),
        "Duration(ns)" => number!(DurationNanosecondType),
        "Float16" => float!(Float16Type, u16),
        "Float32" => float!(Float32Type, u32),
        "Float64" => float!(Float64Type, u64),
        "Timestamp(s;UTC)" => {
            let values = TimestampSecondArray::from(vec![value.parse::<i64>().unwrap()]);
            Arc::new(values.with_timezone("UTC"))
        }
        "Timestamp(us;Europe/Zurich)" => {
            let values = TimestampMicrosecondArray::from(vec![value.parse::<i64>().unwrap()]);
            Arc::new(values.with_timezone("Europe/Zurich"))
        }
        "Decimal32" => decimal!(Decimal32Type, value.parse().unwrap()),
        "Decimal64" => decimal!(Decimal64Type, value.parse().unwrap()),
        "Decimal128" => decimal!(Decimal128Type, value.parse().unwrap()),
        "Decimal256" => decimal!(Decimal256Type, i256::from_string(value).unwrap()),
        "Utf8" => Arc::new(StringArray::from(vec![(value != "\\N").then_some(value)])),
        "LargeUtf8" => cast("Utf8", DataType::LargeUtf8),
        "Utf8View" => cast("Utf8", DataType::Utf8View),
        "LargeBinary" => cast("Binary", DataType::LargeBinary),
        "BinaryView" => cast("Binary", DataType::BinaryView),
        "FixedSizeBinary" if arguments == [0] => {
            let values = arrow::buffer::Buffer::from(&[0u8; 0]);
            Arc::new(FixedSizeBinaryArray::try_new_with_len(0, values, None, 1).unwrap())
        }
        "FixedSizeBinary" => cast("Binary", DataType::FixedSizeBinary(arguments[0])),
        "Binary" => {
            let bytes: Vec<u8> = (0..value.len() / 2)
                .map(|i| u8::from_str_radix(&value[2 * i..2 * i + 2], 16).unwrap())
                .collect();
            Arc::new(BinaryArray::from_vec(vec![&bytes]))
        }
        other => panic!("no such type: {other}"),
    }
}

/// The values of an array as a dictionary.
fn dictionary_of(plain: &ArrayRef, encoding: &DataType) -> ArrayRef {
    let DataType::Dictionary(key, _) = encoding else {
        panic!("not a dictionary: {encoding}");
    };
    // In reverse, so that keys are not positions.
    let last = plain.len().saturating_sub(1) as u64;
    let positions = UInt64Array::from_iter_values((0..plain.len() as u64).map(|row| last - row));
    let values = arrow::compute::take(plain, &positions, None).unwrap();
    let keys = arrow::compute::cast(&positions, key).unwrap();
    macro_rules! dictionary {
        ($($name:ident: $type:ty),*) => {
            match key.as_ref() {
                $(DataType::$name => {
                    let keys = keys.as_primitive::<$type>().clone();
                    Arc::new(DictionaryArray::try_new(keys, values).unwrap())
                })*
                other => panic!("no key type: {other}"),
            }
        };
    }
    dictionary!(
        Int8: Int8Type, Int16: Int16Type, Int32: Int32Type, Int64: Int64Type,
        UInt8: UInt8Type, UInt16: UInt16Type, UInt32: UInt32Type, UInt64: UInt64Type
    )
}

#[test]
fn conformance_vectors_hold() {
    let vectors = include_str!("../../conformance/hash-v2.csv");
    let mut checked = 0;
    for line in vectors.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [kinds, values, seed, wanted] = fields[..] else {
            panic!("not four fields: {line}");
        };
        let columns: Vec<ArrayRef> = kinds
            .split('+')
            .zip(values.split('+'))
            .map(|(kind, value)| parse(kind, value))
            .collect();
        let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
        let mut hasher =
            KeyHasher::try_new(&types, u64::from_str_radix(seed, 16).unwrap()).unwrap();
        let mut out = Vec::new();
        hasher.hash_batch(&columns, &mut out).unwrap();
        assert_eq!(format!("{:016x}", out[0]), wanted, "{line}");
        checked += 1;
    }
    assert_eq!(checked, 486);
}

/// One array of two distinct values for each supported type, dictionaries apart.
fn each_plain_type() -> Vec<ArrayRef> {
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(BooleanArray::from(vec![false, true])),
        Arc::new(StringArray::from(vec!["0", "1"])),
        Arc::new(LargeStringArray::from(vec!["0", "1"])),
        Arc::new(StringViewArray::from(vec!["0", "1"])),
        Arc::new(BinaryArray::from_vec(vec![b"0", b"1"])),
        Arc::new(LargeBinaryArray::from_vec(vec![b"0", b"1"])),
        Arc::new(BinaryViewArray::from_iter_values([b"0", b"1"])),
        Arc::new(FixedSizeBinaryArray::try_from_iter([b"0", b"1"].into_iter()).unwrap()),
    ];
    macro_rules! primitives {
        ($($type:ty),*) => {$(
            arrays.push(Arc::new(PrimitiveArray::<$type>::from_iter_values([
                <$type as ArrowPrimitiveType>::Native::usize_as(0),
                <$type as ArrowPrimitiveType>::Native::usize_as(1),
            ])));
        )*};
    }
    primitives!(
        Int8Type,
        Int16Type,
        Int32Type,
        Int64Type,
        UInt8Type,
        UInt16Type,
        UInt32Type,
        UInt64Type,
        Date32Type,
        Date64Type,
        Time32SecondType,
        Time32MillisecondType,
        Time64MicrosecondType,
        Time64NanosecondType,
        TimestampSecondType,
        TimestampMillisecondType,
        TimestampMicrosecondType,
        TimestampNanosecondType,
        DurationSecondType,
        DurationMillisecondType,
        DurationMicrosecondType,
        DurationNanosecondType,
        Decimal32Type,
        Decimal64Type,
        Decimal128Type
    );
    arrays.push(Arc::new(Decimal256Array::from_iter_values([
        i256::ZERO,
        i256::ONE,
    ])));
    arrays.push(Arc::new(Float32Array::from(vec![0.0, 1.0])));
    arrays.push(Arc::new(Float64Array::from(vec![0.0, 1.0])));
    arrays.push(parse("Float16", "3c00"));
    arrays
}

#[test]
fn every_supported_type_is_hashed_and_dictionaries_of_it_alike() {
    let arrays = each_plain_type();
    assert_eq!(arrays.len(), 37);
    let null = Constants::new(SEED, 1).null;
    for array in arrays {
        let plain = hashes_of(array.clone());
        assert!(
            plain.iter().all(|&hash| hash != null),
            "{}",
            array.data_type()
        );
        assert!(
            plain.windows(2).all(|pair| pair[0] != pair[1]),
            "{}",
            array.data_type()
        );
        let keys = Int16Array::from(vec![Some(0), None, Some(0), Some(array.len() as i16 - 1)]);
        let dictionary = DictionaryArray::try_new(keys, array).unwrap();
        let (got, validity) = hash(&[Arc::new(dictionary)]);
        assert_eq!(got, [plain[0], null, plain[0], plain[plain.len() - 1]]);
        assert_eq!(
            validity.unwrap().iter().collect::<Vec<_>>(),
            [true, false, true, true]
        );
    }
}

#[test]
fn unsupported_types_are_refused_by_name() {
    let int = Arc::new(Field::new("item", DataType::Int32, true));
    let dictionary =
        |value: &DataType| DataType::Dictionary(Box::new(DataType::Int8), Box::new(value.clone()));
    let refused = [
        DataType::Null,
        DataType::Interval(IntervalUnit::YearMonth),
        DataType::Interval(IntervalUnit::DayTime),
        DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Time32(TimeUnit::Nanosecond),
        DataType::List(int.clone()),
        DataType::LargeList(int.clone()),
        DataType::ListView(int.clone()),
        DataType::LargeListView(int.clone()),
        DataType::FixedSizeList(int.clone(), 2),
        DataType::Map(int.clone(), false),
        DataType::Union(UnionFields::empty(), UnionMode::Sparse),
        DataType::Struct(Fields::from(vec![int.clone()])),
        DataType::RunEndEncoded(int.clone(), int),
        dictionary(&DataType::Null),
        dictionary(&DataType::List(Arc::new(Field::new(
            "item",
            DataType::Int8,
            true,
        )))),
        dictionary(&DataType::Interval(IntervalUnit::DayTime)),
        dictionary(&dictionary(&DataType::Utf8)),
    ];
    for data_type in refused {
        assert!(!KeyHasher::supports(&data_type));
        let error = KeyHasher::try_new(&[DataType::Int8, data_type.clone()], 0).unwrap_err();
        assert!(
            error.to_string().contains(&data_type.to_string()),
            "{error}"
        );
        let wanted = UnsupportedKey::Type {
            position: 1,
            data_type,
        };
        assert_eq!(error, wanted);
    }
    assert_eq!(
        KeyHasher::try_new(&[], 0).unwrap_err(),
        UnsupportedKey::NoColumns
    );
}

#[test]
fn batches_unlike_the_declaration_are_refused() {
    let mut hasher = KeyHasher::try_new(&[DataType::Int32, DataType::Utf8], 0).unwrap();
    let int: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let mut out = vec![9];
    let mut error = |columns: &[ArrayRef]| hasher.hash_batch(columns, &mut out).unwrap_err();
    assert_eq!(
        error(std::slice::from_ref(&int)),
        HashError::ColumnCount {
            expected: 2,
            got: 1
        }
    );
    assert_eq!(
        error(&[text.clone(), int.clone()]),
        HashError::ColumnType {
            position: 0,
            expected: DataType::Int32,
            got: DataType::Utf8
        }
    );
    assert_eq!(
        error(&[int.clone(), text.slice(0, 1)]),
        HashError::ColumnLength {
            position: 1,
            expected: 2,
            got: 1
        }
    );
    assert!(out.is_empty());
    assert!(hasher.hash_batch(&[int, text], &mut out).is_ok());
    assert_eq!(out.len(), 2);
}

#[test]
fn integers_of_all_widths_hash_alike() {
    let wide = hashes_of(Int64Array::from(vec![-1, 0, 127]));
    assert_eq!(wide, hashes_of(Int8Array::from(vec![-1, 0, 127])));
    assert_eq!(wide, hashes_of(Int16Array::from(vec![-1, 0, 127])));
    assert_eq!(wide, hashes_of(Int32Array::from(vec![-1, 0, 127])));
    assert_eq!(wide, hashes_of(Date32Array::from(vec![-1, 0, 127])));
    assert_eq!(wide[1..], hashes_of(UInt8Array::from(vec![0, 127])));
    assert_eq!(wide[1..], hashes_of(UInt64Array::from(vec![0, 127])));
}

#[test]
fn decimals_of_all_widths_hash_alike() {
    let small = [0, 1, -1, 999_999_999, -999_999_999];
    let wide: Vec<u64> = hashes_of(Decimal256Array::from_iter_values(small.map(i256::from)));
    assert_eq!(wide, hashes_of(Decimal32Array::from_iter_values(small)));
    assert_eq!(
        wide,
        hashes_of(Decimal64Array::from_iter_values(small.map(i64::from)))
    );
    assert_eq!(
        wide,
        hashes_of(Decimal128Array::from_iter_values(small.map(i128::from)))
    );
}

#[test]
fn floats_hash_by_value() {
    let nan = |bits| f64::from_bits(bits);
    let got = hashes_of(Float64Array::from(vec![
        0.0,
        -0.0,
        f64::NAN,
        nan(0xfff8_0000_0000_0001),
        nan(0x7ff0_0000_0000_0001),
        f64::INFINITY,
        1.5,
    ]));
    assert_eq!(got[0], got[1]);
    assert!(got[2] == got[3] && got[3] == got[4]);
    let distinct = [got[0], got[2], got[5], got[6]];
    assert!((1..4).all(|i| !distinct[..i].contains(&distinct[i])));
    let narrow = hashes_of(Float32Array::from(vec![
        0.0,
        -0.0,
        f32::NAN,
        -f32::NAN,
        f32::NAN,
        f32::INFINITY,
        1.5,
    ]));
    assert_eq!(got, narrow);
}

#[test]
fn column_order_and_boundaries_matter() {
    let a: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 3]));
    let b: ArrayRef = Arc::new(Int64Array::from(vec![2, 1, 3, 4]));
    let (ab, _) = hash(&[a.clone(), b.clone()]);
    let (ba, _) = hash(&[b, a.clone()]);
    assert_eq!(ab[0], ba[1]);
    assert!(ab[0] != ba[0] && ab[0] != ab[1] && ab[2] != ab[3]);
    let text = |values: Vec<&str>| -> ArrayRef { Arc::new(StringArray::from(values)) };
    let (left, _) = hash(&[text(vec!["ab"]), text(vec!["c"])]);
    let (right, _) = hash(&[text(vec!["a"]), text(vec!["bc"])]);
    assert_ne!(left, right);
}

#[test]
fn seeds_give_unrelated_hashes() {
    let columns = [
        Arc::new(Int64Array::from(vec![5])) as ArrayRef,
        Arc::new(StringArray::from(vec!["five"])),
    ];
    for column in columns {
        let with = |seed| {
            let mut hasher = KeyHasher::try_new(&[column.data_type().clone()], seed).unwrap();
            let mut out = Vec::new();
            hasher
                .hash_batch(std::slice::from_ref(&column), &mut out)
                .unwrap();
            out[0]
        };
        let (a, b): (u64, u64) = (with(1), with(2));
        assert!((10..54).contains(&(a ^ b).count_ones()), "{a:x} {b:x}");
    }
}

#[test]
fn a_null_in_any_column_marks_the_row() {
    let a: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(1), None]));
    let b: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), Some("x"), None, None]));
    let (hashes, validity) = hash(&[a.clone(), b]);
    assert_eq!(
        validity.unwrap().iter().collect::<Vec<_>>(),
        [true, false, false, false]
    );
    assert!(hashes[1] == hashes[2] && hashes[2] == hashes[3] && hashes[0] != hashes[1]);
    let (_, validity) = hash(&[a.slice(0, 1)]);
    assert_eq!(validity, None);
    assert_eq!(hash(&[a.slice(0, 0)]), (vec![], None));
}

#[test]
fn dictionaries_may_repeat_and_waste_values_hold_null_and_dangle_under_null() {
    let values: ArrayRef = Arc::new(StringArray::from(vec![
        Some("a"),
        None,
        Some("unused"),
        Some("a"),
        Some("b"),
    ]));
    let plain = hashes_of(StringArray::from(vec!["a", "b"]));
    let null = Constants::new(SEED, 1).null;
    let nulls = NullBuffer::from(vec![true, true, false, false, true, true]);
    let keys = Int8Array::new(ScalarBuffer::from(vec![0, 3, 99, -7, 1, 4]), Some(nulls));
    let dictionary = DictionaryArray::try_new(keys, values.clone()).unwrap();
    let wanted = [plain[0], plain[0], null, null, null, plain[1]];
    // The whole has more rows than values, the slices fewer: both ways of hashing.
    for (from, to) in [(0, 6), (0, 2), (1, 4), (2, 6), (3, 3)] {
        let (got, validity) = hash(&[Arc::new(dictionary.slice(from, to - from))]);
        assert_eq!(got, wanted[from..to]);
        let marked: Vec<bool> = wanted[from..to].iter().map(|&hash| hash != null).collect();
        let valid = validity.map_or(vec![true; to - from], |v| v.iter().collect());
        assert_eq!(valid, marked);
    }
    let views = arrow::compute::cast(&values, &DataType::Utf8View).unwrap();
    let keys = UInt64Array::from(vec![4u64, 0]);
    let got = hashes_of(DictionaryArray::try_new(keys, views).unwrap());
    assert_eq!(got, [plain[1], plain[0]]);
    let empty: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    let keys = Int32Array::from(vec![None::<i32>, None]);
    let got = hashes_of(DictionaryArray::try_new(keys, empty).unwrap());
    assert_eq!(got, [null, null]);
}

#[test]
fn dangling_keys_are_harmless_for_every_value_type() {
    for array in each_plain_type() {
        // Fewer rows than values, and more.
        for rows in [1, 40] {
            let nulls = NullBuffer::new_null(rows);
            let keys = Int32Array::new(ScalarBuffer::from(vec![i32::MAX; rows]), Some(nulls));
            let dictionary = DictionaryArray::try_new(keys, array.clone()).unwrap();
            let (_, validity) = hash(&[Arc::new(dictionary)]);
            assert_eq!(validity.unwrap().null_count(), rows);
        }
    }
}

#[test]
fn a_hasher_keeps_no_state_between_batches() {
    let dictionary = |values: Vec<&str>| -> ArrayRef {
        Arc::new(values.into_iter().collect::<DictionaryArray<Int32Type>>())
    };
    let first = dictionary(vec!["a", "b", "c", "a"]);
    let second = dictionary(vec!["z", "z"]);
    let mut hasher = KeyHasher::try_new(&vec![first.data_type().clone(); 2], SEED).unwrap();
    let mut out = Vec::new();
    for batch in [&first, &second, &first] {
        let columns = [batch.clone(), batch.clone()];
        hasher.hash_batch(&columns, &mut out).unwrap();
        assert_eq!(out, hash(&columns).0);
    }
}

proptest! {
    #[test]
    fn text_hashes_alike_in_every_encoding(values in vec(proptest::option::of(".{0,30}"), 1..40), cut in 0usize..40) {
        let text: ArrayRef = Arc::new(StringArray::from(values));
        let cut = cut.min(text.len());
        let wanted = hash(std::slice::from_ref(&text));
        let key = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
        let encodings = [
            DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, DataType::LargeBinary,
            DataType::BinaryView, key(DataType::Int8), key(DataType::UInt32), key(DataType::Int64),
            DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::LargeUtf8)),
        ];
        for encoding in encodings {
            let array = arrow::compute::cast(&text, &encoding).unwrap();
            let got = hash(std::slice::from_ref(&array));
            prop_assert_eq!(&got, &wanted, "{}", encoding);
            // Slices hash as the rows they show.
            let rest = hash(&[array.slice(cut, array.len() - cut)]);
            prop_assert_eq!(&rest.0, &wanted.0[cut..]);
        }
    }

    #[test]
    fn decimals_hash_by_value_at_the_limb_boundaries(low in any::<i128>(), shift in 0u32..128) {
        let value = low >> shift;
        let narrow = hashes_of(Decimal128Array::from_iter_values([value]));
        let wide = hashes_of(Decimal256Array::from_iter_values([i256::from_i128(value)]));
        prop_assert_eq!(&narrow, &wide);
        if let Ok(value) = i64::try_from(value) {
            prop_assert_eq!(hashes_of(Int64Array::from(vec![value])), narrow);
        }
    }
}
