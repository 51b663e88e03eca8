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
//! A join has a filter by its whole key where that can be followed, and by parts of it
//! where those lead further.
//!
//! Filters go from the side that a join drains first (build) to the other (probe), never
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

use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion_distributed::{DistributedConfig, NetworkBoundaryExt};

use crate::config::RuntimeFilterOptions;
use crate::ledger::{JoinOutcome, JoinVerdict, Refusal};
use crate::nodes::{RuntimeFilterBuildExec, RuntimeFilterProbeExec, RuntimeFilterScopeExec};
use crate::spec::{Estimates, FilterSpec, WaitClass};
pub(crate) use columns::{column, through_filter, through_projection};
use join::{EquiJoin, JoinKeys};
use probe::ProbeSites;
use site::{Site, as_node, is_node, with_children};

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
        estimator: Rc::default(),
        depth: 0,
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
    estimator: Rc<cost::Estimator>,
    /// Stepping stones that this pass stands on.
    depth: usize,
}

impl Pass<'_> {
    /// Stepping stones in a row: each tries out what the next one leads to.
    const DEEPEST: usize = 4;

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

    /// `node` with filters of its own if it is a join that gets some.
    fn visit_join(&mut self, node: &Plan) -> Result<Plan> {
        let Some(text) = join::describe(node) else {
            return Ok(Arc::clone(node));
        };
        let decided = match join::examine(node, self.environment.normalizes) {
            Some(join) => join.and_then(|join| {
                let filters = self.decide(&join, &text)?;
                Ok((filters, join.build_child))
            }),
            None => Err(Refusal::OperatorNotCovered(node.name().to_string())),
        };
        let (filters, build_child) = match decided {
            Ok(decided) => decided,
            Err(refusal) => {
                let outcome = JoinOutcome::Refused(refusal);
                self.ledger.push(JoinVerdict {
                    join: text,
                    outcome,
                });
                return Ok(Arc::clone(node));
            }
        };
        let plan = apply(node, build_child, &filters)?;
        for Decision { spec, .. } in filters {
            let outcome = JoinOutcome::Placed { filter: spec.id };
            self.ledger.push(JoinVerdict {
                join: text.clone(),
                outcome,
            });
            self.filters.push(spec);
        }
        Ok(plan)
    }

    /// The filters of `join`, at least one: by its whole key, or by the largest part of it
    /// that has a place, and by further parts that lead to exchanges below those places.
    fn decide(&self, join: &EquiJoin<'_>, text: &str) -> Result<Vec<Decision>, Refusal> {
        let mut filters: Vec<Decision> = vec![];
        let mut covered = cost::Exchanges::new();
        let mut refusal = None;
        for keys in join.keys.parts() {
            match self.decide_part(join, text, &keys, filters.len(), &covered) {
                Ok(decision) => {
                    covered.extend(cost::exchanges(&decision.probes));
                    filters.push(decision);
                }
                Err(of_part) => {
                    refusal.get_or_insert(of_part);
                }
            }
        }
        match (filters.is_empty(), refusal) {
            (true, Some(refusal)) => Err(refusal),
            (true, None) => Err(Refusal::KeyNotColumn),
            (false, _) => Ok(filters),
        }
    }

    /// A filter by a part of the key of `join`, which has `before` others already, whose
    /// probes lie below the exchanges `covered`.
    fn decide_part(
        &self,
        join: &EquiJoin<'_>,
        text: &str,
        keys: &JoinKeys,
        before: usize,
        covered: &cost::Exchanges,
    ) -> Result<Decision, Refusal> {
        let Environment {
            cluster,
            normalizes,
            never_wait,
            ..
        } = self.environment;
        let (options, environment) = (self.options, &self.environment);
        let build = build::find(join, keys, cluster)?;
        let forecast = |sites: &[Site], covered: &cost::Exchanges| {
            cost::forecast(
                &self.estimator,
                join.build,
                &build.site,
                join.probe,
                sites,
                covered,
            )
        };
        let (found, refusal) = match probe::find(join, keys, normalizes) {
            Ok(found) => (found, Refusal::FilterTooLarge),
            Err(refusal) => (ProbeSites::default(), refusal),
        };
        let first = forecast(&found.sites, covered);
        let mut sites = found.sites;
        if before > 0 {
            sites.retain(|site| !probe::is_probed(join.probe, site));
        }
        for copy in found.copies {
            let mut others = covered.clone();
            others.extend(cost::exchanges(&sites));
            let alone = forecast(&copy, &others);
            if options.force || cost::copy_pays(&alone, options, environment) {
                sites.extend(copy);
            }
        }
        // The keys of copies are the same ones again.
        let mut all = Estimates {
            probe_keys: first.probe_keys,
            ..forecast(&sites, covered)
        };
        if before > 0 && cost::exchanges(&sites).is_subset(covered) {
            return Err(Refusal::NoExchange);
        }
        let pays = match sites.is_empty() {
            true => Err(refusal),
            false if options.force => Ok(()),
            false if before > 0 && !cost::addition_pays(&all, options, environment) => {
                Err(Refusal::FilterTooLarge)
            }
            false => cost::gate(join.build, &all, options, environment),
        };
        let stones = self.stepping_stones(join, keys, all.build_rows);
        if let Err(refusal) = pays {
            if stones.sites.is_empty() || !cost::is_selective(join.build) {
                return Err(refusal);
            }
            all.probe_bytes = stones.probe_bytes;
            all.probe_keys = None;
            sites.clear();
        }
        let wait = if never_wait || found.eager {
            WaitClass::Never
        } else if build.in_stage {
            WaitClass::InStage
        } else {
            WaitClass::Ordered
        };
        let spec = FilterSpec {
            id: u32::try_from(self.filters.len() + before).unwrap_or(u32::MAX),
            join: text.to_string(),
            null_equals_null: keys.null_equals_null,
            wait,
            estimates: all,
            leans_on_probes: cost::leans_on_probes(join.build),
        };
        let early = FilterSpec {
            wait: WaitClass::Early,
            ..spec.clone()
        };
        Ok(Decision {
            spec: Arc::new(spec),
            early: Arc::new(early),
            build: build.site,
            probes: sites,
            stones: stones.sites,
        })
    }

    /// The places of `probe::stepping_stones` that are worth it: the filter of the join that
    /// they thin out must have a place, and save far more than the one by `keys` costs.
    fn stepping_stones(
        &self,
        join: &EquiJoin<'_>,
        keys: &JoinKeys,
        build_rows: Option<u64>,
    ) -> Stones {
        let mut stones = Stones::default();
        let Environment {
            cluster,
            normalizes,
            never_wait,
            ..
        } = self.environment;
        // In one process a broadcast costs nothing, so that what it thins out is small.
        if !cluster || never_wait || self.depth >= Self::DEEPEST {
            return stones;
        }
        for stone in probe::stepping_stones(join, keys, normalizes) {
            let Some(saving) = self.saving_beyond(join.probe, &stone) else {
                continue;
            };
            if self.options.force
                || cost::stone_pays(build_rows, saving, self.options, &self.environment)
            {
                stones.sites.push(stone.site);
                stones.probe_bytes = match (stones.probe_bytes, saving) {
                    (Some(before), Some(saving)) => Some(before + saving),
                    (before, saving) => before.or(saving),
                };
            }
        }
        stones
    }

    /// What the filters of the join beyond `stone` are to thin out if it is there, in bytes
    /// as far as known. `None` if that join has none.
    fn saving_beyond(&self, probe: &Plan, stone: &probe::Stone) -> Option<Option<u64>> {
        let spec = Arc::new(FilterSpec {
            id: u32::MAX,
            join: String::new(),
            null_equals_null: false,
            wait: WaitClass::Early,
            estimates: Estimates::default(),
            leans_on_probes: false,
        });
        let tried = stone
            .site
            .insert(probe, &mut |keys, input| {
                let spec = Arc::clone(&spec);
                Ok(Arc::new(RuntimeFilterProbeExec::try_new(spec, keys, input)?) as _)
            })
            .ok()?;
        let beyond = site::walk(&tried, &stone.join)?;
        let join = join::examine(beyond, self.environment.normalizes)?.ok()?;
        let deeper = Pass {
            options: self.options,
            environment: self.environment,
            filters: vec![],
            ledger: vec![],
            estimator: Rc::clone(&self.estimator),
            depth: self.depth + 1,
        };
        let filters = deeper.decide(&join, "").ok()?;
        Some(
            filters
                .iter()
                .map(|filter| filter.spec.estimates.probe_bytes)
                .sum(),
        )
    }

    /// Notes `refusal` for every join in `node`.
    fn refuse_all(&mut self, node: &Plan, refusal: &Refusal) {
        if let Some(join) = join::describe(node) {
            let outcome = JoinOutcome::Refused(refusal.clone());
            self.ledger.push(JoinVerdict { join, outcome });
        }
        for child in node.children() {
            self.refuse_all(child, refusal);
        }
    }
}

