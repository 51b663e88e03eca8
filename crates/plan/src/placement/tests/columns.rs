//! How far key columns can be followed to a probe.

use arrow::datatypes::DataType;
use datafusion::common::JoinType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, IsNotNullExpr, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::CrossJoinExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::super::*;
use super::support::*;

type Expr = Arc<dyn PhysicalExpr>;

fn projection(input: Plan, exprs: Vec<(Expr, &str)>) -> Plan {
    let exprs = exprs
        .into_iter()
        .map(|(expr, name)| (expr, name.to_string()));
    Arc::new(ProjectionExec::try_new(exprs, input).unwrap())
}

/// What the last probe of a join on column `key` of `right` looks like, behind copies on
/// the left side of a join; `right` has one exchange of its own.
fn probe_line(right: Plan, key: usize) -> (String, String) {
    let placement = forced(&probing(right, key), Mode::Cluster);
    let text = render(&placement.plan);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines
        .iter()
        .rposition(|line| line.starts_with("probe f0"))
        .unwrap();
    (lines[at - 1].to_string(), lines[at].to_string())
}

fn deep(columns: &[&str]) -> Plan {
    exchange(integers(columns), &[0])
}

#[test]
fn through_a_projection_that_renames_and_swaps() {
    let input = deep(&["a", "b"]);
    let swapped = projection(
        Arc::clone(&input),
        vec![(col(&input, 1), "a"), (col(&input, 0), "b")],
    );
    assert_eq!(
        probe_line(swapped, 0),
        ("exchange".into(), "probe f0 [b@1]".into())
    );
}

#[test]
fn through_columns_of_one_name() {
    let input = deep(&["x", "k", "k"]);
    let exprs = vec![(col(&input, 2), "k"), (col(&input, 1), "k")];
    let same = projection(Arc::clone(&input), exprs);
    assert_eq!(probe_line(Arc::clone(&same), 0).1, "probe f0 [k@2]");
    assert_eq!(probe_line(same, 1).1, "probe f0 [k@1]");
}

#[test]
fn not_through_an_expression() {
    let input = deep(&["a", "b"]);
    let sum: Expr = Arc::new(BinaryExpr::new(
        col(&input, 0),
        Operator::Plus,
        col(&input, 1),
    ));
    let computed = projection(input, vec![(sum, "a")]);
    // Below the exchange of the join itself, above the expression.
    let placement = forced(&probing(computed, 0), Mode::Cluster);
    assert_plan(
        &placement,
        "Inner Partitioned
           exchange
             build f0 [b@0]
               DataSource
           exchange
             probe f0 [a@0]
               Projection
                 exchange
                   DataSource",
    );
}

#[tokio::test]
async fn not_through_a_volatile_expression() {
    let sql = "select * from dim join (
            select f_second, f_key, max(f_value) as r from fact group by f_second, f_key
        ) on d_key = f_key where r > random() * 10";
    let text = render(&forced_sql(&[], sql).await.plan);
    let (above, below) = text.split_once("probe f0").unwrap();
    assert!(
        !above.contains("Aggregate") && below.contains("Aggregate"),
        "{text}"
    );
}

#[test]
fn through_a_filter_with_a_projection() {
    let input = deep(&["a", "b", "c"]);
    let predicate = Arc::new(IsNotNullExpr::new(col(&input, 0)));
    let filter = FilterExecBuilder::new(predicate, input)
        .apply_projection(Some(vec![2, 1]))
        .unwrap()
        .build()
        .unwrap();
    let filter: Plan = Arc::new(filter);
    assert_eq!(probe_line(Arc::clone(&filter), 0).1, "probe f0 [c@2]");
    assert_eq!(probe_line(filter, 1).1, "probe f0 [b@1]");
}

