//! The eight tables of TPC-H.

use std::path::Path;

use arrow::array::RecordBatchReader;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::error::Result;
use crate::folder::{BATCH_ROWS, DataFolder, Generator, Progress};

/// The tables, in the order they are written.
pub const TABLES: [&str; 8] = [
    "region", "nation", "supplier", "part", "customer", "partsupp", "orders", "lineitem",
];

/// The smallest scale at which every table has rows and every key has something to refer to.
pub const MIN_SCALE: f64 = 0.001;

/// The largest scale accepted: beyond it the data no longer fits the machines this is made for.
pub const MAX_SCALE: f64 = 1000.0;

pub(crate) static TPCH: Generator = Generator {
    name: "TPC-H",
    magic: "tpch-parquet",
    tables: &TABLES,
    min_scale: MIN_SCALE,
    max_scale: MAX_SCALE,
    expected_rows,
    rows: |table, scale| Ok(reader(table, scale)),
};

/// Checks that `scale` is a number from [`MIN_SCALE`] to [`MAX_SCALE`].
pub fn validate_scale(scale: f64) -> Result<()> {
    TPCH.validate_scale(scale)
}

/// Makes sure that `dir` holds the eight TPC-H tables at `scale`, and says where they are, as
/// [`Generator::generate`] does.
pub fn generate(dir: &Path, scale: f64, progress: &mut dyn FnMut(Progress)) -> Result<DataFolder> {
    TPCH.generate(dir, scale, progress)
}

fn reader(table: &str, scale: f64) -> Box<dyn RecordBatchReader> {
    macro_rules! batches {
        ($arrow:ident, $generator:ident) => {
            Box::new($arrow::new($generator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS))
        };
    }
    match table {
        "region" => batches!(RegionArrow, RegionGenerator),
        "nation" => batches!(NationArrow, NationGenerator),
        "supplier" => batches!(SupplierArrow, SupplierGenerator),
        "part" => batches!(PartArrow, PartGenerator),
        "customer" => batches!(CustomerArrow, CustomerGenerator),
        "partsupp" => batches!(PartSuppArrow, PartSuppGenerator),
        "orders" => batches!(OrderArrow, OrderGenerator),
        // `TABLES` names no other.
        _ => batches!(LineItemArrow, LineItemGenerator),
    }
}

fn expected_rows(table: &str, scale: f64) -> u64 {
    let part = PartGenerator::calculate_row_count(scale, 1, 1);
    let orders = OrderGenerator::calculate_row_count(scale, 1, 1);
    let rows = match table {
        "region" => 5,
        "nation" => 25,
        "supplier" => SupplierGenerator::calculate_row_count(scale, 1, 1),
        "part" => part,
        "customer" => CustomerGenerator::calculate_row_count(scale, 1, 1),
        "partsupp" => 4 * part,
        "orders" => orders,
        // An order has 1 to 7 lines, evenly distributed.
        _ => 4 * orders,
    };
    rows.max(0) as u64
}
