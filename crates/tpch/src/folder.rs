//! Folders of generated tables.
//!
//! A folder appears under its own name only once it is complete:
//!
//! ```text
//! <parent>/.<name>.lock            held while one process generates <name>; never deleted
//! <parent>/.<name>.partial-<pid>   tables being written, then renamed to <name>
//! <parent>/<name>/                 the tables and manifest.txt
//! ```
//!
//! The lock is the operating system's, so it is released however a process ends. Whoever holds it
//! may delete any `.partial-` folder of that name: its writer is gone.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatchReader;
use arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::error::{Error, Result};
use crate::manifest::{self, Found, Manifest, TableFile};

/// The rows of a table in batches, or why there are none.
pub type GeneratedRows = Result<Box<dyn RecordBatchReader>, ArrowError>;

/// A set of tables that come from a generator.
#[derive(Debug)]
pub struct Generator {
    /// Name of the benchmark, for messages.
    pub name: &'static str,
    /// First word of the manifests of its folders.
    pub magic: &'static str,
    /// The tables, in the order they are written.
    pub tables: &'static [&'static str],
    /// Smallest scale at which every table has rows.
    pub min_scale: f64,
    /// Largest scale accepted.
    pub max_scale: f64,
    /// Rows of a table at a scale, as far as they are known before.
    pub expected_rows: fn(table: &str, scale: f64) -> u64,
    /// The rows of a table at a scale, in batches of about [`BATCH_ROWS`].
    pub rows: fn(table: &str, scale: f64) -> GeneratedRows,
}

/// Rows of a batch handed from a generator to the writer.
pub const BATCH_ROWS: usize = 8192;

/// A scan is divided by row groups, so a table has several even when it is small. More than workers
/// are common, because a row group goes to the byte range it starts in: with as many groups as
/// ranges, one range would get two and another none.
const ROW_GROUPS: u64 = 16;

const MIN_ROW_GROUP_ROWS: u64 = 1000;
const MAX_ROW_GROUP_ROWS: u64 = 128 * 1024;

/// What [`Generator::generate`] is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Another process is generating the same folder; its result will be used.
    Waiting,
    /// Rows were written.
    Rows {
        /// The table being written.
        table: &'static str,
        /// Rows written so far, over all tables.
        done: u64,
        /// Rows of all tables, within a percent or so.
        expected: u64,
    },
}

/// A complete folder of tables.
#[derive(Debug, Clone)]
pub struct DataFolder {
    generator: &'static Generator,
    dir: PathBuf,
    manifest: Manifest,
}

impl DataFolder {
    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The scale factor of the data.
    pub fn scale(&self) -> f64 {
        self.manifest.scale
    }

    /// Each table with its Parquet file, in the order they were written.
    pub fn tables(&self) -> impl Iterator<Item = (&'static str, PathBuf)> + '_ {
        let tables = self.generator.tables.iter().copied();
        tables.map(|table| (table, table_path(&self.dir, table)))
    }

    /// Number of rows of a table, or `None` when there is no such table.
    pub fn rows(&self, table: &str) -> Option<u64> {
        let index = self.generator.tables.iter().position(|t| *t == table)?;
        Some(self.manifest.tables.get(index)?.rows)
    }

    /// Size of all table files in bytes.
    pub fn bytes(&self) -> u64 {
        self.manifest.tables.iter().map(|t| t.bytes).sum()
    }
}

/// The Parquet file of `table` in the data folder `dir`.
pub fn table_path(dir: &Path, table: &str) -> PathBuf {
    dir.join(format!("{table}.parquet"))
}

impl Generator {
    /// Checks that `scale` is a number this generator can work with.
    ///
    /// # Errors
    /// If it is not.
    pub fn validate_scale(&self, scale: f64) -> Result<()> {
        // A NaN is in no range.
        if (self.min_scale..=self.max_scale).contains(&scale) {
            Ok(())
        } else {
            Err(Error::Scale {
                benchmark: self.name,
                scale,
                min: self.min_scale,
                max: self.max_scale,
            })
        }
    }

