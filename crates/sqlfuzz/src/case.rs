//! One case: run both ways, compared, made smaller where it fails.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_runtime_filter::query_report;

use crate::data::{Table, tables, write};
use crate::query::query;
use crate::session::{Cluster, filtered, oracle, shared};
use crate::tape::{Tape, smaller};
use crate::{Error, Result};

/// Longer than any case takes without filters on a loaded machine.
const HANG: Duration = Duration::from_secs(60);

/// How long the figures of a query are waited for; the engine never runs some tasks of a union.
const FIGURES: Duration = Duration::from_millis(200);

/// Attempts at making a failing case smaller.
const ATTEMPTS: usize = 400;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The same rows, so many; with filters that were applied, as far as they were told in time.
    Same {
        /// Rows of the result.
        rows: usize,
        /// Filters that were applied.
        applied: usize,
        /// Rows that they dropped.
        dropped: u64,
    },
    /// The query fails without filters.
    Refused(String),
    /// Other rows, an error or no end, only with filters.
    Broken(String),
}

/// What cases came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cases that ran.
    pub cases: usize,
    /// Of those, queries that fail without filters.
    pub refused: usize,
    /// Rows compared.
    pub rows: usize,
    /// Filters that were applied.
    pub applied: usize,
    /// Rows that they dropped.
    pub dropped: u64,
    /// Cases that are not the same with filters.
    pub broken: usize,
    /// Executions left registered after all of them.
    pub left: usize,
}

impl Totals {
    fn count(&mut self, outcome: &Outcome) {
        self.cases += 1;
        match outcome {
            Outcome::Same {
                rows,
                applied,
                dropped,
            } => {
                self.rows += rows;
                self.applied += applied;
                self.dropped += dropped;
            }
            Outcome::Refused(_) => self.refused += 1,
            Outcome::Broken(_) => self.broken += 1,
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} queries ({} of them fail without filters), {} rows compared, {} filters applied, \
             {} rows dropped, {} broken, {} left registered",
            self.cases, self.refused, self.rows, self.applied, self.dropped, self.broken, self.left
        )
    }
}

/// A case, as its tape tells it.
#[derive(Debug)]
pub struct Case {
    tables: Vec<Table>,
    shared: Vec<(String, String)>,
    filtered: Vec<(String, String)>,
    longest_delay_ms: u64,
    on_cluster: bool,
    /// The query.
    pub sql: String,
}

impl Case {
    /// Reads a case off its tape.
    ///
    /// # Errors
    /// If its data cannot be made.
    pub fn of(tape: &mut Tape) -> Result<Self> {
        let shared = shared(tape);
        let filtered = filtered(tape);
        let longest_delay_ms = *tape.one(&[0, 0, 0, 2, 10]);
        let in_process = tape.once_in(10);
        let tables = tables(tape)?;
        let sql = query(tape, &tables);
        // The engine has no form of a recursive query that it could send to a worker.
        let on_cluster = !in_process && !sql.starts_with("WITH RECURSIVE");
        Ok(Self {
            tables,
            shared,
            filtered,
            longest_delay_ms,
            on_cluster,
            sql,
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in self.shared.iter().chain(&self.filtered) {
            writeln!(f, "SET {key} = {value};")?;
        }
        match self.on_cluster {
            true => writeln!(f, "-- messages late by up to {} ms", self.longest_delay_ms)?,
            false => writeln!(f, "-- in one process")?,
        }
        for table in &self.tables {
            for (number, batch) in table.files.iter().enumerate() {
                let types: Vec<_> = batch
                    .schema()
                    .fields()
                    .iter()
                    .map(|field| format!("{} {}", field.name(), field.data_type()))
                    .collect();
                writeln!(
                    f,
                    "-- {}/{number}.parquet: {}",
                    table.name,
                    types.join(", ")
                )?;
                match arrow::util::pretty::pretty_format_batches(std::slice::from_ref(batch)) {
                    Ok(text) => writeln!(f, "{text}")?,
                    Err(error) => writeln!(f, "({error})")?,
                }
            }
        }
        write!(f, "{};", self.sql)
    }
}

/// Runs cases on one cluster.
#[derive(Debug)]
pub struct Fuzzer {
    cluster: Cluster,
    folder: PathBuf,
}

impl Fuzzer {
    /// A fuzzer that keeps the data of a case in `folder`, which is cleared for each.
    ///
    /// # Errors
    /// If its workers cannot be started.
    pub async fn new(workers: usize, folder: PathBuf) -> Result<Self> {
        Ok(Self {
            cluster: Cluster::start(workers).await?,
            folder,
        })
    }

    /// Runs the cases of `cases` seeds from `seed` on, and tells how each ended; of one that is broken,
    /// at its smallest.
    ///
    /// # Errors
    /// If a case could not be run at all.
    pub async fn run(
        &self,
        seed: u64,
        cases: u64,
        tell: &mut (dyn FnMut(u64, &Totals, &Outcome) + Send),
    ) -> Result<Totals> {
        let mut totals = Totals::default();
        for seed in seed..seed.saturating_add(cases) {
            let mut tape = Tape::of_seed(seed);
            let case = Case::of(&mut tape)?;
            let outcome = self.outcome(&case).await?;
            totals.count(&outcome);
            let outcome = match outcome {
                Outcome::Broken(why) => {
                    Outcome::Broken(self.smallest(tape.read().to_vec(), case, why).await?)
                }
                other => other,
            };
            tell(seed, &totals, &outcome);
        }
        totals.left = self.cluster.left().await;
        Ok(totals)
    }

    /// The case made smaller while it stays broken, with what is wrong.
    async fn smallest(&self, numbers: Vec<u32>, case: Case, why: String) -> Result<String> {
        let (mut numbers, mut case, mut why) = (numbers, case, why);
        let mut attempts = 0;
        'smaller: loop {
            for tape in smaller(&numbers) {
                attempts += 1;
                if attempts > ATTEMPTS {
                    break 'smaller;
                }
                let mut tape = Tape::of(tape);
                let candidate = Case::of(&mut tape)?;
                if let Outcome::Broken(reason) = self.outcome(&candidate).await? {
                    (numbers, case, why) = (tape.read().to_vec(), candidate, reason);
                    continue 'smaller;
                }
            }
            break;
        }
        Ok(format!("{case}\n{why}"))
    }

    /// Runs one case both ways.
    ///
    /// # Errors
    /// If it could not be run at all.
    pub async fn outcome(&self, case: &Case) -> Result<Outcome> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io {
                    path: self.folder.clone(),
                    source,
                });
            }
            _ => {}
        }
        write(&case.tables, &self.folder)?;
        let session = async |settings: Vec<(String, String)>| {
            let settings = [&case.shared[..], &settings].concat();
            self.cluster
                .session(case.on_cluster, &settings, &case.tables, &self.folder)
                .await
        };
        let off = session(oracle()).await?;
        let on = session(case.filtered.clone()).await?;
        let (_, plain) = match execute(&off, &case.sql).await {
            Ok(done) => done,
            Err(error) => return Ok(Outcome::Refused(error)),
        };
        self.cluster.delay(case.longest_delay_ms);
        let start = Instant::now();
        let done = execute(&on, &case.sql).await;
        self.cluster.delay(0);
        let (plan, rows) = match done {
            Ok(done) => done,
            Err(error) => return Ok(Outcome::Broken(error)),
        };
        let elapsed = start.elapsed();
        if rows != plain {
            let (missing, added) = (without(&plain, &rows), without(&rows, &plain));
            return Ok(Outcome::Broken(format!(
                "rows only without filters: {missing:?}\nrows only with filters: {added:?}"
            )));
        }
        let report = query_report(&plan, &case.sql, rows.len(), elapsed);
        let (applied, dropped) = match tokio::time::timeout(FIGURES, report).await {
            Ok(Ok(report)) => (
                report
                    .filters
                    .iter()
                    .filter(|filter| filter.verdict == "applied")
                    .count(),
                report.rows_dropped(),
            ),
            _ => (0, 0),
        };
        Ok(Outcome::Same {
            rows: rows.len(),
            applied,
            dropped,
        })
    }
}

