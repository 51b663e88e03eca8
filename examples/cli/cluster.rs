//! The workers and the session that coordinates them: all this program needs of the library.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use datafusion::common::Result as DataFusionResult;
use datafusion::config::{ConfigExtension, Dialect, ExtensionOptions};
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement as PlanStatement};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt, display_plan_ascii};
pub(crate) use datafusion_runtime_filter::QueryReport;
use datafusion_runtime_filter::{
    RunningWorker, RuntimeFilterOptions, RuntimeFilterSessionExt, WorkerServer, Workers,
    query_report,
};
use futures::StreamExt;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

use crate::args::Args;
use crate::error::{CliError, Result};

/// Long enough for a distant machine, short enough to wait for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The workers, embedded or elsewhere.
pub(crate) struct Cluster {
    engine: Handle,
    embedded: Vec<RunningWorker>,
    urls: Vec<String>,
}

impl Cluster {
    /// Connects to the workers of `--worker`, or starts `--workers` of our own on loopback.
    /// What they compute, they compute on the threads of `engine`.
    pub(crate) async fn start(args: &Args, engine: &Handle) -> Result<Self> {
        let engine = engine.clone();
        if !args.worker.is_empty() {
            for url in &args.worker {
                check_reachable(url).await?;
            }
            return Ok(Self {
                engine,
                embedded: Vec::new(),
                urls: args.worker.iter().map(Url::to_string).collect(),
            });
        }
        let mut embedded = Vec::new();
        for _ in 0..args.embedded_workers() {
            let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let worker = on(&engine, async move {
                WorkerServer::bind(any_port)
                    .await
                    .map_err(|e| CliError::failed(format!("cannot start a worker: {e}")))
            });
            embedded.push(worker.await?);
        }
        let urls = embedded.iter().map(RunningWorker::url).collect();
        Ok(Self {
            engine,
            embedded,
            urls,
        })
    }

    /// Such as "4 workers in this process".
    pub(crate) fn describe(&self) -> String {
        let place = if self.embedded.is_empty() {
            "elsewhere"
        } else {
            "on loopback ports of this process"
        };
        match self.urls.len() {
            1 => format!("1 worker {place}"),
            n => format!("{n} workers {place}"),
        }
    }

    /// A coordinating session with the settings of the command line.
    pub(crate) async fn session(&self, args: &Args) -> Result<Session> {
        let mut options = RuntimeFilterOptions::default();
        options.enabled = !args.no_runtime_filter;
        let config = SessionConfig::new()
            .with_target_partitions(self.urls.len())
            .with_information_schema(true);
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_distributed_worker_resolver(Workers::try_new(&self.urls)?)
            .with_distributed_planner()
            // One byte a partition: every scan is spread over all workers, so that small tables
            // show what large ones do.
            .with_distributed_file_scan_config_bytes_per_partition(1)?
            .with_runtime_filters(options)
            .build();
        let session = Session {
            ctx: SessionContext::new_with_state(state),
            engine: self.engine.clone(),
        };
        for (key, value) in &args.settings {
            let set = session.set(key, value).await;
            set.map_err(|e| {
                CliError::failed(format!("--set {key}={value}: {}", e.strip_backtrace()))
            })?;
        }
        Ok(session)
    }

    /// Stops the embedded workers.
    pub(crate) async fn shutdown(self) {
        let all = futures::future::join_all(self.embedded.into_iter().map(|w| w.shutdown()));
        // The program is about to end: a worker that hangs is not worth waiting for.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
    }
}

/// Says so now, in one line, rather than in the middle of the first query.
async fn check_reachable(url: &Url) -> Result<()> {
    // An IPv6 address is bracketed in a URL only.
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or(80);
    let reason = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await
    {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
    };
    Err(CliError::failed(format!(
        "cannot reach worker {url}: {reason}; start it, or correct --worker"
    )))
}

/// Runs `work` on the threads of `engine`, and cancels it when the returned future is dropped.
async fn on<T: Send + 'static>(
    engine: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut task = JoinSet::new();
    task.spawn_on(work, engine);
    match task.join_next().await {
        Some(Ok(result)) => result,
        // The panic itself has been printed already.
        Some(Err(e)) => Err(CliError::failed(format!("the query was lost: {e}"))),
        None => Err(CliError::failed("the query was lost")),
    }
}

/// The coordinating session. Clones share their state.
#[derive(Clone)]
pub(crate) struct Session {
    ctx: SessionContext,
    engine: Handle,
}

impl Session {
    pub(crate) fn context(&self) -> &SessionContext {
        &self.ctx
    }

    /// The statements of a text, separated by `;`.
    pub(crate) fn parse(&self, sql: &str) -> DataFusionResult<Vec<Statement>> {
        let state = self.ctx.state();
        let options = &state.config_options().sql_parser;
        // A dialect that is named in the options is known to the parser.
        let dialect = dialect_from_str(options.dialect)
            .or_else(|| dialect_from_str(Dialect::Generic))
            .ok_or_else(|| {
                datafusion::error::DataFusionError::Configuration(format!(
                    "unknown SQL dialect {}",
                    options.dialect
                ))
            })?;
        let statements = DFParserBuilder::new(sql)
            .with_dialect(dialect.as_ref())
            .with_recursion_limit(options.recursion_limit.get())
            .build()?
            .parse_statements()?;
        Ok(statements.into())
    }

