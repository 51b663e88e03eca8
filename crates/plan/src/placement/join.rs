//! Which joins may have a filter at all, and how they will run.
//!
//! ```text
//!   how a join will run            build side               probe side
//!   Partitioned                    below a hash exchange    below a hash exchange
//!   BecomesPartitioned (cluster)   exchange to come         exchange to come
//!   Collected                      one partition for all    as it is
//!   Merged                         below a sort             below a sort
//! ```
//!
//! The build side is the one that a join reads to its end before it asks for the first row
//! of the other, the probe side:
//!
//! ```text
//!   HashJoinExec         left, right
//!   NestedLoopJoinExec   left, right
//!   SortMergeJoinExec    its streamed side (right for Right, RightSemi, RightAnti and
//!                        RightMark, otherwise left) if that side is sorted right below,
//!                        the buffered one
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode, PiecewiseMergeJoinExec,
    SortMergeJoinExec, SymmetricHashJoinExec,
};
use runtime_filter_core::KeyHasher;

use super::Plan;
use super::columns::column;
use super::site::as_node;
use crate::ledger::Refusal;

/// A join that may have a filter from its build side to its probe side.
#[derive(Debug)]
pub(super) struct EquiJoin<'a> {
    pub(super) build: &'a Plan,
    pub(super) probe: &'a Plan,
    /// The number of the build side among the join's children, 0 or 1.
    pub(super) build_child: usize,
    pub(super) shape: JoinShape,
    pub(super) keys: JoinKeys,
}

/// The keys of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JoinKeys {
    /// Key columns of the build side.
    pub(super) build: Vec<usize>,
    /// Key columns of the probe side.
    pub(super) probe: Vec<usize>,
    /// Their types, the same on both sides.
    pub(super) types: Vec<DataType>,
    /// NULL keys equal each other.
    pub(super) null_equals_null: bool,
}

impl JoinKeys {
    /// Pairs of a composite key above which only the whole key and single pairs are tried.
    const MOST_COMBINED: usize = 4;

    /// The whole key, then smaller and smaller parts of it. A filter by a part of the key
    /// keeps each row that one by the whole key keeps.
    pub(super) fn parts(&self) -> Vec<Self> {
        let pairs = self.types.len();
        let sizes: Vec<usize> = match pairs {
            0..=Self::MOST_COMBINED => (1..=pairs).rev().collect(),
            _ => vec![pairs, 1],
        };
        sizes
            .into_iter()
            .flat_map(|size| combinations(pairs, size))
            .map(|part| self.part(&part))
            .collect()
    }

    fn part(&self, pairs: &[usize]) -> Self {
        fn pick<T: Clone>(from: &[T], pairs: &[usize]) -> Vec<T> {
            pairs
                .iter()
                .filter_map(|at| from.get(*at).cloned())
                .collect()
        }
        Self {
            build: pick(&self.build, pairs),
            probe: pick(&self.probe, pairs),
            types: pick(&self.types, pairs),
            null_equals_null: self.null_equals_null,
        }
    }
}

/// The ways to take `size` of `0..all`, in order.
fn combinations(all: usize, size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![vec![]];
    }
    (0..all)
        .flat_map(|last| {
            combinations(last, size - 1)
                .into_iter()
                .map(move |mut rest| {
                    rest.push(last);
                    rest
                })
        })
        .collect()
}

/// `node` as a join that may have a filter, or why none is legal. `None` for a node that
/// is no join. `normalizes` as for [`shape`].
pub(super) fn examine(node: &Plan, normalizes: bool) -> Option<Result<EquiJoin<'_>, Refusal>> {
    if let Some(join) = as_node::<HashJoinExec>(node) {
        Some(hash_join(join, normalizes))
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        Some(merge_join(join))
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        Some(nested_loop_join(join, normalizes))
    } else if as_node::<CrossJoinExec>(node).is_some()
        || as_node::<PiecewiseMergeJoinExec>(node).is_some()
    {
        Some(Err(Refusal::NoEqualKeys))
    } else if as_node::<SymmetricHashJoinExec>(node).is_some() {
        Some(Err(Refusal::OperatorNotCovered(node.name().to_string())))
    } else {
        None
    }
}

fn hash_join(join: &HashJoinExec, normalizes: bool) -> Result<EquiJoin<'_>, Refusal> {
    // Before the join type: NULL-aware joins are LeftAnti, whose right side would
    // otherwise qualify.
    if join.null_aware {
        return Err(Refusal::NullAware);
    }
    if !join.join_type().on_lr_is_preserved().1 {
        return Err(Refusal::ProbePreserved);
    }
    let pairs = join.on().iter().map(|(l, r)| (column(l), column(r)));
    let keys = keys(pairs, join.left(), join.right(), join.null_equality())?;
    Ok(EquiJoin {
        build: join.left(),
        probe: join.right(),
        build_child: 0,
        shape: shape(join, normalizes).ok_or(Refusal::ModeUndecided)?,
        keys,
    })
}

