//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use url::Url;

const ABOUT: &str = "SQL on a small cluster whose joins are filtered before the shuffle.

Without -c, --file or --data: three demonstration joins over generated TPC-H data, with runtime \
filters off and on, then a prompt.";

const AFTER_HELP: &str = "\
Workers read table files themselves: with --worker, every file must be reachable under the same \
path from this program and from each worker.

Keys for --set and for SET statements: datafusion.* (DataFusion), distributed.* \
(datafusion-distributed) and runtime_filter.* (\\set at the prompt lists these). Embedded or not, each \
scan is spread over all workers, which --set \
distributed.file_scan_config_bytes_per_partition=16777216 turns back to the engine's default.

Exit codes: 0 success; 1 a query failed, input was bad, or --compare found different rows; 2 wrong \
usage; 130 interrupted.

Examples:
  cli -c \"select count(*) from lineitem\"
  cli --tpch 1 --compare --file query.sql
  cli --data ./tables --format csv -c \"select * from a join b on a.id = b.id\" > out.csv
  cli --worker http://127.0.0.1:50051 --worker http://127.0.0.1:50052 --tpch 1";

#[derive(Debug, Parser)]
#[command(name = "cli", about = ABOUT, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Run these statements (separated by `;`) instead of opening the prompt; may be repeated
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    pub(crate) commands: Vec<String>,

    /// Run the statements of this file, after those of -c; `-` is standard input; may be repeated
    #[arg(long = "file", value_name = "F")]
    pub(crate) files: Vec<PathBuf>,

    /// Provide the TPC-H tables at this scale factor (0.001 to 1000), generated on first use and
    /// cached [default: 0.1, unless --data is given]
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    pub(crate) tpch: Option<f64>,

    /// Provide every Parquet or CSV file in this folder, and every folder of such files in it, as a
    /// table named after the file (without extension) or folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Start this many workers inside this program [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "worker")]
    pub(crate) workers: Option<u8>,

    /// Use a running worker instead, such as http://127.0.0.1:50051; may be repeated
    #[arg(long, value_name = "URL", value_parser = worker_url)]
    pub(crate) worker: Vec<Url>,

    /// Set a configuration key; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,

    /// Run without runtime filters
    #[arg(long)]
    pub(crate) no_runtime_filter: bool,

    /// Run each query with filters off and on, compare the rows, and print what the filters saved
    /// instead of the rows
    #[arg(long, conflicts_with = "no_runtime_filter")]
    pub(crate) compare: bool,

    /// How to print rows: a table (the first 1000 rows), CSV, or JSON (one object a line)
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,

    /// How to print the report on filters and bytes after each query; it goes to standard output
    /// with --format table, else to standard error [default: table with --format table, else none]
    #[arg(long, value_enum)]
    pub(crate) report: Option<ReportFormat>,

    /// Write the report of each executed query to this file as JSON, one object a line; --compare
    /// and the demonstration write a line for each run, filters off first
    #[arg(long, value_name = "F")]
    pub(crate) report_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Csv,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Table,
    Json,
    None,
}

impl Args {
    const DEFAULT_SCALE: f64 = 0.1;
    const DEFAULT_WORKERS: u8 = 4;

    pub(crate) fn embedded_workers(&self) -> u8 {
        self.workers.unwrap_or(Self::DEFAULT_WORKERS)
    }

    pub(crate) fn tpch_scale(&self) -> f64 {
        self.tpch.unwrap_or(Self::DEFAULT_SCALE)
    }

    pub(crate) fn wants_tpch(&self) -> bool {
        self.tpch.is_some() || self.data.is_none()
    }

    /// Whether to run the demonstration: nothing else was asked for.
    pub(crate) fn wants_demo(&self) -> bool {
        self.commands.is_empty()
            && self.files.is_empty()
            && self.data.is_none()
            && !self.no_runtime_filter
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().map_err(|e| e.to_string())?;
    runtime_filter_tpch::validate_scale(scale).map_err(|e| e.to_string())?;
    Ok(scale)
}

fn worker_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| format!("{e}, expected http://HOST:PORT"))?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err("expected http://HOST:PORT".to_owned());
    }
    Ok(url)
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