    /// As the SQL statement `SET key = value`.
    pub(crate) async fn set(&self, key: &str, value: &str) -> DataFusionResult<()> {
        let plan = LogicalPlan::Statement(PlanStatement::SetVariable(SetVariable {
            variable: key.to_owned(),
            value: value.to_owned(),
        }));
        self.execute_logical(plan).await?;
        Ok(())
    }

    /// Executes a statement. A setting of ours that is out of its range is taken back at once:
    /// it would make every later query of the session fail.
    pub(crate) async fn execute_logical(&self, plan: LogicalPlan) -> DataFusionResult<DataFrame> {
        let options = || -> Option<RuntimeFilterOptions> {
            self.ctx.state().config_options().extensions.get().cloned()
        };
        let before = options();
        let frame = self.ctx.execute_logical_plan(plan).await?;
        if let Some(Err(error)) = options().map(|options| options.validate()) {
            if let Some(before) = before {
                let state = self.ctx.state_ref();
                let mut state = state.write();
                state.config_mut().options_mut().extensions.insert(before);
            }
            return Err(error);
        }
        Ok(frame)
    }

    /// The names of the user's tables.
    pub(crate) fn tables(&self) -> Vec<String> {
        let state = self.ctx.state();
        let defaults = &state.config_options().catalog;
        let schema = self
            .ctx
            .catalog(&defaults.default_catalog)
            .and_then(|catalog| catalog.schema(&defaults.default_schema));
        let mut names = schema.map_or_else(Vec::new, |schema| schema.table_names());
        names.sort();
        names
    }

    /// The plan as it is divided among the workers, as text.
    pub(crate) fn show_plan(plan: &dyn ExecutionPlan) -> String {
        display_plan_ascii(plan, false)
    }

    pub(crate) fn filters_enabled(&self) -> bool {
        let state = self.ctx.state();
        let options = state
            .config_options()
            .extensions
            .get::<RuntimeFilterOptions>();
        options.is_some_and(|o| o.enabled)
    }

    /// Turns filters on or off until the guard is dropped, even by a cancelled query.
    pub(crate) fn with_filters(&self, enabled: bool) -> DataFusionResult<FiltersGuard<'_>> {
        let before = self.filters_enabled();
        self.set_filters(enabled)?;
        Ok(FiltersGuard {
            session: self,
            before,
        })
    }

    fn set_filters(&self, enabled: bool) -> DataFusionResult<()> {
        self.ctx
            .state_ref()
            .write()
            .config_mut()
            .options_mut()
            .set("runtime_filter.enabled", &enabled.to_string())
    }

    /// The settings of runtime filters as a text, with what they mean.
    pub(crate) fn filter_settings(&self) -> String {
        let state = self.ctx.state();
        let options = state
            .config_options()
            .extensions
            .get::<RuntimeFilterOptions>();
        let mut text = String::new();
        for entry in options.map(ExtensionOptions::entries).unwrap_or_default() {
            // One key carries the library's own business from node to node.
            if !entry.description.starts_with("Internal") {
                let value = entry.value.unwrap_or_default();
                let setting = format!("{}.{} = {value}", RuntimeFilterOptions::PREFIX, entry.key);
                text.push_str(&format!("{setting:44} {}\n", entry.description.trim()));
            }
        }
        text
    }

    /// Runs `work` where queries run, and cancels it when the returned future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        on(&self.engine, work).await
    }

    /// Executes a plan of this session where queries run; dropping the receiver cancels it.
    pub(crate) fn execute(&self, plan: Arc<dyn ExecutionPlan>) -> Batches {
        // A reader who is slower than the query holds it up, rather than filling the memory.
        let (sender, receiver) = mpsc::channel(2);
        let session = self.clone();
        let query = async move {
            let mut stream = session.stream(plan)?;
            while let Some(batch) = stream.next().await {
                if sender.send(batch?).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let mut task = JoinSet::new();
        task.spawn_on(query, &self.engine);
        Batches { receiver, task }
    }

    /// Executes a plan of this session in the current task.
    pub(crate) fn stream(
        &self,
        plan: Arc<dyn ExecutionPlan>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        execute_stream(plan, self.ctx.task_ctx())
    }

    /// The report on a plan that was executed to its end.
    pub(crate) async fn report(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        query: &str,
        rows: usize,
        elapsed: Duration,
    ) -> DataFusionResult<QueryReport> {
        query_report(plan, query, rows, elapsed).await
    }
}

/// The rows of a query, as they come.
pub(crate) struct Batches {
    receiver: mpsc::Receiver<RecordBatch>,
    task: JoinSet<Result<()>>,
}

impl Batches {
    /// The next rows; `None` when the query has ended well.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.receiver.recv().await {
            return Ok(Some(batch));
        }
        match self.task.join_next().await {
            Some(Ok(result)) => result.map(|()| None),
            // The panic itself has been printed already.
            Some(Err(e)) => Err(CliError::failed(format!("the query was lost: {e}"))),
            None => Ok(None),
        }
    }
}

/// See [`Session::with_filters`].
pub(crate) struct FiltersGuard<'a> {
    session: &'a Session,
    before: bool,
}

impl Drop for FiltersGuard<'_> {
    fn drop(&mut self) {
        // The key was accepted when this guard was made.
        let _ = self.session.set_filters(self.before);
    }
}
