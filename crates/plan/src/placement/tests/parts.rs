//! Filters by parts of a composite key.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

use super::super::*;
use super::support::*;

#[test]
fn parts_go_from_the_whole_to_single_columns() {
    let keys = |pairs: usize| JoinKeys {
        build: (0..pairs).collect(),
        probe: (10..10 + pairs).collect(),
        types: vec![DataType::Int64; pairs],
        null_equals_null: true,
    };
    let parts = |pairs: usize| {
        let parts = keys(pairs).parts();
        for part in &parts {
            assert!(part.null_equals_null);
            assert_eq!(part.types.len(), part.build.len());
            // The columns of a pair stay together.
            assert!(
                part.build
                    .iter()
                    .zip(&part.probe)
                    .all(|(b, p)| b + 10 == *p)
            );
        }
        parts.into_iter().map(|part| part.build).collect::<Vec<_>>()
    };
    assert_eq!(parts(1), [vec![0]]);
    assert_eq!(parts(2), [vec![0, 1], vec![0], vec![1]]);
    assert_eq!(
        parts(3),
        [
            vec![0, 1, 2],
            vec![0, 1],
            vec![0, 2],
            vec![1, 2],
            vec![0],
            vec![1],
            vec![2]
        ]
    );
    let of_five = parts(5);
    assert_eq!((of_five.len(), of_five[0].len()), (6, 5));
}

/// A join on `[p, q] = [x, y]` of the two sides of an inner join.
fn over(inner: Plan, keys: [usize; 2], null_equality: NullEquality) -> Plan {
    let build = integers(&["p", "q"]);
    let predicate = BinaryExpr::new(col(&build, 1), Operator::Lt, lit(7_i64));
    let build: Plan = Arc::new(FilterExec::try_new(Arc::new(predicate), build).unwrap());
    let join = Join {
        null_equality,
        ..Join::default()
    };
    join.on(
        exchange(build, &[0, 1]),
        exchange(inner, &keys),
        &[(0, keys[0]), (1, keys[1])],
    )
}

fn inner() -> Plan {
    Join::default().on(
        exchange(integers(&["a", "x"]), &[0]),
        exchange(integers(&["b", "y"]), &[0]),
        &[(0, 0)],
    )
}

#[test]
fn parts_go_where_the_whole_cannot() {
    let placement = forced(
        &over(inner(), [1, 3], NullEquality::NullEqualsNothing),
        Mode::Cluster,
    );
    assert_plan(
        &placement,
        "Inner Partitioned
           exchange
             build f2 [q@1]
               build f1 [p@0]
                 build f0 [p@0, q@1]
                   Filter
                     DataSource
           exchange
             probe f0 [x@1, y@3]
               Inner Partitioned
                 exchange
                   build f3 [a@0]
                     probe f1 [x@1]
                       DataSource
                 exchange
                   probe f2 [y@1]
                     probe f3 [b@0]
                       DataSource",
    );
    assert_eq!(
        verdicts(&placement)[..3],
        [0, 1, 2].map(|n| format!("Inner p = x, q = y: f{n}"))
    );
}

#[test]
fn a_part_that_leads_no_further_has_no_filter() {
    let one_side = exchange(integers(&["x", "y"]), &[0, 1]);
    let build = exchange(integers(&["p", "q"]), &[0, 1]);
    let plan = Join::default().on(build, one_side, &[(0, 0), (1, 1)]);
    assert_eq!(forced(&plan, Mode::Cluster).filters.len(), 1);
}

#[test]
fn a_part_has_the_nulls_of_the_whole() {
    for null_equality in [
        NullEquality::NullEqualsNull,
        NullEquality::NullEqualsNothing,
    ] {
        let placement = forced(&over(inner(), [1, 3], null_equality), Mode::Cluster);
        assert!(
            placement.filters[..3].iter().all(
                |spec| spec.null_equals_null == (null_equality == NullEquality::NullEqualsNull)
            )
        );
    }
}

#[test]
fn pairs_that_cannot_be_hashed_are_left_out() {
    let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
    let side = |name: &str| {
        let columns = [(name, DataType::Int64), ("l", list.clone())];
        exchange(table(&columns, 4), &[0])
    };
    let plan = Join::default().on(side("a"), side("b"), &[(1, 1), (0, 0)]);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    assert!(
        text.contains("build f0 [a@0]") && text.contains("probe f0 [b@0]"),
        "{text}"
    );
}

#[test]
fn pairs_of_expressions_are_left_out() {
    let (left, right) = (
        exchange(integers(&["a", "x"]), &[0]),
        exchange(integers(&["b", "y"]), &[0]),
    );
    let sum = BinaryExpr::new(col(&right, 0), Operator::Plus, col(&right, 1));
    let on = vec![
        (col(&left, 1), Arc::new(sum) as _),
        (col(&left, 0), col(&right, 0)),
    ];
    let join = HashJoinExec::try_new(
        left,
        right,
        on,
        None,
        &JoinType::Inner,
        None,
        PartitionMode::Partitioned,
        NullEquality::NullEqualsNothing,
        false,
    );
    let text = render(&forced(&(Arc::new(join.unwrap()) as Plan), Mode::Cluster).plan);
    assert!(
        text.contains("build f0 [a@0]") && text.contains("probe f0 [b@0]"),
        "{text}"
    );
}

#[test]
fn a_column_is_not_probed_twice_in_one_place() {
    // q is unique to one side and reached by the filter of the outermost join already.
    let keyed = over(inner(), [1, 3], NullEquality::NullEqualsNothing);
    let build = exchange(integers(&["o"]), &[0]);
    let plan = Join::default().on(build, exchange(keyed, &[5]), &[(0, 5)]);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    let probes: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("probe") && line.ends_with("[y@1]"))
        .collect();
    assert_eq!(probes, ["probe f0 [y@1]"], "{text}");
}

#[tokio::test]
async fn a_further_filter_must_pay_by_a_wide_margin() {
    let context = session(&[]).await;
    let scan = async |sql: &str, key: usize| exchange(plan(&context, sql).await, &[key]);
    let inner = Join::default().on(
        scan("select o_key, o_second from other", 0).await,
        scan("select f_key, f_second from fact", 0).await,
        &[(0, 0)],
    );
    let three_receivers = config(&[("datafusion.execution.target_partitions", "3")]);
    let filters_by = async |build: &str| {
        let probe = exchange(Arc::clone(&inner), &[1, 3]);
        let build = scan(build, 0).await;
        let plan = Join::default().on(build, probe, &[(0, 1), (1, 3)]);
        let options = RuntimeFilterOptions::default();
        let placement = placed(&plan, &options, &three_receivers, Mode::Cluster);
        let of_join = |verdict: &&JoinVerdict| {
            verdict.join.contains(", ") && matches!(verdict.outcome, JoinOutcome::Placed { .. })
        };
        placement.ledger.iter().filter(of_join).count()
    };
    // 160 keys, for 1,600 rows and for 40,000.
    let few = "select d_key, d_second from dim where d_value < 5";
    assert_eq!(filters_by(few).await, 3);
    // 1,600 keys: no more than the whole and the part that leads to the larger table.
    let some = "select o_key, o_second from other where o_value < 5";
    assert_eq!(filters_by(some).await, 2);
    let many = "select f_key, f_second from fact where f_value < 5";
    assert_eq!(filters_by(many).await, 0);
}
