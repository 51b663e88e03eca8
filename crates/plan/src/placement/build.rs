//! Where the build node of a join goes.
//!
//! ```text
//!   Partitioned                  lowered                      in the stage of the join
//!
//!   HashJoinExec                 HashJoinExec                 HashJoinExec
//!     RepartitionExec(hash)        AggregateExec(Final)         build node
//!       build node                   RepartitionExec(hash)        FilterExec (HAVING)
//!         probe nodes of others        build node                   AggregateExec(Final)
//!           X                            AggregateExec(Partial)       RepartitionExec(hash)
//!
//!   BecomesPartitioned           Collected                    Merged
//!
//!   HashJoinExec                 HashJoinExec                 SortMergeJoinExec
//!     CoalescePartitionsExec       CoalescePartitionsExec       SortExec
//!       build node                   build node                   RepartitionExec(hash)
//!         X                            X                            build node
//!                                                                     X
//! ```
//!
//! Every place sees at least the keys that the join sees: more keys make a filter
//! weaker, a missing one would lose rows. Below a hash exchange its partials are
//! complete before the probe side is polled, which a place within the stage of the
//! join does not promise.

use arrow::datatypes::DataType;
use datafusion::common::{JoinSide, JoinType};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use super::Plan;
use super::columns::{
    OnSide, across_join, is_preserved, through_aggregate, through_join, through_projection,
    through_window_columns,
};
use super::cost::is_selective;
use super::join::{EquiJoin, JoinKeys, JoinShape};
use super::site::{Site, as_node, is_node};
use super::{is_hash_exchange, is_transparent};
use crate::ledger::Refusal;
use crate::nodes::RuntimeFilterBuildExec;

/// The place of a build node, as seen from the build input of its join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuildSite {
    pub(super) site: Site,
    /// It lies in the stage of the join, without an exchange in between that ends only
    /// once every task of the build side has ended.
    pub(super) in_stage: bool,
}

/// Where the build node of a filter by `keys` of `join` goes.
pub(super) fn find(
    join: &EquiJoin<'_>,
    keys: &JoinKeys,
    cluster: bool,
) -> Result<BuildSite, Refusal> {
    let input = join.build;
    let on_top = || Site::above(input, &keys.build, &keys.types).ok_or(Refusal::KeyTypesDiffer);
    match join.shape {
        JoinShape::Partitioned => match lower(input, &keys.build, &keys.types) {
            Some(site) => Ok(BuildSite {
                site,
                in_stage: false,
            }),
            None => Ok(BuildSite {
                site: on_top()?,
                in_stage: true,
            }),
        },
        JoinShape::Merged => {
            let below_sort =
                below_sort(input, &keys.build, &keys.types).ok_or(Refusal::BuildNotSorted)?;
            let lowered = lower(input, &keys.build, &keys.types);
            Ok(BuildSite {
                in_stage: lowered.is_none(),
                site: lowered.unwrap_or(below_sort),
            })
        }
        JoinShape::BecomesPartitioned | JoinShape::Collected => {
            let site = match as_node::<CoalescePartitionsExec>(input) {
                // Above it the node would run once for each task that consumes a broadcast,
                // or be cut off from the exchange that replaces it.
                Some(coalesce) if input.fetch().is_none() => {
                    Site::above(coalesce.input(), &keys.build, &keys.types)
                        .ok_or(Refusal::KeyTypesDiffer)?
                        .under(0)
                }
                // A broadcast goes below it and leaves the limit to each consumer.
                Some(_) if cluster && join.shape == JoinShape::Collected => {
                    return Err(Refusal::BuildLimited);
                }
                _ => on_top()?,
            };
            // A collected left side is drained whole before the right side is polled.
            Ok(BuildSite {
                site,
                in_stage: false,
            })
        }
    }
}