#[test]
fn through_joins_by_the_owning_side() {
    let join = |projection: Option<Vec<usize>>| {
        let join = Join {
            projection,
            ..Join::default()
        };
        join.on(
            exchange(integers(&["a", "k"]), &[0]),
            exchange(integers(&["b", "k"]), &[0]),
            &[(0, 0)],
        )
    };
    for (projection, key, expected) in [
        (None, 1, "probe f0 [k@1]"),
        (None, 2, "probe f0 [b@0]"),
        (None, 3, "probe f0 [k@1]"),
        (Some(vec![3, 2, 1]), 0, "probe f0 [k@1]"),
        (Some(vec![3, 2, 1]), 1, "probe f0 [b@0]"),
        (Some(vec![3, 0]), 1, "probe f0 [a@0]"),
    ] {
        let (above, line) = probe_line(join(projection.clone()), key);
        // Probes of the outer join are applied last where two filters meet.
        assert!(
            above.starts_with("exchange") || above.starts_with("build f1"),
            "{above}"
        );
        assert_eq!(line, expected, "{projection:?} {key}");
    }
}

#[test]
fn through_the_preserved_side_of_joins_only() {
    use JoinType::*;
    for (join_type, left, right) in [
        (Inner, true, true),
        (Left, true, false),
        (Right, false, true),
        (Full, false, false),
        (LeftSemi, true, false),
        (LeftAnti, true, false),
        (LeftMark, true, false),
        (RightSemi, false, true),
        (RightAnti, false, true),
        (RightMark, false, true),
    ] {
        let inner = || {
            Join::of(join_type).on(
                exchange(integers(&["a"]), &[0]),
                exchange(integers(&["b"]), &[0]),
                &[(0, 0)],
            )
        };
        let from_left = !matches!(join_type, RightSemi | RightAnti | RightMark);
        let both = matches!(join_type, Inner | Left | Right | Full);
        for (side, key, exists, followed) in [
            ("a", 0, from_left, left),
            ("b", usize::from(both), both || !from_left, right),
        ] {
            if !exists {
                continue;
            }
            let (_, line) = probe_line(inner(), key);
            // Above the join the column has its place in the join's output.
            let placement = forced(&probing(inner(), key), Mode::Cluster);
            let text = render(&placement.plan);
            let outer_probe = text.rfind("probe f0").unwrap();
            let inner_join = text[1..].find(&format!("{join_type} Partitioned")).unwrap();
            assert!(
                line.starts_with(&format!("probe f0 [{side}@")),
                "{join_type} {line}"
            );
            assert_eq!(
                outer_probe > inner_join,
                followed,
                "{join_type} {side}\n{text}"
            );
        }
    }
}

#[test]
fn not_by_the_mark_of_a_mark_join() {
    let right = Join::of(JoinType::LeftMark).on(deep(&["a"]), deep(&["b"]), &[(0, 0)]);
    let left = exchange(table(&[("m", DataType::Boolean)], 4), &[0]);
    let plan = Join::default().on(left, exchange(right, &[1]), &[(0, 1)]);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    if let Some((above, _)) = text.split_once("probe f0") {
        assert!(!above.contains("LeftMark"), "{text}");
    }
}

#[test]
fn a_composite_key_as_a_whole_or_by_parts() {
    // One column from either side of the inner join: the probe stays above it.
    let inner = Join::default().on(deep(&["a", "x"]), deep(&["b", "y"]), &[(0, 0)]);
    let left = exchange(integers(&["p", "q"]), &[0, 1]);
    let plan = Join::default().on(
        left,
        exchange(Arc::clone(&inner), &[1, 3]),
        &[(0, 1), (1, 3)],
    );
    let text = render(&forced(&plan, Mode::Cluster).plan);
    assert!(
        text.contains("exchange\n    probe f0 [x@1, y@3]\n      Inner"),
        "{text}"
    );
    // Without an exchange above there is no place for the whole.
    let left = coalesce(integers(&["p", "q"]), None);
    let plan = Join::collected(JoinType::Inner).on(left, inner, &[(0, 1), (1, 3)]);
    assert_plan(
        &forced(&plan, Mode::Cluster),
        "Inner CollectLeft
           CoalescePartitions
             build f1 [q@1]
               build f0 [p@0]
                 DataSource
           Inner Partitioned
             exchange
               build f2 [a@0]
                 probe f0 [x@1]
                   DataSource
             exchange
               probe f1 [y@1]
                 probe f2 [b@0]
                   DataSource",
    );
}

