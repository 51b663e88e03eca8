//! Where build and probe nodes go.

use arrow::datatypes::DataType;
use datafusion::common::{JoinType, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;

use super::super::*;
use super::support::*;

#[tokio::test]
async fn a_partitioned_join_is_tapped_below_its_exchanges() {
    let sql = "select * from dim join fact on d_key = f_key where d_value < 5";
    assert_plan(
        &forced_sql(&[], sql).await,
        "Inner Partitioned
           exchange
             build f0 [d_key@0]
               Filter
                 DataSource
           exchange
             probe f0 [f_key@0]
               DataSource",
    );
}

#[tokio::test]
async fn a_probe_goes_below_the_deepest_exchange_and_its_aggregation() {
    let sql = "select * from dim join (
            select f_second, f_key, sum(f_value) from fact where f_value > 0 group by f_second, f_key
        ) on d_key = f_key";
    assert_plan(
        &forced_sql(&[], sql).await,
        "Inner Partitioned
           exchange
             build f0 [d_key@0]
               DataSource
           exchange
             Aggregate FinalPartitioned
               exchange
                 Aggregate Partial
                   probe f0 [f_key@0]
                     Filter
                       DataSource",
    );
}

#[tokio::test]
async fn a_key_that_is_aggregated_stays_above_the_aggregation() {
    let sql = "select * from dim join (
            select f_second, max(f_key) as top from fact group by f_second
        ) on d_key = top";
    let placement = forced_sql(&[], sql).await;
    let text = render(&placement.plan);
    let (above, below) = text.split_once("probe f0 [top@").unwrap();
    assert!(
        !above.contains("Aggregate") && below.contains("Aggregate FinalPartitioned"),
        "{text}"
    );
}

/// A selective build side, joined to a column of the build side of an inner join.
fn nested() -> Plan {
    let inner = Join::default().on(
        exchange(integers(&["b", "v"]), &[0]),
        exchange(integers(&["c"]), &[0]),
        &[(0, 0)],
    );
    Join::default().on(
        exchange(selective("a"), &[0]),
        exchange(inner, &[1]),
        &[(0, 1)],
    )
}

#[test]
fn filters_stack_builds_above_probes() {
    // The probe of the outer join meets the build of the inner one.
    let placement = forced(&nested(), Mode::Cluster);
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
                 build f1 [b@0]
                   probe f0 [v@1]
                     DataSource
               exchange
                 probe f1 [c@0]
                   DataSource",
    );
    assert!(
        placement
            .filters
            .iter()
            .all(|spec| spec.wait == WaitClass::Ordered)
    );
}

#[test]
fn the_filter_of_an_outer_join_makes_an_inner_build_selective() {
    let plan = nested();
    assert!(!cost::is_selective(
        as_node::<HashJoinExec>(plan.children()[1].children()[0])
            .unwrap()
            .left()
    ));
    let placement = forced(&plan, Mode::Cluster);
    let inner = placement.plan.children()[1].children()[0];
    assert!(cost::is_selective(
        as_node::<HashJoinExec>(inner).unwrap().left()
    ));
}

#[tokio::test]
async fn probes_of_several_joins_meet_below_one_exchange() {
    let sql = "select * from fact join other on o_key = f_key join dim on d_key = f_second
        where o_value < 20 and d_value < 5";
    let text = render(&forced_sql(&[], sql).await.plan);
    assert!(
        text.contains("probe f0")
            && text.contains("probe f1")
            && text.matches("exchange").count() == 4,
        "{text}"
    );
}

#[tokio::test]
async fn having_keeps_the_build_in_the_stage_of_the_join() {
    let sql = "select * from fact where f_key in (
            select o_key from other group by o_key having sum(o_value) > 100)";
    let placement = forced_sql(&[], sql).await;
    assert_plan(
        &placement,
        "RightSemi Partitioned
           build f0 [o_key@0]
             Filter
               Aggregate FinalPartitioned
                 exchange
                   Aggregate Partial
                     DataSource
           exchange
             probe f0 [f_key@0]
               DataSource",
    );
    assert_eq!(placement.filters[0].wait, WaitClass::InStage);
}

#[tokio::test]
async fn without_having_the_build_is_lowered_to_the_exchange() {
    let sql = "select * from fact where f_key in (
            select o_key from other where o_value < 10 group by o_key)";
    let placement = forced_sql(&[], sql).await;
    assert_plan(
        &placement,
        "RightSemi Partitioned
           Aggregate FinalPartitioned
             exchange
               build f0 [o_key@0]
                 Aggregate Partial
                   Filter
                     DataSource
           exchange
             probe f0 [f_key@0]
               DataSource",
    );
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
}

