//! One statement, from its text to rows and a report.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::StringArray;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::format::ExplainFormat;
use datafusion::logical_expr::{Explain, LogicalPlan, Statement as PlanStatement};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use futures::StreamExt;

use crate::cluster::{QueryReport, Session};
use crate::error::{CliError, Result};
use crate::output::Output;

/// SQL text as it was given.
pub(crate) struct Script {
    /// Name of the file it came from.
    pub(crate) name: Option<String>,
    pub(crate) text: String,
}

impl Script {
    pub(crate) fn typed(text: String) -> Self {
        Self { name: None, text }
    }

    pub(crate) fn file(name: String, text: String) -> Self {
        let name = Some(name);
        Self { name, text }
    }
}

/// A statement that is planned.
enum Planned {
    /// It had its effect while it was planned, and has no rows: SET, CREATE TABLE, ...
    Done,
    /// The rows of an EXPLAIN.
    Plans(RecordBatch),
    Rows {
        plan: Arc<dyn ExecutionPlan>,
        kind: Kind,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Query,
    /// EXPLAIN, with or without ANALYZE: its rows are plans, and it is not reported on.
    Explain,
}

/// Runs `work` until it ends or Ctrl-C is pressed, which drops it and so cancels its query.
pub(crate) async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        result = work => result,
        signal = tokio::signal::ctrl_c() => match signal {
            Ok(()) => Err(CliError::Interrupted),
            Err(e) => Err(CliError::failed(format!("cannot listen for Ctrl-C: {e}"))),
        },
    }
}

/// Runs one statement and prints its rows and report.
pub(crate) async fn statement(
    session: &Session,
    statement: Statement,
    output: &mut Output,
) -> Result<()> {
    let text = statement.to_string();
    let reported = is_reported(&statement);
    let start = Instant::now();
    let (plan, kind) = match session.run(plan(session.clone(), statement)).await? {
        Planned::Done => return Ok(()),
        Planned::Plans(plans) => {
            let mut rows = output.rows(plans.schema(), Kind::Explain);
            rows.push(plans)?;
            return rows.finish();
        }
        Planned::Rows { plan, kind } => (plan, kind),
    };
    let mut rows = output.rows(plan.schema(), kind);
    let mut count = 0;
    let mut batches = session.execute(Arc::clone(&plan));
    while let Some(batch) = batches.next().await? {
        count += batch.num_rows();
        rows.push(batch)?;
    }
    let elapsed = start.elapsed();
    rows.finish()?;
    if kind == Kind::Query && reported {
        let report = session.report(&plan, &text, count, elapsed).await?;
        output.report(&report)?;
    }
    Ok(())
}

/// Plans one statement; one without rows is executed as well.
async fn plan(session: Session, statement: Statement) -> Result<Planned> {
    let ctx = session.context();
    let logical = ctx.state().statement_to_plan(statement).await?;
    if let LogicalPlan::Explain(explain) = &logical
        && !explain.verbose
        && explain.explain_format == ExplainFormat::Indent
    {
        return Ok(Planned::Plans(explained(&session, explain).await?));
    }
    let (kind, has_rows) = match &logical {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => (Kind::Explain, true),
        LogicalPlan::Statement(PlanStatement::Execute(_)) => (Kind::Query, true),
        LogicalPlan::Statement(_) | LogicalPlan::Ddl(_) => (Kind::Query, false),
        _ => (Kind::Query, true),
    };
    let frame = session.execute_logical(logical).await?;
    if !has_rows {
        frame.collect().await?;
        return Ok(Planned::Done);
    }
    let plan = frame.create_physical_plan().await?;
    Ok(Planned::Rows { plan, kind })
}

/// The logical plan, and the physical plan as it is divided among the workers. DataFusion's own
/// EXPLAIN ends where the distributed planner begins.
async fn explained(session: &Session, explain: &Explain) -> Result<RecordBatch> {
    let state = session.context().state();
    let logical = state.optimize(&explain.plan)?;
    let planner = state.query_planner();
    let physical = planner.create_physical_plan(&logical, &state).await?;
    let titles = StringArray::from(vec!["logical_plan", "physical_plan"]);
    let texts = StringArray::from(vec![
        logical.display_indent().to_string(),
        Session::show_plan(physical.as_ref()),
    ]);
    Ok(RecordBatch::try_new(
        Arc::clone(explain.schema.inner()),
        vec![Arc::new(titles), Arc::new(texts)],
    )?)
}

/// Whether a statement's report is of interest: what only looks at the session moves no rows.
fn is_reported(statement: &Statement) -> bool {
    let Statement::Statement(statement) = statement else {
        return true;
    };
    !matches!(
        **statement,
        SqlStatement::ShowVariable { .. }
            | SqlStatement::ShowTables { .. }
            | SqlStatement::ShowColumns { .. }
            | SqlStatement::ShowFunctions { .. }
            | SqlStatement::ExplainTable { .. }
    )
}

/// A query that was executed with its rows kept.
pub(crate) struct Collected {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) elapsed: Duration,
    pub(crate) report: QueryReport,
}

/// Whether a statement only reads, so that it can be run again and again.
pub(crate) fn is_query(statement: &Statement) -> bool {
    matches!(statement, Statement::Statement(s) if matches!(**s, SqlStatement::Query(_)))
}

/// Runs one query and keeps its rows.
pub(crate) async fn collect(session: &Session, query: &Statement) -> Result<Collected> {
    session.run(collected(session.clone(), query.clone())).await
}

async fn collected(session: Session, query: Statement) -> Result<Collected> {
    let text = query.to_string();
    let start = Instant::now();
    let Planned::Rows { plan, .. } = plan(session.clone(), query).await? else {
        return Err(CliError::failed(format!("not a query: {text}")));
    };
    let schema = plan.schema();
    let mut batches = Vec::new();
    let mut stream = session.stream(Arc::clone(&plan))?;
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    let elapsed = start.elapsed();
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let report = session.report(&plan, &text, rows, elapsed).await?;
    Ok(Collected {
        schema,
        batches,
        elapsed,
        report,
    })
}