type Rows = Vec<String>;

async fn execute(
    context: &SessionContext,
    sql: &str,
) -> Result<(Arc<dyn ExecutionPlan>, Rows), String> {
    let run = async {
        let plan = context.sql(sql).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
        Ok::<_, datafusion::error::DataFusionError>((plan, batches))
    };
    match tokio::time::timeout(HANG, run).await {
        Err(_) => Err(format!("no end within {} s", HANG.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok((plan, batches))) => rows_of(&batches)
            .map(|rows| (plan, rows))
            .map_err(|error| error.to_string()),
    }
}

/// The rows as sorted text. Both zeros are one value and all NaNs are: which of equal values a
/// group shows is open.
fn rows_of(batches: &[RecordBatch]) -> Result<Rows, arrow::error::ArrowError> {
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = vec![];
    for batch in batches {
        let columns = batch.columns().iter();
        let formatters = columns
            .map(|column| ArrayFormatter::try_new(column, &options))
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = batch
                .columns()
                .iter()
                .zip(&formatters)
                .map(|(column, formatter)| {
                    let float = match column.data_type() {
                        _ if column.is_null(row) => None,
                        DataType::Float64 => Some(column.as_primitive::<Float64Type>().value(row)),
                        DataType::Float32 => {
                            Some(column.as_primitive::<Float32Type>().value(row).into())
                        }
                        _ => None,
                    };
                    match float {
                        Some(float) if float.is_nan() => "NaN".to_owned(),
                        Some(float) => (float + 0.0).to_string(),
                        None => formatter.value(row).to_string(),
                    }
                })
                .collect();
            rows.push(cells.join("|"));
        }
    }
    rows.sort_unstable();
    Ok(rows)
}

/// At most five of the sorted rows `all` that `other` has not, each as often as that.
fn without(all: &[String], other: &[String]) -> Vec<String> {
    let mut rest = other.iter().peekable();
    let mut missing = vec![];
    for row in all {
        while rest.next_if(|other| *other < row).is_some() {}
        if rest.next_if_eq(&row).is_none() && missing.len() < 5 {
            missing.push(row.clone());
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rows_are_told_as_often_as_they_are_missing() {
        let rows = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(without(&rows("aabcc"), &rows("abx")), rows("acc"));
        assert!(without(&rows("ab"), &rows("aabb")).is_empty());
    }

    #[test]
    fn a_seed_is_one_case() {
        let text = |seed| Case::of(&mut Tape::of_seed(seed)).map(|case| case.to_string());
        let (one, again) = (text(1).unwrap_or_default(), text(1).unwrap_or_default());
        assert!(!one.is_empty() && one == again);
        assert_ne!(one, text(2).unwrap_or_default());
    }
}