/// `(x join y on x = y) join z` on a key of the inner join, without an exchange above it.
fn co_partitioned(inner: JoinType, x: Plan, y: Plan, key: usize) -> Plan {
    let inner = Join::of(inner).on(exchange(x, &[0]), exchange(y, &[0]), &[(0, 0)]);
    Join::default().on(inner, exchange(integers(&["z"]), &[0]), &[(key, 0)])
}

fn selective(name: &str) -> Plan {
    let input = integers(&[name, "v"]);
    let predicate = BinaryExpr::new(col(&input, 1), Operator::Lt, lit(7_i64));
    Arc::new(FilterExec::try_new(Arc::new(predicate), input).unwrap())
}

#[test]
fn a_build_is_lowered_to_the_selective_side_of_a_join() {
    // The key may come from either side: the equal column of the other one serves.
    for key in [0, 2] {
        let plan = co_partitioned(JoinType::Inner, selective("x"), integers(&["y", "w"]), key);
        let placement = forced(&plan, Mode::Cluster);
        assert_plan(
            &placement,
            "Inner Partitioned
               Inner Partitioned
                 exchange
                   build f1 [x@0]
                     build f0 [x@0]
                       Filter
                         DataSource
                 exchange
                   probe f1 [y@0]
                     DataSource
               exchange
                 probe f0 [z@0]
                   DataSource",
        );
        assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
    }
}

#[test]
fn a_build_is_not_lowered_where_a_join_drops_keys() {
    for (inner, x, y) in [
        (JoinType::Inner, selective("x"), selective("y")),
        (
            JoinType::LeftAnti,
            integers(&["x", "v"]),
            integers(&["y", "w"]),
        ),
    ] {
        let placement = forced(&co_partitioned(inner, x, y, 0), Mode::Cluster);
        assert!(render(&placement.plan).starts_with("Inner Partitioned\n  build f0 [x@0]\n"));
        assert_eq!(placement.filters[0].wait, WaitClass::InStage);
    }
}

