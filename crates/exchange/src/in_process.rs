//! The exchange without a network: build tasks report straight to the hub.
//!
//! Serves a single process, and the head stage that a coordinator runs itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::decide::FilterPolicy;
use crate::hub::Hub;
use crate::id::ExecutionId;
use crate::merge::TaskReport;
use crate::registry::{Execution, ExecutionSettings, LocalSink, Registry, Uplink};
use crate::verdict::PassAllReason;

/// The receiver number of the hub's own process.
pub const LOCAL_RECEIVER: u64 = u64::MAX;

/// What a scope asks for when a query begins.
#[derive(Debug, Clone)]
pub struct ExecutionRequest {
    /// Upper bound of one filter, in bytes.
    pub max_filter_bytes: usize,
    /// The filters of the plan.
    pub filters: Vec<FilterPolicy>,
}

/// One execution in progress. Dropping it ends the execution everywhere.
pub struct ActiveExecution {
    id: ExecutionId,
    hub: Arc<Hub>,
    registry: Arc<Registry>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl std::fmt::Debug for ActiveExecution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveExecution")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl ActiveExecution {
    /// Name of the execution.
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// Where its partials are merged; stays readable after the end.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The registry that serves the nodes of this process.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Something else to do at the end, once.
    pub fn on_end(mut self, f: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.on_end = Some(Box::new(f));
        self
    }
}

impl Drop for ActiveExecution {
    fn drop(&mut self) {
        self.hub.close();
        self.registry.end(&self.id, PassAllReason::Ended);
        if let Some(f) = self.on_end.take() {
            f();
        }
    }
}

/// Begins executions whose hub and nodes share this process.
#[derive(Debug)]
pub struct InProcessExchange {
    coordinator: u64,
    sequence: AtomicU64,
    registry: Arc<Registry>,
}

impl Default for InProcessExchange {
    fn default() -> Self {
        Self {
            coordinator: random(),
            sequence: AtomicU64::new(1),
            registry: Arc::new(Registry::new()),
        }
    }
}

impl InProcessExchange {
    /// An exchange with a registry of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// The random half of this exchange's execution ids.
    pub fn coordinator(&self) -> u64 {
        self.coordinator
    }

    /// The registry of this process.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Begins an execution within this process, under a fresh id and seed.
    pub fn begin(&self, request: ExecutionRequest) -> ActiveExecution {
        let id = ExecutionId {
            coordinator: self.coordinator,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
        };
        let settings = ExecutionSettings {
            seed: random(),
            max_filter_bytes: request.max_filter_bytes,
        };
        let hub = Arc::new(Hub::new(settings, request.filters));
        let uplink = Arc::new(LocalUplink {
            hub: Arc::clone(&hub),
            execution: OnceLock::new(),
        });
        if let Some(execution) = self.registry.begin(id, settings, Arc::clone(&uplink) as _) {
            let _ = uplink.execution.set(Arc::downgrade(&execution));
        }
        ActiveExecution {
            id,
            hub,
            registry: Arc::clone(&self.registry),
            on_end: None,
        }
    }
}

/// A number no outsider can guess: filters hash with a secret seed, so that no
/// data can be prepared to fill them.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's only source of operating-system randomness.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u128(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos()),
    );
    hasher.finish()
}

struct LocalUplink {
    hub: Arc<Hub>,
    // Weak: the execution owns its uplink.
    execution: OnceLock<Weak<Execution>>,
}

impl Uplink for LocalUplink {
    fn report(&self, _: ExecutionId, filter: u32, report: TaskReport) {
        self.hub.report(filter, report);
    }

    fn interest(&self, _: ExecutionId, filter: u32) {
        if let Some(execution) = self.execution.get() {
            self.hub.subscribe(
                filter,
                LOCAL_RECEIVER,
                Arc::new(LocalSink(Weak::clone(execution))),
            );
        }
    }
}

#[cfg(test)]
mod tests;
