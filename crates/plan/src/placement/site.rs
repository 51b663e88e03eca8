//! Places in a plan: found first, edited afterwards, so that looking for a place
//! and refusing it leaves no trace.
//!
//! ```text
//!   before          after insert(path = [0, 0])
//!   A               A
//!     B               B
//!       C               new node
//!                         C
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use super::Plan;
use crate::nodes::{RuntimeFilterBuildExec, RuntimeFilterProbeExec};

/// A place for a new node: directly above the node that `path` leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Site {
    /// Child indexes from the node that the search began at.
    pub(super) path: Vec<usize>,
    /// The key columns in the schema at the place.
    pub(super) keys: Vec<usize>,
    /// The hash exchanges between where the search began and the place: for each the
    /// length of the part of `path` that leads to its input.
    pub(super) crossed: Vec<usize>,
}

impl Site {
    /// The place directly above `node`, if the key columns have `types` there.
    pub(super) fn above(node: &Plan, keys: &[usize], types: &[DataType]) -> Option<Self> {
        let schema = node.schema();
        let same = keys.len() == types.len()
            && keys.iter().zip(types).all(|(key, data_type)| {
                schema
                    .fields()
                    .get(*key)
                    .is_some_and(|field| field.data_type() == data_type)
            });
        same.then(|| Self {
            path: vec![],
            keys: keys.to_vec(),
            crossed: vec![],
        })
    }

    /// The place above `node` or below the build and probe nodes that `node` begins
    /// with, so that build nodes there see the rows that a new probe leaves.
    pub(super) fn below_filters(node: &Plan, keys: &[usize], types: &[DataType]) -> Option<Self> {
        match filter_input(node) {
            Some(input) => Some(Self::below_filters(input, keys, types)?.under(0)),
            None => Self::above(node, keys, types),
        }
    }

    /// The same place, seen from the parent whose child number `index` the search
    /// began at.
    pub(super) fn under(mut self, index: usize) -> Self {
        self.path.insert(0, index);
        self.crossed.iter_mut().for_each(|depth| *depth += 1);
        self
    }

    /// The same place, with one more exchange whose input is `depth` steps down.
    pub(super) fn across(mut self, depth: usize) -> Self {
        self.crossed.push(depth);
        self
    }

    /// The paths to the inputs of the exchanges that are crossed.
    pub(super) fn exchange_inputs(&self) -> impl Iterator<Item = &[usize]> {
        self.crossed
            .iter()
            .filter_map(|depth| self.path.get(..*depth))
    }

    /// `root` with the node that `make` puts above the node at the place.
    pub(super) fn insert(
        &self,
        root: &Plan,
        make: &mut dyn FnMut(Vec<usize>, Plan) -> Result<Plan>,
    ) -> Result<Plan> {
        insert(root, &self.path, &mut |node| make(self.keys.clone(), node))
    }
}

/// The node that `path` leads to from `root`.
pub(super) fn walk<'a>(root: &'a Plan, path: &[usize]) -> Option<&'a Plan> {
    path.iter()
        .try_fold(root, |node, index| node.children().get(*index).copied())
}

fn insert(node: &Plan, path: &[usize], make: &mut dyn FnMut(Plan) -> Result<Plan>) -> Result<Plan> {
    let Some((index, rest)) = path.split_first() else {
        return make(Arc::clone(node));
    };
    let mut children: Vec<Plan> = node.children().into_iter().cloned().collect();
    let child = children
        .get_mut(*index)
        .ok_or_else(|| internal_datafusion_err!("{} has no child {index}", node.name()))?;
    *child = insert(child, rest, make)?;
    with_children(node, children)
}

/// `node` over other children, its properties computed anew.
pub(super) fn with_children(node: &Plan, children: Vec<Plan>) -> Result<Plan> {
    Arc::clone(node).replace_children(
        children,
        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
    )
}

/// `node` as a `T`, unless it only answers to the name of a `T` that it wraps: the
/// children of such a wrapper are not what those of a `T` are.
pub(super) fn as_node<T: ExecutionPlan>(node: &Plan) -> Option<&T> {
    match node.downcast_delegate() {
        Some(_) => None,
        None => node.downcast_ref::<T>(),
    }
}

/// Whether `node` is a `T` by itself.
pub(super) fn is_node<T: ExecutionPlan>(node: &Plan) -> bool {
    as_node::<T>(node).is_some()
}

/// The input of `node` if it is one of our own.
pub(super) fn filter_input(node: &Plan) -> Option<&Plan> {
    as_node::<RuntimeFilterBuildExec>(node)
        .map(RuntimeFilterBuildExec::input)
        .or_else(|| as_node::<RuntimeFilterProbeExec>(node).map(RuntimeFilterProbeExec::input))
}
