//! The scope node: one execution of one plan, from its first poll to its end.
//!
//! ```text
//!   before              after
//!   DistributedExec     RuntimeFilterScopeExec
//!     ...                 DistributedExec
//!                           ...
//! ```
//!
//! `execute()` takes a fresh execution id and puts it into the task context, from
//! where the engine carries it to every task. Dropping the stream, or reaching its
//! end, ends the execution in every process.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, exec_err, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, ReplaceChildrenOptions,
};
use datafusion::prelude::SessionConfig;
use futures::{Stream, StreamExt, TryStreamExt};
use runtime_filter_exchange::{
    ActiveExecution, ExecutionRequest, FilterPolicy, Hub, InProcessExchange,
};

use crate::config::RuntimeFilterOptions;
use crate::ledger::{JoinOutcome, JoinVerdict};
use crate::spec::{FilterSpec, WIRE_SHARE};

/// Begins executions on a cluster.
#[async_trait]
pub trait ClusterCoordinator: fmt::Debug + Send + Sync {
    /// Begins an execution on every worker of `config`'s session. Never fails: if
    /// a worker cannot take part within the options' `begin_timeout_ms`, every
    /// filter of the execution passes all.
    async fn begin(
        &self,
        request: ExecutionRequest,
        options: &RuntimeFilterOptions,
        config: &SessionConfig,
    ) -> ActiveExecution;
}

/// Where a scope begins its executions.
#[derive(Debug, Clone)]
pub enum ScopeBackend {
    /// Build and probe nodes share this process. The scope's partitions that run
    /// under one task context are one execution.
    InProcess(Arc<InProcessExchange>),
    /// A cluster; the scope has one partition.
    Cluster(Arc<dyn ClusterCoordinator>),
}

/// What is known of the latest execution of a plan.
#[derive(Debug, Clone)]
pub struct ScopeRun {
    /// Where its partials were merged.
    pub hub: Arc<Hub>,
}

#[derive(Debug, Default)]
struct Runs {
    latest: Option<ScopeRun>,
    cluster_running: bool,
    shared: Option<SharedRun>,
}

/// The partitions of one in-process execution.
#[derive(Debug)]
struct SharedRun {
    active: Weak<ActiveExecution>,
    outer: Weak<TaskContext>,
    inner: Arc<TaskContext>,
    taken: Vec<bool>,
}

/// Gives each execution of its input an identity, a beginning and an end.
#[derive(Debug)]
pub struct RuntimeFilterScopeExec {
    input: Arc<dyn ExecutionPlan>,
    backend: ScopeBackend,
    options: RuntimeFilterOptions,
    filters: Arc<[Arc<FilterSpec>]>,
    ledger: Arc<[JoinVerdict]>,
    // Shared with the streams, which say here that they have ended.
    runs: Arc<Mutex<Runs>>,
}

fn lock(runs: &Mutex<Runs>) -> MutexGuard<'_, Runs> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RuntimeFilterScopeExec {
    /// A scope around `input`, which holds the nodes of `filters`.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        backend: ScopeBackend,
        options: RuntimeFilterOptions,
        filters: Arc<[Arc<FilterSpec>]>,
        ledger: Arc<[JoinVerdict]>,
    ) -> Self {
        Self {
            input,
            backend,
            options,
            filters,
            ledger,
            runs: Arc::default(),
        }
    }

    /// The filters of the plan.
    pub fn filters(&self) -> &[Arc<FilterSpec>] {
        &self.filters
    }

    /// What was decided about each join of the plan.
    pub fn ledger(&self) -> &[JoinVerdict] {
        &self.ledger
    }

    /// The latest execution that has begun, ended or not.
    pub fn latest_run(&self) -> Option<ScopeRun> {
        lock(&self.runs).latest.clone()
    }

    fn request(&self, options: &RuntimeFilterOptions) -> ExecutionRequest {
        let filters = self
            .filters
            .iter()
            .map(|spec| policy(spec, options))
            .collect();
        ExecutionRequest {
            max_filter_bytes: options.max_filter_bytes,
            filters,
        }
    }

    /// The options of the executing session, or those of the planning one if it
    /// does not know ours (a rule used on its own).
    fn options(&self, context: &TaskContext) -> RuntimeFilterOptions {
        RuntimeFilterOptions::from_config(context.session_config().options())
            .cloned()
            .unwrap_or_else(|| self.options.clone())
    }

    fn execute_in_process(
        &self,
        exchange: &InProcessExchange,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.input.output_partitioning().partition_count();
        let (active, inner) = {
            let mut runs = lock(&self.runs);
            let shared = runs.shared.as_mut().and_then(|shared| {
                let active = shared.active.upgrade()?;
                let same = Weak::ptr_eq(&shared.outer, &Arc::downgrade(&context));
                let free = shared.taken.get_mut(partition)?;
                (same && !std::mem::replace(free, true))
                    .then(|| (active, Arc::clone(&shared.inner)))
            });
            match shared {
                Some(shared) => shared,
                None => {
                    let options = self.options(&context);
                    let active = Arc::new(exchange.begin(self.request(&options)));
                    let inner = with_execution(&context, &active, options);
                    let mut taken = vec![false; partitions];
                    if let Some(taken) = taken.get_mut(partition) {
                        *taken = true;
                    }
                    runs.latest = Some(ScopeRun {
                        hub: Arc::clone(active.hub()),
                    });
                    runs.shared = Some(SharedRun {
                        active: Arc::downgrade(&active),
                        outer: Arc::downgrade(&context),
                        inner: Arc::clone(&inner),
                        taken,
                    });
                    (active, inner)
                }
            }
        };
        let stream = self.input.execute(partition, inner)?;
        Ok(Box::pin(ScopeStream {
            stream: Some(stream),
            schema: self.schema(),
            guard: Some(active),
        }))
    }

    fn execute_on_cluster(
        &self,
        coordinator: &Arc<dyn ClusterCoordinator>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!(
                "a distributed plan has one partition, not {}",
                partition + 1
            );
        }
        // Two concurrent executions of one distributed plan share the names of their
        // tasks, and the engine then mixes up their rows.
        if std::mem::replace(&mut lock(&self.runs).cluster_running, true) {
            return exec_err!(
                "this distributed plan object is being executed already; plan the query again to run it twice at once"
            );
        }
        let running = Running(Arc::clone(&self.runs));
        let options = self.options(&context);
        let request = self.request(&options);
        let (coordinator, input) = (Arc::clone(coordinator), Arc::clone(&self.input));
        let schema = self.schema();
        let stream = futures::stream::once(async move {
            let active = coordinator
                .begin(request, &options, context.session_config())
                .await;
            lock(&running.0).latest = Some(ScopeRun {
                hub: Arc::clone(active.hub()),
            });
            let context = with_execution(&context, &active, options);
            let stream = input.execute(0, context)?;
            let schema = stream.schema();
            let guard = Some((active, running));
            Ok::<_, datafusion::error::DataFusionError>(ScopeStream {
                stream: Some(stream),
                schema,
                guard,
            })
        })
        .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }
}