fn merge_join(join: &SortMergeJoinExec) -> Result<EquiJoin<'_>, Refusal> {
    let (left, right) = join.join_type().on_lr_is_preserved();
    let build_left = SortMergeJoinExec::probe_side(&join.join_type()) == JoinSide::Left;
    let (build, probe, legal) = match build_left {
        true => (join.left(), join.right(), right),
        false => (join.right(), join.left(), left),
    };
    if !legal {
        return Err(Refusal::ProbePreserved);
    }
    let pairs = join.on().iter().map(|(l, r)| match build_left {
        true => (column(l), column(r)),
        false => (column(r), column(l)),
    });
    let keys = keys(pairs, build, probe, join.null_equality())?;
    Ok(EquiJoin {
        build,
        probe,
        build_child: usize::from(!build_left),
        shape: JoinShape::Merged,
        keys,
    })
}

fn nested_loop_join(join: &NestedLoopJoinExec, normalizes: bool) -> Result<EquiJoin<'_>, Refusal> {
    let join_type = *join.join_type();
    if !join_type.on_lr_is_preserved().1 {
        return Err(Refusal::ProbePreserved);
    }
    let (pairs, null_equality) = equal_columns(join.filter());
    if pairs.is_empty() {
        return Err(Refusal::NoEqualKeys);
    }
    let (left, right) = (join.left(), join.right());
    // Mirrors `normalize_collect_joins` of datafusion-distributed 4.0.
    if normalizes && !is_broadcast_safe(join_type) && !are_both_single(left, right) {
        return Err(Refusal::SidesSwapped);
    }
    let pairs = pairs.into_iter().map(|(l, r)| (Some(l), Some(r)));
    Ok(EquiJoin {
        build: left,
        probe: right,
        build_child: 0,
        shape: JoinShape::Collected,
        keys: keys(pairs, left, right, null_equality)?,
    })
}

/// The pairs of a left and a right column that a join's condition demands to be equal, and
/// whether NULL equals NULL there. If it has pairs of both kinds, those are left out where
/// it does: one filter has one meaning of NULL.
fn equal_columns(filter: Option<&JoinFilter>) -> (Vec<(usize, usize)>, NullEquality) {
    let of_kind = |kind: Operator| {
        let mut pairs = vec![];
        let Some(filter) = filter else {
            return pairs;
        };
        for conjunct in split_conjunction(filter.expression()) {
            let Some(equality) = conjunct.downcast_ref::<BinaryExpr>() else {
                continue;
            };
            let side = |expr: &Arc<dyn PhysicalExpr>| {
                let origin = filter.column_indices().get(column(expr)?)?;
                Some((origin.side, origin.index))
            };
            if *equality.op() != kind {
                continue;
            }
            match (side(equality.left()), side(equality.right())) {
                (Some((JoinSide::Left, l)), Some((JoinSide::Right, r)))
                | (Some((JoinSide::Right, r)), Some((JoinSide::Left, l))) => pairs.push((l, r)),
                _ => {}
            }
        }
        pairs
    };
    let pairs = of_kind(Operator::Eq);
    if pairs.is_empty() {
        (
            of_kind(Operator::IsNotDistinctFrom),
            NullEquality::NullEqualsNull,
        )
    } else {
        (pairs, NullEquality::NullEqualsNothing)
    }
}

/// Those of the pairs that a filter can go by, or why there is none: fewer pairs only make
/// it weaker.
fn keys(
    pairs: impl Iterator<Item = (Option<usize>, Option<usize>)>,
    build: &Plan,
    probe: &Plan,
    null_equality: NullEquality,
) -> Result<JoinKeys, Refusal> {
    let (build, probe) = (build.schema(), probe.schema());
    let mut keys = JoinKeys {
        build: vec![],
        probe: vec![],
        types: vec![],
        null_equals_null: null_equality == NullEquality::NullEqualsNull,
    };
    let mut refusal = None;
    for pair in pairs {
        let (Some(build_key), Some(probe_key)) = pair else {
            refusal.get_or_insert(Refusal::KeyNotColumn);
            continue;
        };
        let fields = (build.fields().get(build_key), probe.fields().get(probe_key));
        let (Some(build_field), Some(probe_field)) = fields else {
            refusal.get_or_insert(Refusal::KeyNotColumn);
            continue;
        };
        let data_type = build_field.data_type();
        if data_type != probe_field.data_type() {
            refusal.get_or_insert(Refusal::KeyTypesDiffer);
            continue;
        }
        if !KeyHasher::supports(data_type) {
            refusal.get_or_insert(Refusal::KeyTypeUnsupported(type_name(data_type)));
            continue;
        }
        keys.build.push(build_key);
        keys.probe.push(probe_key);
        keys.types.push(data_type.clone());
    }
    if keys.types.is_empty() {
        Err(refusal.unwrap_or(Refusal::KeyNotColumn))
    } else {
        Ok(keys)
    }
}

