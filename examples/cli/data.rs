//! The tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::common::TableReference;
use datafusion::prelude::{CsvReadOptions, ParquetReadOptions};
use indicatif::{ProgressBar, ProgressStyle};
use runtime_filter_tpch::{DataFolder, Progress};

use crate::cluster::Session;
use crate::error::{CliError, Result};

/// Name of this program's folder in the user's cache and data folders.
pub(crate) const APP_FOLDER: &str = "datafusion-runtime-filter";

/// TPC-H data from the cache, generated if it is not there yet.
pub(crate) fn provide_tpch(scale: f64) -> Result<DataFolder> {
    let dir = dirs::cache_dir()
        .unwrap_or_else(std::env::temp_dir)
        .join(APP_FOLDER)
        .join(format!("tpch-sf{scale}"));
    // Draws nothing unless standard error is a terminal.
    let bar = ProgressBar::no_length();
    let mut started = false;
    let result = runtime_filter_tpch::generate(&dir, scale, &mut |progress| {
        if !started {
            started = true;
            bar.set_style(style());
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        match progress {
            Progress::Waiting => bar.set_message("waiting for another process"),
            Progress::Rows {
                table,
                done,
                expected,
            } => {
                bar.set_message(format!("TPC-H scale {scale}: {table}"));
                bar.set_length(expected);
                bar.set_position(done);
            }
            _ => {}
        }
    });
    bar.finish_and_clear();
    result.map_err(CliError::failed)
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:34} {wide_bar} {human_pos}/{human_len} rows {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

pub(crate) async fn register_tpch(session: &Session, data: &DataFolder) -> Result<()> {
    for (table, path) in data.tables() {
        register(session, table, &path, FileKind::Parquet).await?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Parquet,
    Csv,
}

impl FileKind {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?;
        if extension.eq_ignore_ascii_case("parquet") {
            Some(Self::Parquet)
        } else if extension.eq_ignore_ascii_case("csv") {
            Some(Self::Csv)
        } else {
            None
        }
    }
}

/// Registers every Parquet or CSV file in `dir`, and every folder of such files.
pub(crate) async fn register_folder(session: &Session, dir: &Path) -> Result<()> {
    let mut registered = 0;
    for path in visible_entries(dir)? {
        let (kind, name) = if path.is_dir() {
            match folder_kind(&path)? {
                Some(kind) => (kind, path.file_name()),
                None => continue,
            }
        } else {
            match FileKind::of(&path) {
                Some(kind) => (kind, path.file_stem()),
                None => continue,
            }
        };
        let name = name.unwrap_or_default().to_string_lossy();
        register(session, &name, &path, kind).await?;
        registered += 1;
    }
    if registered == 0 {
        return Err(CliError::failed(format!(
            "no Parquet or CSV file in {}",
            dir.display()
        )));
    }
    Ok(())
}

/// The kind of the files in a folder and the folders in it; `None` if it has no table file.
fn folder_kind(dir: &Path) -> Result<Option<FileKind>> {
    let mut kind = None;
    for path in visible_entries(dir)? {
        let found = if path.is_dir() {
            folder_kind(&path)?
        } else {
            FileKind::of(&path)
        };
        match (kind, found) {
            (_, None) => {}
            (None, Some(_)) => kind = found,
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => {
                return Err(CliError::failed(format!(
                    "{} holds both Parquet and CSV files: a table is made of one kind",
                    dir.display()
                )));
            }
        }
    }
    Ok(kind)
}

fn visible_entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let cannot_read = |e| CliError::failed(format!("cannot read folder {}: {e}", dir.display()));
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(cannot_read)? {
        let entry = entry.map_err(cannot_read)?;
        // As tools that write tables do, take these for notes and unfinished files.
        let hidden = entry.file_name().as_encoded_bytes().first().copied();
        if !matches!(hidden, Some(b'.' | b'_')) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

async fn register(session: &Session, name: &str, path: &Path, kind: FileKind) -> Result<()> {
    let ctx = session.context();
    let table = TableReference::bare(name);
    if ctx.table_exist(table.clone())? {
        return Err(CliError::failed(format!(
            "two tables would be named \"{name}\", one of them {}: rename a file, or choose between --data and --tpch",
            path.display()
        )));
    }
    // Workers may run in another folder.
    let absolute = fs::canonicalize(path)
        .map_err(|e| CliError::failed(format!("cannot read {}: {e}", path.display())))?;
    let location = absolute
        .to_str()
        .ok_or_else(|| CliError::failed(format!("{} is not a valid UTF-8 path", path.display())))?;
    let extension = if path.is_dir() {
        String::new()
    } else {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        format!(".{extension}")
    };
    let registered = match kind {
        FileKind::Parquet => {
            let mut options = ParquetReadOptions::default();
            if !extension.is_empty() {
                options.file_extension = &extension;
            }
            ctx.register_parquet(table, location, options).await
        }
        FileKind::Csv => {
            let mut options = CsvReadOptions::new();
            if !extension.is_empty() {
                options.file_extension = &extension;
            }
            ctx.register_csv(table, location, options).await
        }
    };
    registered.map_err(|e| {
        CliError::failed(format!(
            "cannot read {} as a table: {}",
            path.display(),
            e.strip_backtrace()
        ))
    })
}
