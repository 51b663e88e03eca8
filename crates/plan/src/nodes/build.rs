//! The build node: passes batches on untouched and remembers their keys.
//!
//! ```text
//!   before                    after
//!   RepartitionExec(hash)     RepartitionExec(hash)
//!     build side                RuntimeFilterBuildExec: filter=0, keys=[o_orderkey@0]
//!                                 build side
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time,
};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, ReplaceChildrenOptions,
};
use futures::{Stream, StreamExt};
use runtime_filter_core::{KeyHasher, PartialBuilder};
use runtime_filter_exchange::{BuildTask, Execution, PassAllReason};

use super::RuntimeFilterProbeExec;
use super::context::{Task, check_keys, execution, key_types};
use super::storage::has_pruned;
use super::{metric, pass_through_plan};
use crate::config::RuntimeFilterOptions;
use crate::spec::FilterSpec;

/// Collects the join keys of its input into this task's partial filter.
#[derive(Debug)]
pub struct RuntimeFilterBuildExec {
    spec: Arc<FilterSpec>,
    keys: Vec<usize>,
    input: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl RuntimeFilterBuildExec {
    /// A build node of `spec` over the columns `keys` (indexes) of `input`.
    ///
    /// # Errors
    /// If `keys` is empty or names a column that `input` does not have.
    pub fn try_new(
        spec: Arc<FilterSpec>,
        keys: Vec<usize>,
        input: Arc<dyn ExecutionPlan>,
    ) -> Result<Self> {
        check_keys(&input.schema(), &keys)?;
        Ok(Self {
            spec,
            keys,
            input,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The filter it builds.
    pub fn spec(&self) -> &Arc<FilterSpec> {
        &self.spec
    }

    /// Indexes of the key columns.
    pub fn keys(&self) -> &[usize] {
        &self.keys
    }

    /// Its only child.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }
}

impl DisplayAs for RuntimeFilterBuildExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(
            f,
            "RuntimeFilterBuildExec",
            &self.spec,
            &self.keys,
            &self.input,
        )
    }
}

pub(super) fn display(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    spec: &FilterSpec,
    keys: &[usize],
    input: &Arc<dyn ExecutionPlan>,
) -> fmt::Result {
    let schema = input.schema();
    write!(f, "{name}: filter={}, keys=[", spec.id)?;
    for (i, key) in keys.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{}@{key}", schema.field(*key).name())?;
    }
    write!(f, "], join=[{}]", spec.join)
}

impl ExecutionPlan for RuntimeFilterBuildExec {
    fn name(&self) -> &str {
        "RuntimeFilterBuildExec"
    }

    pass_through_plan!();

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("RuntimeFilterBuildExec has exactly one input"),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let partitions = self.input.output_partitioning().partition_count();
        Ok(Box::pin(BuildStream {
            schema: self.schema(),
            input,
            state: State::Unpolled,
            context,
            spec: Arc::clone(&self.spec),
            keys: self.keys.clone(),
            partition: u32::try_from(partition).unwrap_or(u32::MAX),
            partitions: u32::try_from(partitions).unwrap_or(u32::MAX),
            rows: MetricBuilder::new(&self.metrics).counter(metric::BUILD_ROWS, partition),
            time: MetricBuilder::new(&self.metrics).subset_time(metric::FILTER_TIME, partition),
            leans_on: match self.spec.leans_on_probes {
                true => probes(&self.input),
                false => vec![],
            },
        }))
    }
}

/// A partition that collects keys.
struct Collecting {
    execution: Arc<Execution>,
    task: BuildTask,
    hasher: KeyHasher,
    keys: PartialBuilder,
    /// Whether bounds of the keys are of use to anyone.
    bounds: bool,
    columns: Vec<ArrayRef>,
    hashes: Vec<u64>,
}

impl Collecting {
    fn add(&mut self, batch: &RecordBatch, keys: &[usize]) -> Result<(), PassAllReason> {
        self.columns.clear();
        self.columns
            .extend(keys.iter().map(|key| Arc::clone(batch.column(*key))));
        let validity = self
            .hasher
            .hash_batch(&self.columns, &mut self.hashes)
            .map_err(|_| PassAllReason::UnsupportedKey)?;
        let added = match self.bounds {
            true => self
                .keys
                .insert_batch(&self.columns, &self.hashes, validity.as_ref()),
            false => self.keys.insert(&self.hashes, validity.as_ref()),
        };
        added.map_err(|_| PassAllReason::OutOfMemory)
    }
}

enum State {
    Unpolled,
    Collecting(Box<Collecting>),
    /// Sealed, abandoned, or not part of any execution.
    Done,
}

