//! How the program ends when it does not end well.

use std::fmt::Display;
use std::io;

use datafusion::error::DataFusionError;

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

#[derive(Debug)]
pub(crate) enum CliError {
    /// Bad input or a failed query, told in one line.
    Failed(String),
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output went away; that is its right.
    BrokenPipe,
}

impl CliError {
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::Failed(one_line(&message.to_string()))
    }

    /// The line for standard error, if there is anything to say.
    pub(crate) fn message(&self) -> Option<&str> {
        match self {
            Self::Failed(message) => Some(message),
            Self::Interrupted => Some("interrupted"),
            Self::BrokenPipe => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            // As a shell reports a program ended by SIGINT.
            Self::Interrupted => 130,
            Self::BrokenPipe => 0,
        }
    }
}

impl From<DataFusionError> for CliError {
    fn from(error: DataFusionError) -> Self {
        Self::failed(error.strip_backtrace())
    }
}

impl From<arrow::error::ArrowError> for CliError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::failed(error)
    }
}

/// For writing to standard output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::failed(format!("cannot write the output: {error}")),
        }
    }
}

/// Errors may quote a whole query or plan; one line is promised.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
