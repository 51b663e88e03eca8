//! Filters of merge and nested-loop joins.

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;

use super::super::*;
use super::support::*;

fn sorted(input: Plan, fetch: Option<usize>) -> Plan {
    let order = LexOrdering::new([PhysicalSortExpr::new_default(col(&input, 0))]).unwrap();
    let sort = SortExec::new(order, input).with_preserve_partitioning(true);
    Arc::new(sort.with_fetch(fetch))
}

fn merge(join_type: JoinType, left: Plan, right: Plan, null_equality: NullEquality) -> Plan {
    let on = vec![(col(&left, 0), col(&right, 0))];
    let options = vec![SortOptions::default()];
    let join = SortMergeJoinExec::try_new(left, right, on, None, join_type, options, null_equality);
    Arc::new(join.unwrap())
}

fn side(name: &str) -> Plan {
    sorted(exchange(integers(&[name]), &[0]), None)
}

fn merged(join_type: JoinType) -> Plan {
    let nothing = NullEquality::NullEqualsNothing;
    merge(join_type, side("a"), side("b"), nothing)
}

#[test]
fn a_merge_join_has_a_filter_from_the_side_that_it_reads_first() {
    use JoinType::*;
    for join_type in [Inner, Left, LeftSemi, LeftAnti, LeftMark] {
        assert_plan(
            &forced(&merged(join_type), Mode::Cluster),
            &format!(
                "{join_type} Merge
                   Sort
                     exchange
                       build f0 [a@0]
                         DataSource
                   Sort
                     exchange
                       probe f0 [b@0]
                         DataSource"
            ),
        );
    }
    for join_type in [Right, RightSemi, RightAnti] {
        assert_plan(
            &forced(&merged(join_type), Mode::InProcess),
            &format!(
                "{join_type} Merge
                   Sort
                     exchange
                       probe f0 [a@0]
                         DataSource
                   Sort
                     exchange
                       build f0 [b@0]
                         DataSource"
            ),
        );
    }
    assert_eq!(
        only_refusal(&forced(&merged(Full), Mode::Cluster)),
        Refusal::ProbePreserved
    );
}

