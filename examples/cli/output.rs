//! Results, reports and tables as text.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use arrow::csv::WriterBuilder as CsvBuilder;
use arrow::datatypes::SchemaRef;
use arrow::json::writer::{LineDelimited, WriterBuilder as JsonBuilder};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_schema;

use crate::args::{Args, Format, ReportFormat};
use crate::cluster::QueryReport;
use crate::error::{CliError, Result};
use crate::run::Kind;

/// A table is laid out in memory; more rows than this nobody reads.
const MAX_TABLE_ROWS: usize = 1000;

/// Writes to standard output. `println!` panics when the reader is gone.
pub(crate) fn emit(text: &str) -> Result<()> {
    emit_bytes(text.as_bytes())
}

fn emit_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Where rows and reports go.
pub(crate) struct Output {
    format: Format,
    report: ReportFormat,
    report_file: Option<(String, File)>,
}

impl Output {
    pub(crate) fn new(args: &Args) -> Result<Self> {
        let report_file = match &args.report_file {
            None => None,
            Some(path) => {
                let name = path.display().to_string();
                let file = File::create(path)
                    .map_err(|e| CliError::failed(format!("cannot write {name}: {e}")))?;
                Some((name, file))
            }
        };
        let report = args.report.unwrap_or(match args.format {
            Format::Table => ReportFormat::Table,
            Format::Csv | Format::Json => ReportFormat::None,
        });
        Ok(Self {
            format: args.format,
            report,
            report_file,
        })
    }

    /// A writer for the rows of one statement.
    pub(crate) fn rows(&self, schema: SchemaRef, kind: Kind) -> RowWriter {
        match (self.format, kind) {
            (Format::Table, Kind::Query) => RowWriter::Table {
                schema,
                kept: Vec::new(),
                rows: 0,
            },
            (Format::Table, Kind::Explain) => RowWriter::Plans,
            (Format::Csv, _) => RowWriter::Csv {
                schema,
                header: true,
            },
            (Format::Json, _) => RowWriter::Json,
        }
    }

    /// Prints the report of a query, and appends it to the report file.
    pub(crate) fn report(&mut self, report: &QueryReport) -> Result<()> {
        let text = match self.report {
            ReportFormat::None => None,
            ReportFormat::Table => Some(format!("{report}\n")),
            ReportFormat::Json => Some(format!("{}\n", report.to_json())),
        };
        if let Some(text) = text {
            match self.format {
                Format::Table => emit(&text)?,
                // Standard output is for data alone. That standard error is closed is no failure.
                Format::Csv | Format::Json => {
                    let _ = io::stderr().write_all(text.as_bytes());
                }
            }
        }
        self.report_to_file(report)
    }

    /// Appends the report to the report file, if there is one.
    pub(crate) fn report_to_file(&mut self, report: &QueryReport) -> Result<()> {
        match &mut self.report_file {
            None => Ok(()),
            Some((name, file)) => writeln!(file, "{}", report.to_json())
                .map_err(|e| CliError::failed(format!("cannot write {name}: {e}"))),
        }
    }
}

/// Writes the rows of one statement.
pub(crate) enum RowWriter {
    Table {
        schema: SchemaRef,
        kept: Vec<RecordBatch>,
        rows: usize,
    },
    /// Plans are texts of many lines, which a table would only frame.
    Plans,
    Csv {
        schema: SchemaRef,
        header: bool,
    },
    Json,
}

impl RowWriter {
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        match self {
            Self::Table { kept, rows, .. } => {
                let room = MAX_TABLE_ROWS.saturating_sub(*rows);
                *rows += batch.num_rows();
                if room > 0 {
                    kept.push(batch.slice(0, room.min(batch.num_rows())));
                }
                Ok(())
            }
            Self::Plans => emit(&plans(&batch)?),
            Self::Csv { header, .. } => {
                let text = csv(&batch, std::mem::take(header))?;
                emit_bytes(&text)
            }
            Self::Json => {
                let mut text = Vec::new();
                let mut writer = JsonBuilder::new()
                    .with_explicit_nulls(true)
                    .build::<_, LineDelimited>(&mut text);
                writer.write(&batch)?;
                writer.finish()?;
                drop(writer);
                emit_bytes(&text)
            }
        }
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::Table { schema, kept, rows } => {
                let table = pretty_format_batches_with_schema(schema, &kept)?;
                let noun = if rows == 1 { "row" } else { "rows" };
                let note = if rows > MAX_TABLE_ROWS {
                    format!(", the first {MAX_TABLE_ROWS} shown; --format csv prints all")
                } else {
                    String::new()
                };
                emit(&format!("{table}\n({rows} {noun}{note})\n"))
            }
            // A result without rows still has columns.
            Self::Csv {
                schema,
                header: true,
            } => emit_bytes(&csv(&RecordBatch::new_empty(schema), true)?),
            Self::Plans | Self::Csv { .. } | Self::Json => Ok(()),
        }
    }
}

fn csv(batch: &RecordBatch, header: bool) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut writer = CsvBuilder::new().with_header(header).build(&mut text);
    writer.write(batch)?;
    drop(writer);
    Ok(text)
}

/// The rows of EXPLAIN: a title and a text each.
fn plans(batch: &RecordBatch) -> Result<String> {
    let options = FormatOptions::default();
    let columns = batch
        .columns()
        .iter()
        .map(|c| ArrayFormatter::try_new(c.as_ref(), &options))
        .collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    for row in 0..batch.num_rows() {
        for column in &columns {
            text.push_str(column.value(row).to_string().trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    Ok(text)
}

#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table of few rows.
pub(crate) struct TextTable {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            aligns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..self.aligns.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|row| row.get(i));
                cells.map(|cell| width(cell)).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(&self.aligns).zip(&widths) {
                line.push_str(&match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                });
            }
            text.push_str(line.trim_end());
            text.push('\n');
            if i == 0 {
                let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
                text.push_str(&"-".repeat(total));
                text.push('\n');
            }
        }
        text
    }
}

/// Bytes for people, in powers of 1000.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 and more would be printed as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with thousands separated.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn millis(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    if ms < 10_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

/// The text on one line of at most `max` characters.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= max {
        return line;
    }
    let mut short: String = line.chars().take(max.saturating_sub(3)).collect();
    short.push_str("...");
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.0 KB");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123), "123");
    }
}
