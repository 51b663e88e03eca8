//! Which join gets a filter, where its nodes go, and why not.
//!
//! ```text
//!   before                               after
//!
//!   HashJoinExec on [a = b]              HashJoinExec on [a = b]
//!     RepartitionExec(hash a)              RepartitionExec(hash a)
//!       FilterExec                           RuntimeFilterBuildExec: filter=0, keys=[a]
//!         scan                                 FilterExec
//!     RepartitionExec(hash b)                    scan
//!       scan                               RepartitionExec(hash b)
//!                                            RuntimeFilterProbeExec: filter=0, keys=[b]
//!                                              scan
//! ```
//!
//! | module | decides |
//! |---|---|
//! | `join` | whether a filter is legal, and how the join will run |
//! | `build` | where the keys are collected |
//! | `probe` | where rows are dropped |
//! | `columns` | what a column is below an operator |
//! | `cost` | whether it is worth it |
//! | `selectivity` | what equality with a text keeps |
//! | `site` | how a place is named and a node put there |
//!
//! Joins are visited from the root down: a filter of an outer join that reaches the
//! build side of an inner one makes that build side selective. Where nodes of several
//! filters meet below one exchange, builds come first and probes below them, so that a
//! build sees the rows that the probes leave.
//!
//! Filters go from the left (build) side of a hash join to its right (probe) side, never
//! back: as each waits only for what the engine drains earlier, no two wait for each
//! other.

mod build;
mod columns;
mod cost;
mod join;
mod probe;
mod selectivity;
mod site;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion_distributed::{DistributedConfig, NetworkBoundaryExt};

use crate::config::RuntimeFilterOptions;
use crate::ledger::{JoinOutcome, JoinVerdict, Refusal};
use crate::nodes::{RuntimeFilterBuildExec, RuntimeFilterProbeExec, RuntimeFilterScopeExec};
use crate::spec::{FilterSpec, WaitClass};
use site::{as_node, is_node, with_children};

type Plan = Arc<dyn ExecutionPlan>;

/// What will run the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// datafusion-distributed, which cuts the plan into stages afterwards.
    Cluster,
    /// This process, as it is.
    InProcess,
}

/// A plan with its filters, and a verdict for every join.
#[derive(Debug)]
pub struct Placement {
    /// The plan, of unchanged schema.
    pub plan: Arc<dyn ExecutionPlan>,
    /// Its filters by number, each with one build node and at least one probe node.
    pub filters: Vec<Arc<FilterSpec>>,
    /// Every join of the plan, from the root down.
    pub ledger: Vec<JoinVerdict>,
}

/// Gives the joins of `plan` their filters. A plan that has some already stays as it is.
///
/// # Errors
/// If an operator of the plan refuses a child that differs only by our nodes.
pub fn place(
    plan: Arc<dyn ExecutionPlan>,
    options: &RuntimeFilterOptions,
    config: &ConfigOptions,
    mode: Mode,
) -> Result<Placement> {
    if contains_filters(&plan) {
        return Ok(Placement {
            plan,
            filters: vec![],
            ledger: vec![],
        });
    }
    let environment = Environment::new(&plan, config, mode);
    let mut pass = Pass {
        options,
        environment,
        filters: vec![],
        ledger: vec![],
    };
    let plan = if options.enabled {
        pass.visit(&plan)?
    } else {
        pass.refuse_all(&plan, &Refusal::Disabled);
        plan
    };
    Ok(Placement {
        plan,
        filters: pass.filters,
        ledger: pass.ledger,
    })
}

/// What the places and their worth depend on, besides the plan.
#[derive(Debug, Clone, Copy)]
struct Environment {
    cluster: bool,
    /// A distributed planner will convert collected joins.
    normalizes: bool,
    /// Workers that receive a filter, as far as one can tell.
    receivers: usize,
    /// No probe may wait, whatever its place.
    never_wait: bool,
}

impl Environment {
    /// The number of workers is known to the distributed planner only. Most clusters
    /// have not more than this, and a plan of few partitions uses fewer.
    const ASSUMED_WORKERS: usize = 8;

    fn new(plan: &Plan, config: &ConfigOptions, mode: Mode) -> Self {
        // Polls the probe side while the build side is still being read.
        let buffers = config.execution.hash_join_buffering_capacity > 0;
        if mode == Mode::InProcess {
            return Self {
                cluster: false,
                normalizes: false,
                receivers: 1,
                never_wait: buffers,
            };
        }
        let distributed = config
            .extensions
            .get::<DistributedConfig>()
            .cloned()
            .unwrap_or_default();
        let receivers = match distributed.max_tasks_per_stage {
            0 => config
                .execution
                .target_partitions
                .clamp(1, Self::ASSUMED_WORKERS),
            tasks => tasks,
        };
        Self {
            cluster: true,
            // A plan with boundaries of the user's own is taken as it is.
            normalizes: !contains_boundary(plan),
            receivers,
            // It samples every stage before it starts the next: a probe would hold up
            // the very stage that it waits for.
            never_wait: buffers || distributed.dynamic_task_count,
        }
    }
}

struct Pass<'a> {
    options: &'a RuntimeFilterOptions,
    environment: Environment,
    filters: Vec<Arc<FilterSpec>>,
    ledger: Vec<JoinVerdict>,
}

