//! Random tables, as Parquet files.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;

use crate::tape::Tape;
use crate::{Error, Result};

/// Types whose values SQL compares with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Whole numbers.
    Int,
    /// Floating-point numbers, with NaN and both zeros.
    Float,
    /// Texts, short and long.
    Text,
    /// Bytes.
    Bytes,
    /// True and false.
    Bool,
    /// Days.
    Date,
    /// Points in time.
    Time,
    /// Decimals of two places.
    Decimal,
}

const CLASSES: [Class; 8] = [
    Class::Int,
    Class::Text,
    Class::Float,
    Class::Bytes,
    Class::Date,
    Class::Time,
    Class::Decimal,
    Class::Bool,
];

impl Class {
    fn types(self) -> Vec<DataType> {
        use DataType::{
            Binary, BinaryView, Boolean, Date32, Decimal128, Dictionary, Float32, Float64, Int8,
            Int16, Int32, Int64, LargeBinary, LargeUtf8, Timestamp, UInt8, UInt16, UInt32, UInt64,
            Utf8, Utf8View,
        };
        match self {
            Self::Int => vec![Int64, Int32, Int16, Int8, UInt8, UInt16, UInt32, UInt64],
            Self::Float => vec![Float64, Float32],
            Self::Text => vec![
                Utf8,
                LargeUtf8,
                Utf8View,
                Dictionary(Box::new(Int32), Box::new(Utf8)),
            ],
            Self::Bytes => vec![Binary, LargeBinary, BinaryView],
            Self::Bool => vec![Boolean],
            Self::Date => vec![Date32],
            Self::Time => vec![
                Timestamp(TimeUnit::Microsecond, None),
                Timestamp(TimeUnit::Nanosecond, None),
                Timestamp(TimeUnit::Millisecond, None),
            ],
            Self::Decimal => vec![Decimal128(10, 2), Decimal128(20, 2)],
        }
    }
}

/// One table: its files, of which some may hold no row.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns and their classes. All tables of a case have the same names.
    pub columns: Vec<(&'static str, Class)>,
    /// A batch per file.
    pub files: Vec<RecordBatch>,
}

/// Tables `t0`, `t1` and `t2`. Equal columns hold values of one class, in a type of their own.
///
/// # Errors
/// If Arrow cannot make a value of a type; that would be a bug here.
pub fn tables(tape: &mut Tape) -> Result<Vec<Table>> {
    let classes = [*tape.one(&CLASSES), *tape.one(&CLASSES)];
    let distinct = *tape.one(&[100_i64, 20, 3, 1]);
    (0..3)
        .map(|number| {
            let columns = vec![
                ("id", Class::Int),
                ("k1", classes[0]),
                ("k2", classes[1]),
                ("v", Class::Int),
            ];
            let types: Vec<DataType> = columns
                .iter()
                .map(|(name, class)| match *name {
                    "id" | "v" => DataType::Int64,
                    _ => tape.one(&class.types()).clone(),
                })
                .collect();
            let skewed = tape.once_in(4);
            let nulls = *tape.one(&[8, 0, 2]);
            let files = 1 + tape.below(3);
            let files = (0..files)
                .map(|_| {
                    let rows = *tape.one(&[2_usize, 40, 150, 0]);
                    file(tape, &columns, &types, rows, distinct, skewed, nulls)
                })
                .collect::<Result<_>>()?;
            Ok(Table {
                name: format!("t{number}"),
                columns,
                files,
            })
        })
        .collect()
}

fn file(
    tape: &mut Tape,
    columns: &[(&'static str, Class)],
    types: &[DataType],
    rows: usize,
    distinct: i64,
    skewed: bool,
    nulls: usize,
) -> Result<RecordBatch> {
    // One number of the tape for all rows of a column: tapes stay short enough to be made smaller.
    let mut fields = vec![];
    let mut arrays = vec![];
    for ((name, class), data_type) in columns.iter().zip(types) {
        let mut state = tape.below(usize::MAX) as u64;
        let values: Vec<Option<i64>> = (0..rows)
            .map(|row| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let drawn = (state >> 33) as i64;
                let null = nulls > 0 && *name != "id" && drawn as usize / 7 % nulls == 1;
                let value = match *name {
                    "id" => row as i64,
                    _ if skewed && drawn % 4 != 0 => 0,
                    _ => drawn / 64 % distinct,
                };
                (!null).then_some(value)
            })
            .collect();
        fields.push(Field::new(*name, data_type.clone(), true));
        arrays.push(array(*class, data_type, &values)?);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

fn array(class: Class, data_type: &DataType, values: &[Option<i64>]) -> Result<ArrayRef> {
    let ints = || Int64Array::from(values.to_vec());
    let texts = || {
        // Beyond 12 bytes a view is not inline.
        let text = |value: i64| match value % 3 {
            0 => format!("a value of some length {value}"),
            1 if value == 1 => String::new(),
            _ => format!("v{value}"),
        };
        StringArray::from(values.iter().map(|v| v.map(text)).collect::<Vec<_>>())
    };
    Ok(match class {
        Class::Int | Class::Bool | Class::Time | Class::Decimal => cast(&ints(), data_type)?,
        Class::Date => cast(&cast(&ints(), &DataType::Int32)?, data_type)?,
        Class::Float => {
            let float = |value: i64| match value % 10 {
                0 => 0.0,
                1 => -0.0,
                2 => f64::NAN,
                _ => value as f64 / 2.0,
            };
            let floats: Vec<_> = values.iter().map(|v| v.map(float)).collect();
            cast(&Float64Array::from(floats), data_type)?
        }
        Class::Text => cast(&texts(), data_type)?,
        Class::Bytes => cast(&cast(&texts(), &DataType::Binary)?, data_type)?,
    })
}

/// Writes the files of `tables` into folders of their names below `folder`.
///
/// # Errors
/// If that fails.
pub fn write(tables: &[Table], folder: &Path) -> Result<()> {
    for table in tables {
        let folder = folder.join(&table.name);
        let io = |source| Error::Io {
            path: folder.clone(),
            source,
        };
        fs::create_dir_all(&folder).map_err(io)?;
        for (number, batch) in table.files.iter().enumerate() {
            let file = File::create(folder.join(format!("{number}.parquet"))).map_err(io)?;
            let properties = WriterProperties::builder()
                .set_max_row_group_row_count(Some(64))
                .build();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
            writer.write(batch)?;
            writer.close()?;
        }
    }
    Ok(())
}
