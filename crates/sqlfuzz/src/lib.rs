//! Random queries over random data, with filters on and off.
//!
//! ```text
//!  seed -> tape -> tables, settings, query --+-- filters off --> rows --+-- equal?
//!                    ^                       +-- filters on  --> rows --+     |
//!                    +------------------ a smaller tape <------------- no ----+
//! ```
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`tape`] | how cases are drawn and made smaller |
//! | [`data`] | what tables hold |
//! | [`query`] | what queries say |
//! | `delay` | how late messages arrive |
//! | [`session`] | the cluster, and what is switched on and off |
//! | [`case`] | how a case is run, compared and made smaller |

pub mod case;
pub mod data;
mod delay;
pub mod query;
pub mod session;
pub mod tape;

use std::io;
use std::path::PathBuf;

pub use case::{Fuzzer, Outcome, Totals};

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a case could not be run at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be written.
    #[error("cannot write {}: {source} (check permissions and free space)", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Data could not be made.
    #[error("cannot make the data of a case: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// Data could not be written.
    #[error("cannot write the data of a case: {0}")]
    Parquet(#[from] datafusion::parquet::errors::ParquetError),
    /// The cluster could not be started, or a table not registered.
    #[error("cannot set up the cluster: {0}")]
    Setup(#[from] datafusion::error::DataFusionError),
    /// A worker could not be started.
    #[error("cannot start a worker: {0}")]
    Worker(String),
}
