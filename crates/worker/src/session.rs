//! What a task's session must know, and the two services of a worker.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion_distributed::{
    DefaultSessionBuilder, DistributedExt, Worker, WorkerPlanRewriteEvent,
    WorkerPlanRewriteEventResponse, WorkerQueryContext, WorkerSessionBuilder,
};
use runtime_filter_exchange::Registry;
use runtime_filter_plan::codec::RuntimeFilterCodec;
use runtime_filter_plan::config::RuntimeFilterOptions;
use runtime_filter_plan::nodes::{announce_probes, prune_scans};
use runtime_filter_transport::ExchangeService;
use tonic::service::Routes;

/// A worker of a distributed cluster that takes part in runtime filters.
#[derive(Clone)]
pub struct RuntimeFilterWorker {
    worker: Worker,
    service: ExchangeService,
}

impl std::fmt::Debug for RuntimeFilterWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeFilterWorker")
            .field("registry", self.registry())
            .finish_non_exhaustive()
    }
}

impl Default for RuntimeFilterWorker {
    fn default() -> Self {
        Self::from_session_builder(DefaultSessionBuilder)
    }
}

impl RuntimeFilterWorker {
    /// A worker whose tasks run in sessions that `builder` makes, with runtime
    /// filters added. `builder` must keep the configuration that it is handed.
    pub fn from_session_builder(
        builder: impl WorkerSessionBuilder + Send + Sync + 'static,
    ) -> Self {
        let registry = Arc::new(Registry::new());
        let service = ExchangeService::new(Arc::clone(&registry));
        let worker = Worker::from_session_builder(WithRuntimeFilters { builder, registry });
        Self { worker, service }
    }

    /// The engine's worker, for what a coordinating session in the same process needs
    /// of it (`to_local_worker_context`).
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The engine's worker, for settings of its own.
    pub fn worker_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Executions that this worker takes part in.
    pub fn registry(&self) -> &Arc<Registry> {
        self.service.registry()
    }

    /// The engine's service and the exchange's, for
    /// [`tonic::transport::Server::add_routes`].
    pub fn into_routes(self) -> Routes {
        Routes::new(self.worker.into_worker_server()).add_service(self.service.into_server())
    }

    /// Ends every stream of the exchange, so that a server can shut down in grace.
    pub(crate) fn service(&self) -> &ExchangeService {
        &self.service
    }
}

struct WithRuntimeFilters<B> {
    builder: B,
    registry: Arc<Registry>,
}

#[async_trait]
impl<B: WorkerSessionBuilder + Send + Sync> WorkerSessionBuilder for WithRuntimeFilters<B> {
    async fn build_session_state(&self, mut context: WorkerQueryContext) -> Result<SessionState> {
        let mut builder = context
            .builder
            .with_distributed_user_codec(RuntimeFilterCodec)
            .with_distributed_option_extension_from_headers::<RuntimeFilterOptions>(
                &context.headers,
            )?
            .with_distributed_worker_plan_rewrite_handler(prepare);
        builder
            .config()
            .get_or_insert_default()
            .set_extension(Arc::clone(&self.registry));
        context.builder = builder;
        self.builder.build_session_state(context).await
    }
}

fn prepare(event: WorkerPlanRewriteEvent<'_>) -> Result<WorkerPlanRewriteEventResponse> {
    announce_probes(&event.plan, event.session_config)?;
    let plan = prune_scans(event.plan, event.session_config)?;
    Ok(WorkerPlanRewriteEventResponse::new(plan))
}
