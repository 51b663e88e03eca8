//! Where the probe nodes of a join go.
//!
//! ```text
//!   before                            after
//!   HashJoinExec                      HashJoinExec
//!     build side                        build side
//!     RepartitionExec(hash)             RepartitionExec(hash)
//!       AggregateExec(Final)              AggregateExec(Final)
//!         RepartitionExec(hash)             RepartitionExec(hash)
//!           AggregateExec(Partial)            AggregateExec(Partial)
//!             FilterExec                        probe node
//!               scan                              FilterExec
//!                                                   scan
//! ```
//!
//! A probe goes below the deepest hash exchange that the key columns can be followed
//! to, and within that stage below the costly operators (aggregation, sort, window,
//! join). It stays above plain filters and projections over a scan: they are cheap, and
//! leave it fewer and narrower rows.
//!
//! The rows that it drops are those whose key no build row has. An operator may lie in
//! between only if such rows change nothing but the output rows that the join would
//! drop anyway: anything with a limit, a volatile expression or an unknown meaning
//! ends the way.
//!
//! # Copies
//!
//! Where the way leads to an inner or semi join, the key may equal a column of its other
//! side, too. Rows there whose value is not among the build keys meet only rows that the
//! filter drops, so one filter may have probes on both sides:
//!
//! ```text
//!   before                            after
//!   HashJoinExec on [a = b]           HashJoinExec on [a = b]
//!     build side                        build side
//!     RepartitionExec(hash)             RepartitionExec(hash)
//!       HashJoinExec on [c = b]           HashJoinExec on [c = b]
//!         RepartitionExec(hash)             RepartitionExec(hash)
//!           scan of c                         probe node, keys=[c]
//!         RepartitionExec(hash)                 scan of c
//!           scan of b                       RepartitionExec(hash)
//!                                             probe node, keys=[b]
//!                                               scan of b
//! ```
//!
//! A copy saves the bytes that enter the exchanges between it and the join that it hangs
//! on; above, the first probe has dropped the same rows. It waits no longer than that one:
//! all of the probe side starts after the build side has ended.
//!
//! # Stepping stones
//!
//! A broadcast join's build side crosses no hash exchange, and is read from the start of the
//! query on. A probe there saves little by itself; but it makes the filter of that
//! join stricter, which may be just what the large tables beyond need:
//!
//! ```text
//!   HashJoinExec on [r = n.r]                 build node f0: regions
//!     CoalescePartitionsExec
//!       FilterExec
//!         scan of regions
//!     HashJoinExec on [n = s]                 build node f1: nations of these regions
//!       CoalescePartitionsExec
//!         probe node f0, keys=[n.r]           <- stepping stone
//!           scan of nations
//!       ...
//!         RepartitionExec(hash)
//!           scan of s                         probe node f1
//! ```
//!
//! Both build sides are read at the same time, and the first does not need the second, so
//! the stone may wait (`WaitClass::Early`). Nothing needs the second before the first has
//! ended either, so all that a wait can cost is the time to read the second afterwards:
//! stones lie on plain scans of small tables only.
//!
//! # Eager pollers
//!
//! `CoalescePartitionsExec`, `SortPreservingMergeExec`, `BufferExec` and the exchange of
//! a broadcast build side poll their input from `execute()` on, long before the join has
//! drained its build side. A probe below them would wait for a verdict that is nowhere
//! near, so such places are second choice, and their filter does not wait at all.

use arrow::datatypes::DataType;
use datafusion::common::JoinSide;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::WindowExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::buffer::BufferExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use std::sync::Arc;

use super::columns::{
    OnSide, across_join, is_preserved, through_aggregate, through_filter, through_join,
    through_projection, through_window_partitions,
};
use super::cost::{is_selective, is_small_scan};
use super::join::{EquiJoin, JoinKeys, JoinShape, examine, shape};
use super::site::{Site, as_node, filter_input, is_node, walk};
use super::{Plan, is_hash_exchange, is_transparent};
use crate::ledger::Refusal;
use crate::nodes::RuntimeFilterProbeExec;

/// The places of the probe nodes of a join, as seen from its probe input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProbeSites {
    /// Those that the filter is placed for.
    pub(super) sites: Vec<Site>,
    /// More places, each group with its own worth.
    pub(super) copies: Vec<Vec<Site>>,
    /// Something polls them before the join has drained its build side.
    pub(super) eager: bool,
}

