//! Plans to place filters in, and what must hold for each of them afterwards.

use std::fmt::Write;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::common::{JoinType, NullEquality};
use datafusion::datasource::MemTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode, SortMergeJoinExec};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::super::*;

/// The session that plans SQL, all joins partitioned unless told otherwise.
pub(super) async fn session(settings: &[(&str, &str)]) -> SessionContext {
    let mut config = SessionConfig::new()
        .with_target_partitions(4)
        .with_batch_size(64);
    config
        .options_mut()
        .optimizer
        .hash_join_single_partition_threshold = 0;
    config
        .options_mut()
        .optimizer
        .hash_join_single_partition_threshold_rows = 0;
    config
        .options_mut()
        .optimizer
        .enable_physical_uncorrelated_scalar_subquery = false;
    for (key, value) in settings {
        config.options_mut().set(key, value).unwrap();
    }
    let context = SessionContext::new_with_config(config);
    for (name, prefix, rows) in [("dim", "d", 40), ("fact", "f", 10_000), ("other", "o", 400)] {
        let batch = batch(prefix, rows);
        let partitions = vec![vec![batch]; 4];
        let table = MemTable::try_new(partitions[0][0].schema(), partitions).unwrap();
        context.register_table(name, Arc::new(table)).unwrap();
    }
    context
}

/// Settings under which small build sides are collected.
pub(super) const COLLECTED: [(&str, &str); 2] = [
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        "1000000",
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        "100000",
    ),
];