#[test]
fn a_merge_join_drains_its_sort_before_it_reads_the_other_side() {
    let placement = forced(&merged(JoinType::Inner), Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
    // Without an exchange the filter ends with the slowest partition's sort.
    let nothing = NullEquality::NullEqualsNothing;
    let left = sorted(integers(&["a"]), None);
    let plan = merge(JoinType::Inner, left, side("b"), nothing);
    let placement = forced(&plan, Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::InStage);
    assert!(render(&placement.plan).starts_with("Inner Merge\n  Sort\n    build f0 [a@0]"));
}

#[test]
fn without_a_sort_both_sides_of_a_merge_join_are_read_in_turns() {
    let nothing = NullEquality::NullEqualsNothing;
    let sorted_below = exchange(sorted(integers(&["a"]), None), &[0]);
    let limited = sorted(exchange(integers(&["a"]), &[0]), Some(3));
    // A sort of rows in order passes them on as they come.
    let sorted_twice = sorted(sorted(exchange(integers(&["a"]), &[0]), None), None);
    for left in [sorted_below, limited, sorted_twice] {
        let plan = merge(JoinType::Inner, left, side("b"), nothing);
        let refusal = only_refusal(&forced(&plan, Mode::Cluster));
        assert_eq!(refusal, Refusal::BuildNotSorted, "{}", render(&plan));
    }
}

#[test]
fn a_merge_joins_nulls_are_noted() {
    for null_equality in [
        NullEquality::NullEqualsNull,
        NullEquality::NullEqualsNothing,
    ] {
        let plan = merge(JoinType::Inner, side("a"), side("b"), null_equality);
        let expected = null_equality == NullEquality::NullEqualsNull;
        let placement = forced(&plan, Mode::Cluster);
        assert_eq!(placement.filters[0].null_equals_null, expected);
    }
}

#[test]
fn copies_go_across_a_merge_join() {
    let plan = probing(merged(JoinType::Inner), 1);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    assert!(
        text.contains("probe f0 [a@0]") && text.contains("probe f0 [b@0]"),
        "{text}"
    );
}

#[tokio::test]
async fn a_planned_merge_join_has_a_filter() {
    let merge = [("datafusion.optimizer.prefer_hash_join", "false")];
    let sql = "select * from dim join fact on d_key = f_key where d_value < 5";
    let placement = forced_sql(&merge, sql).await;
    assert_eq!(verdicts(&placement), ["Inner d_key = f_key: f0"]);
}

/// A nested-loop join of `left` and `right` on the equality of their first columns, under
/// `op`, and of something else.
fn nested(join_type: JoinType, left: Plan, right: Plan, op: Operator) -> Plan {
    let of = |side, index| ColumnIndex { index, side };
    let columns = vec![of(JoinSide::Right, 0), of(JoinSide::Left, 0)];
    let fields = [right.schema(), left.schema()].map(|schema| schema.field(0).clone());
    let schema = Schema::new(Vec::<Field>::from(fields));
    let column = |index| Arc::new(Column::new("k", index)) as Arc<dyn PhysicalExpr>;
    let equal = BinaryExpr::new(column(0), op, column(1));
    let more = BinaryExpr::new(column(0), Operator::Gt, lit(3_i64));
    let both = BinaryExpr::new(Arc::new(equal), Operator::And, Arc::new(more));
    let filter = JoinFilter::new(Arc::new(both), columns, Arc::new(schema));
    let join = NestedLoopJoinExec::try_new(left, right, Some(filter), &join_type, None);
    Arc::new(join.unwrap())
}

fn nested_sides() -> (Plan, Plan) {
    (
        coalesce(integers(&["a"]), None),
        exchange(integers(&["b"]), &[0]),
    )
}

#[test]
fn a_nested_loop_join_with_an_equality_has_a_filter() {
    let (left, right) = nested_sides();
    let plan = nested(JoinType::Inner, left, right, Operator::Eq);
    for mode in [Mode::Cluster, Mode::InProcess] {
        let placement = forced(&plan, mode);
        assert_plan(
            &placement,
            "NestedLoopJoin
               CoalescePartitions
                 build f0 [a@0]
                   DataSource
               exchange
                 probe f0 [b@0]
                   DataSource",
        );
        assert_eq!(verdicts(&placement), ["Inner a = b: f0"]);
        assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
        assert!(!placement.filters[0].null_equals_null);
    }
}

#[test]
fn a_nested_loop_join_needs_an_equality_and_an_exchange() {
    let (left, right) = nested_sides();
    let plan = nested(JoinType::Inner, left, right, Operator::LtEq);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::NoEqualKeys
    );
    let (left, _) = nested_sides();
    let plan = nested(JoinType::Inner, left, integers(&["b"]), Operator::Eq);
    assert_eq!(
        only_refusal(&forced(&plan, Mode::Cluster)),
        Refusal::NoExchange
    );
}

#[test]
fn a_nested_loop_join_may_hold_null_to_equal_null() {
    let (left, right) = nested_sides();
    let plan = nested(JoinType::Inner, left, right, Operator::IsNotDistinctFrom);
    assert!(forced(&plan, Mode::Cluster).filters[0].null_equals_null);
}

#[test]
fn a_nested_loop_join_whose_sides_will_be_swapped_has_none() {
    use JoinType::*;
    for (join_type, on_cluster, in_process) in [
        (Inner, None, None),
        (RightSemi, None, None),
        (Left, Some(Refusal::SidesSwapped), None),
        (LeftSemi, Some(Refusal::SidesSwapped), None),
        (LeftAnti, Some(Refusal::SidesSwapped), None),
        (
            Right,
            Some(Refusal::ProbePreserved),
            Some(Refusal::ProbePreserved),
        ),
        (
            Full,
            Some(Refusal::ProbePreserved),
            Some(Refusal::ProbePreserved),
        ),
    ] {
        let (left, right) = nested_sides();
        let plan = nested(join_type, left, right, Operator::Eq);
        for (mode, expected) in [(Mode::Cluster, on_cluster), (Mode::InProcess, in_process)] {
            let placement = forced(&plan, mode);
            match expected {
                Some(refusal) => assert_eq!(only_refusal(&placement), refusal, "{join_type}"),
                None => assert_eq!(placement.filters.len(), 1, "{join_type}"),
            }
        }
    }
    // Of two single partitions neither is.
    let one = |name| exchange_of_one(name);
    let plan = nested(LeftSemi, one("a"), one("b"), Operator::Eq);
    assert_eq!(forced(&plan, Mode::Cluster).filters.len(), 1);
}

fn exchange_of_one(name: &str) -> Plan {
    coalesce(exchange(table(&[(name, DataType::Int64)], 1), &[0]), None)
}