#[test]
fn a_build_is_not_lowered_to_a_side_that_the_join_pads() {
    // y is NULL for an x without a match: a NULL that the rows of y do not have.
    let plan = co_partitioned(JoinType::Left, integers(&["x", "v"]), selective("y"), 2);
    let placement = forced(&plan, Mode::Cluster);
    assert!(render(&placement.plan).starts_with("Inner Partitioned\n  build f0 [y@2]\n"));
    let plan = co_partitioned(JoinType::Left, selective("x"), integers(&["y", "w"]), 0);
    let placement = forced(&plan, Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
}

#[test]
fn a_build_stays_above_a_limit() {
    let left = coalesce(exchange(integers(&["a"]), &[0]), Some(3));
    let plan = Join::default().on(left, exchange(integers(&["b"]), &[0]), &[(0, 0)]);
    let placement = forced(&plan, Mode::Cluster);
    assert!(
        render(&placement.plan).starts_with("Inner Partitioned\n  build f0 [a@0]\n    Coalesce")
    );
}

#[test]
fn grouping_sets_stop_a_build() {
    let input = exchange(integers(&["a", "v"]), &[0]);
    let groups = vec![
        (col(&input, 0), "a".to_string()),
        (col(&input, 1), "v".to_string()),
    ];
    let nulls = groups
        .iter()
        .map(|(_, name)| (lit(ScalarValue::Int64(None)), name.clone()))
        .collect();
    let sets = PhysicalGroupBy::new(
        groups,
        nulls,
        vec![vec![false, true], vec![false, false]],
        true,
    );
    let schema = input.schema();
    let aggregate =
        AggregateExec::try_new(AggregateMode::Partial, sets, vec![], vec![], input, schema)
            .unwrap();
    let plan = Join::default().on(
        Arc::new(aggregate),
        exchange(integers(&["b"]), &[0]),
        &[(0, 0)],
    );
    let placement = forced(&plan, Mode::Cluster);
    assert!(
        render(&placement.plan).starts_with("Inner Partitioned\n  build f0 [a@0]\n    Aggregate")
    );
}

/// A collected join over `probe`, whose build side is a table of four partitions.
fn collected(join_type: JoinType, probe: Plan) -> Plan {
    let build = coalesce(integers(&["a"]), None);
    Join::collected(join_type).on(build, probe, &[(0, 0)])
}

#[test]
fn a_broadcast_build_is_tapped_below_its_coalesce() {
    for mode in [Mode::Cluster, Mode::InProcess] {
        for join_type in [JoinType::Inner, JoinType::RightSemi] {
            let plan = collected(join_type, exchange(integers(&["b"]), &[0]));
            assert_plan(
                &forced(&plan, mode),
                &format!(
                    "{join_type} CollectLeft
                       CoalescePartitions
                         build f0 [a@0]
                           DataSource
                       exchange
                         probe f0 [b@0]
                           DataSource"
                ),
            );
        }
    }
}

#[test]
fn a_collected_build_of_one_partition_is_tapped_on_top() {
    let build = table(&[("a", DataType::Int64)], 1);
    let probe = exchange(integers(&["b"]), &[0]);
    let plan = Join::collected(JoinType::Inner).on(build, probe, &[(0, 0)]);
    assert_plan(
        &forced(&plan, Mode::Cluster),
        "Inner CollectLeft
           build f0 [a@0]
             DataSource
           exchange
             probe f0 [b@0]
               DataSource",
    );
}

#[test]
fn a_collected_join_without_an_exchange_has_nothing_to_save() {
    let plan = collected(JoinType::Inner, integers(&["b"]));
    for mode in [Mode::Cluster, Mode::InProcess] {
        assert_eq!(only_refusal(&forced(&plan, mode)), Refusal::NoExchange);
    }
    // Rows that come out unmatched are on the left: no broadcast. In one process it
    // stays collected.
    let plan = collected(JoinType::LeftSemi, integers(&["b"]));
    assert_eq!(
        only_refusal(&forced(&plan, Mode::InProcess)),
        Refusal::NoExchange
    );
}

#[test]
fn joins_that_the_distributed_planner_partitions_are_foreseen() {
    for join_type in [
        JoinType::Left,
        JoinType::LeftSemi,
        JoinType::LeftAnti,
        JoinType::LeftMark,
    ] {
        let placement = forced(&collected(join_type, integers(&["b"])), Mode::Cluster);
        assert_plan(
            &placement,
            &format!(
                "{join_type} CollectLeft
                   CoalescePartitions
                     build f0 [a@0]
                       DataSource
                   probe f0 [b@0]
                     DataSource"
            ),
        );
        assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
    }
    // A limit stays: everything that comes through it is tapped.
    let build = coalesce(integers(&["a"]), Some(5));
    let plan = Join::collected(JoinType::LeftSemi).on(build, integers(&["b"]), &[(0, 0)]);
    assert_plan(
        &forced(&plan, Mode::Cluster),
        "LeftSemi CollectLeft
           build f0 [a@0]
             CoalescePartitions
               DataSource
           probe f0 [b@0]
             DataSource",
    );
}

#[test]
fn a_join_of_single_partitions_stays_collected() {
    let one = |name| table(&[(name, DataType::Int64)], 1);
    let plan = Join::collected(JoinType::LeftSemi).on(one("a"), one("b"), &[(0, 0)]);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::NoExchange
    );
}

#[test]
fn the_foreseen_exchanges_of_an_inner_join_count_for_an_outer_one() {
    let inner = collected(JoinType::LeftSemi, integers(&["b"]));
    let build = coalesce(integers(&["o"]), None);
    let plan = Join::collected(JoinType::Inner).on(build, inner, &[(0, 0)]);
    let placement = forced(&plan, Mode::Cluster);
    assert_plan(
        &placement,
        "Inner CollectLeft
           CoalescePartitions
             build f0 [o@0]
               DataSource
           LeftSemi CollectLeft
             CoalescePartitions
               build f1 [a@0]
                 probe f0 [a@0]
                   DataSource
             probe f1 [b@0]
               DataSource",
    );
    assert!(
        placement
            .filters
            .iter()
            .all(|spec| spec.wait == WaitClass::Ordered)
    );
}

#[test]
fn a_limited_broadcast_build_has_no_place() {
    let build = coalesce(integers(&["a"]), Some(5));
    let plan =
        Join::collected(JoinType::Inner).on(build, exchange(integers(&["b"]), &[0]), &[(0, 0)]);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::BuildLimited
    );
    assert_eq!(forced(&plan, Mode::InProcess).filters.len(), 1);
}

#[test]
fn boundaries_of_the_users_own_are_not_converted() {
    let environment = |plan: &Plan| Environment::new(plan, &config(&[]), Mode::Cluster);
    let plan = collected(JoinType::LeftSemi, integers(&["b"]));
    assert!(environment(&plan).normalizes);
    let join = as_node::<HashJoinExec>(&plan).unwrap();
    assert_eq!(
        join::shape(join, true),
        Some(join::JoinShape::BecomesPartitioned)
    );
    assert_eq!(join::shape(join, false), Some(join::JoinShape::Collected));
}