#[test]
fn never_below_a_limit() {
    let limited: [fn(Plan) -> Plan; 4] = [
        |input| Arc::new(GlobalLimitExec::new(coalesce(input, None), 0, Some(3))),
        |input| coalesce(input, Some(3)),
        |input| {
            let predicate = Arc::new(IsNotNullExpr::new(col(&input, 0)));
            let filter = FilterExecBuilder::new(predicate, input).with_fetch(Some(3));
            Arc::new(filter.build().unwrap())
        },
        |input| {
            let order = LexOrdering::new([PhysicalSortExpr::new_default(col(&input, 0))]).unwrap();
            let top = SortExec::new(order, input).with_preserve_partitioning(true);
            Arc::new(top.with_fetch(Some(3)))
        },
    ];
    for limit in limited {
        let text = render(&forced(&probing(limit(deep(&["a"])), 0), Mode::Cluster).plan);
        assert_eq!(text.matches("probe f0").count(), 1);
        let below = text.split_once("probe f0 [a@0]\n").unwrap().1.trim();
        assert!(
            [
                "GlobalLimit",
                "CoalescePartitions",
                "Filter",
                "SortExec(TopK)"
            ]
            .iter()
            .any(|n| below.starts_with(n))
        );
        let placement = forced(
            &Join::collected(JoinType::Inner).on(
                coalesce(integers(&["p"]), None),
                limit(deep(&["a"])),
                &[(0, 0)],
            ),
            Mode::Cluster,
        );
        assert_eq!(only_refusal(&placement), Refusal::KeyNotFollowed);
    }
}

#[tokio::test]
async fn below_windows_that_are_all_partitioned_by_the_key() {
    let window = |by: &str| {
        format!(
            "select * from dim join (
                select f_key, f_second, row_number() over (partition by f_second, f_key order by f_value) as a,
                    sum(f_value) over (partition by {by}) as b from fact
            ) on d_key = f_key"
        )
    };
    let probe_at = |text: &str| {
        let lines: Vec<String> = text.lines().map(|line| line.trim().to_string()).collect();
        let at = lines
            .iter()
            .position(|line| line.starts_with("probe f0"))
            .unwrap();
        let windows = lines[..at]
            .iter()
            .filter(|line| line.contains("Window"))
            .count();
        (
            windows,
            lines.iter().filter(|line| line.contains("Window")).count(),
        )
    };
    let (above, all) = probe_at(&render(&forced_sql(&[], &window("f_key")).await.plan));
    assert!(all >= 2 && above == all, "{above} of {all}");
    // One window adds up rows of other keys: none may be missing below it.
    let text = render(&forced_sql(&[], &window("f_second")).await.plan);
    let (above, all) = probe_at(&text);
    assert!(above < all, "{text}");
}

#[tokio::test]
async fn into_every_child_of_a_union() {
    let sql = "select * from dim join (
            select f_key as k, sum(f_value) from fact group by f_key
            union all
            select o_key as k, sum(o_value) from other group by o_key
        ) on d_key = k";
    let placement = forced_sql(&[], sql).await;
    let text = render(&placement.plan);
    assert!(text.contains("Interleave"), "{text}");
    assert!(
        text.contains("probe f0 [f_key@0]") && text.contains("probe f0 [o_key@0]"),
        "{text}"
    );
}

#[tokio::test]
async fn a_child_of_a_union_that_takes_no_probe_keeps_its_rows() {
    let left = coalesce(integers(&["p"]), None);
    let union = datafusion::physical_plan::union::UnionExec::try_new(vec![
        deep(&["a"]),
        integers(&["a"]),
        coalesce(deep(&["a"]), Some(3)),
    ])
    .unwrap();
    let plan = Join::collected(JoinType::Inner).on(left, union, &[(0, 0)]);
    assert_plan(
        &forced(&plan, Mode::Cluster),
        "Inner CollectLeft
           CoalescePartitions
             build f0 [p@0]
               DataSource
           Union
             exchange
               probe f0 [a@0]
                 DataSource
             DataSource
             CoalescePartitions
               exchange
                 DataSource",
    );
}

