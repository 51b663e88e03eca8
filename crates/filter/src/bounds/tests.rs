#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::sync::Arc;

use arrow::array::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::{KeyHasher, Partial, PartialBuilder, RuntimeFilter, SizingPolicy};

const SEED: u64 = 7;

fn ints(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[Option<String>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn add(builder: &mut PartialBuilder, columns: &[ArrayRef]) {
    let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
    let mut hashes = vec![];
    let validity = KeyHasher::try_new(&types, SEED)
        .unwrap()
        .hash_batch(columns, &mut hashes)
        .unwrap();
    builder
        .insert_batch(columns, &hashes, validity.as_ref())
        .unwrap();
}

fn partial(batches: &[Vec<ArrayRef>]) -> Partial {
    let mut builder = PartialBuilder::new(1 << 10, SEED);
    batches.iter().for_each(|batch| add(&mut builder, batch));
    builder.finish()
}

fn of_column(array: ArrayRef) -> ColumnBounds {
    match partial(&[vec![array]]).bounds() {
        Some([bounds]) => bounds.clone(),
        None => ColumnBounds::Unknown,
        other => panic!("{other:?}"),
    }
}

fn int(value: i128) -> KeyValue {
    KeyValue::Int(value)
}

fn bytes(value: impl AsRef<[u8]>) -> KeyValue {
    KeyValue::Bytes(value.as_ref().to_vec())
}

fn range(min: KeyValue, max: KeyValue) -> ColumnBounds {
    ColumnBounds::Range { min, max }
}

#[test]
fn few_values_are_listed_and_many_bounded() {
    assert_eq!(
        of_column(ints(&[Some(5), None, Some(-3), Some(5)])),
        ColumnBounds::Values(vec![int(-3), int(5)])
    );
    let many: Vec<_> = (0..MAX_VALUES as i64).map(Some).collect();
    assert!(matches!(of_column(ints(&many)), ColumnBounds::Values(v) if v.len() == MAX_VALUES));
    let more: Vec<_> = (-1..MAX_VALUES as i64).map(Some).collect();
    assert_eq!(of_column(ints(&more)), range(int(-1), int(63)));
    assert_eq!(of_column(ints(&[None, None])), ColumnBounds::Nothing);
}

#[test]
fn a_composite_key_has_bounds_of_each_column_even_of_rows_with_a_null() {
    let built = partial(&[vec![
        ints(&[Some(1), None, Some(9)]),
        texts(&[None, Some("x".into()), Some("b".into())]),
        Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0])),
    ]]);
    assert_eq!(
        built.bounds().unwrap(),
        [
            range(int(1), int(9)),
            range(bytes("b"), bytes("x")),
            ColumnBounds::Unknown
        ]
    );
}

#[test]
fn types_without_a_simple_order_have_no_bounds() {
    let dictionary: DictionaryArray<Int32Type> = ["a", "b"].into_iter().collect();
    for array in [
        Arc::new(Float64Array::from(vec![1.0])) as ArrayRef,
        Arc::new(BooleanArray::from(vec![true])),
        Arc::new(dictionary),
    ] {
        assert_eq!(of_column(array), ColumnBounds::Unknown);
    }
}

#[test]
fn every_ordered_type_is_bounded_by_its_own_values() {
    use arrow::compute::cast;
    let numbers = ints(&[Some(3), Some(7)]);
    let decimals: ArrayRef = Arc::new(
        Decimal128Array::from(vec![-i128::MAX, 5])
            .with_precision_and_scale(38, 2)
            .unwrap(),
    );
    assert_eq!(
        of_column(decimals),
        ColumnBounds::Values(vec![int(-i128::MAX), int(5)])
    );
    assert_eq!(
        of_column(Arc::new(UInt64Array::from(vec![u64::MAX]))),
        ColumnBounds::Values(vec![int(u64::MAX.into())])
    );
    let narrow = cast(&numbers, &DataType::Int32).unwrap();
    for array in [
        cast(&narrow, &DataType::Date32).unwrap(),
        cast(&numbers, &DataType::Timestamp(TimeUnit::Second, None)).unwrap(),
        cast(
            &numbers,
            &DataType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        )
        .unwrap(),
        cast(&numbers, &DataType::Int8).unwrap(),
        cast(&numbers, &DataType::UInt16).unwrap(),
        narrow,
    ] {
        assert_eq!(of_column(array), ColumnBounds::Values(vec![int(3), int(7)]));
    }
    for text in [
        DataType::Utf8View,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::BinaryView,
    ] {
        let array = cast(&texts(&[Some("é".into()), None, Some("a".into())]), &text).unwrap();
        let wanted = ColumnBounds::Values(vec![bytes("a"), bytes("é")]);
        assert_eq!(of_column(array), wanted, "{text}");
    }
}

