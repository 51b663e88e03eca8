//! The probe node: waits a little for the verdict, then drops rows that cannot join.
//!
//! ```text
//!   before                    after
//!   RepartitionExec(hash)     RepartitionExec(hash)
//!     probe side                RuntimeFilterProbeExec: filter=0, keys=[l_orderkey@0]
//!                                 probe side
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput, Time,
};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use datafusion_distributed::DistributedConfig;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use runtime_filter_core::{KeyHasher, RuntimeFilter};
use runtime_filter_exchange::Verdict;
use tokio::sync::watch;

use super::adaptive::{Adaptive, Change};
use super::build::display;
use super::context::{Task, check_keys, execution, key_types};
use super::{metric, pass_through_plan};
use crate::config::RuntimeFilterOptions;
use crate::spec::{FilterSpec, WaitClass};

/// Drops the rows of its input that a complete runtime filter does not contain.
#[derive(Debug)]
pub struct RuntimeFilterProbeExec {
    spec: Arc<FilterSpec>,
    keys: Vec<usize>,
    input: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl RuntimeFilterProbeExec {
    /// A probe node of `spec` over the columns `keys` (indexes) of `input`.
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

    /// The filter it applies.
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

    /// Rows that reached it so far, and those dropped of them, in this process.
    pub(super) fn rows_seen_and_dropped(&self) -> (usize, usize) {
        let metrics = self.metrics.clone_inner();
        let sum = |name: &str| {
            let sum = metrics.sum_by_name(name);
            sum.map_or(0, |value| value.as_usize())
        };
        (sum(metric::ROWS_IN), sum(metric::ROWS_DROPPED))
    }

    fn wait(&self, options: &RuntimeFilterOptions, context: &TaskContext) -> Duration {
        let dynamic = context
            .session_config()
            .options()
            .extensions
            .get::<DistributedConfig>()
            .is_some_and(|config| config.dynamic_task_count);
        match self.spec.wait {
            // The engine then samples the probe side before it plans the stage that
            // would drain the build side: waiting could only end in a timeout.
            _ if dynamic => Duration::ZERO,
            WaitClass::Ordered | WaitClass::Early => Duration::from_millis(options.wait_timeout_ms),
            WaitClass::InStage => Duration::from_millis(options.in_stage_wait_ms),
            WaitClass::Never => Duration::ZERO,
        }
    }
}

impl DisplayAs for RuntimeFilterProbeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(
            f,
            "RuntimeFilterProbeExec",
            &self.spec,
            &self.keys,
            &self.input,
        )
    }
}

impl ExecutionPlan for RuntimeFilterProbeExec {
    fn name(&self) -> &str {
        "RuntimeFilterProbeExec"
    }

    pass_through_plan!();

    // An upper bound of what comes out, so no longer exact.
    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::new(input.as_ref().clone().to_inexact())),
            _ => internal_err!("RuntimeFilterProbeExec has exactly one input"),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let schema = self.schema();
        let options = RuntimeFilterOptions::from_config(context.session_config().options())
            .cloned()
            .unwrap_or_default();
        let batch_size = context.session_config().batch_size();
        Ok(Box::pin(ProbeStream {
            input,
            survivors: BatchCoalescer::new(Arc::clone(&schema), batch_size)
                .with_biggest_coalesce_batch_size(Some(batch_size / 2)),
            schema,
            state: State::Unpolled,
            held: None,
            input_ended: false,
            wait: self.wait(&options, &context),
            adaptive: Adaptive::new(
                (options.adaptive && !options.force).then_some(options.max_keep_rate),
            ),
            unfiltered: Unfiltered::default(),
            context,
            spec: Arc::clone(&self.spec),
            keys: self.keys.clone(),
            metrics: ProbeMetrics::new(&self.metrics, partition),
        }))
    }
}

struct ProbeMetrics {
    baseline: BaselineMetrics,
    rows_in: Count,
    rows_dropped: Count,
    bytes_dropped: Count,
    first_polls: Count,
    polls_before_verdict: Count,
    wait_timeouts: Count,
    late_verdicts: Count,
    no_verdict: Count,
    wait_time: Time,
    filter_time: Time,
    switched_off: Count,
    switched_on: Count,
    rows_skipped: Count,
    rows_unfiltered: Count,
    rows_missed: Count,
}

impl ProbeMetrics {
    fn new(set: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(set).counter(name, partition);
        Self {
            baseline: BaselineMetrics::new(set, partition),
            rows_in: counter(metric::ROWS_IN),
            rows_dropped: counter(metric::ROWS_DROPPED),
            bytes_dropped: counter(metric::BYTES_DROPPED),
            first_polls: counter(metric::FIRST_POLLS),
            polls_before_verdict: counter(metric::POLLS_BEFORE_VERDICT),
            wait_timeouts: counter(metric::WAIT_TIMEOUTS),
            late_verdicts: counter(metric::LATE_VERDICTS),
            no_verdict: counter(metric::NO_VERDICT),
            wait_time: MetricBuilder::new(set).subset_time(metric::WAIT_TIME, partition),
            filter_time: MetricBuilder::new(set).subset_time(metric::FILTER_TIME, partition),
            switched_off: counter(metric::SWITCHED_OFF),
            switched_on: counter(metric::SWITCHED_ON),
            rows_skipped: counter(metric::ROWS_SKIPPED),
            rows_unfiltered: counter(metric::ROWS_UNFILTERED),
            rows_missed: counter(metric::ROWS_MISSED),
        }
    }
}