#[test]
fn one_probe_above_a_union_of_plain_scans() {
    let union = datafusion::physical_plan::union::UnionExec::try_new(vec![
        integers(&["a"]),
        integers(&["b"]),
    ])
    .unwrap();
    let text = render(&forced(&probing(union, 0), Mode::Cluster).plan);
    assert!(
        text.contains("exchange\n    probe f0 [a@0]\n      Union"),
        "{text}"
    );
}

#[tokio::test]
async fn grouping_sets_stop_a_probe() {
    for (groups, sunk) in [
        ("f_key, f_second", true),
        ("rollup(f_key, f_second)", false),
    ] {
        let sql = format!(
            "select * from dim join (
                select f_key, f_second, sum(f_value) from fact group by {groups}
            ) on d_key = f_key"
        );
        let text = render(&forced_sql(&[], &sql).await.plan);
        let above = text.split_once("probe f0").unwrap().0;
        assert_eq!(above.contains("Aggregate Partial"), sunk, "{text}");
    }
}

#[test]
fn through_cross_and_nested_loop_joins_by_side() {
    let right: Plan = Arc::new(CrossJoinExec::new(
        coalesce(integers(&["x", "y"]), None),
        deep(&["a", "b"]),
    ));
    assert_eq!(probe_line(Arc::clone(&right), 3).1, "probe f0 [b@1]");
    // The other side is read before the join is asked for its first row: better above.
    assert_eq!(probe_line(right, 1).1, "probe f0 [y@1]");
}

#[test]
fn an_operator_that_answers_to_another_name_is_unknown() {
    use datafusion::common::tree_node::TreeNodeRecursion;
    use datafusion::execution::{SendableRecordBatchStream, TaskContext};
    use datafusion::physical_plan::PlanProperties;
    use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ReplaceChildrenOptions};

    /// Shows its whole input as its child, and its input's identity as its own.
    #[derive(Debug)]
    struct Guise(Plan);

    impl DisplayAs for Guise {
        fn fmt_as(
            &self,
            _: DisplayFormatType,
            f: &mut std::fmt::Formatter<'_>,
        ) -> std::fmt::Result {
            f.write_str("Guise")
        }
    }

    impl ExecutionPlan for Guise {
        fn name(&self) -> &str {
            "Guise"
        }
        fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
            Some(self.0.as_ref())
        }
        fn properties(&self) -> &Arc<PlanProperties> {
            self.0.properties()
        }
        fn children(&self) -> Vec<&Plan> {
            vec![&self.0]
        }
        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(&Expr) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            Ok(TreeNodeRecursion::Continue)
        }
        fn replace_children(
            self: Arc<Self>,
            mut children: Vec<Plan>,
            _: ReplaceChildrenOptions,
        ) -> Result<Plan> {
            Ok(Arc::new(Self(children.remove(0))))
        }
        fn with_new_children(self: Arc<Self>, mut children: Vec<Plan>) -> Result<Plan> {
            Ok(Arc::new(Self(children.remove(0))))
        }
        fn execute(
            &self,
            partition: usize,
            context: Arc<TaskContext>,
        ) -> Result<SendableRecordBatchStream> {
            self.0.execute(partition, context)
        }
    }

    let input = deep(&["a", "b"]);
    let swapped = projection(
        Arc::clone(&input),
        vec![(col(&input, 1), "b"), (col(&input, 0), "a")],
    );
    let disguised: Plan = Arc::new(Guise(swapped));
    let text = render(&forced(&probing(disguised, 0), Mode::Cluster).plan);
    // Followed as a projection twice, the key would end up on the wrong column.
    assert!(text.contains("probe f0 [b@0]\n      Guise"), "{text}");
}

#[test]
fn a_plain_filter_stays_below_the_probe() {
    let input = integers(&["a", "b"]);
    let predicate = BinaryExpr::new(col(&input, 1), Operator::Lt, lit(3_i64));
    let filter: Plan = Arc::new(FilterExec::try_new(Arc::new(predicate), input).unwrap());
    let text = render(&forced(&probing(filter, 0), Mode::Cluster).plan);
    assert!(text.contains("probe f0 [a@0]\n      Filter"), "{text}");
}