/// A filter and its places, seen from the build and the probe input of its join.
struct Decision {
    spec: Arc<FilterSpec>,
    /// The same filter for the probes at `stones`, which wait in another way.
    early: Arc<FilterSpec>,
    build: Site,
    probes: Vec<Site>,
    stones: Vec<Site>,
}

/// Stepping stones, and what the filters beyond them are to thin out.
#[derive(Default)]
struct Stones {
    sites: Vec<Site>,
    probe_bytes: Option<u64>,
}

/// `join` with the nodes of `filters`.
fn apply(join: &Plan, build_child: usize, filters: &[Decision]) -> Result<Plan> {
    let mut children: Vec<Plan> = join.children().into_iter().cloned().collect();
    let (builds, probes) = match children.as_mut_slice() {
        [left, right] if build_child == 0 => (left, right),
        [left, right] => (right, left),
        _ => return Ok(Arc::clone(join)),
    };
    let mut new_builds: Vec<_> = filters.iter().map(|f| (&f.spec, &f.build)).collect();
    let mut new_probes: Vec<_> = filters
        .iter()
        .flat_map(|f| {
            let probes = f.probes.iter().map(|site| (&f.spec, site));
            probes.chain(f.stones.iter().map(|site| (&f.early, site)))
        })
        .collect();
    // The deepest first: a new node moves those below it, not those above.
    new_builds.sort_by_key(|(_, site)| Reverse(site.path.len()));
    new_probes.sort_by_key(|(_, site)| Reverse(site.path.len()));
    for (spec, site) in new_builds {
        *builds = site.insert(builds, &mut |keys, input| {
            let spec = Arc::clone(spec);
            Ok(Arc::new(RuntimeFilterBuildExec::try_new(spec, keys, input)?) as _)
        })?;
    }
    for (spec, site) in new_probes {
        *probes = site.insert(probes, &mut |keys, input| {
            let spec = Arc::clone(spec);
            Ok(Arc::new(RuntimeFilterProbeExec::try_new(spec, keys, input)?) as _)
        })?;
    }
    with_children(join, children)
}

/// A hash `RepartitionExec`: a shuffle on a cluster, an exchange between tasks in one
/// process.
fn is_hash_exchange(node: &Plan) -> bool {
    as_node::<RepartitionExec>(node)
        .is_some_and(|exchange| matches!(exchange.partitioning(), Partitioning::Hash(..)))
}

/// Operators that pass every row on unchanged, one input to one output.
pub(crate) fn is_transparent(node: &Plan) -> bool {
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