/// Where the probe nodes of a filter by `keys` of `join` go. `normalizes` as for [`shape`].
pub(super) fn find(
    join: &EquiJoin<'_>,
    keys: &JoinKeys,
    normalizes: bool,
) -> Result<ProbeSites, Refusal> {
    // An exchange that the distributed planner will put on the probe input counts.
    let below = join.shape == JoinShape::BecomesPartitioned;
    for eager in [false, true] {
        let search = Search {
            types: &keys.types,
            normalizes,
            through_eager: eager,
        };
        let mut found = search.input(join.probe, &keys.probe, below, true);
        if below {
            found = found.map(|site| site.across(0));
        }
        // A filter that has no place by its own column still may have one by an equal one.
        if found.sites.is_empty() && !found.copies.is_empty() {
            found.sites = found.copies.remove(0);
        }
        if !found.sites.is_empty() {
            return Ok(ProbeSites {
                sites: found.sites,
                copies: found.copies,
                eager,
            });
        }
    }
    Err(if has_hash_exchange(join.probe) {
        Refusal::KeyNotFollowed
    } else {
        Refusal::NoExchange
    })
}

fn has_hash_exchange(node: &Plan) -> bool {
    is_hash_exchange(node) || node.children().into_iter().any(has_hash_exchange)
}

/// Places below an operator.
#[derive(Debug, Default)]
struct Found {
    /// Where the key columns themselves lead. Empty means: to none that is better than
    /// directly above the operator.
    sites: Vec<Site>,
    /// Where columns lead that joins make equal to them.
    copies: Vec<Vec<Site>>,
}

impl Found {
    fn map(self, change: impl Fn(Site) -> Site) -> Self {
        let all = |sites: Vec<Site>| sites.into_iter().map(&change).collect();
        Self {
            sites: all(self.sites),
            copies: self.copies.into_iter().map(all).collect(),
        }
    }
}

struct Search<'a> {
    types: &'a [DataType],
    normalizes: bool,
    through_eager: bool,
}