/// What the rows that passed before the verdict would have come to.
#[derive(Debug, Default)]
struct Unfiltered {
    /// Rows that passed before the verdict.
    rows: usize,
    /// Rows looked up after it, and how many of them passed.
    looked_at: usize,
    kept: usize,
}

impl Unfiltered {
    /// Rows of those that passed that the filter would have dropped, had it been
    /// there: as many in a hundred as it dropped later. Looking them up would cost a
    /// second hash of rows that are gone.
    fn missed(&self) -> usize {
        match self.looked_at {
            0 => 0,
            looked_at => {
                let dropped = (looked_at - self.kept) as f64 / looked_at as f64;
                (self.rows as f64 * dropped) as usize
            }
        }
    }
}

struct Active {
    filter: Arc<RuntimeFilter>,
    hasher: KeyHasher,
    columns: Vec<ArrayRef>,
    hashes: Vec<u64>,
}

type VerdictReceiver = watch::Receiver<Option<Verdict>>;

enum State {
    Unpolled,
    /// Before the first poll of the input.
    Waiting {
        wait: BoxFuture<'static, ()>,
        since: Instant,
        verdict: VerdictReceiver,
        seed: u64,
    },
    /// Passing rows; the verdict may still come.
    Undecided {
        verdict: VerdictReceiver,
        seed: u64,
    },
    Filtering(Box<Active>),
    PassAll,
}

struct ProbeStream {
    schema: SchemaRef,
    input: SendableRecordBatchStream,
    state: State,
    survivors: BatchCoalescer,
    /// A batch that passes whole, behind the survivors of earlier batches.
    held: Option<RecordBatch>,
    input_ended: bool,
    context: Arc<TaskContext>,
    spec: Arc<FilterSpec>,
    keys: Vec<usize>,
    wait: Duration,
    adaptive: Adaptive,
    unfiltered: Unfiltered,
    metrics: ProbeMetrics,
}

impl ProbeStream {
    fn first_poll(&mut self) -> State {
        self.metrics.first_polls.add(1);
        let Some(execution) = execution(self.context.session_config()) else {
            return State::PassAll;
        };
        let mut verdict = execution.verdict(self.spec.id);
        let seed = execution.settings().seed;
        let now = verdict.borrow_and_update().clone();
        if let Some(now) = now {
            return self.decided(&now, seed);
        }
        self.metrics.polls_before_verdict.add(1);
        if self.wait.is_zero() {
            return State::Undecided { verdict, seed };
        }
        let deadline = execution.deadline(self.spec.id, self.waiting_task(), self.wait);
        let mut waiter = verdict.clone();
        let wait = async move {
            // Both ends of the wait are looked at afterwards, through the receiver.
            let _ =
                tokio::time::timeout_at(deadline.into(), waiter.wait_for(Option::is_some)).await;
        };
        State::Waiting {
            wait: wait.boxed(),
            since: Instant::now(),
            verdict,
            seed,
        }
    }

    /// The task whose deadline counts. One that is polled early has used its time up long
    /// before other probes of its filter begin to wait, so they do not share it.
    fn waiting_task(&self) -> u32 {
        const EARLY: u32 = 1 << 31;
        let task = Task::of(&self.context).index;
        match self.spec.wait {
            WaitClass::Early => task | EARLY,
            WaitClass::Ordered | WaitClass::InStage | WaitClass::Never => task,
        }
    }

    fn decided(&self, verdict: &Verdict, seed: u64) -> State {
        let Verdict::Filter(filter) = verdict else {
            return State::PassAll;
        };
        match KeyHasher::try_new(&key_types(&self.schema, &self.keys), seed) {
            Ok(hasher) if filter.seed() == seed => State::Filtering(Box::new(Active {
                filter: Arc::clone(filter),
                hasher,
                columns: Vec::with_capacity(self.keys.len()),
                hashes: Vec::new(),
            })),
            _ => State::PassAll,
        }
    }