impl Pass<'_> {
    fn visit(&mut self, node: &Plan) -> Result<Plan> {
        // A recursive term runs again and again over other rows: a filter of one round
        // would drop the rows of the next.
        if node.is::<RecursiveQueryExec>() {
            self.refuse_all(node, &Refusal::InRecursiveQuery);
            return Ok(Arc::clone(node));
        }
        let node = &self.visit_join(node)?;
        let children = node.children();
        let mut changed = false;
        let mut visited = Vec::with_capacity(children.len());
        for (index, child) in children.into_iter().enumerate() {
            // Such a plan is run by its node, at a time of its own.
            if index > 0 && node.is::<ScalarSubqueryExec>() {
                self.refuse_all(child, &Refusal::InScalarSubquery);
                visited.push(Arc::clone(child));
                continue;
            }
            let new = self.visit(child)?;
            changed |= !Arc::ptr_eq(&new, child);
            visited.push(new);
        }
        if changed {
            with_children(node, visited)
        } else {
            Ok(Arc::clone(node))
        }
    }

    /// `node` with a filter of its own if it is a join that gets one.
    fn visit_join(&mut self, node: &Plan) -> Result<Plan> {
        let Some((text, refusal)) = join::describe(node) else {
            return Ok(Arc::clone(node));
        };
        let decided = match (refusal, as_node::<HashJoinExec>(node)) {
            (None, Some(join)) => self.decide(join, &text),
            (Some(refusal), _) => Err(refusal),
            (None, None) => Err(Refusal::OperatorNotCovered(node.name().to_string())),
        };
        match decided {
            Ok(decision) => {
                let spec = Arc::clone(&decision.spec);
                let plan = decision.apply(node)?;
                let outcome = JoinOutcome::Placed { filter: spec.id };
                self.ledger.push(JoinVerdict {
                    join: text,
                    outcome,
                });
                self.filters.push(spec);
                Ok(plan)
            }
            Err(refusal) => {
                let outcome = JoinOutcome::Refused(refusal);
                self.ledger.push(JoinVerdict {
                    join: text,
                    outcome,
                });
                Ok(Arc::clone(node))
            }
        }
    }

    fn decide(&self, join: &HashJoinExec, text: &str) -> Result<Decision, Refusal> {
        let Environment {
            cluster,
            normalizes,
            never_wait,
            ..
        } = self.environment;
        let keys = join::keys(join)?;
        let shape = join::shape(join, normalizes).ok_or(Refusal::ModeUndecided)?;
        let build = build::find(join, shape, &keys, cluster)?;
        let probe = probe::find(join, shape, &keys, normalizes)?;
        let forecast = cost::forecast(join.left(), &build.site, join.right(), &probe.sites);
        if !self.options.force {
            cost::gate(join.left(), &forecast, self.options, &self.environment)?;
        }
        let wait = if never_wait || probe.eager {
            WaitClass::Never
        } else if build.in_stage {
            WaitClass::InStage
        } else {
            WaitClass::Ordered
        };
        let spec = FilterSpec {
            id: u32::try_from(self.filters.len()).unwrap_or(u32::MAX),
            join: text.to_string(),
            null_equals_null: keys.null_equals_null,
            wait,
            estimates: forecast.estimates,
        };
        Ok(Decision {
            spec: Arc::new(spec),
            build: build.site,
            probes: probe.sites,
        })
    }

    /// Notes `refusal` for every join in `node`.
    fn refuse_all(&mut self, node: &Plan, refusal: &Refusal) {
        if let Some((join, _)) = join::describe(node) {
            let outcome = JoinOutcome::Refused(refusal.clone());
            self.ledger.push(JoinVerdict { join, outcome });
        }
        for child in node.children() {
            self.refuse_all(child, refusal);
        }
    }
}

/// A filter and its places, seen from the inputs of its join.
struct Decision {
    spec: Arc<FilterSpec>,
    build: site::Site,
    probes: Vec<site::Site>,
}

impl Decision {
    fn apply(self, join: &Plan) -> Result<Plan> {
        let mut children: Vec<Plan> = join.children().into_iter().cloned().collect();
        if let [left, right] = children.as_mut_slice() {
            *left = self.build.insert(left, &mut |keys, input| {
                let spec = Arc::clone(&self.spec);
                Ok(Arc::new(RuntimeFilterBuildExec::try_new(spec, keys, input)?) as _)
            })?;
            // The places lie in different branches, so that none moves another.
            for site in &self.probes {
                *right = site.insert(right, &mut |keys, input| {
                    let spec = Arc::clone(&self.spec);
                    Ok(Arc::new(RuntimeFilterProbeExec::try_new(spec, keys, input)?) as _)
                })?;
            }
        }
        with_children(join, children)
    }
}

/// A hash `RepartitionExec`: a shuffle on a cluster, an exchange between tasks in one
/// process.
fn is_hash_exchange(node: &Plan) -> bool {
    as_node::<RepartitionExec>(node)
        .is_some_and(|exchange| matches!(exchange.partitioning(), Partitioning::Hash(..)))
}

/// Operators that pass every row on unchanged, one input to one output.
fn is_transparent(node: &Plan) -> bool {
    #[allow(deprecated)] // Gone from DataFusion's own plans, not from other planners'.
    let coalesces =
        is_node::<datafusion::physical_plan::coalesce_batches::CoalesceBatchesExec>(node);
    let spreads = is_node::<RepartitionExec>(node) && !is_hash_exchange(node);
    (coalesces || spreads || is_node::<CooperativeExec>(node)) && node.fetch().is_none()
}

fn contains_filters(node: &Plan) -> bool {
    RuntimeFilterScopeExec::from_plan(node).is_some()
        || node.is::<RuntimeFilterBuildExec>()
        || node.is::<RuntimeFilterProbeExec>()
        || node.children().into_iter().any(contains_filters)
}

fn contains_boundary(node: &Plan) -> bool {
    node.is_network_boundary() || node.children().into_iter().any(contains_boundary)
}