/// The place directly below the sort that the build side of a merge join comes from. A
/// sort reads its whole input before its first row comes out, so that the probe side,
/// which is polled after that row, is polled too late to meet an unfinished filter.
fn below_sort(node: &Plan, keys: &[usize], types: &[DataType]) -> Option<Site> {
    if node.fetch().is_some() {
        return None;
    }
    let input = *node.children().first()?;
    if let Some(sort) = as_node::<SortExec>(node) {
        let sorted = input
            .equivalence_properties()
            .ordering_satisfy(sort.expr().clone());
        // One that has nothing to do passes rows on as they come.
        return match sorted {
            Ok(false) => Some(Site::above(input, keys, types)?.under(0)),
            Ok(true) | Err(_) => None,
        };
    }
    let keys = match as_node::<ProjectionExec>(node) {
        Some(projection) => through_projection(projection, keys)?,
        None if is_transparent(node) || is_node::<RuntimeFilterBuildExec>(node) => keys.to_vec(),
        None => return None,
    };
    Some(below_sort(input, &keys, types)?.under(0))
}

/// The place directly below the nearest hash exchange whose rows hold every key of
/// `node`'s output and, as far as one can tell, few others.
fn lower(node: &Plan, keys: &[usize], types: &[DataType]) -> Option<Site> {
    // A limit ends its input early: a build node below it would hardly ever complete.
    if node.fetch().is_some() {
        return None;
    }
    let child = |index: usize, keys: &[usize]| {
        Some(lower(node.children().get(index)?, keys, types)?.under(index))
    };
    if is_hash_exchange(node) {
        Some(Site::above(node.children().first()?, keys, types)?.under(0))
    } else if is_transparent(node)
        || is_node::<RuntimeFilterBuildExec>(node)
        || is_node::<SortExec>(node)
    {
        child(0, keys)
    } else if let Some(projection) = as_node::<ProjectionExec>(node) {
        child(0, &through_projection(projection, keys)?)
    } else if let Some(aggregate) = as_node::<AggregateExec>(node) {
        child(0, &through_aggregate(aggregate, keys)?)
    } else if let Some(window) = as_node::<WindowAggExec>(node) {
        child(
            0,
            &through_window_columns(window.input().schema().fields().len(), keys)?,
        )
    } else if let Some(window) = as_node::<BoundedWindowAggExec>(node) {
        child(
            0,
            &through_window_columns(window.input().schema().fields().len(), keys)?,
        )
    } else if let Some(join) = as_node::<HashJoinExec>(node) {
        lower_through_join(node, join, keys, types)
    } else {
        // A filter (HAVING) or a probe node drops keys: below it the key set would lose
        // just what makes it worth sending. Anything else is unknown.
        None
    }
}

fn lower_through_join(
    node: &Plan,
    join: &HashJoinExec,
    keys: &[usize],
    types: &[DataType],
) -> Option<Site> {
    // What a join collects does not arrive through an exchange of its own.
    let collects_left = *join.partition_mode() != PartitionMode::Partitioned;
    // On a NULL-padded side the join adds a NULL key, which nothing below has.
    let owner = through_join(node, keys)
        .filter(|(join_type, owner)| is_preserved(*join_type, owner.side))
        .map(|(_, owner)| owner);
    // Where each output row has equal keys on another side, that side serves as well.
    let equal = [JoinSide::Left, JoinSide::Right].map(|side| across_join(node, keys, side));
    let mut candidates: Vec<OnSide> = vec![];
    for on_side in [owner].into_iter().chain(equal).flatten() {
        let collected = collects_left && on_side.side == JoinSide::Left;
        if collected || drops_keys_of(join, on_side.side) || candidates.contains(&on_side) {
            continue;
        }
        candidates.push(on_side);
    }
    candidates.sort_by_key(|on_side| !is_selective(side_of(join, on_side.side)));
    candidates.into_iter().find_map(|on_side| {
        let side = side_of(join, on_side.side);
        Some(lower(side, &on_side.keys, types)?.under(on_side.child()))
    })
}

/// Whether a join is likely to drop many keys of one side: a build node below it would
/// see far more keys than one above.
fn drops_keys_of(join: &HashJoinExec, side: JoinSide) -> bool {
    match join.join_type() {
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => is_selective(match side {
            JoinSide::Left => join.right(),
            JoinSide::Right | JoinSide::None => join.left(),
        }),
        JoinType::LeftAnti | JoinType::RightAnti => true,
        JoinType::Left
        | JoinType::Right
        | JoinType::Full
        | JoinType::LeftMark
        | JoinType::RightMark => false,
    }
}

fn side_of(join: &HashJoinExec, side: JoinSide) -> &Plan {
    match side {
        JoinSide::Right => join.right(),
        JoinSide::Left | JoinSide::None => join.left(),
    }
}
