//! Probes on both sides of a join.

use arrow::datatypes::DataType;
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

use super::super::*;
use super::support::*;

/// `c` and `b` as the two sides of `inner` on the equality of their first columns. Column
/// `key` of it is what a selective outer join goes by, below an exchange.
fn outer(inner: Plan, key: usize) -> Plan {
    let build = exchange(filtered(integers(&["a", "v"])), &[0]);
    Join::default().on(build, exchange(inner, &[key]), &[(0, key)])
}

fn filtered(input: Plan) -> Plan {
    let predicate = BinaryExpr::new(col(&input, 1), Operator::Lt, lit(7_i64));
    Arc::new(FilterExec::try_new(Arc::new(predicate), input).unwrap())
}

fn sides() -> (Plan, Plan) {
    (
        exchange(integers(&["c", "x"]), &[0]),
        exchange(integers(&["b", "y"]), &[0]),
    )
}

/// The probes of filter 0, as they are drawn.
fn probes(plan: &Plan, mode: Mode) -> Vec<String> {
    let text = render(&forced(plan, mode).plan);
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("probe f0"))
        .map(str::to_string)
        .collect()
}

fn assert_probes(inner: Plan, key: usize, expected: &[&str]) {
    let plan = outer(inner, key);
    for mode in [Mode::Cluster, Mode::InProcess] {
        let mut probes = probes(&plan, mode);
        probes.sort();
        let expected: Vec<_> = expected
            .iter()
            .map(|key| format!("probe f0 [{key}]"))
            .collect();
        assert_eq!(probes, expected, "{mode:?}\n{}", render(&plan));
    }
}

#[test]
fn an_inner_join_has_a_copy_on_its_build_side() {
    let (c, b) = sides();
    let inner = Join::default().on(c, b, &[(0, 0)]);
    let placement = forced(&outer(inner, 2), Mode::Cluster);
    assert_plan(
        &placement,
        "Inner Partitioned
           exchange
             build f0 [a@0]
               Filter
                 DataSource
           exchange
             Inner Partitioned
               exchange
                 build f1 [c@0]
                   probe f0 [c@0]
                     DataSource
               exchange
                 probe f0 [b@0]
                   probe f1 [b@0]
                     DataSource",
    );
    // It waits as the other does, for the same build side.
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
}

#[test]
fn what_the_build_side_has_lost_the_inner_joins_own_filter_takes_from_the_other() {
    let (c, b) = sides();
    assert_probes(Join::default().on(c, b, &[(0, 0)]), 0, &["c@0"]);
}

#[test]
fn an_inner_join_that_has_no_filter_of_its_own_has_a_copy_on_its_probe_side() {
    // What is broadcast takes no probe; the first one stays above the join.
    let c = coalesce(integers(&["c", "x"]), None);
    let b = exchange(integers(&["b", "y"]), &[0]);
    let inner = Join::collected(JoinType::Inner).on(c, b, &[(0, 0)]);
    assert_probes(inner, 0, &["b@0", "c@0"]);
}

#[test]
fn semi_joins_have_copies_and_outer_anti_and_mark_joins_have_none() {
    use JoinType::*;
    for (join_type, key, expected) in [
        (Inner, 2, &["b@0", "c@0"][..]),
        (RightSemi, 0, &["b@0", "c@0"]),
        // The right side is thinned out by the filter of the semi join.
        (LeftSemi, 0, &["c@0"]),
        (Left, 0, &["c@0"]),
        (Left, 2, &["b@2"]),
        (Right, 2, &["b@0"]),
        (Right, 0, &["c@0"]),
        (Full, 0, &["c@0"]),
        (Full, 2, &["b@2"]),
        (LeftAnti, 0, &["c@0"]),
        (RightAnti, 0, &["b@0"]),
        (LeftMark, 0, &["c@0"]),
        (RightMark, 0, &["b@0"]),
    ] {
        let (c, b) = sides();
        assert_probes(Join::of(join_type).on(c, b, &[(0, 0)]), key, expected);
    }
}

#[test]
fn the_meaning_of_null_does_not_matter() {
    // A NULL of c meets NULLs of b or nothing, and what the outer join says of a NULL of b
    // holds for it in either case.
    let equalities = [
        NullEquality::NullEqualsNull,
        NullEquality::NullEqualsNothing,
    ];
    for inner_equality in equalities {
        for outer_equality in equalities {
            let join = |null_equality| Join {
                null_equality,
                ..Join::default()
            };
            let (c, b) = sides();
            let inner = join(inner_equality).on(c, b, &[(0, 0)]);
            let build = exchange(integers(&["a"]), &[0]);
            let plan = join(outer_equality).on(build, exchange(inner, &[2]), &[(0, 2)]);
            assert_eq!(
                probes(&plan, Mode::Cluster),
                ["probe f0 [c@0]", "probe f0 [b@0]"]
            );
            let spec = &forced(&plan, Mode::Cluster).filters[0];
            assert_eq!(
                spec.null_equals_null,
                outer_equality == NullEquality::NullEqualsNull
            );
        }
    }
}

#[test]
fn only_columns_that_the_join_makes_equal() {
    let (c, b) = sides();
    assert_probes(Join::default().on(c, b, &[(0, 0)]), 3, &["y@1"]);
    let (c, b) = sides();
    assert_probes(Join::default().on(c, b, &[(1, 0)]), 2, &["b@0", "x@1"]);
}

