//! How a query begins on the workers of its session.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{WorkerResolver, get_distributed_worker_resolver};
use runtime_filter_exchange::{ActiveExecution, ExecutionRequest, InProcessExchange, Registry};
use runtime_filter_plan::config::RuntimeFilterOptions;
use runtime_filter_plan::nodes::ClusterCoordinator;
use runtime_filter_transport::Links;

/// Begins executions on the workers that a session's `WorkerResolver` names, over
/// one gRPC stream per worker that is kept for all queries.
///
/// Stages that the coordinating process runs itself are served in process.
#[derive(Debug)]
pub struct Coordinator {
    exchange: InProcessExchange,
    links: Links,
}

impl Default for Coordinator {
    fn default() -> Self {
        let exchange = InProcessExchange::new();
        let links = Links::new(exchange.coordinator());
        Self { exchange, links }
    }
}

impl Coordinator {
    /// A coordinator without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of this process, for stages that it runs itself.
    pub fn registry(&self) -> &Arc<Registry> {
        self.exchange.registry()
    }

    /// Executions in progress on this coordinator.
    pub fn executions(&self) -> usize {
        self.links.executions()
    }
}

#[async_trait]
impl ClusterCoordinator for Coordinator {
    async fn begin(
        &self,
        request: ExecutionRequest,
        options: &RuntimeFilterOptions,
        config: &SessionConfig,
    ) -> ActiveExecution {
        let nothing_to_do = request.filters.is_empty();
        let active = self.exchange.begin(request);
        if nothing_to_do {
            return active;
        }
        let urls = get_distributed_worker_resolver(config)
            .and_then(|resolver| resolver.get_urls())
            .unwrap_or_default();
        self.links
            .begin(active, &urls, options.begin_timeout())
            .await
    }
}
