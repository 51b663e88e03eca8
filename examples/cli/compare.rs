//! One query with filters off and on: are the rows the same, and what was saved?

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::sql::parser::Statement;

use crate::cluster::{QueryReport, Session};
use crate::error::{CliError, Result};
use crate::output::{self, Align, Output, TextTable};
use crate::run::{self, Collected, Script};

/// Floating-point sums depend on the order of their terms, and partial sums arrive in any order.
const RELATIVE_TOLERANCE: f64 = 1e-8;

/// Terms that cancel leave the rounding error of the terms, not of the sum.
const CANCELLATION_FLOOR: f64 = 1e-3;

/// What was measured, with filters off and on.
pub(crate) struct Comparison {
    label: String,
    off: Measured,
    on: Measured,
    /// The first difference in the rows, in words.
    difference: Option<String>,
}

struct Measured {
    rows: u64,
    shuffled: u64,
    filter_traffic: u64,
    rows_dropped: u64,
    elapsed: Duration,
}

impl Measured {
    fn new(run: &Collected, elapsed: Duration) -> Self {
        let report: &QueryReport = &run.report;
        Self {
            rows: report.rows,
            shuffled: report.shuffle.bytes,
            filter_traffic: report.filter_traffic.bytes_up + report.filter_traffic.bytes_down,
            rows_dropped: report.filters.iter().map(|f| f.probe.rows_dropped).sum(),
            elapsed,
        }
    }
}

/// Compares each query of the scripts and prints one table of all; other statements are run once.
pub(crate) async fn run_scripts(
    session: &Session,
    scripts: &[Script],
    output: &mut Output,
) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    let mut warm = false;
    for script in scripts {
        for (i, statement) in session.parse(&script.text)?.into_iter().enumerate() {
            if !run::is_query(&statement) {
                run::interruptible(run::statement(session, statement, output)).await?;
                continue;
            }
            if !warm {
                // The first query of a session opens connections and files for all that follow.
                run::interruptible(warm_up(session, &statement)).await?;
                warm = true;
            }
            let label = match &script.name {
                Some(name) if i == 0 => name.clone(),
                Some(name) => format!("{name} #{}", i + 1),
                None => {
                    let text = output::shorten(&statement.to_string(), 40);
                    format!("{}: {text}", comparisons.len() + 1)
                }
            };
            let comparison = compare(session, &statement, label, 1, output);
            comparisons.push(run::interruptible(comparison).await?);
        }
    }
    if !comparisons.is_empty() {
        print_table(&comparisons)?;
    }
    Ok(comparisons)
}

/// An error if any rows differ.
pub(crate) fn conclude(comparisons: &[Comparison]) -> Result<()> {
    let mut differing = comparisons
        .iter()
        .filter_map(|c| c.difference.as_ref().map(|d| (&c.label, d)));
    let Some((label, difference)) = differing.next() else {
        return Ok(());
    };
    let more = match differing.count() {
        0 => String::new(),
        n => format!(" (and in {n} more)"),
    };
    Err(CliError::failed(format!(
        "rows differ with filters off and on in query {label}{more}: {difference}"
    )))
}

pub(crate) async fn warm_up(session: &Session, query: &Statement) -> Result<()> {
    let _filters = session.with_filters(true)?;
    run::collect(session, query).await?;
    Ok(())
}