impl Search<'_> {
    /// Places within `node`. No sites means: none better than directly above `node`, which
    /// is a place only if `below`, that is below an exchange.
    fn within(&self, node: &Plan, keys: &[usize], below: bool) -> Found {
        if node.fetch().is_some() {
            return Found::default();
        }
        let pass = |keys: Option<Vec<usize>>| match keys {
            Some(keys) => self.child(node, 0, &keys, below, false),
            None => Found::default(),
        };
        let pass_costly = |keys: Option<Vec<usize>>| match keys {
            Some(keys) => self.child(node, 0, &keys, below, true),
            None => Found::default(),
        };
        let same = Some(keys.to_vec());
        if is_hash_exchange(node) {
            self.child(node, 0, keys, true, true)
                .map(|site| site.across(1))
        } else if is_transparent(node)
            || filter_input(node).is_some()
            // Its other children are plans of their own, run before it.
            || is_node::<ScalarSubqueryExec>(node)
        {
            pass(same)
        } else if let Some(filter) = as_node::<FilterExec>(node) {
            if is_volatile(filter.predicate()) {
                Found::default()
            } else {
                pass(through_filter(filter, keys))
            }
        } else if let Some(projection) = as_node::<ProjectionExec>(node) {
            if projection.expr().iter().any(|item| is_volatile(&item.expr)) {
                return Found::default();
            }
            pass(through_projection(projection, keys))
        } else if is_node::<SortExec>(node) || is_node::<PartialSortExec>(node) {
            pass_costly(same)
        } else if is_node::<CoalescePartitionsExec>(node)
            || is_node::<SortPreservingMergeExec>(node)
            || is_node::<BufferExec>(node)
        {
            if self.through_eager {
                pass(same)
            } else {
                Found::default()
            }
        } else if let Some(aggregate) = as_node::<AggregateExec>(node) {
            if aggregate_is_volatile(aggregate) {
                Found::default()
            } else {
                pass_costly(through_aggregate(aggregate, keys))
            }
        } else if let Some(window) = as_node::<WindowAggExec>(node) {
            pass_costly(windows(window.window_expr(), window.input(), keys))
        } else if let Some(window) = as_node::<BoundedWindowAggExec>(node) {
            pass_costly(windows(window.window_expr(), window.input(), keys))
        } else if is_node::<UnionExec>(node) || is_node::<InterleaveExec>(node) {
            self.union(node, keys, below)
        } else {
            self.join(node, keys, below)
        }
    }

    /// Places within or directly above `node`, the latter if `below` and `here`.
    fn input(&self, node: &Plan, keys: &[usize], below: bool, here: bool) -> Found {
        let mut found = self.within(node, keys, below);
        if found.sites.is_empty() && below && here {
            found
                .sites
                .extend(Site::below_filters(node, keys, self.types));
        }
        found
    }

    fn child(&self, node: &Plan, index: usize, keys: &[usize], below: bool, here: bool) -> Found {
        let Some(child) = node.children().get(index).copied() else {
            return Found::default();
        };
        self.input(child, keys, below, here)
            .map(|site| site.under(index))
    }

    /// A union's columns are its children's, by position. A child that takes no probe
    /// keeps its rows. If none has a place of its own, one probe above serves them all.
    fn union(&self, node: &Plan, keys: &[usize], below: bool) -> Found {
        let children = node.children();
        let within: Vec<Found> = children
            .iter()
            .map(|child| self.within(child, keys, below))
            .collect();
        let above_all = within.iter().all(|found| found.sites.is_empty());
        let mut all = Found::default();
        for (index, (mut found, child)) in within.into_iter().zip(children).enumerate() {
            if found.sites.is_empty() && below && !above_all {
                found
                    .sites
                    .extend(Site::below_filters(child, keys, self.types));
            }
            let found = found.map(|site| site.under(index));
            all.sites.extend(found.sites);
            all.copies.extend(found.copies);
        }
        all
    }

    /// Into the side of a join that the key columns come from, if each output row has
    /// exactly one row of that side, and, as a copy, into the side where others equal them.
    /// A NULL-aware anti join keeps its left side whole row by row, so that side is as good
    /// as another anti join's.
    fn join(&self, node: &Plan, keys: &[usize], below: bool) -> Found {
        if join_filter_is_volatile(node) {
            return Found::default();
        }
        let owner = through_join(node, keys)
            .filter(|(join_type, owner)| is_preserved(*join_type, owner.side))
            .map(|(_, owner)| owner);
        let mut found = match &owner {
            Some(owner) => self.side(node, owner, below),
            None => Found::default(),
        };
        let reduced = !found.sites.is_empty();
        for side in [JoinSide::Left, JoinSide::Right] {
            if owner.as_ref().is_some_and(|owner| owner.side == side) {
                continue;
            }
            let Some(equal) = across_join(node, keys, side) else {
                continue;
            };
            // What the probes leave of its left side, a hash join hands on by itself.
            if side == JoinSide::Right && reduced && filters_right(node) {
                continue;
            }
            // What it saves begins with an exchange of its own.
            let copy = self.side(node, &equal, false);
            found.copies.extend([copy.sites]);
            found.copies.extend(copy.copies);
        }
        found.copies.retain(|sites| !sites.is_empty());
        found
    }

    /// Into one side of a join.
    fn side(&self, node: &Plan, on_side: &OnSide, below: bool) -> Found {
        let join_shape = as_node::<HashJoinExec>(node).map(|join| shape(join, self.normalizes));
        let collects_left = match join_shape {
            Some(Some(JoinShape::Partitioned)) => false,
            Some(Some(JoinShape::BecomesPartitioned)) => {
                return self.future_exchange(node, on_side.child(), &on_side.keys);
            }
            Some(Some(JoinShape::Collected)) => true,
            Some(Some(JoinShape::Merged) | None) => return Found::default(),
            None => !is_node::<SortMergeJoinExec>(node),
        };
        if collects_left && on_side.side == JoinSide::Left && !self.through_eager {
            return Found::default();
        }
        // A join that thins this side out itself is cheaper than looking up every row
        // below it: the probe then stays above, where it sees what the join leaves.
        let other = node.children().get(1 - on_side.child()).copied();
        let here = !other.is_some_and(is_selective);
        self.child(node, on_side.child(), &on_side.keys, below, here)
    }

    /// Below the hash exchange that the distributed planner will put on an input.
    fn future_exchange(&self, node: &Plan, index: usize, keys: &[usize]) -> Found {
        let Some(input) = node.children().get(index).copied() else {
            return Found::default();
        };
        let found = match as_node::<CoalescePartitionsExec>(input) {
            // The planner drops it.
            Some(coalesce) if index == 0 && input.fetch().is_none() => self
                .input(coalesce.input(), keys, true, true)
                .map(|site| site.across(0).under(0)),
            _ => self
                .input(input, keys, true, true)
                .map(|site| site.across(0)),
        };
        found.map(|site| site.under(index))
    }
}

/// A probe on the build side of a broadcast join, as seen from the probe input of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stone {
    pub(super) site: Site,
    /// The path to the broadcast join.
    pub(super) join: Vec<usize>,
}

impl Stone {
    fn under(mut self, index: usize) -> Self {
        self.site = self.site.under(index);
        self.join.insert(0, index);
        self
    }
}

