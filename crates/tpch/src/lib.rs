//! TPC-H data and queries for examples, tests and benchmarks.
//!
//! [`generate`] writes the eight tables of the benchmark as Parquet files, in process and with
//! bounded memory. [`query`] returns the text of the 22 queries with the validation parameters of
//! the specification. [`Generator`] does the same
//! for tables of another benchmark. Nothing here knows about runtime filters or about DataFusion.

mod error;
mod folder;
mod generate;
mod manifest;
mod queries;

pub use error::{Error, Result};
pub use folder::{BATCH_ROWS, DataFolder, GeneratedRows, Generator, Progress, table_path};
pub use generate::{MAX_SCALE, MIN_SCALE, TABLES, generate, validate_scale};
pub use queries::{QUERY_COUNT, query};