/// Runs `query` `runs` times with filters off and on, by turns, and takes the median times.
pub(crate) async fn compare(
    session: &Session,
    query: &Statement,
    label: String,
    runs: usize,
    output: &mut Output,
) -> Result<Comparison> {
    let mut times = [Vec::new(), Vec::new()];
    let mut last = None;
    let mut difference = None;
    for _ in 0..runs.max(1) {
        let mut collected = Vec::new();
        for (filters, times) in [false, true].into_iter().zip(&mut times) {
            let _filters = session.with_filters(filters)?;
            let run = run::collect(session, query).await?;
            output.report_to_file(&run.report)?;
            times.push(run.elapsed);
            collected.push(run);
        }
        let [off, on] = &collected[..] else { continue };
        if difference.is_none() {
            difference = first_difference(off, on)?;
        }
        last = collected.pop().zip(collected.pop());
    }
    let [off_times, on_times] = times;
    match last {
        Some((on, off)) => Ok(Comparison {
            label,
            off: Measured::new(&off, median(off_times)),
            on: Measured::new(&on, median(on_times)),
            difference,
        }),
        None => Err(CliError::failed("nothing was run")),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Prints what was measured, with a sum if there are several queries.
pub(crate) fn print_table(comparisons: &[Comparison]) -> Result<()> {
    let mut table = TextTable::new(&[
        ("query", Align::Left),
        ("rows", Align::Right),
        ("shuffled off", Align::Right),
        ("shuffled on", Align::Right),
        ("filter traffic", Align::Right),
        ("saved", Align::Right),
        ("rows dropped", Align::Right),
        ("time off", Align::Right),
        ("time on", Align::Right),
        ("same rows", Align::Left),
    ]);
    let mut add = |label: &str, rows: &str, same: &str, off: &Measured, on: &Measured| {
        table.row(vec![
            label.to_owned(),
            rows.to_owned(),
            output::bytes(off.shuffled),
            output::bytes(on.shuffled),
            output::bytes(on.filter_traffic),
            saved(off, on),
            output::count(on.rows_dropped),
            output::millis(off.elapsed),
            output::millis(on.elapsed),
            same.to_owned(),
        ]);
    };
    for c in comparisons {
        let same = if c.difference.is_none() { "yes" } else { "NO" };
        add(&c.label, &output::count(c.on.rows), same, &c.off, &c.on);
    }
    if comparisons.len() > 1 {
        let sum = |side: fn(&Comparison) -> &Measured| Measured {
            rows: 0,
            shuffled: comparisons.iter().map(|c| side(c).shuffled).sum(),
            filter_traffic: comparisons.iter().map(|c| side(c).filter_traffic).sum(),
            rows_dropped: comparisons.iter().map(|c| side(c).rows_dropped).sum(),
            elapsed: comparisons.iter().map(|c| side(c).elapsed).sum(),
        };
        add("all", "", "", &sum(|c| &c.off), &sum(|c| &c.on));
    }
    output::emit(&table.render())
}

/// The share of bytes saved, the filters' own traffic counted as a cost.
fn saved(off: &Measured, on: &Measured) -> String {
    let before = (off.shuffled + off.filter_traffic) as f64;
    if before == 0.0 {
        return "-".to_owned();
    }
    let after = (on.shuffled + on.filter_traffic) as f64;
    format!("{:.1} %", 100.0 * (before - after) / before)
}

/// A row in a form that can be sorted: what must be equal, and what must be close.
struct Row {
    exact: Vec<Option<String>>,
    floats: Vec<Option<f64>>,
}

/// Compares rows as multisets: without ORDER BY, their order is anyone's.
fn first_difference(off: &Collected, on: &Collected) -> Result<Option<String>> {
    if off.schema.fields().len() != on.schema.fields().len() {
        return Ok(Some("the columns differ".to_owned()));
    }
    let (off, on) = (groups(&off.batches)?, groups(&on.batches)?);
    for (exact, off_rows) in &off {
        let on_rows = on.get(exact).map_or(&[][..], Vec::as_slice);
        if let Some(floats) = unmatched(off_rows, on_rows) {
            return Ok(Some(format!(
                "only with filters off: {}",
                show(exact, floats)
            )));
        }
    }
    for (exact, on_rows) in &on {
        let off_rows = off.get(exact).map_or(&[][..], Vec::as_slice);
        if let Some(floats) = unmatched(on_rows, off_rows) {
            return Ok(Some(format!(
                "only with filters on: {}",
                show(exact, floats)
            )));
        }
    }
    Ok(None)
}

type Groups = BTreeMap<Vec<Option<String>>, Vec<Vec<Option<f64>>>>;

/// The floats of all rows, by what else is in the row.
fn groups(batches: &[RecordBatch]) -> Result<Groups> {
    let mut groups = Groups::new();
    for batch in batches {
        for row in rows(batch)? {
            groups.entry(row.exact).or_default().push(row.floats);
        }
    }
    for group in groups.values_mut() {
        group.sort_by(|a, b| order(a, b));
    }
    Ok(groups)
}

fn rows(batch: &RecordBatch) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = (0..batch.num_rows())
        .map(|_| Row {
            exact: Vec::new(),
            floats: Vec::new(),
        })
        .collect();
    let options = FormatOptions::default();
    for column in batch.columns() {
        if column.data_type().is_floating() {
            let floats = cast(column, &DataType::Float64)?;
            for (row, value) in rows.iter_mut().zip(floats.as_primitive::<Float64Type>()) {
                row.floats.push(value);
            }
        } else {
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
            for (i, row) in rows.iter_mut().enumerate() {
                let value = column.is_valid(i).then(|| formatter.value(i).to_string());
                row.exact.push(value);
            }
        }
    }
    Ok(rows)
}

fn order(a: &[Option<f64>], b: &[Option<f64>]) -> Ordering {
    let key = |v: &Option<f64>| v.map(|v| if v == 0.0 { 0.0 } else { v });
    for (a, b) in a.iter().map(key).zip(b.iter().map(key)) {
        let ordering = match (a, b) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

/// A member of `these` that has no counterpart of its own in `those`; both are sorted.
fn unmatched<'a>(
    these: &'a [Vec<Option<f64>>],
    those: &[Vec<Option<f64>>],
) -> Option<&'a [Option<f64>]> {
    if these.len() == those.len() && these.iter().zip(those).all(|(a, b)| close(a, b)) {
        return None;
    }
    // Rounding can change the order of rows that are close in their first float, so look further
    // than at the same position.
    let mut taken = vec![false; those.len()];
    for row in these {
        let free = (0..those.len()).find(|&i| !taken[i] && close(row, &those[i]));
        match free {
            Some(i) => taken[i] = true,
            None => return Some(row),
        }
    }
    None
}

fn close(a: &[Option<f64>], b: &[Option<f64>]) -> bool {
    a.iter().zip(b).all(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => {
            let scale = a.abs().max(b.abs()).max(CANCELLATION_FLOOR);
            // The first test is for infinities, whose difference is no number.
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= RELATIVE_TOLERANCE * scale
        }
        (a, b) => a.is_none() && b.is_none(),
    })
}

