//! The file that marks a data folder as complete, and tells whether it still is.
//!
//! One `key value...` pair a line, so that it can be read by eye and needs no parser crate:
//!
//! ```text
//! tpch-parquet 1
//! scale 0.01
//! table customer 1500 141312
//! ```
//!
//! A table line holds the number of rows and the size of the file in bytes.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use crate::folder::{Generator, table_path};

/// Name of the manifest inside a data folder.
pub(crate) const FILE_NAME: &str = "manifest.txt";

/// Raised whenever the files written for one scale change, so that older folders are replaced.
const FORMAT_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) scale: f64,
    /// In the order of the generator's tables.
    pub(crate) tables: Vec<TableFile>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TableFile {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// What a folder's manifest says.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// There is no manifest: the folder is not ours.
    Nothing,
    /// A manifest of ours, but of another format, or unreadable: the folder may be replaced.
    Outdated,
    /// A manifest of this format.
    Current(Manifest),
}

impl Manifest {
    pub(crate) fn to_text(&self, generator: &Generator) -> String {
        let magic = generator.magic;
        let mut text = format!("{magic} {FORMAT_VERSION}\nscale {}\n", self.scale);
        for (table, file) in generator.tables.iter().zip(&self.tables) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "table {table} {} {}", file.rows, file.bytes);
        }
        text
    }

    pub(crate) fn read(generator: &Generator, dir: &Path) -> io::Result<Found> {
        let text = match fs::read(dir.join(FILE_NAME)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(e),
        };
        if !text.starts_with(generator.magic) {
            return Ok(Found::Nothing);
        }
        Ok(Self::parse(generator, &text).map_or(Found::Outdated, Found::Current))
    }

    fn parse(generator: &Generator, text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let version = lines.next()?.strip_prefix(generator.magic)?.trim();
        if version.parse::<u32>().ok()? != FORMAT_VERSION {
            return None;
        }
        let scale = lines.next()?.strip_prefix("scale ")?.parse().ok()?;
        let mut tables = Vec::with_capacity(generator.tables.len());
        for table in generator.tables {
            let fields: Vec<&str> = lines.next()?.split_whitespace().collect();
            let ["table", name, rows, bytes] = fields[..] else {
                return None;
            };
            if name != *table {
                return None;
            }
            tables.push(TableFile {
                rows: rows.parse().ok()?,
                bytes: bytes.parse().ok()?,
            });
        }
        Some(Self { scale, tables })
    }

    /// Whether every table file is there with the size it was written with.
    pub(crate) fn files_are_intact(&self, generator: &Generator, dir: &Path) -> bool {
        generator
            .tables
            .iter()
            .zip(&self.tables)
            .all(|(table, file)| {
                fs::metadata(table_path(dir, table))
                    .is_ok_and(|meta| meta.is_file() && meta.len() == file.bytes)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::TPCH;

    #[test]
    fn survives_a_round_trip_and_rejects_other_versions() {
        let manifest = Manifest {
            scale: 0.01,
            tables: (0..8)
                .map(|i| TableFile {
                    rows: i,
                    bytes: 10 * i,
                })
                .collect(),
        };
        let text = manifest.to_text(&TPCH);
        assert_eq!(Manifest::parse(&TPCH, &text), Some(manifest));
        assert_eq!(
            Manifest::parse(&TPCH, &text.replace("tpch-parquet 1", "tpch-parquet 0")),
            None
        );
        assert_eq!(Manifest::parse(&TPCH, &text[..text.len() / 2]), None);
    }
}