struct BuildStream {
    schema: SchemaRef,
    input: SendableRecordBatchStream,
    state: State,
    context: Arc<TaskContext>,
    spec: Arc<FilterSpec>,
    keys: Vec<usize>,
    partition: u32,
    partitions: u32,
    rows: Count,
    time: Time,
    /// The probes that alone make this build side selective, as far as they are in its
    /// stage.
    leans_on: Vec<Arc<dyn ExecutionPlan>>,
}

/// The probe nodes in `node`.
fn probes(node: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut found = vec![];
    if node.is::<RuntimeFilterProbeExec>() {
        found.push(Arc::clone(node));
    }
    found.extend(node.children().into_iter().flat_map(probes));
    found
}

/// Rows at the probe of one task from which on a share of them means something, and their
/// keys are a burden to send.
const SAMPLE: usize = 1024;

impl BuildStream {
    /// Whether the probes that were to make the build side selective did not: their
    /// verdicts came late or not at all, or dropped next to nothing.
    fn is_let_down(&self) -> bool {
        let options = RuntimeFilterOptions::from_config(self.context.session_config().options())
            .cloned()
            .unwrap_or_default();
        let keeps_all = |probe: &Arc<dyn ExecutionPlan>| {
            let Some(probe) = probe.downcast_ref::<RuntimeFilterProbeExec>() else {
                return false;
            };
            let (rows, dropped) = probe.rows_seen_and_dropped();
            let kept = rows.saturating_sub(dropped);
            rows >= SAMPLE
                && kept as f64 > rows as f64 * options.max_keep_rate
                && !has_pruned(probe)
        };
        !options.force && !self.leans_on.is_empty() && self.leans_on.iter().all(keeps_all)
    }

    fn task(&self) -> BuildTask {
        let Task { index, count } = Task::of(&self.context);
        BuildTask {
            filter: self.spec.id,
            index,
            count,
            partitions: self.partitions,
        }
    }

    fn begin(&mut self) -> State {
        let Some(execution) = execution(self.context.session_config()) else {
            return State::Done;
        };
        let task = self.task();
        let settings = *execution.settings();
        let config = self.context.session_config();
        let bounds = RuntimeFilterOptions::from_config(config.options())
            .is_some_and(|options| options.storage_pruning);
        match KeyHasher::try_new(&key_types(&self.schema, &self.keys), settings.seed) {
            Ok(hasher) => State::Collecting(Box::new(Collecting {
                execution,
                task,
                hasher,
                keys: PartialBuilder::new(settings.cap_blocks(), settings.seed),
                bounds,
                columns: Vec::with_capacity(self.keys.len()),
                hashes: Vec::new(),
            })),
            Err(_) => {
                execution.abandon(task, PassAllReason::UnsupportedKey);
                State::Done
            }
        }
    }

    fn abandon(&mut self, reason: PassAllReason) {
        if let State::Collecting(collecting) = std::mem::replace(&mut self.state, State::Done) {
            collecting.execution.abandon(collecting.task, reason);
        }
    }
}

impl Stream for BuildStream {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if matches!(this.state, State::Unpolled) {
            this.state = this.begin();
        }
        let item = ready!(this.input.poll_next_unpin(cx));
        match &item {
            Some(Ok(batch)) => {
                this.rows.add(batch.num_rows());
                if let State::Collecting(collecting) = &mut this.state {
                    let timer = this.time.timer();
                    let added = collecting.add(batch, &this.keys);
                    timer.done();
                    if let Err(reason) = added {
                        this.abandon(reason);
                    }
                }
            }
            Some(Err(_)) => this.abandon(PassAllReason::BuildFailed),
            // Within the poll that says "end": a consumer that has seen the end of
            // every build partition can rely on every partial being on its way.
            None if this.is_let_down() => this.abandon(PassAllReason::NotSelective),
            None => {
                if let State::Collecting(collecting) =
                    std::mem::replace(&mut this.state, State::Done)
                {
                    let Collecting {
                        execution,
                        task,
                        keys,
                        ..
                    } = *collecting;
                    execution.seal(task, this.partition, keys.finish());
                }
            }
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.input.size_hint()
    }
}

impl RecordBatchStream for BuildStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Drop for BuildStream {
    fn drop(&mut self) {
        // Dropped before its end, even before its first poll: its keys are unknown,
        // and whoever waits for them must hear of it now.
        if matches!(self.state, State::Unpolled)
            && let Some(execution) = execution(self.context.session_config())
        {
            execution.abandon(self.task(), PassAllReason::BuildCancelled);
        }
        self.abandon(PassAllReason::BuildCancelled);
    }
}