#[test]
fn not_across_an_expression() {
    let (c, b) = sides();
    let sum = BinaryExpr::new(col(&c, 0), Operator::Plus, col(&c, 1));
    let on = vec![(Arc::new(sum) as _, col(&b, 0))];
    let inner = HashJoinExec::try_new(
        c,
        b,
        on,
        None,
        &JoinType::Inner,
        None,
        PartitionMode::Partitioned,
        NullEquality::NullEqualsNothing,
        false,
    );
    assert_probes(Arc::new(inner.unwrap()), 2, &["b@0"]);
}

#[test]
fn not_across_columns_of_other_types() {
    let c = exchange(table(&[("c", DataType::Int32)], 4), &[0]);
    let b = exchange(integers(&["b"]), &[0]);
    let inner = Join::default().on(c, b, &[(0, 0)]);
    assert_eq!(columns::across_join(&inner, &[1], JoinSide::Left), None);
    assert_probes(inner, 1, &["b@0"]);
}

#[test]
fn a_residual_condition_and_a_projection_do_not_matter() {
    let (c, b) = sides();
    let join = Join {
        projection: Some(vec![3, 2, 1]),
        ..Join::default()
    };
    assert_probes(join.on(c, b, &[(0, 0)]), 1, &["b@0", "c@0"]);
}

#[test]
fn a_limit_ends_the_way_of_a_copy() {
    // Below the limit other rows would come through it.
    let (c, b) = sides();
    let limited = exchange(coalesce(c, Some(3)), &[0]);
    let inner = Join::default().on(limited, b, &[(0, 0)]);
    let text = render(&forced(&outer(inner, 2), Mode::Cluster).plan);
    assert!(
        text.contains("probe f0 [c@0]\n            CoalescePartitions"),
        "{text}"
    );
}

#[test]
fn a_copy_needs_an_exchange_of_its_own() {
    // On the other side there is none but the outer join's, where the first probe is.
    let inner = Join::default().on(
        integers(&["c"]),
        exchange(integers(&["b"]), &[0]),
        &[(0, 0)],
    );
    assert_probes(inner, 1, &["b@0"]);
}

#[test]
fn never_on_a_side_that_is_broadcast() {
    let c = coalesce(exchange(integers(&["c"]), &[0]), None);
    let b = exchange(integers(&["b"]), &[0]);
    let inner = Join::collected(JoinType::Inner).on(c, b, &[(0, 0)]);
    assert_probes(inner, 1, &["b@0"]);
}

#[test]
fn a_copy_is_enough() {
    // The only exchange lies on the other side.
    let c = exchange(integers(&["c"]), &[0]);
    let inner =
        Join::collected(JoinType::Inner).on(table(&[("b", DataType::Int64)], 1), c, &[(0, 0)]);
    let build = coalesce(integers(&["a"]), None);
    let plan = Join::collected(JoinType::Inner).on(build, inner, &[(0, 0)]);
    for mode in [Mode::Cluster, Mode::InProcess] {
        let probes = probes(&plan, mode);
        assert!(probes.contains(&"probe f0 [c@0]".to_string()), "{probes:?}");
    }
}

#[test]
fn copies_go_from_join_to_join() {
    // c = b and d = c: all three tables are scanned by the outer join's keys.
    let d = exchange(integers(&["d"]), &[0]);
    let c = exchange(integers(&["c"]), &[0]);
    let lower = Join::default().on(d, c, &[(0, 0)]);
    let b = exchange(integers(&["b"]), &[0]);
    let inner = Join::default().on(exchange(lower, &[1]), b, &[(1, 0)]);
    assert_probes(inner, 2, &["b@0", "c@0", "d@0"]);
}

#[test]
fn a_key_whose_columns_come_from_both_sides_is_followed_where_they_meet() {
    // x belongs to the left side, b to the right: x and c, on the left, are the same key.
    let (c, b) = sides();
    let inner = Join::default().on(c, b, &[(0, 0)]);
    let build = exchange(integers(&["p", "q"]), &[0, 1]);
    let plan = Join::default().on(build, exchange(inner, &[1, 2]), &[(0, 1), (1, 2)]);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    assert!(text.contains("probe f0 [x@1, c@0]"), "{text}");
}

#[tokio::test]
async fn a_copy_that_saves_too_little_is_left_out() {
    // 1,600 keys for 40,000 rows and, across their join, for 160.
    let context = session(&[]).await;
    let scan = async |sql: &str| exchange(plan(&context, sql).await, &[0]);
    let inner = Join::default().on(
        scan("select d_key from dim").await,
        scan("select f_key from fact").await,
        &[(0, 0)],
    );
    let build = scan("select o_key from other where o_value < 100").await;
    let plan = Join::default().on(build, exchange(inner, &[1]), &[(0, 1)]);
    let two_receivers = config(&[("datafusion.execution.target_partitions", "2")]);
    let probes = |options: &RuntimeFilterOptions| {
        let text = render(&placed(&plan, options, &two_receivers, Mode::Cluster).plan);
        text.matches("probe f0").count()
    };
    assert_eq!(probes(&force()), 2);
    assert_eq!(probes(&RuntimeFilterOptions::default()), 1);
}