fn show(exact: &[Option<String>], floats: &[Option<f64>]) -> String {
    let exact = exact.iter().cloned();
    let floats = floats.iter().map(|f| f.map(|f| f.to_string()));
    let values: Vec<String> = exact
        .chain(floats)
        .map(|value| value.unwrap_or_else(|| "NULL".to_owned()))
        .collect();
    output::shorten(&values.join(" | "), 200)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, StringArray};

    fn batch(keys: &[Option<&str>], floats: &[Option<f64>]) -> RecordBatch {
        RecordBatch::try_from_iter([
            ("k", Arc::new(StringArray::from(keys.to_vec())) as ArrayRef),
            (
                "f",
                Arc::new(Float64Array::from(floats.to_vec())) as ArrayRef,
            ),
        ])
        .unwrap_or_else(|_| RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty())))
    }

    fn same(a: &RecordBatch, b: &RecordBatch) -> bool {
        let collect = |b: &RecordBatch| groups(std::slice::from_ref(b)).unwrap_or_default();
        let (a, b) = (collect(a), collect(b));
        assert!(!a.is_empty() && !b.is_empty());
        a.len() == b.len()
            && a.iter().all(|(k, rows)| {
                let others = b.get(k).map_or(&[][..], Vec::as_slice);
                unmatched(rows, others).is_none() && unmatched(others, rows).is_none()
            })
    }

    #[test]
    fn order_and_rounding_do_not_matter_but_multiplicity_and_nulls_do() {
        let a = batch(&[Some("x"), Some("y"), None], &[Some(1.0), Some(2.0), None]);
        let b = batch(
            &[None, Some("y"), Some("x")],
            &[None, Some(2.0 + 1e-12), Some(1.0)],
        );
        assert!(same(&a, &b));
        let c = batch(
            &[Some(""), Some("y"), Some("x")],
            &[None, Some(2.0), Some(1.0)],
        );
        assert!(!same(&a, &c));
        let d = batch(&[Some("x"), Some("x")], &[Some(1.0), Some(1.0)]);
        let e = batch(&[Some("x"), Some("x")], &[Some(1.0), Some(1.1)]);
        assert!(!same(&d, &e));
        let f = batch(&[Some("x")], &[Some(f64::NAN)]);
        assert!(same(&f, &f));
    }
}
