//! Which joins may have a filter.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

use super::super::*;
use super::support::*;

const JOIN_TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

fn exchanged_join(join: &Join) -> Plan {
    let side = |name: &str| exchange(integers(&[name, "v"]), &[0]);
    join.on(side("a"), side("b"), &[(0, 0)])
}

#[test]
fn only_joins_that_do_not_preserve_the_probe_side() {
    for join_type in JOIN_TYPES {
        let placement = forced(&exchanged_join(&Join::of(join_type)), Mode::Cluster);
        let legal = matches!(
            join_type,
            JoinType::Inner
                | JoinType::Left
                | JoinType::LeftSemi
                | JoinType::RightSemi
                | JoinType::LeftAnti
                | JoinType::LeftMark
        );
        if legal {
            assert_eq!(verdicts(&placement), [format!("{join_type} a = b: f0")]);
        } else {
            assert_eq!(
                only_refusal(&placement),
                Refusal::ProbePreserved,
                "{join_type}"
            );
        }
    }
}

#[tokio::test]
async fn never_a_null_aware_join() {
    let sql = "select * from dim where d_key not in (select f_key from fact)";
    for settings in [&[][..], &COLLECTED] {
        let placement = forced_sql(settings, sql).await;
        assert_eq!(only_refusal(&placement), Refusal::NullAware);
    }
}

#[test]
fn null_equals_null_is_noted() {
    for null_equality in [
        NullEquality::NullEqualsNull,
        NullEquality::NullEqualsNothing,
    ] {
        let join = Join {
            null_equality,
            ..Join::default()
        };
        let placement = forced(&exchanged_join(&join), Mode::Cluster);
        let expected = null_equality == NullEquality::NullEqualsNull;
        assert_eq!(placement.filters[0].null_equals_null, expected);
    }
}

#[tokio::test]
async fn intersect_is_covered() {
    let sql = "select f_key from fact intersect select d_key from dim";
    let placement = forced_sql(&[], sql).await;
    assert!(!placement.filters.is_empty());
    assert!(placement.filters.iter().all(|spec| spec.null_equals_null));
}

#[test]
fn key_types_must_be_equal() {
    let side = |data_type| exchange(table(&[("k", data_type)], 4), &[0]);
    let plan = Join::default().on(side(DataType::Int64), side(DataType::Int32), &[(0, 0)]);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::KeyTypesDiffer
    );
    let plan = Join::default().on(side(DataType::Utf8), side(DataType::Utf8View), &[(0, 0)]);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::KeyTypesDiffer
    );
}

#[test]
fn key_types_must_be_supported() {
    let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
    let side = || exchange(table(&[("k", list.clone())], 4), &[0]);
    let placement = forced(
        &Join::default().on(side(), side(), &[(0, 0)]),
        Mode::Cluster,
    );
    let refusal = only_refusal(&placement);
    assert_eq!(refusal, Refusal::KeyTypeUnsupported("List".to_string()));
    assert_eq!(refusal.to_string(), "key type List is not supported");
}

#[test]
fn keys_must_be_columns() {
    let (left, right) = (
        exchange(integers(&["a"]), &[0]),
        exchange(integers(&["b"]), &[0]),
    );
    let sum = BinaryExpr::new(col(&right, 0), Operator::Plus, col(&right, 0));
    let on = vec![(col(&left, 0), Arc::new(sum) as _)];
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
    let placement = forced(&(Arc::new(join.unwrap()) as Plan), Mode::Cluster);
    assert_eq!(only_refusal(&placement), Refusal::KeyNotColumn);
    assert_eq!(placement.ledger[0].join, "Inner a = b@0 + b@0");
}

#[test]
fn an_undecided_join_is_left_alone() {
    let join = Join {
        mode: PartitionMode::Auto,
        ..Join::default()
    };
    let placement = forced(&exchanged_join(&join), Mode::Cluster);
    assert_eq!(only_refusal(&placement), Refusal::ModeUndecided);
}

#[tokio::test]
async fn joins_without_an_equality_are_named() {
    for (sql, join) in [
        (
            "select * from dim join fact on d_key < f_key",
            "Inner without equal keys",
        ),
        ("select * from dim cross join fact", "Cross"),
    ] {
        let placement = forced_sql(&[], sql).await;
        assert_eq!(
            verdicts(&placement),
            [format!("{join}: no equality of columns")]
        );
    }
}

#[test]
fn composite_keys_are_described_in_full() {
    let side = |a: &str, b: &str| exchange(integers(&[a, b]), &[0, 1]);
    let plan = Join::default().on(side("a", "x"), side("b", "y"), &[(0, 0), (1, 1)]);
    let placement = forced(&plan, Mode::Cluster);
    assert_eq!(placement.filters[0].join, "Inner a = b, x = y");
}

#[test]
fn of_columns_with_one_name_the_index_counts() {
    let side = |key: usize| exchange(integers(&["k", "k"]), &[key]);
    let placement = forced(
        &Join::default().on(side(1), side(0), &[(1, 0)]),
        Mode::Cluster,
    );
    assert_plan(
        &placement,
        "Inner Partitioned
           exchange
             build f0 [k@1]
               DataSource
           exchange
             probe f0 [k@0]
               DataSource",
    );
}

#[tokio::test]
async fn a_recursive_query_has_no_filters() {
    let sql = "with recursive r(n) as (
            select d_key from dim
            union all
            select f_second from r join fact on n = f_key where n < 10
        ) select * from r join other on n = o_key";
    let placement = forced_sql(&[], sql).await;
    assert_eq!(
        verdicts(&placement),
        [
            "Inner n = o_key: f0",
            "Inner n = f_key: inside a recursive query"
        ]
    );
    let text = render(&placement.plan);
    let below = text.split_once("RecursiveQuery").unwrap().1;
    let below = below.split_once("\n  exchange").unwrap().0;
    assert!(
        !below.contains("probe") && !below.contains("build"),
        "{text}"
    );
}

#[tokio::test]
async fn a_scalar_subquery_has_no_filters() {
    let own = [(
        "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery",
        "true",
    )];
    let sql = "select * from dim join fact on d_key = f_key where f_value >
        (select avg(f_value) from dim join fact on d_key = f_key)";
    let placement = forced_sql(&own, sql).await;
    assert!(render(&placement.plan).starts_with("ScalarSubquery\n"));
    assert_eq!(
        verdicts(&placement),
        [
            "Inner d_key = f_key: f0",
            "Inner d_key = f_key: inside a scalar subquery"
        ]
    );
}

#[test]
fn switched_off_every_join_says_so() {
    let options = RuntimeFilterOptions {
        enabled: false,
        ..Default::default()
    };
    let plan = exchanged_join(&Join::default());
    let placement = placed(&plan, &options, &config(&[]), Mode::Cluster);
    assert!(Arc::ptr_eq(&placement.plan, &plan));
    assert_eq!(verdicts(&placement), ["Inner a = b: disabled"]);
}

#[test]
fn a_verdict_reads_well_as_json() {
    let json = |outcome| {
        let verdict = JoinVerdict {
            join: "Inner a = b".to_string(),
            outcome,
        };
        serde_json::to_string(&verdict).unwrap()
    };
    assert_eq!(
        json(JoinOutcome::Placed { filter: 3 }),
        r#"{"join":"Inner a = b","outcome":{"placed":{"filter":3}}}"#
    );
    assert_eq!(
        json(JoinOutcome::Refused(Refusal::NullAware)),
        r#"{"join":"Inner a = b","outcome":{"refused":"NULL-aware join"}}"#
    );
}