    /// Makes sure that `dir` holds the tables at `scale`, and says where they are.
    ///
    /// Returns at once when the folder is complete. Otherwise the tables are written into a folder
    /// beside it, which is renamed when it is complete: an interrupted call leaves nothing that
    /// looks like data, and the next call removes what it left. Two processes may call this at the
    /// same time: one generates, the other waits for it.
    ///
    /// `progress` is called often, from this thread.
    ///
    /// # Errors
    /// If the scale is not usable, the folder holds something else, or cannot be written.
    pub fn generate(
        &'static self,
        dir: &Path,
        scale: f64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<DataFolder> {
        self.validate_scale(scale)?;
        if let Some(data) = self.existing(dir, scale)? {
            return Ok(data);
        }
        let beside = Beside::new(dir)?;
        let _lock = beside.lock(progress)?;
        // The process waited for may have finished the folder.
        if let Some(data) = self.existing(dir, scale)? {
            return Ok(data);
        }
        beside.remove_leftovers()?;

        let partial = beside.partial();
        fs::create_dir(&partial).map_err(io_error("create folder", &partial))?;
        let manifest = self
            .write_tables(&partial, scale, progress)
            .inspect_err(|_| {
                // The error to report is the one that stopped the writing; the next call cleans
                // up too.
                let _ = fs::remove_dir_all(&partial);
            })?;
        replace(dir, &partial)?;
        Ok(self.folder(dir, manifest))
    }

    fn folder(&'static self, dir: &Path, manifest: Manifest) -> DataFolder {
        DataFolder {
            generator: self,
            dir: dir.to_path_buf(),
            manifest,
        }
    }

    /// The data in `dir` if it is complete; `None` if it may be (re)generated.
    fn existing(&'static self, dir: &Path, scale: f64) -> Result<Option<DataFolder>> {
        match Manifest::read(self, dir).map_err(io_error("read", &dir.join(manifest::FILE_NAME)))? {
            Found::Current(manifest) if manifest.files_are_intact(self, dir) => {
                if manifest.scale == scale {
                    return Ok(Some(self.folder(dir, manifest)));
                }
                Err(Error::OtherScale {
                    benchmark: self.name,
                    dir: dir.to_path_buf(),
                    found: manifest.scale,
                    wanted: scale,
                })
            }
            Found::Current(_) | Found::Outdated => Ok(None),
            Found::Nothing => match fs::read_dir(dir) {
                Ok(mut entries) => match entries.next() {
                    None => Ok(None),
                    Some(_) => Err(Error::NotOurs {
                        dir: dir.to_path_buf(),
                    }),
                },
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(io_error("read folder", dir)(e)),
            },
        }
    }

    fn write_tables(
        &self,
        dir: &Path,
        scale: f64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Manifest> {
        let expected: u64 = self
            .tables
            .iter()
            .map(|t| (self.expected_rows)(t, scale))
            .sum();
        let mut done = 0;
        let mut tables = Vec::with_capacity(self.tables.len());
        for table in self.tables {
            tables.push(self.write_table(dir, table, scale, &mut |rows| {
                done += rows;
                progress(Progress::Rows {
                    table,
                    done,
                    expected: expected.max(done),
                });
            })?);
        }
        let manifest = Manifest { scale, tables };
        let path = dir.join(manifest::FILE_NAME);
        fs::write(&path, manifest.to_text(self)).map_err(io_error("write", &path))?;
        Ok(manifest)
    }

    fn write_table(
        &self,
        dir: &Path,
        table: &'static str,
        scale: f64,
        on_rows: &mut dyn FnMut(u64),
    ) -> Result<TableFile> {
        let path = table_path(dir, table);
        let parquet_error = |source| Error::Parquet {
            table,
            path: path.clone(),
            source,
        };
        let generator_error = |source| Error::Generator { table, source };
        let reader = (self.rows)(table, scale).map_err(generator_error)?;
        let group_rows = (self.expected_rows)(table, scale)
            .div_ceil(ROW_GROUPS)
            .clamp(MIN_ROW_GROUP_ROWS, MAX_ROW_GROUP_ROWS);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(group_rows as usize))
            .build();
        let file = File::create_new(&path).map_err(io_error("create", &path))?;
        let mut writer =
            ArrowWriter::try_new(file, reader.schema(), Some(properties)).map_err(parquet_error)?;
        let mut rows = 0;
        for batch in reader {
            let batch = batch.map_err(generator_error)?;
            writer.write(&batch).map_err(parquet_error)?;
            rows += batch.num_rows() as u64;
            on_rows(batch.num_rows() as u64);
        }
        let file = writer.into_inner().map_err(parquet_error)?;
        // Before the rename makes the folder look complete, its content must be on the disk.
        file.sync_all().map_err(io_error("write", &path))?;
        let bytes = file.metadata().map_err(io_error("read", &path))?.len();
        Ok(TableFile { rows, bytes })
    }
}

/// The names used beside a data folder.
struct Beside {
    parent: PathBuf,
    name: OsString,
}

impl Beside {
    fn new(dir: &Path) -> Result<Self> {
        let no_name = || Error::NoName {
            dir: dir.to_path_buf(),
        };
        let name = dir.file_name().ok_or_else(no_name)?.to_owned();
        let parent = match dir.parent() {
            None => return Err(no_name()),
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_path_buf(),
        };
        fs::create_dir_all(&parent).map_err(io_error("create folder", &parent))?;
        Ok(Self { parent, name })
    }

    fn hidden(&self, suffix: &str) -> OsString {
        let mut hidden = OsString::from(".");
        hidden.push(&self.name);
        hidden.push(suffix);
        hidden
    }

    fn partial(&self) -> PathBuf {
        let id = std::process::id();
        self.parent.join(self.hidden(&format!(".partial-{id}")))
    }

    /// Waits until no other process generates this folder.
    fn lock(&self, progress: &mut dyn FnMut(Progress)) -> Result<File> {
        let path = self.parent.join(self.hidden(".lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(Progress::Waiting);
                file.lock().map_err(io_error("lock", &path))?;
            }
            Err(TryLockError::Error(e)) => return Err(io_error("lock", &path)(e)),
        }
        Ok(file)
    }

    /// Removes what interrupted calls left. Only for the holder of the lock.
    fn remove_leftovers(&self) -> Result<()> {
        let prefix = self.hidden(".partial-");
        let entries = fs::read_dir(&self.parent).map_err(io_error("read folder", &self.parent))?;
        for entry in entries {
            let entry = entry.map_err(io_error("read folder", &self.parent))?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(prefix.as_encoded_bytes())
            {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(io_error("remove folder", &path))?;
            }
        }
        Ok(())
    }
}

/// Puts the complete folder `partial` in the place of `dir`.
fn replace(dir: &Path, partial: &Path) -> Result<()> {
    // Only an empty folder or one with a manifest of ours gets here, see `existing`.
    match fs::remove_dir_all(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error("remove folder", dir)(e)),
    }
    fs::rename(partial, dir).map_err(io_error("create folder", dir))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io {
        action,
        path: path.to_path_buf(),
        source,
    }
}
