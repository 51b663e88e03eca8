//! Generating data, including the ways it can be interrupted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, File};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use runtime_filter_tpch::{DataFolder, Error, Progress, TABLES, generate, table_path};

/// Small enough to be quick, large enough that no table is empty.
const TINY: f64 = 0.001;

fn generate_quietly(dir: &Path, scale: f64) -> Result<DataFolder, Error> {
    generate(dir, scale, &mut |_| {})
}

fn generated_anything(dir: &Path, scale: f64) -> bool {
    let mut rows_written = false;
    generate(dir, scale, &mut |p| {
        rows_written |= matches!(p, Progress::Rows { .. })
    })
    .unwrap();
    rows_written
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn writes_every_table_with_the_specified_rows_in_several_row_groups() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("sf0.01");
    let mut last = (0, 0);
    let data = generate(&dir, 0.01, &mut |p| {
        if let Progress::Rows { done, expected, .. } = p {
            assert!(done > last.0 && done <= expected);
            last = (done, expected);
        }
    })
    .unwrap();
    assert_eq!(last.0, 86805);

    let expected = [
        ("customer", 1500),
        ("orders", 15000),
        ("lineitem", 60175),
        ("part", 2000),
        ("partsupp", 8000),
        ("supplier", 100),
        ("nation", 25),
        ("region", 5),
    ];
    assert_eq!(expected.len(), TABLES.len());
    for (table, rows) in expected {
        assert_eq!(data.rows(table), Some(rows), "{table}");
        let file = File::open(table_path(&dir, table)).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let meta = reader.metadata();
        assert_eq!(meta.file_metadata().num_rows(), rows as i64, "{table}");
        if rows > 4000 {
            assert!(meta.num_row_groups() >= 4, "{table}");
        }
    }
    assert_eq!(data.scale(), 0.01);
    assert_eq!(data.rows("no_such_table"), None);
    assert_eq!(data.tables().count(), 8);
    assert!(data.bytes() > 0);
    assert!(!generated_anything(&dir, 0.01), "the folder was complete");
}

#[test]
fn an_interrupted_generation_leaves_nothing_and_is_repaired() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let interrupted = std::panic::catch_unwind(|| {
        generate(&dir, TINY, &mut |p| {
            if matches!(
                p,
                Progress::Rows {
                    table: "orders",
                    ..
                }
            ) {
                std::panic::resume_unwind(Box::new("interrupted"));
            }
        })
    });
    assert!(interrupted.is_err());
    assert!(!dir.exists(), "an incomplete folder must not look complete");
    assert_eq!(names_in(home.path()).len(), 2, "the lock and the leftover");

    assert!(generated_anything(&dir, TINY));
    assert_eq!(names_in(home.path()), [".data.lock", "data"]);
    assert_eq!(names_in(&dir).len(), TABLES.len() + 1);
}

#[test]
fn a_damaged_or_outdated_folder_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    generate_quietly(&dir, TINY).unwrap();

    fs::remove_file(table_path(&dir, "part")).unwrap();
    assert!(generated_anything(&dir, TINY), "a table was missing");

    let orders = table_path(&dir, "orders");
    let half = fs::metadata(&orders).unwrap().len() / 2;
    File::options()
        .write(true)
        .open(&orders)
        .unwrap()
        .set_len(half)
        .unwrap();
    assert!(generated_anything(&dir, TINY), "a table was cut short");

    fs::write(dir.join("manifest.txt"), "tpch-parquet 0\n").unwrap();
    assert!(generated_anything(&dir, TINY), "the format was another");
    assert!(!generated_anything(&dir, TINY));
}

#[test]
fn a_folder_with_other_content_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let photos = home.path().join("photos");
    fs::create_dir(&photos).unwrap();
    fs::write(photos.join("cat.jpg"), "purr").unwrap();
    assert!(matches!(
        generate_quietly(&photos, TINY),
        Err(Error::NotOurs { .. })
    ));
    assert_eq!(names_in(&photos), ["cat.jpg"]);

    let file = home.path().join("file");
    fs::write(&file, "text").unwrap();
    assert!(matches!(
        generate_quietly(&file, TINY),
        Err(Error::Io { .. })
    ));

    let data = home.path().join("data");
    generate_quietly(&data, TINY).unwrap();
    assert!(matches!(
        generate_quietly(&data, 0.002),
        Err(Error::OtherScale { .. })
    ));

    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    generate_quietly(&empty, TINY).unwrap();
}

#[test]
fn a_scale_out_of_range_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    for scale in [
        0.0,
        -1.0,
        0.00001,
        1000.5,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ] {
        let error = generate_quietly(&dir, scale).unwrap_err();
        assert!(matches!(error, Error::Scale { .. }), "{scale}");
        assert!(!error.to_string().contains('\n'));
    }
    assert!(names_in(home.path()).is_empty());
}

#[test]
fn simultaneous_calls_generate_once_and_all_succeed() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let generated: usize = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| generated_anything(&dir, TINY)))
            .collect();
        calls
            .into_iter()
            .map(|call| usize::from(call.join().unwrap()))
            .sum()
    });
    assert_eq!(generated, 1);
    assert_eq!(names_in(home.path()), [".data.lock", "data"]);
}
