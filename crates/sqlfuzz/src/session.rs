//! Sessions on a cluster within this process.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::config::ExtensionOptions;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    Coordinator, RunningWorker, RuntimeFilterOptions, RuntimeFilterRule, RuntimeFilterSessionExt,
    WorkerServer, Workers,
};

use crate::data::Table;
use crate::delay::SlowRoad;
use crate::tape::Tape;
use crate::{Error, Result};

/// Workers on loopback ports of this process.
#[derive(Debug)]
pub struct Cluster {
    workers: Vec<RunningWorker>,
    roads: Vec<SlowRoad>,
    coordinator: Arc<Coordinator>,
}

impl Cluster {
    /// Starts so many workers.
    ///
    /// # Errors
    /// If a port cannot be had.
    pub async fn start(workers: usize) -> Result<Self> {
        let mut running = vec![];
        let mut roads = vec![];
        for number in 0..workers {
            let worker = WorkerServer::bind(([127, 0, 0, 1], 0).into()).await;
            let worker = worker.map_err(|error| Error::Worker(error.to_string()))?;
            let road = SlowRoad::to(worker.addr(), (number as u64) << 32).await;
            roads.push(road.map_err(|error| Error::Worker(error.to_string()))?);
            running.push(worker);
        }
        Ok(Self {
            workers: running,
            roads,
            coordinator: Arc::new(Coordinator::new()),
        })
    }

    /// From now on each piece of a message is late by up to so many milliseconds.
    pub fn delay(&self, longest_ms: u64) {
        for road in &self.roads {
            road.set_longest_ms(longest_ms);
        }
    }

    /// A session with these settings, for the tables in `folder`: on the cluster, or in one process,
    /// where filters are those of the rule alone.
    ///
    /// # Errors
    /// If a setting or a table is refused.
    pub async fn session(
        &self,
        on_cluster: bool,
        settings: &[(String, String)],
        tables: &[Table],
        folder: &Path,
    ) -> Result<SessionContext> {
        let urls: Vec<_> = self.roads.iter().map(SlowRoad::url).collect();
        let workers = Workers::try_new(&urls).map_err(|error| Error::Worker(error.to_string()))?;
        let builder = SessionStateBuilder::new()
            .with_default_features()
            .with_config(SessionConfig::new().with_target_partitions(urls.len()));
        let ours = |key: &str| key.starts_with("runtime_filter.");
        let builder = if on_cluster {
            builder
                .with_distributed_worker_resolver(workers)
                .with_distributed_file_scan_config_bytes_per_partition(1)?
                .with_distributed_planner()
                .with_runtime_filter_coordinator(
                    RuntimeFilterOptions::default(),
                    Arc::clone(&self.coordinator),
                )
        } else {
            let mut options = RuntimeFilterOptions::default();
            for (key, value) in settings.iter().filter(|(key, _)| ours(key)) {
                options.set(key.trim_start_matches("runtime_filter."), value)?;
            }
            builder.with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::new(options)))
        };
        let context = SessionContext::new_with_state(builder.build());
        let known = |key: &str| on_cluster || !ours(key);
        for (key, value) in settings.iter().filter(|(key, _)| known(key)) {
            let state = context.state_ref();
            let mut state = state.write();
            state.config_mut().options_mut().set(key, value)?;
        }
        for table in tables {
            let path = format!("{}/", folder.join(&table.name).display());
            context
                .register_parquet(&table.name, path, ParquetReadOptions::default())
                .await?;
        }
        Ok(context)
    }

    /// Executions that are left in some process when none runs, after a moment for the workers to
    /// hear of the last end.
    pub async fn left(&self) -> usize {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let workers: usize = self.workers.iter().map(|w| w.registry().len()).sum();
            let left = workers + self.coordinator.registry().len() + self.coordinator.executions();
            if left == 0 || Instant::now() > deadline {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Filters off, ours and DataFusion's.
pub(crate) fn oracle() -> Vec<(String, String)> {
    owned(&[
        ("runtime_filter.enabled", "false"),
        (
            "datafusion.optimizer.enable_dynamic_filter_pushdown",
            "false",
        ),
    ])
}

/// What both sides of a comparison share.
pub(crate) fn shared(tape: &mut Tape) -> Vec<(String, String)> {
    // Larger inputs than a batch: the engine spreads smaller ones without exchanging them.
    let batch = *tape.one(&["16", "64"]);
    let mut settings = vec![("datafusion.execution.batch_size", batch)];
    if !tape.once_in(5) {
        settings.push((
            "datafusion.optimizer.hash_join_single_partition_threshold",
            "0",
        ));
        settings.push((
            "datafusion.optimizer.hash_join_single_partition_threshold_rows",
            "0",
        ));
    }
    if tape.once_in(8) {
        settings.push(("datafusion.optimizer.prefer_hash_join", "false"));
    }
    owned(&settings)
}

/// Filters wherever they are legal, in a form and with a wait of the tape's choice.
pub(crate) fn filtered(tape: &mut Tape) -> Vec<(String, String)> {
    owned(&[
        ("runtime_filter.force", "true"),
        ("runtime_filter.adaptive", "false"),
        (
            "runtime_filter.wait_timeout_ms",
            *tape.one(&["1000", "3", "0"]),
        ),
        (
            "runtime_filter.max_exact_keys",
            *tape.one(&["1024", "0", "10"]),
        ),
        (
            "runtime_filter.target_fpp",
            *tape.one(&["auto", "0.01", "0.3"]),
        ),
        (
            "runtime_filter.max_filter_bytes",
            *tape.one(&["16777216", "64"]),
        ),
        (
            "runtime_filter.storage_pruning",
            *tape.one(&["true", "false"]),
        ),
        (
            "runtime_filter.late_materialization",
            *tape.one(&["false", "true"]),
        ),
    ])
}

fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = settings.iter();
    owned
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}