    /// Polls the wait. Ready once the input may be polled.
    fn poll_verdict(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.state, State::Unpolled) {
            self.state = self.first_poll();
        }
        if let State::Waiting {
            wait,
            since,
            verdict,
            seed,
        } = &mut self.state
        {
            ready!(wait.poll_unpin(cx));
            self.metrics.wait_time.add_duration(since.elapsed());
            let seed = *seed;
            let now = verdict.borrow_and_update().clone();
            let verdict = verdict.clone();
            self.state = match now {
                Some(now) => self.decided(&now, seed),
                None => {
                    self.metrics.wait_timeouts.add(1);
                    State::Undecided { verdict, seed }
                }
            };
        }
        Poll::Ready(())
    }

    /// A verdict that came too late for the first batch still serves the rest.
    fn take_up_late_verdict(&mut self) {
        if let State::Undecided { verdict, seed } = &mut self.state
            && verdict.has_changed().unwrap_or(true)
        {
            let seed = *seed;
            let now = verdict.borrow_and_update().clone();
            if let Some(now) = now {
                self.metrics.late_verdicts.add(1);
                self.state = self.decided(&now, seed);
            }
        }
    }

    fn process(&mut self, batch: RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        self.metrics.rows_in.add(rows);
        self.take_up_late_verdict();
        if matches!(self.state, State::Undecided { .. }) {
            self.metrics.rows_unfiltered.add(rows);
            self.unfiltered.rows += rows;
        }
        let State::Filtering(active) = &mut self.state else {
            return self.pass_whole(batch);
        };
        if self.adaptive.skips(rows) {
            self.metrics.rows_skipped.add(rows);
            return self.pass_whole(batch);
        }
        let timer = self.metrics.filter_time.timer();
        active.columns.clear();
        active
            .columns
            .extend(self.keys.iter().map(|key| Arc::clone(batch.column(*key))));
        let hashed = active
            .hasher
            .hash_batch(&active.columns, &mut active.hashes);
        let Ok(validity) = hashed else {
            // A column of another type than the schema says: on any doubt, pass.
            timer.done();
            self.state = State::PassAll;
            return self.pass_whole(batch);
        };
        let mask = active.filter.keep_mask(
            &active.hashes,
            validity.as_ref(),
            self.spec.null_equals_null,
        );
        let kept = mask.count_set_bits();
        self.unfiltered.looked_at += rows;
        self.unfiltered.kept += kept;
        match self.adaptive.observe(rows, kept) {
            Change::SwitchedOff => self.metrics.switched_off.add(1),
            Change::SwitchedOn => self.metrics.switched_on.add(1),
            Change::None => (),
        }
        if kept == rows {
            timer.done();
            return self.pass_whole(batch);
        }
        self.metrics.rows_dropped.add(rows - kept);
        self.metrics
            .bytes_dropped
            .add(bytes_of_share(&batch, rows - kept));
        if kept > 0 {
            self.survivors
                .push_batch_with_filter(batch, &BooleanArray::new(mask, None))?;
        }
        timer.done();
        Ok(())
    }

    /// Hands a batch on as it is, after the survivors of the batches before it.
    fn pass_whole(&mut self, batch: RecordBatch) -> Result<()> {
        if self.survivors.get_buffered_rows() > 0 {
            self.survivors.finish_buffered_batch()?;
        }
        self.held = Some(batch);
        Ok(())
    }
}

/// Bytes of `dropped` average rows of `batch`. Counts what the batch's own rows
/// take, not the buffers they are sliced from.
fn bytes_of_share(batch: &RecordBatch, dropped: usize) -> usize {
    let bytes: usize = batch
        .columns()
        .iter()
        .map(|column| column.to_data().get_slice_memory_size().unwrap_or(0))
        .sum();
    match batch.num_rows() {
        0 => 0,
        rows => (bytes as f64 * dropped as f64 / rows as f64) as usize,
    }
}

impl Stream for ProbeStream {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        ready!(this.poll_verdict(cx));
        loop {
            if let Some(batch) = this.survivors.next_completed_batch() {
                return Poll::Ready(Some(Ok(batch.record_output(&this.metrics.baseline))));
            }
            if let Some(batch) = this.held.take() {
                return Poll::Ready(Some(Ok(batch.record_output(&this.metrics.baseline))));
            }
            if this.input_ended {
                return Poll::Ready(None);
            }
            let result = match ready!(this.input.poll_next_unpin(cx)) {
                Some(Ok(batch)) => this.process(batch),
                Some(Err(error)) => Err(error),
                None => {
                    this.input_ended = true;
                    if matches!(this.state, State::Undecided { .. }) {
                        this.metrics.no_verdict.add(1);
                    }
                    this.metrics.rows_missed.add(this.unfiltered.missed());
                    this.survivors.finish_buffered_batch().map_err(Into::into)
                }
            };
            if let Err(error) = result {
                this.input_ended = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl RecordBatchStream for ProbeStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_before_the_verdict_are_missed_at_the_rate_of_those_after_it() {
        let missed = |rows, looked_at, kept| {
            let unfiltered = Unfiltered {
                rows,
                looked_at,
                kept,
            };
            unfiltered.missed()
        };
        assert_eq!(missed(1_000, 4_000, 1_000), 750);
        assert_eq!(missed(1_000, 4_000, 4_000), 0);
        assert_eq!(missed(0, 4_000, 0), 0);
        // The filter never came, or nothing came after it: nothing is known.
        assert_eq!(missed(1_000, 0, 0), 0);
    }
}