fn policy(spec: &FilterSpec, options: &RuntimeFilterOptions) -> FilterPolicy {
    FilterPolicy {
        id: spec.id,
        rule: options.size_rule(spec.id),
        sizing: runtime_filter_core::SizingPolicy {
            target_fpp: options.fixed_fpp(),
            max_bytes: options.max_filter_bytes,
            max_exact_keys: options.max_exact_keys,
        },
        probe_bytes: spec
            .estimates
            .probe_bytes
            .map(|bytes| (bytes as f64 * WIRE_SHARE) as u64),
        probe_keys: spec.estimates.probe_keys,
        max_cost_share: 1.0 - options.min_saving,
        force: options.force,
    }
}

/// `context` with the execution's id and registry in its session configuration.
fn with_execution(
    context: &TaskContext,
    active: &ActiveExecution,
    mut options: RuntimeFilterOptions,
) -> Arc<TaskContext> {
    options.execution_id = active.id().to_string();
    let mut config = context.session_config().clone();
    config.options_mut().extensions.insert(options);
    config.set_extension(Arc::clone(active.registry()));
    let context = TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    );
    Arc::new(context)
}

/// Says that a cluster execution is over, however it ends.
#[derive(Debug)]
struct Running(Arc<Mutex<Runs>>);

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.0).cluster_running = false;
    }
}

struct ScopeStream<G> {
    stream: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    guard: Option<G>,
}

impl<G: Unpin> Stream for ScopeStream<G> {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(stream) = &mut this.stream else {
            return Poll::Ready(None);
        };
        let item = ready!(stream.poll_next_unpin(cx));
        if item.is_none() {
            // The stream first: its tasks may still ask for the execution.
            this.stream = None;
            this.guard = None;
        }
        Poll::Ready(item)
    }
}

impl<G: Unpin> RecordBatchStream for ScopeStream<G> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl DisplayAs for RuntimeFilterScopeExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.backend, t) {
            // The engine's own displays recognise its root node by this text.
            (ScopeBackend::Cluster(_), _) => self.input.fmt_as(t, f),
            (ScopeBackend::InProcess(_), _) => {
                write!(f, "RuntimeFilterScopeExec: filters={}", self.filters.len())?;
                for verdict in self.ledger.iter() {
                    if let JoinOutcome::Refused(refusal) = &verdict.outcome {
                        write!(f, ", refused=[{}: {refusal}]", verdict.join)?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl ExecutionPlan for RuntimeFilterScopeExec {
    fn name(&self) -> &str {
        "RuntimeFilterScopeExec"
    }

    // Tools that look for the engine's root node find it through this wrapper.
    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        match self.backend {
            ScopeBackend::Cluster(_) => Some(self.input.as_ref()),
            ScopeBackend::InProcess(_) => None,
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        match self.backend {
            ScopeBackend::Cluster(_) => self.input.children(),
            ScopeBackend::InProcess(_) => vec![&self.input],
        }
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true; self.children().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn supports_limit_pushdown(&self) -> bool {
        false
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition); self.children().len()]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("RuntimeFilterScopeExec has exactly one input"),
        }
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = match self.backend {
            ScopeBackend::Cluster(_) => {
                Arc::clone(&self.input).replace_children(children, options)?
            }
            ScopeBackend::InProcess(_) => match (children.pop(), children.is_empty()) {
                (Some(input), true) => input,
                _ => return internal_err!("RuntimeFilterScopeExec takes exactly one child"),
            },
        };
        // The rewritten plan is the same query to its reader (metrics are attached
        // this way), so it keeps what is known of its runs.
        Ok(Arc::new(Self {
            input,
            backend: self.backend.clone(),
            options: self.options.clone(),
            filters: Arc::clone(&self.filters),
            ledger: Arc::clone(&self.ledger),
            runs: Arc::clone(&self.runs),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        match &self.backend {
            ScopeBackend::InProcess(exchange) => {
                self.execute_in_process(exchange, partition, context)
            }
            ScopeBackend::Cluster(coordinator) => {
                self.execute_on_cluster(coordinator, partition, context)
            }
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.input.metrics()
    }
}