/// Stepping stones for a filter by `keys` of `join`, if its build side is read as early as
/// theirs.
pub(super) fn stepping_stones(
    join: &EquiJoin<'_>,
    keys: &JoinKeys,
    normalizes: bool,
) -> Vec<Stone> {
    match join.shape {
        JoinShape::Collected => stones(join.probe, &keys.probe, &keys.types, normalizes),
        JoinShape::Partitioned | JoinShape::BecomesPartitioned | JoinShape::Merged => vec![],
    }
}

fn stones(node: &Plan, keys: &[usize], types: &[DataType], normalizes: bool) -> Vec<Stone> {
    if node.fetch().is_some() {
        return vec![];
    }
    let child = |index: usize, keys: &[usize]| -> Vec<Stone> {
        let Some(child) = node.children().get(index).copied() else {
            return vec![];
        };
        let found = stones(child, keys, types, normalizes);
        found.into_iter().map(|stone| stone.under(index)).collect()
    };
    if is_hash_exchange(node) || is_transparent(node) || filter_input(node).is_some() {
        return child(0, keys);
    }
    if let Some(filter) = as_node::<FilterExec>(node) {
        return match through_filter(filter, keys) {
            Some(keys) if !is_volatile(filter.predicate()) => child(0, &keys),
            _ => vec![],
        };
    }
    if let Some(projection) = as_node::<ProjectionExec>(node) {
        let volatile = projection.expr().iter().any(|item| is_volatile(&item.expr));
        return match through_projection(projection, keys) {
            Some(keys) if !volatile => child(0, &keys),
            _ => vec![],
        };
    }
    let Some(join) = as_node::<HashJoinExec>(node) else {
        return vec![];
    };
    if join_filter_is_volatile(node) {
        return vec![];
    }
    let owner = through_join(node, keys)
        .filter(|(join_type, owner)| is_preserved(*join_type, owner.side))
        .map(|(_, owner)| owner);
    let on = |side: JoinSide| {
        let own = owner.clone().filter(|owner| owner.side == side);
        own.or_else(|| across_join(node, keys, side))
    };
    let mut found = vec![];
    let collected = shape(join, normalizes) == Some(JoinShape::Collected);
    if let (true, Some(left)) = (collected, on(JoinSide::Left)) {
        let build = join.left();
        // Where the build node of that join goes, but below it.
        let site = match as_node::<CoalescePartitionsExec>(build) {
            Some(coalesce) if build.fetch().is_none() => {
                Site::below_filters(coalesce.input(), &left.keys, types).map(|site| site.under(0))
            }
            Some(_) => None,
            None => Site::below_filters(build, &left.keys, types),
        };
        let scan =
            as_node::<CoalescePartitionsExec>(build).map_or(build, |coalesce| coalesce.input());
        let site = site.filter(|_| is_small_scan(scan));
        found.extend(site.map(|site| Stone {
            site: site.under(0),
            join: vec![],
        }));
    }
    if let Some(right) = on(JoinSide::Right) {
        found.extend(child(1, &right.keys));
    }
    found
}

/// Whether the place has a probe by the same columns already.
pub(super) fn is_probed(root: &Plan, site: &Site) -> bool {
    // New probes go below those that are there.
    let above = site
        .path
        .len()
        .checked_sub(1)
        .and_then(|end| site.path.get(..end));
    above
        .and_then(|path| walk(root, path))
        .and_then(as_node::<RuntimeFilterProbeExec>)
        .is_some_and(|probe| probe.keys() == site.keys)
}

/// Whether a join may have a filter of its own from its left to its right side.
fn filters_right(node: &Plan) -> bool {
    as_node::<HashJoinExec>(node).is_some_and(|_| matches!(examine(node, false), Some(Ok(_))))
}

fn windows(windows: &[Arc<dyn WindowExpr>], input: &Plan, keys: &[usize]) -> Option<Vec<usize>> {
    if windows
        .iter()
        .any(|window| window.expressions().iter().any(is_volatile))
    {
        return None;
    }
    through_window_partitions(windows, input.schema().fields().len(), keys)
}

fn aggregate_is_volatile(aggregate: &AggregateExec) -> bool {
    let groups = aggregate
        .group_expr()
        .expr()
        .iter()
        .any(|(expr, _)| is_volatile(expr));
    let arguments = aggregate
        .aggr_expr()
        .iter()
        .any(|function| function.expressions().iter().any(is_volatile));
    groups || arguments || aggregate.filter_expr().iter().flatten().any(is_volatile)
}

fn join_filter_is_volatile(node: &Plan) -> bool {
    let filter = if let Some(join) = as_node::<HashJoinExec>(node) {
        join.filter()
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        join.filter()
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        join.filter().as_ref()
    } else {
        // A cross join has none, and other operators are no joins.
        None
    };
    filter.is_some_and(|filter| is_volatile(filter.expression()))
}
