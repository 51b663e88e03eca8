//! What happens to the batches of a query.
//!
//! ```text
//!            RuntimeFilterScopeExec            one execution id per execute()
//!                     |
//!       HashJoinExec -+- ...
//!      /             \
//!  Repartition     Repartition
//!      |               |
//!  RuntimeFilter   RuntimeFilter
//!  BuildExec       ProbeExec
//! ```
//!
//! Build and probe nodes hold no state of an execution: tasks of one process may
//! share a node object. They find it through the task's context, at first poll.

mod adaptive;
mod build;
mod context;
mod probe;
mod scope;
mod storage;

pub use build::RuntimeFilterBuildExec;
pub use context::announce_probes;
pub use probe::RuntimeFilterProbeExec;
pub use scope::{ClusterCoordinator, RuntimeFilterScopeExec, ScopeBackend, ScopeRun};
pub use storage::prune_scans;
pub(crate) use storage::{file_bytes, prune_scans_by};

/// Names of the metrics of our nodes, as EXPLAIN ANALYZE shows them.
pub mod metric {
    /// Build: rows seen.
    pub const BUILD_ROWS: &str = "build_rows";
    /// Probe: rows that reached the node.
    pub const ROWS_IN: &str = "probe_rows_in";
    /// Probe: rows dropped.
    pub const ROWS_DROPPED: &str = "rows_dropped";
    /// Probe: bytes of the dropped rows in memory, estimated per batch.
    pub const BYTES_DROPPED: &str = "bytes_dropped";
    /// Probe: partitions that were polled.
    pub const FIRST_POLLS: &str = "first_polls";
    /// Probe: partitions polled before the verdict was here.
    pub const POLLS_BEFORE_VERDICT: &str = "polls_before_verdict";
    /// Probe: partitions whose wait ran out.
    pub const WAIT_TIMEOUTS: &str = "wait_timeouts";
    /// Probe: partitions that took up the verdict between two batches.
    pub const LATE_VERDICTS: &str = "late_verdicts";
    /// Probe: partitions that ended without a verdict.
    pub const NO_VERDICT: &str = "no_verdict";
    /// Probe: time spent waiting, over all partitions.
    pub const WAIT_TIME: &str = "verdict_wait_time";
    /// Probe: time spent hashing, looking up and dropping.
    pub const FILTER_TIME: &str = "filter_time";
    /// Probe: times that a partition switched the filter off for a while.
    pub const SWITCHED_OFF: &str = "switched_off";
    /// Probe: times that a partition found a filter useful again that was off.
    pub const SWITCHED_ON: &str = "switched_on";
    /// Probe: rows that passed unlooked-at while switched off.
    pub const ROWS_SKIPPED: &str = "rows_skipped";
    /// Probe: rows that passed before the verdict was there.
    pub const ROWS_UNFILTERED: &str = "rows_unfiltered";
    /// Probe: rows of these that the filter would have dropped, estimated from the
    /// share that the same partition dropped later. 0 where it never got a filter.
    pub const ROWS_MISSED: &str = "rows_missed";

    /// What a scan says of the rows whose keys it looked up in a filter while decoding.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ScanRows {
        /// Rows looked up.
        In,
        /// Rows of these that were not decoded any further.
        Dropped,
    }

    impl ScanRows {
        const PREFIX: &str = "runtime_filter_";

        fn suffix(self) -> &'static str {
            match self {
                Self::In => "_rows_in",
                Self::Dropped => "_rows_dropped",
            }
        }

        /// Name of the metric of `filter`.
        pub fn name(self, filter: u32) -> String {
            format!("{}{filter}{}", Self::PREFIX, self.suffix())
        }

        /// The filter of which the metric `name` says this, if it does.
        pub fn filter(self, name: &str) -> Option<u32> {
            let id = name.strip_prefix(Self::PREFIX)?;
            id.strip_suffix(self.suffix())?.parse().ok()
        }
    }
}

/// The `ExecutionPlan` methods that the build and the probe node share: both pass
/// their input's shape through.
macro_rules! pass_through_plan {
    () => {
        fn properties(&self) -> &Arc<PlanProperties> {
            self.input.properties()
        }

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }

        fn maintains_input_order(&self) -> Vec<bool> {
            vec![true]
        }

        fn benefits_from_input_partitioning(&self) -> Vec<bool> {
            vec![false]
        }

        // The distributed planner multiplies task counts by what this says; a filter
        // must not change the shape of the plan that it serves.
        fn cardinality_effect(&self) -> CardinalityEffect {
            CardinalityEffect::Equal
        }

        // A limit below a build node would truncate the key set.
        fn supports_limit_pushdown(&self) -> bool {
            false
        }

        fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
            vec![ChildStats::At(partition)]
        }

        fn apply_expressions(
            &self,
            f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            let schema = self.input.schema();
            for key in &self.keys {
                let column: Arc<dyn PhysicalExpr> =
                    Arc::new(Column::new(schema.field(*key).name(), *key));
                if f(&column)? == TreeNodeRecursion::Stop {
                    return Ok(TreeNodeRecursion::Stop);
                }
            }
            Ok(TreeNodeRecursion::Continue)
        }

        fn replace_children(
            self: Arc<Self>,
            children: Vec<Arc<dyn ExecutionPlan>>,
            _: ReplaceChildrenOptions,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            let Ok([input]) = <[_; 1]>::try_from(children) else {
                return internal_err!("{} takes exactly one child", self.name());
            };
            Ok(Arc::new(Self::try_new(
                Arc::clone(&self.spec),
                self.keys.clone(),
                input,
            )?))
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

        fn metrics(&self) -> Option<MetricsSet> {
            Some(self.metrics.clone_inner())
        }
    };
}
pub(crate) use pass_through_plan;
