//! How placement enters DataFusion's planning.
//!
//! ```text
//!   one process                              cluster
//!   default physical rules                   default physical rules
//!   RuntimeFilterRule: places, wraps         RuntimeFilterRule: places
//!     the plan in a scope                    distributed planner: cuts stages
//!                                            RuntimeFilterQueryPlanner: wraps each
//!                                              DistributedExec in a scope
//! ```

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion_distributed::DistributedExec;
use runtime_filter_exchange::InProcessExchange;

use crate::config::RuntimeFilterOptions;
use crate::ledger::JoinVerdict;
use crate::nodes::{
    ClusterCoordinator, RuntimeFilterBuildExec, RuntimeFilterProbeExec, RuntimeFilterScopeExec,
    ScopeBackend, prune_scans_by,
};
use crate::placement::{Mode, Placement, place};
use crate::spec::FilterSpec;

/// What the rule placed, on its way to the scope that the planner makes of it.
#[derive(Debug, Default)]
struct Placed {
    filters: Vec<Arc<FilterSpec>>,
    ledger: Vec<JoinVerdict>,
}

tokio::task_local! {
    // An optimizer rule can return a plan and nothing else. The planner that wants
    // to hear more runs it within this scope.
    static PLACED: RefCell<Placed>;
}

/// The optimizer rule that gives joins their runtime filters. Belongs last, where
/// `with_physical_optimizer_rule` puts it.
#[derive(Debug)]
pub struct RuntimeFilterRule {
    options: RuntimeFilterOptions,
    /// `None` on a cluster, where the scope comes from the query planner.
    in_process: Option<Arc<InProcessExchange>>,
}

impl RuntimeFilterRule {
    /// A rule for plans that run in this process. A session that has registered
    /// [`RuntimeFilterOptions`] as an extension overrides `options`.
    pub fn new(options: RuntimeFilterOptions) -> Self {
        Self {
            options,
            in_process: Some(Arc::default()),
        }
    }

    /// A rule for plans that a distributed planner cuts into stages afterwards.
    pub fn for_cluster(options: RuntimeFilterOptions) -> Self {
        Self {
            options,
            in_process: None,
        }
    }
}

impl PhysicalOptimizerRule for RuntimeFilterRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = RuntimeFilterOptions::from_config(config).unwrap_or(&self.options);
        options.validate()?;
        if !options.enabled {
            return Ok(plan);
        }
        let mode = match self.in_process {
            Some(_) => Mode::InProcess,
            None => Mode::Cluster,
        };
        let Placement {
            plan,
            filters,
            ledger,
        } = place(plan, options, config, mode)?;
        let Some(exchange) = &self.in_process else {
            let _ = PLACED.try_with(|placed| {
                let mut placed = placed.borrow_mut();
                placed.filters.extend(filters);
                placed.ledger.extend(ledger);
            });
            return Ok(plan);
        };
        if filters.is_empty() && ledger.is_empty() {
            return Ok(plan);
        }
        let plan = prune_scans_by(plan, options)?;
        Ok(Arc::new(RuntimeFilterScopeExec::new(
            plan,
            ScopeBackend::InProcess(Arc::clone(exchange)),
            options.clone(),
            filters.into(),
            ledger.into(),
        )))
    }

    fn name(&self) -> &str {
        "RuntimeFilterRule"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Wraps the distributed planner: gives each distributed plan its scope.
///
/// ```text
///   before              after
///   DistributedExec     RuntimeFilterScopeExec
///     ...                 DistributedExec
///                           ...
/// ```
///
/// A plan that stays on one node keeps none of our nodes: nothing would serve them.
pub struct RuntimeFilterQueryPlanner {
    inner: Arc<dyn QueryPlanner + Send + Sync>,
    coordinator: Arc<dyn ClusterCoordinator>,
    options: RuntimeFilterOptions,
}

impl fmt::Debug for RuntimeFilterQueryPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeFilterQueryPlanner")
            .finish_non_exhaustive()
    }
}

impl RuntimeFilterQueryPlanner {
    /// A planner around `inner`, the distributed one.
    pub fn new(
        inner: Arc<dyn QueryPlanner + Send + Sync>,
        coordinator: Arc<dyn ClusterCoordinator>,
        options: RuntimeFilterOptions,
    ) -> Self {
        Self {
            inner,
            coordinator,
            options,
        }
    }
}

#[async_trait]
impl QueryPlanner for RuntimeFilterQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planning = async {
            let plan = self
                .inner
                .create_physical_plan(logical_plan, session)
                .await?;
            Ok::<_, datafusion::error::DataFusionError>((plan, PLACED.with(RefCell::take)))
        };
        let (plan, placed) = PLACED.scope(RefCell::default(), planning).await?;
        let options = RuntimeFilterOptions::from_config(session.config_options())
            .unwrap_or(&self.options)
            .clone();
        if let Some(explain) = plan.downcast_ref::<ExplainExec>() {
            return Ok(Arc::new(with_verdicts(explain, &placed.ledger)));
        }
        wrap_distributed(plan, &self.coordinator, &options, placed)
    }
}

/// `EXPLAIN VERBOSE` with one more entry: what became of each join, one a line.
fn with_verdicts(explain: &ExplainExec, ledger: &[JoinVerdict]) -> ExplainExec {
    let mut plans = explain.stringified_plans().to_vec();
    if explain.verbose() && !ledger.is_empty() {
        let lines: Vec<String> = ledger.iter().map(JoinVerdict::to_string).collect();
        let kind = PlanType::OptimizedPhysicalPlan {
            optimizer_name: "RuntimeFilterRule, verdicts".to_string(),
        };
        plans.push(StringifiedPlan::new(kind, lines.join("\n")));
    }
    ExplainExec::new(explain.schema(), plans, explain.verbose())
}

fn wrap_distributed(
    plan: Arc<dyn ExecutionPlan>,
    coordinator: &Arc<dyn ClusterCoordinator>,
    options: &RuntimeFilterOptions,
    placed: Placed,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut distributed = false;
    let (filters, ledger): (Arc<[_]>, Arc<[_]>) = (placed.filters.into(), placed.ledger.into());
    let plan = plan
        .transform_down(|node| {
            if !node.is::<DistributedExec>() {
                return Ok(Transformed::no(node));
            }
            distributed = true;
            let scope = RuntimeFilterScopeExec::new(
                node,
                ScopeBackend::Cluster(Arc::clone(coordinator)),
                options.clone(),
                Arc::clone(&filters),
                Arc::clone(&ledger),
            );
            // The scope answers to the name of the node it wraps: do not look again.
            Ok(Transformed::new(
                Arc::new(scope) as _,
                true,
                TreeNodeRecursion::Jump,
            ))
        })?
        .data;
    if distributed { Ok(plan) } else { strip(plan) }
}

/// `plan` without build and probe nodes.
fn strip(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let stripped = plan.transform_up(|node| {
        let input = node
            .downcast_ref::<RuntimeFilterBuildExec>()
            .map(RuntimeFilterBuildExec::input)
            .or_else(|| {
                node.downcast_ref::<RuntimeFilterProbeExec>()
                    .map(RuntimeFilterProbeExec::input)
            })
            .cloned();
        Ok(match input {
            Some(input) => Transformed::yes(input),
            None => Transformed::no(node),
        })
    })?;
    Ok(stripped.data)
}
