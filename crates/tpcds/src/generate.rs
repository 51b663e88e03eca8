//! The tables of TPC-DS.

use std::path::Path;

use arrow::error::ArrowError;
use runtime_filter_tpch::{BATCH_ROWS, DataFolder, Error, GeneratedRows, Generator, Progress};
use tpcdsgen::config::{Session, SessionBuilder, Table};
use tpcdsgen_arrow::{
    CallCenterArrow, CatalogPageArrow, CatalogReturnsArrow, CatalogSalesArrow,
    CustomerAddressArrow, CustomerArrow, CustomerDemographicsArrow, DateDimArrow,
    HouseholdDemographicsArrow, IncomeBandArrow, InventoryArrow, ItemArrow, PromotionArrow,
    ReasonArrow, ShipModeArrow, StoreArrow, StoreReturnsArrow, StoreSalesArrow, TimeDimArrow,
    WarehouseArrow, WebPageArrow, WebReturnsArrow, WebSalesArrow, WebSiteArrow,
};

/// The tables that queries read, in the order they are written.
pub const TABLES: [&str; 24] = [
    "call_center",
    "catalog_page",
    "catalog_returns",
    "catalog_sales",
    "customer",
    "customer_address",
    "customer_demographics",
    "date_dim",
    "household_demographics",
    "income_band",
    "inventory",
    "item",
    "promotion",
    "reason",
    "ship_mode",
    "store",
    "store_returns",
    "store_sales",
    "time_dim",
    "warehouse",
    "web_page",
    "web_returns",
    "web_sales",
    "web_site",
];

/// The smallest scale at which every table has rows.
pub const MIN_SCALE: f64 = 0.01;

/// The largest scale accepted: beyond it the data no longer fits the machines this is made for.
pub const MAX_SCALE: f64 = 1000.0;

static TPCDS: Generator = Generator {
    name: "TPC-DS",
    magic: "tpcds-parquet",
    tables: &TABLES,
    min_scale: MIN_SCALE,
    max_scale: MAX_SCALE,
    expected_rows,
    rows,
};

/// Makes sure that `dir` holds the TPC-DS tables at `scale`, and says where they are, as
/// [`Generator::generate`] does.
///
/// # Errors
/// As there.
pub fn generate(
    dir: &Path,
    scale: f64,
    progress: &mut dyn FnMut(Progress),
) -> Result<DataFolder, Error> {
    TPCDS.generate(dir, scale, progress)
}

fn session(scale: f64) -> Result<Session, ArrowError> {
    SessionBuilder::new()
        .with_scale_factor(scale)
        .build()
        .map_err(|error| ArrowError::ExternalError(error.into()))
}

fn expected_rows(name: &str, scale: f64) -> u64 {
    let tables = Table::values().iter();
    let table = tables.copied().find(|table| table.get_name() == name);
    match (table, session(scale)) {
        (Some(table), Ok(session)) => session.get_scaling().get_row_count(table),
        // The writing of the table says what is wrong.
        _ => 0,
    }
}

fn rows(table: &str, scale: f64) -> GeneratedRows {
    let session = session(scale)?;
    macro_rules! batches {
        ($arrow:ident) => {
            Box::new($arrow::new(session).with_batch_size(BATCH_ROWS))
        };
    }
    Ok(match table {
        "call_center" => batches!(CallCenterArrow),
        "catalog_page" => batches!(CatalogPageArrow),
        "catalog_returns" => batches!(CatalogReturnsArrow),
        "catalog_sales" => batches!(CatalogSalesArrow),
        "customer" => batches!(CustomerArrow),
        "customer_address" => batches!(CustomerAddressArrow),
        "customer_demographics" => batches!(CustomerDemographicsArrow),
        "date_dim" => batches!(DateDimArrow),
        "household_demographics" => batches!(HouseholdDemographicsArrow),
        "income_band" => batches!(IncomeBandArrow),
        "inventory" => batches!(InventoryArrow),
        "item" => batches!(ItemArrow),
        "promotion" => batches!(PromotionArrow),
        "reason" => batches!(ReasonArrow),
        "ship_mode" => batches!(ShipModeArrow),
        "store" => batches!(StoreArrow),
        "store_returns" => batches!(StoreReturnsArrow),
        "store_sales" => batches!(StoreSalesArrow),
        "time_dim" => batches!(TimeDimArrow),
        "warehouse" => batches!(WarehouseArrow),
        "web_page" => batches!(WebPageArrow),
        "web_returns" => batches!(WebReturnsArrow),
        "web_sales" => batches!(WebSalesArrow),
        // `TABLES` names no other.
        _ => batches!(WebSiteArrow),
    })
}