fn batch(prefix: &str, rows: i64) -> RecordBatch {
    let numbers =
        |step: i64| Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i / step))) as ArrayRef;
    let names = StringArray::from_iter_values((0..rows).map(|i| format!("n{i}")));
    let lists =
        ListArray::from_iter_primitive::<Int64Type, _, _>((0..rows).map(|i| Some(vec![Some(i)])));
    let columns = [
        ("key", numbers(1)),
        ("second", numbers(2)),
        ("value", numbers(3)),
        ("name", Arc::new(names) as ArrayRef),
        ("list", Arc::new(lists) as ArrayRef),
    ];
    let columns = columns.map(|(name, column)| (format!("{prefix}_{name}"), column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// The physical plan of `sql` before our rule.
pub(super) async fn plan(context: &SessionContext, sql: &str) -> Plan {
    context
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap()
}

/// Options that place a filter wherever it is legal.
pub(super) fn force() -> RuntimeFilterOptions {
    RuntimeFilterOptions {
        force: true,
        ..Default::default()
    }
}

/// Places filters wherever it is legal and checks what must always hold.
pub(super) fn forced(plan: &Plan, mode: Mode) -> Placement {
    let options = force();
    placed(plan, &options, &config(&[]), mode)
}

/// Plans `sql` and places filters on a cluster wherever it is legal.
pub(super) async fn forced_sql(settings: &[(&str, &str)], sql: &str) -> Placement {
    let context = session(settings).await;
    let plan = plan(&context, sql).await;
    let options = force();
    placed(
        &plan,
        &options,
        context.state().config_options(),
        Mode::Cluster,
    )
}

pub(super) fn config(settings: &[(&str, &str)]) -> ConfigOptions {
    let mut config = ConfigOptions::new();
    config.extensions.insert(DistributedConfig::default());
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    config
}

/// `place`, and what must hold for every placement.
pub(super) fn placed(
    plan: &Plan,
    options: &RuntimeFilterOptions,
    config: &ConfigOptions,
    mode: Mode,
) -> Placement {
    let placement = place(Arc::clone(plan), options, config, mode).unwrap();
    assert_eq!(placement.plan.schema(), plan.schema());
    assert_eq!(
        placement.plan.output_partitioning().to_string(),
        plan.output_partitioning().to_string()
    );
    let mut nodes = vec![];
    find_nodes(&placement.plan, &mut vec![], &mut nodes);
    assert!(
        nodes
            .iter()
            .all(|node| (node.filter as usize) < placement.filters.len())
    );
    for (number, spec) in placement.filters.iter().enumerate() {
        assert_eq!(spec.id as usize, number);
        let (builds, probes): (Vec<&OurNode>, Vec<&OurNode>) = nodes
            .iter()
            .filter(|node| node.filter == spec.id)
            .partition(|node| node.is_build);
        let [build] = builds.as_slice() else {
            panic!(
                "{} builds of filter {number}\n{}",
                builds.len(),
                render(&placement.plan)
            );
        };
        assert!(
            !probes.is_empty(),
            "probes of filter {number}\n{}",
            render(&placement.plan)
        );
        assert!(
            probes.iter().all(|probe| probe.types == build.types),
            "filter {number}"
        );
        // All of them belong to one join: the build to one side, the probes to the other.
        let is_home = |(join, side): &(usize, usize)| {
            probes
                .iter()
                .all(|probe| probe.path.contains(&(*join, 1 - side)))
        };
        assert!(build.path.iter().any(is_home), "filter {number}");
    }
    let placed: Vec<u32> = placement
        .ledger
        .iter()
        .filter_map(|verdict| match verdict.outcome {
            JoinOutcome::Placed { filter } => Some(filter),
            JoinOutcome::Refused(_) => None,
        })
        .collect();
    assert_eq!(
        placed,
        (0..placement.filters.len() as u32).collect::<Vec<_>>()
    );
    // Placing twice changes nothing.
    let again = place(Arc::clone(&placement.plan), options, config, mode).unwrap();
    if !placement.filters.is_empty() {
        assert!(Arc::ptr_eq(&again.plan, &placement.plan));
        assert!(again.filters.is_empty() && again.ledger.is_empty());
    }
    placement
}

struct OurNode {
    filter: u32,
    is_build: bool,
    types: Vec<DataType>,
    /// Every node above it, with the number of the child that leads to it.
    path: Vec<(usize, usize)>,
}

fn find_nodes(node: &Plan, path: &mut Vec<(usize, usize)>, nodes: &mut Vec<OurNode>) {
    let build = node
        .downcast_ref::<RuntimeFilterBuildExec>()
        .map(|n| (n.spec(), n.keys(), true));
    let probe = node
        .downcast_ref::<RuntimeFilterProbeExec>()
        .map(|n| (n.spec(), n.keys(), false));
    if let Some((spec, keys, is_build)) = build.or(probe) {
        let schema = node.schema();
        let types = keys
            .iter()
            .map(|key| schema.field(*key).data_type().clone())
            .collect();
        nodes.push(OurNode {
            filter: spec.id,
            is_build,
            types,
            path: path.clone(),
        });
    }
    let address = Arc::as_ptr(node).cast::<()>() as usize;
    for (index, child) in node.children().into_iter().enumerate() {
        path.push((address, index));
        find_nodes(child, path, nodes);
        path.pop();
    }
}

/// The plan, one short line a node.
pub(super) fn render(plan: &Plan) -> String {
    let mut text = String::new();
    render_into(plan, 0, &mut text);
    text
}

fn render_into(node: &Plan, depth: usize, text: &mut String) {
    let names = |keys: &[usize]| {
        let schema = node.schema();
        keys.iter()
            .map(|key| format!("{}@{key}", schema.field(*key).name()))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let line = if let Some(build) = node.downcast_ref::<RuntimeFilterBuildExec>() {
        format!("build f{} [{}]", build.spec().id, names(build.keys()))
    } else if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
        format!("probe f{} [{}]", probe.spec().id, names(probe.keys()))
    } else if is_hash_exchange(node) {
        "exchange".to_string()
    } else if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        format!("{} {:?}", join.join_type(), join.partition_mode())
    } else if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
        format!("{} Merge", join.join_type())
    } else if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        format!("Aggregate {:?}", aggregate.mode())
    } else {
        node.name().trim_end_matches("Exec").to_string()
    };
    writeln!(text, "{}{line}", "  ".repeat(depth)).unwrap();
    for child in node.children() {
        render_into(child, depth + 1, text);
    }
}

/// Compares a plan with its picture, whose own indentation does not matter.
#[track_caller]
pub(super) fn assert_plan(placement: &Placement, picture: &str) {
    let lines: Vec<&str> = picture.lines().collect();
    let indent = |line: &&str| line.len() - line.trim_start().len();
    // All but the first line, which follows the opening quote.
    let margin = lines.iter().skip(1).map(indent).min().unwrap_or(2);
    let cut = |line: &&str| {
        format!(
            "{}\n",
            line.get(margin.min(indent(line))..).unwrap_or_default()
        )
    };
    let expected: String = lines
        .iter()
        .take(1)
        .map(cut)
        .chain(lines.iter().skip(1).map(|line| format!("  {}", cut(line))))
        .collect();
    let actual = render(&placement.plan);
    assert!(
        actual == expected,
        "expected\n{expected}\nactual\n{actual}\n{:#?}",
        placement.ledger
    );
}

