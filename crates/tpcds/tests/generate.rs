//! The tables of the smallest scale.
#![allow(clippy::unwrap_used)]

use runtime_filter_tpcds::{MIN_SCALE, TABLES, generate};
use runtime_filter_tpch::Error;

#[test]
fn every_table_has_its_rows_and_a_second_call_finds_them() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    let data = generate(&folder, MIN_SCALE, &mut |_| {}).unwrap();
    for table in TABLES {
        assert!(data.rows(table).unwrap() > 0, "{table}");
    }
    // Those that the specification gives one size at every scale (section 3.3.2.2).
    assert_eq!(data.rows("customer_demographics"), Some(1_920_800));
    assert_eq!(data.rows("date_dim"), Some(73_049));
    assert_eq!(data.rows("time_dim"), Some(86_400));
    assert_eq!(data.rows("household_demographics"), Some(7_200));
    let mut written = 0;
    generate(&folder, MIN_SCALE, &mut |_| written += 1).unwrap();
    assert_eq!(written, 0);
    for (table, path) in data.tables() {
        println!(
            "{table} {:?} {}",
            data.rows(table),
            path.metadata().unwrap().len()
        );
    }
}

#[test]
fn a_scale_out_of_range_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for scale in [0.0, -1.0, f64::NAN, 1e9] {
        let error = generate(&folder.path().join("data"), scale, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Scale { .. }), "{scale}");
        assert!(error.to_string().contains("TPC-DS"), "{error}");
    }
}
