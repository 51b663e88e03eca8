//! TPC-DS data and queries for tests and benchmarks.
//!
//! [`generate`] writes the tables that the queries read as Parquet files, in process and with
//! bounded memory. [`query`] returns the text of the 99 queries, as the sources of the engine have
//! them. Nothing here knows about runtime filters or about DataFusion.

mod generate;
mod queries;

pub use generate::{MAX_SCALE, MIN_SCALE, TABLES, generate};
pub use queries::{QUERY_COUNT, query};