#[test]
fn long_values_are_cut_outwards() {
    let long = |last: &str| {
        format!(
            "{}{last}{}",
            "k".repeat(MAX_BOUND_BYTES - 1),
            "z".repeat(50)
        )
    };
    let (low, high) = (long("a"), long("b"));
    let column = of_column(texts(&[Some(low.clone()), Some(high.clone())]));
    let wanted = range(bytes(&low[..64]), bytes([&high[..63], "c"].concat()));
    assert_eq!(column, wanted);
    // In the middle of a character, and at the greatest of all.
    let cut = format!("{}é{}", "k".repeat(63), "z".repeat(50));
    let (min, max) = (cut_down(cut.as_bytes(), true), cut_up(cut.as_bytes(), true));
    assert_eq!(min, "k".repeat(63).as_bytes());
    assert_eq!(max.unwrap(), [&"k".repeat(62), "l"].concat().as_bytes());
    let greatest = "\u{10ffff}".repeat(30);
    assert_eq!(cut_up(greatest.as_bytes(), true), None);
    assert_eq!(cut_up(&[0xff; 99], false), None);
    assert_eq!(
        cut_up(&[&[1][..], &[0xff; 99]].concat(), false).unwrap(),
        [2]
    );
    assert_eq!(of_column(texts(&[Some(greatest)])), ColumnBounds::Unknown);
    let gap = "\u{d7ff}".repeat(30);
    assert!(
        cut_up(gap.as_bytes(), true)
            .unwrap()
            .ends_with("\u{e000}".as_bytes())
    );
}

#[test]
fn a_share_without_bounds_leaves_none() {
    let mut known = partial(&[vec![ints(&[Some(1)])]]);
    assert!(known.bounds().is_some());
    let mut unknown = PartialBuilder::new(1 << 10, SEED);
    unknown.insert(&[5], None).unwrap();
    let nothing = PartialBuilder::new(1 << 10, SEED).finish();
    known.merge(nothing).unwrap();
    assert!(
        known.bounds().is_some(),
        "a task without rows takes nothing away"
    );
    known.merge(unknown.finish()).unwrap();
    assert_eq!(known.bounds(), None);
}

#[test]
fn a_large_build_side_keeps_only_cheap_bounds() {
    let rows = vec![Some(4); MAX_ROWS as usize];
    let mut builder = PartialBuilder::new(1 << 10, SEED);
    add(&mut builder, &[ints(&rows)]);
    assert!(matches!(
        builder.clone().finish().bounds(),
        Some([ColumnBounds::Values(_)])
    ));
    add(&mut builder, &[ints(&[Some(4)])]);
    let built = builder.finish();
    assert_eq!(built.bounds().unwrap(), [range(int(4), int(4))]);
    let text = vec![Some("a".to_owned()); MAX_ROWS as usize];
    let mut builder = PartialBuilder::new(1 << 10, SEED);
    add(&mut builder, &[texts(&text)]);
    add(&mut builder, &[texts(&[Some("b".into())])]);
    assert_eq!(builder.finish().bounds(), None);
}

#[test]
fn bounds_of_a_filter_survive_its_way() {
    let built = partial(&[vec![ints(&[Some(1), Some(70_000)])]]);
    let filter = RuntimeFilter::from_partial(built, &SizingPolicy::default()).unwrap();
    let mut sent = vec![];
    filter.encode(&mut sent);
    assert_eq!(sent.len(), filter.byte_len());
    let read = RuntimeFilter::decode(&sent, 1 << 20).unwrap();
    assert_eq!(
        read.bounds().unwrap(),
        [ColumnBounds::Values(vec![int(1), int(70_000)])]
    );
}

#[test]
fn what_no_sender_writes_is_refused() {
    let good = {
        let mut out = vec![];
        KeyBounds::Columns(vec![range(int(-2), int(300)), ColumnBounds::Nothing]).write(&mut out);
        out
    };
    assert!(KeyBounds::read(&good, 9).is_ok());
    assert!(KeyBounds::read(&good, 0).is_err(), "bounds of no row");
    for cut in 0..good.len() {
        assert!(KeyBounds::read(&good[..cut], 9).is_err(), "cut to {cut}");
    }
    let section = |content: &[u8]| [&(content.len() as u16).to_le_bytes(), content].concat();
    for (content, why) in [
        (&[][..], "empty"),
        (&[0], "no column"),
        (&[1, UNKNOWN], "nothing known"),
        (&[1, 6], "unknown level"),
        (&[1, INT_RANGE, 1, 5, 1, 4], "min above max"),
        (&[1, INT_RANGE, 2, 5, 0, 1, 6], "longer than needed"),
        (&[1, INT_RANGE, 0, 1, 6], "integer of no byte"),
        (&[1, INT_VALUES, 0], "no value"),
        (&[1, INT_VALUES, 2, 1, 5, 1, 5], "a value twice"),
        (
            &[2, INT_VALUES, 1, 1, 5, NOTHING],
            "values of a composite key",
        ),
        (&[1, NOTHING, 0], "a byte too many"),
    ] {
        assert!(KeyBounds::read(&section(content), 9).is_err(), "{why}");
    }
    let long = [&[1, BYTES_RANGE, 0, 68][..], &[b'x'; 68]].concat();
    assert!(KeyBounds::read(&section(&long), 9).is_err(), "too long");
    let bytes = section(&[1, BYTES_RANGE, 0, 0]);
    assert!(KeyBounds::read(&bytes, 9).is_ok());
    assert!(
        KeyBounds::read(&bytes, MAX_ROWS + 1).is_err(),
        "too many rows"
    );
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::weighted(
        0.9,
        prop_oneof![
            "[a-c]{0,3}",
            "[a-b]{60,70}",
            "[a-z]{0,40}",
            "[\u{7f}-\u{81}\u{d7ff}\u{e000}\u{10ffff}]{15,40}",
        ],
    )
}