/// The outcomes as text, one a join.
pub(super) fn verdicts(placement: &Placement) -> Vec<String> {
    let text = |verdict: &JoinVerdict| match &verdict.outcome {
        JoinOutcome::Placed { filter } => format!("{}: f{filter}", verdict.join),
        JoinOutcome::Refused(refusal) => format!("{}: {refusal}", verdict.join),
    };
    placement.ledger.iter().map(text).collect()
}

/// The refusal of a plan's only join.
#[track_caller]
pub(super) fn only_refusal(placement: &Placement) -> Refusal {
    match placement.ledger.as_slice() {
        [
            JoinVerdict {
                outcome: JoinOutcome::Refused(refusal),
                ..
            },
        ] => refusal.clone(),
        other => panic!("{other:#?}\n{}", render(&placement.plan)),
    }
}

// Plans by hand.

/// A table in memory with nullable columns of the given types, without rows.
pub(super) fn table(columns: &[(&str, DataType)], partitions: usize) -> Plan {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, data_type)| Field::new(*name, data_type.clone(), true))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let batches = vec![vec![RecordBatch::new_empty(Arc::clone(&schema))]; partitions];
    MemorySourceConfig::try_new_exec(&batches, schema, None).unwrap()
}

/// A table of 64-bit integers in four partitions.
pub(super) fn integers(columns: &[&str]) -> Plan {
    let columns: Vec<_> = columns
        .iter()
        .map(|name| (*name, DataType::Int64))
        .collect();
    table(&columns, 4)
}

pub(super) fn col(plan: &Plan, index: usize) -> Arc<dyn datafusion::physical_expr::PhysicalExpr> {
    Arc::new(Column::new(plan.schema().field(index).name(), index))
}

/// A hash exchange over four partitions.
pub(super) fn exchange(input: Plan, keys: &[usize]) -> Plan {
    let keys = keys.iter().map(|key| col(&input, *key)).collect();
    Arc::new(RepartitionExec::try_new(input, Partitioning::Hash(keys, 4)).unwrap())
}

pub(super) fn coalesce(input: Plan, fetch: Option<usize>) -> Plan {
    Arc::new(CoalescePartitionsExec::new(input).with_fetch(fetch))
}

/// What to make of a hash join by hand.
pub(super) struct Join {
    pub(super) join_type: JoinType,
    pub(super) mode: PartitionMode,
    pub(super) null_equality: NullEquality,
    pub(super) null_aware: bool,
    pub(super) projection: Option<Vec<usize>>,
}

impl Default for Join {
    fn default() -> Self {
        Self {
            join_type: JoinType::Inner,
            mode: PartitionMode::Partitioned,
            null_equality: NullEquality::NullEqualsNothing,
            null_aware: false,
            projection: None,
        }
    }
}

impl Join {
    pub(super) fn of(join_type: JoinType) -> Self {
        Self {
            join_type,
            ..Self::default()
        }
    }

    pub(super) fn collected(join_type: JoinType) -> Self {
        Self {
            mode: PartitionMode::CollectLeft,
            ..Self::of(join_type)
        }
    }

    /// On pairs of column indexes.
    pub(super) fn on(&self, left: Plan, right: Plan, on: &[(usize, usize)]) -> Plan {
        let on = on
            .iter()
            .map(|(l, r)| (col(&left, *l), col(&right, *r)))
            .collect();
        let join = HashJoinExec::try_new(
            left,
            right,
            on,
            None,
            &self.join_type,
            self.projection.clone(),
            self.mode,
            self.null_equality,
            self.null_aware,
        );
        Arc::new(join.unwrap())
    }
}

/// An inner join whose probe side is `right` below an exchange on column `key`.
pub(super) fn probing(right: Plan, key: usize) -> Plan {
    let left = exchange(integers(&["b"]), &[0]);
    Join::default().on(left, exchange(right, &[key]), &[(0, key)])
}
