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
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use std::sync::Arc;

use super::columns::{
    is_preserved, through_aggregate, through_filter, through_join, through_projection,
    through_window_partitions,
};
use super::cost::is_selective;
use super::join::{JoinKeys, JoinShape, shape};
use super::site::{Site, as_node, filter_input, is_node};
use super::{Plan, is_hash_exchange, is_transparent};
use crate::ledger::Refusal;

/// The places of the probe nodes of a join, as seen from its right input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeSites {
    /// At least one.
    pub(super) sites: Vec<Site>,
    /// Something polls them before the join has drained its build side.
    pub(super) eager: bool,
}

/// Where the probe nodes of `join` go. `normalizes` as for [`shape`].
pub(super) fn find(
    join: &HashJoinExec,
    join_shape: JoinShape,
    keys: &JoinKeys,
    normalizes: bool,
) -> Result<ProbeSites, Refusal> {
    // An exchange that the distributed planner will put on the right input counts.
    let below = join_shape == JoinShape::BecomesPartitioned;
    let right = join.right();
    for eager in [false, true] {
        let search = Search {
            types: &keys.types,
            normalizes,
            through_eager: eager,
        };
        let mut sites = search.input(right, &keys.right, below, true);
        if below {
            sites = sites.into_iter().map(|site| site.across(0)).collect();
        }
        if !sites.is_empty() {
            return Ok(ProbeSites { sites, eager });
        }
    }
    Err(if has_hash_exchange(right) {
        Refusal::KeyNotFollowed
    } else {
        Refusal::NoExchange
    })
}

fn has_hash_exchange(node: &Plan) -> bool {
    is_hash_exchange(node) || node.children().into_iter().any(has_hash_exchange)
}

struct Search<'a> {
    types: &'a [DataType],
    normalizes: bool,
    through_eager: bool,
}

impl Search<'_> {
    /// Places within `node`. Empty means: none better than directly above `node`, which
    /// is a place only if `below`, that is below an exchange.
    fn within(&self, node: &Plan, keys: &[usize], below: bool) -> Vec<Site> {
        if node.fetch().is_some() {
            return vec![];
        }
        let pass = |keys: Option<Vec<usize>>| match keys {
            Some(keys) => self.child(node, 0, &keys, below, false),
            None => vec![],
        };
        let pass_costly = |keys: Option<Vec<usize>>| match keys {
            Some(keys) => self.child(node, 0, &keys, below, true),
            None => vec![],
        };
        let same = Some(keys.to_vec());
        if is_hash_exchange(node) {
            let sites = self.child(node, 0, keys, true, true);
            sites.into_iter().map(|site| site.across(1)).collect()
        } else if is_transparent(node)
            || filter_input(node).is_some()
            // Its other children are plans of their own, run before it.
            || is_node::<ScalarSubqueryExec>(node)
        {
            pass(same)
        } else if let Some(filter) = as_node::<FilterExec>(node) {
            if is_volatile(filter.predicate()) {
                vec![]
            } else {
                pass(through_filter(filter, keys))
            }
        } else if let Some(projection) = as_node::<ProjectionExec>(node) {
            if projection.expr().iter().any(|item| is_volatile(&item.expr)) {
                return vec![];
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
                vec![]
            }
        } else if let Some(aggregate) = as_node::<AggregateExec>(node) {
            if aggregate_is_volatile(aggregate) {
                vec![]
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
    fn input(&self, node: &Plan, keys: &[usize], below: bool, here: bool) -> Vec<Site> {
        let sites = self.within(node, keys, below);
        if !sites.is_empty() || !below || !here {
            return sites;
        }
        Site::below_filters(node, keys, self.types)
            .into_iter()
            .collect()
    }

    fn child(
        &self,
        node: &Plan,
        index: usize,
        keys: &[usize],
        below: bool,
        here: bool,
    ) -> Vec<Site> {
        let Some(child) = node.children().get(index).copied() else {
            return vec![];
        };
        let sites = self.input(child, keys, below, here);
        sites.into_iter().map(|site| site.under(index)).collect()
    }

    /// A union's columns are its children's, by position. A child that takes no probe
    /// keeps its rows. If none has a place of its own, one probe above serves them all.
    fn union(&self, node: &Plan, keys: &[usize], below: bool) -> Vec<Site> {
        let children = node.children();
        let within: Vec<Vec<Site>> = children
            .iter()
            .map(|child| self.within(child, keys, below))
            .collect();
        if within.iter().all(Vec::is_empty) {
            return vec![];
        }
        let sites =
            within
                .into_iter()
                .zip(children)
                .enumerate()
                .flat_map(|(index, (sites, child))| {
                    let sites = match sites.is_empty() && below {
                        true => Site::below_filters(child, keys, self.types)
                            .into_iter()
                            .collect(),
                        false => sites,
                    };
                    sites.into_iter().map(move |site| site.under(index))
                });
        sites.collect()
    }

    /// Into the side of a join that the key columns come from, if each output row has
    /// exactly one row of that side. A NULL-aware anti join keeps its left side whole
    /// row by row, so that side is as good as another anti join's.
    fn join(&self, node: &Plan, keys: &[usize], below: bool) -> Vec<Site> {
        let Some((join_type, on_side)) = through_join(node, keys) else {
            return vec![];
        };
        if !is_preserved(join_type, on_side.side) || join_filter_is_volatile(node) {
            return vec![];
        }
        let join_shape = as_node::<HashJoinExec>(node).map(|join| shape(join, self.normalizes));
        let collects_left = match join_shape {
            Some(Some(JoinShape::Partitioned)) => false,
            Some(Some(JoinShape::BecomesPartitioned)) => {
                return self.future_exchange(node, on_side.child(), &on_side.keys);
            }
            Some(Some(JoinShape::Collected)) => true,
            Some(None) => return vec![],
            None => !is_node::<SortMergeJoinExec>(node),
        };
        if collects_left && on_side.side == JoinSide::Left && !self.through_eager {
            return vec![];
        }
        // A join that thins this side out itself is cheaper than looking up every row
        // below it: the probe then stays above, where it sees what the join leaves.
        let other = node.children().get(1 - on_side.child()).copied();
        let here = !other.is_some_and(is_selective);
        self.child(node, on_side.child(), &on_side.keys, below, here)
    }

    /// Below the hash exchange that the distributed planner will put on an input.
    fn future_exchange(&self, node: &Plan, index: usize, keys: &[usize]) -> Vec<Site> {
        let Some(input) = node.children().get(index).copied() else {
            return vec![];
        };
        let sites: Vec<Site> = match as_node::<CoalescePartitionsExec>(input) {
            // The planner drops it.
            Some(coalesce) if index == 0 && input.fetch().is_none() => {
                let sites = self.input(coalesce.input(), keys, true, true);
                sites
                    .into_iter()
                    .map(|site| site.across(0).under(0))
                    .collect()
            }
            _ => {
                let sites = self.input(input, keys, true, true);
                sites.into_iter().map(|site| site.across(0)).collect()
            }
        };
        sites.into_iter().map(|site| site.under(index)).collect()
    }
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
        debug_assert!(is_node::<CrossJoinExec>(node));
        None
    };
    filter.is_some_and(|filter| is_volatile(filter.expression()))
}