fn number() -> impl Strategy<Value = Option<i64>> {
    option::weighted(
        0.9,
        prop_oneof![any::<i64>(), -20i64..20, Just(i64::MIN), Just(i64::MAX)],
    )
}

/// Whether the bounds let every value pass.
fn admits(bounds: &ColumnBounds, values: impl Iterator<Item = KeyValue>) -> bool {
    let mut values = values;
    match bounds {
        ColumnBounds::Nothing => values.next().is_none(),
        ColumnBounds::Values(listed) => values.all(|v| listed.contains(&v)),
        ColumnBounds::Range { min, max } => values.all(|v| *min <= v && v <= *max),
        ColumnBounds::Unknown => true,
    }
}

proptest! {
    #[test]
    fn the_grouping_of_rows_does_not_matter_and_no_value_is_left_out(
        batches in vec(vec((number(), text()), 0..60), 1..6),
        composite in any::<bool>(),
        of_text in any::<bool>(),
    ) {
        let columns = |rows: &[(Option<i64>, Option<String>)]| {
            let (a, b): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
            match (composite, of_text) {
                (true, _) => vec![ints(&a), texts(&b)],
                (_, true) => vec![texts(&b)],
                _ => vec![ints(&a)],
            }
        };
        let all: Vec<_> = batches.concat();
        let whole = partial(&[columns(&all)]);
        let split: Vec<_> = batches.iter().map(|b| columns(b)).collect();
        prop_assert_eq!(&partial(&split), &whole);
        let mut merged = PartialBuilder::new(1 << 10, SEED);
        for batch in split.iter().rev() {
            merged.merge(&partial(std::slice::from_ref(batch))).unwrap();
        }
        prop_assert_eq!(&merged.finish(), &whole);
        let mut merged = partial(&split[..1]);
        for batch in &split[1..] {
            merged.merge(partial(std::slice::from_ref(batch))).unwrap();
        }
        prop_assert_eq!(&merged, &whole);

        let a = || all.iter().filter_map(|r| r.0.map(|v| int(v.into())));
        let b = || all.iter().filter_map(|r| r.1.as_ref().map(bytes));
        match whole.bounds() {
            Some([first, second]) => prop_assert!(admits(first, a()) && admits(second, b())),
            Some([only]) if of_text => prop_assert!(admits(only, b())),
            Some([only]) => prop_assert!(admits(only, a())),
            Some(_) => prop_assert!(false),
            None => (),
        }

        let mut sent = vec![];
        whole.encode(&mut sent);
        prop_assert_eq!(whole.encoded_len(), sent.len());
        prop_assert_eq!(&Partial::decode(&sent, 1 << 20).unwrap(), &whole);
    }

    #[test]
    fn only_what_is_written_is_read(content in vec(any::<u8>(), 0..80), rows in 0u64..10) {
        let section = [&(content.len() as u16).to_le_bytes(), &content[..]].concat();
        if let Ok((bounds, rest)) = KeyBounds::read(&section, rows) {
            let mut again = vec![];
            bounds.write(&mut again);
            prop_assert!(rest.is_empty());
            prop_assert_eq!(&again, &section);
        }
    }

    #[test]
    fn integers_are_as_short_as_can_be(value in any::<i128>(), shift in 0u32..128) {
        let value = value >> shift;
        let mut out = vec![];
        write_value(&int(value), &mut out);
        prop_assert_eq!(out.len(), encoded_len(&int(value)));
        prop_assert_eq!(read_value(&mut &out[..], false, 0), Some(int(value)));
    }

    #[test]
    fn cuts_keep_the_order(a in text(), b in text(), is_text in any::<bool>()) {
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let (a, b) = (a.as_bytes().min(b.as_bytes()), a.as_bytes().max(b.as_bytes()));
        prop_assert!(cut_down(a, is_text) <= a);
        prop_assert!(cut_down(a, is_text) <= cut_down(b, is_text));
        match (cut_up(a, is_text), cut_up(b, is_text)) {
            (Some(a_up), Some(b_up)) => prop_assert!(a <= a_up.as_slice() && a_up <= b_up),
            (None, Some(_)) => prop_assert!(false),
            _ => (),
        }
    }
}