/// How a join will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JoinShape {
    /// Both sides arrive partitioned by the key.
    Partitioned,
    /// A collected join that the distributed planner makes partitioned, by a new hash
    /// exchange on either input. It drops a fetch-less `CoalescePartitionsExec` on top
    /// of the left input.
    BecomesPartitioned,
    /// The left side is collected (or broadcast) as a whole first.
    Collected,
    /// A sort-merge join, which begins with the rows of its build side.
    Merged,
}

/// How a hash join will run. `normalizes`: a distributed planner that converts collected
/// joins comes afterwards. `None` while the join itself leaves it open.
pub(super) fn shape(join: &HashJoinExec, normalizes: bool) -> Option<JoinShape> {
    match join.partition_mode() {
        PartitionMode::Partitioned => Some(JoinShape::Partitioned),
        PartitionMode::CollectLeft if normalizes && becomes_partitioned(join) => {
            Some(JoinShape::BecomesPartitioned)
        }
        PartitionMode::CollectLeft => Some(JoinShape::Collected),
        PartitionMode::Auto => None,
    }
}

/// Mirrors `normalize_collect_joins` of datafusion-distributed 4.0, which runs after
/// our rule: joins that emit build rows cannot be broadcast, so they are repartitioned,
/// unless both sides are a single partition. It does not depend on whether broadcast
/// joins are enabled.
fn becomes_partitioned(join: &HashJoinExec) -> bool {
    !is_broadcast_safe(*join.join_type())
        && !join.null_aware
        && !are_both_single(join.left(), join.right())
}

fn are_both_single(left: &Plan, right: &Plan) -> bool {
    let partitions = |side: &Plan| side.output_partitioning().partition_count();
    partitions(left) == 1 && partitions(right) == 1
}

/// Whether a build side may be replicated into every task: no build row comes out.
fn is_broadcast_safe(join_type: JoinType) -> bool {
    matches!(
        join_type,
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

/// The text of a join, whichever operator it is. `None` for a node that is no join.
pub(super) fn describe(node: &Plan) -> Option<String> {
    if let Some(join) = as_node::<HashJoinExec>(node) {
        Some(text(
            *join.join_type(),
            join.on(),
            join.left(),
            join.right(),
        ))
    } else if let Some(join) = as_node::<SortMergeJoinExec>(node) {
        Some(text(join.join_type(), join.on(), join.left(), join.right()))
    } else if let Some(join) = as_node::<SymmetricHashJoinExec>(node) {
        Some(text(
            *join.join_type(),
            join.on(),
            join.left(),
            join.right(),
        ))
    } else if let Some(join) = as_node::<NestedLoopJoinExec>(node) {
        let (pairs, _) = equal_columns(join.filter());
        let (left, right) = (join.left(), join.right());
        let name = |side: &Plan, index: usize| side.schema().field(index).name().clone();
        let pairs: Vec<String> = pairs
            .iter()
            .map(|(l, r)| format!("{} = {}", name(left, *l), name(right, *r)))
            .collect();
        Some(match pairs.is_empty() {
            true => format!("{} without equal keys", join.join_type()),
            false => format!("{} {}", join.join_type(), pairs.join(", ")),
        })
    } else if let Some(join) = as_node::<PiecewiseMergeJoinExec>(node) {
        Some(format!("{} without equal keys", join.join_type()))
    } else {
        as_node::<CrossJoinExec>(node).map(|_| "Cross".to_string())
    }
}

type On = [(Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>)];

fn text(join_type: JoinType, on: &On, left: &Plan, right: &Plan) -> String {
    let name = |expr: &Arc<dyn PhysicalExpr>, side: &Plan| {
        let column = expr.downcast_ref::<Column>();
        let schema = side.schema();
        match column.and_then(|column| schema.fields().get(column.index())) {
            Some(field) => field.name().clone(),
            None => expr.to_string(),
        }
    };
    let pairs: Vec<String> = on
        .iter()
        .map(|(l, r)| format!("{} = {}", name(l, left), name(r, right)))
        .collect();
    format!("{join_type} {}", pairs.join(", "))
}

/// The name of a type without its parameters.
fn type_name(data_type: &DataType) -> String {
    let full = format!("{data_type:?}");
    full.split(['(', ' ', '{'])
        .next()
        .unwrap_or_default()
        .to_string()
}
