//! One call that gives a coordinating session its runtime filters.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, plan_datafusion_err};
use datafusion::execution::SessionStateBuilder;
use datafusion_distributed::{DistributedExt, WorkerResolver};
use runtime_filter_coordinator::Coordinator;
use runtime_filter_plan::codec::RuntimeFilterCodec;
use runtime_filter_plan::config::RuntimeFilterOptions;
use runtime_filter_plan::rule::{RuntimeFilterQueryPlanner, RuntimeFilterRule};
use url::Url;

/// Adds runtime filters to a session that plans for a cluster.
pub trait RuntimeFilterSessionExt: Sized {
    /// Runtime filters with `options`, over connections of this session's own.
    ///
    /// Call it after `with_distributed_planner`, whose planner it wraps.
    fn with_runtime_filters(self, options: RuntimeFilterOptions) -> Self {
        self.with_runtime_filter_coordinator(options, Arc::new(Coordinator::new()))
    }

    /// The same, over the connections of `coordinator`, which sessions can share.
    fn with_runtime_filter_coordinator(
        self,
        options: RuntimeFilterOptions,
        coordinator: Arc<Coordinator>,
    ) -> Self;
}

impl RuntimeFilterSessionExt for SessionStateBuilder {
    fn with_runtime_filter_coordinator(
        mut self,
        options: RuntimeFilterOptions,
        coordinator: Arc<Coordinator>,
    ) -> Self {
        let distributed = std::mem::take(self.query_planner()).unwrap_or_else(|| {
            // Without a distributed planner every plan stays on one node, and the
            // filters are taken out again.
            Arc::new(SingleNodePlanner)
        });
        let planner = RuntimeFilterQueryPlanner::new(distributed, coordinator, options.clone());
        self.with_distributed_option_extension(options.clone())
            .with_distributed_user_codec(RuntimeFilterCodec)
            .with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::for_cluster(options)))
            .with_query_planner(Arc::new(planner))
    }
}

/// DataFusion's default way from a logical to a physical plan.
#[derive(Debug)]
struct SingleNodePlanner;

#[async_trait::async_trait]
impl datafusion::execution::context::QueryPlanner for SingleNodePlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &datafusion::logical_expr::LogicalPlan,
        session: &dyn datafusion::catalog::Session,
    ) -> Result<Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
        use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
        DefaultPhysicalPlanner::default()
            .create_physical_plan(logical_plan, session)
            .await
    }
}

/// A fixed list of workers.
#[derive(Debug, Clone)]
pub struct Workers(Vec<Url>);

impl Workers {
    /// The workers at `urls`, such as `http://10.0.0.7:50051`.
    ///
    /// # Errors
    /// Names the first text that is not a URL.
    pub fn try_new<T: AsRef<str>>(urls: impl IntoIterator<Item = T>) -> Result<Self> {
        let parse = |url: T| {
            Url::parse(url.as_ref()).map_err(|error| {
                plan_datafusion_err!(
                    "'{}' is not the URL of a worker ({error}); expected http://host:port",
                    url.as_ref()
                )
            })
        };
        Ok(Self(urls.into_iter().map(parse).collect::<Result<_>>()?))
    }
}

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.0.clone())
    }
}
