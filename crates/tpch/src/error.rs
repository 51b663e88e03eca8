//! The error of this crate.

use std::io;
use std::path::PathBuf;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why benchmark data could not be provided. Each message says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scale factor is not a number the generator can work with.
    #[error(
        "{benchmark} scale {scale} is not usable: choose a number from {min} to {max} (1 stands for about 1 GB of raw data)"
    )]
    Scale {
        /// Name of the benchmark.
        benchmark: &'static str,
        /// The scale asked for.
        scale: f64,
        /// The smallest that is.
        min: f64,
        /// The largest that is.
        max: f64,
    },
    /// The folder holds something this crate did not write, and would have to overwrite.
    #[error(
        "{} is not empty and was not written by this generator: choose another folder or empty it", .dir.display()
    )]
    NotOurs {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder holds a complete data set of another scale.
    #[error(
        "{} holds {benchmark} data of scale {found}, not {wanted}: choose another folder for scale {wanted} or delete this one", .dir.display()
    )]
    OtherScale {
        /// Name of the benchmark.
        benchmark: &'static str,
        /// The folder.
        dir: PathBuf,
        /// The scale of the data found.
        found: f64,
        /// The scale asked for.
        wanted: f64,
    },
    /// The path given has no final component to name a temporary folder after.
    #[error("{} cannot be a data folder: give the path of a folder that has a name", .dir.display())]
    NoName {
        /// The path given.
        dir: PathBuf,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {action} {}: {source} (check permissions and free space)", .path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A table could not be encoded as Parquet.
    #[error("cannot write table {table} to {}: {source} (check free space)", .path.display())]
    Parquet {
        /// The table.
        table: &'static str,
        /// The file.
        path: PathBuf,
        /// The writer's answer.
        source: parquet::errors::ParquetError,
    },
    /// The generator failed to produce a batch of rows.
    #[error("cannot generate table {table}: {source}")]
    Generator {
        /// The table.
        table: &'static str,
        /// The generator's answer.
        source: arrow::error::ArrowError,
    },
}
