//! Probes on broadcast build sides, for the filters that come of them.

use datafusion::common::JoinType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use datafusion::physical_plan::filter::FilterExec;

use super::super::*;
use super::support::*;

fn regions() -> Plan {
    let input = integers(&["r", "name"]);
    let predicate = BinaryExpr::new(col(&input, 1), Operator::Eq, lit(7_i64));
    let filter = FilterExec::try_new(Arc::new(predicate), input).unwrap();
    coalesce(Arc::new(filter), None)
}

/// Nations of these regions, and the rows that have such a nation.
fn chain(nations: Plan, rows: Plan) -> Plan {
    let broadcast = Join::collected(JoinType::Inner);
    let inner = broadcast.on(nations, rows, &[(0, 0)]);
    broadcast.on(regions(), inner, &[(0, 1)])
}

fn rows() -> Plan {
    exchange(integers(&["s"]), &[0])
}

#[test]
fn a_broadcast_filter_makes_the_next_one_strict() {
    let placement = forced(
        &chain(coalesce(integers(&["n", "r"]), None), rows()),
        Mode::Cluster,
    );
    assert_plan(
        &placement,
        "Inner CollectLeft
           CoalescePartitions
             build f0 [r@0]
               Filter
                 DataSource
           Inner CollectLeft
             CoalescePartitions
               build f1 [n@0]
                 probe f0 [r@1]
                   DataSource
             exchange
               probe f1 [s@0]
                 DataSource",
    );
    // The second filter is worth what the first one makes of it.
    let leans: Vec<bool> = placement
        .filters
        .iter()
        .map(|spec| spec.leans_on_probes)
        .collect();
    assert_eq!(leans, [false, true]);
    let mut waits = vec![];
    collect_waits(&placement.plan, &mut waits);
    assert_eq!(waits, [WaitClass::Early, WaitClass::Ordered]);
}

fn collect_waits(node: &Plan, waits: &mut Vec<WaitClass>) {
    if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
        waits.push(probe.spec().wait);
    }
    for child in node.children() {
        collect_waits(child, waits);
    }
}

#[test]
fn a_stone_that_leads_nowhere_is_left_out() {
    let plan = chain(coalesce(integers(&["n", "r"]), None), integers(&["s"]));
    let placement = forced(&plan, Mode::Cluster);
    assert!(placement.filters.is_empty());
    assert_eq!(
        verdicts(&placement),
        [
            "Inner r = r: no hash exchange below the probe side",
            "Inner n = s: no hash exchange below the probe side"
        ]
    );
}

#[test]
fn stones_lie_in_a_row() {
    let broadcast = Join::collected(JoinType::Inner);
    let suppliers = coalesce(integers(&["u", "n"]), None);
    let inner = broadcast.on(suppliers, rows(), &[(0, 0)]);
    let nations = coalesce(integers(&["n", "r"]), None);
    let inner = broadcast.on(nations, inner, &[(0, 1)]);
    let plan = broadcast.on(regions(), inner, &[(0, 1)]);
    let text = render(&forced(&plan, Mode::Cluster).plan);
    for line in [
        "build f1 [n@0]\n        probe f0 [r@1]",
        "build f2 [u@0]\n          probe f1 [n@1]",
        "probe f2 [s@0]",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn no_stone_where_one_process_runs_it_all_or_nothing_may_wait() {
    let plan = chain(coalesce(integers(&["n", "r"]), None), rows());
    let filters = |config: &ConfigOptions, mode| placed(&plan, &force(), config, mode).filters;
    assert_eq!(filters(&config(&[]), Mode::InProcess).len(), 1);
    let dynamic = config(&[("distributed.dynamic_task_count", "true")]);
    assert_eq!(filters(&dynamic, Mode::Cluster).len(), 1);
}

#[test]
fn no_stone_but_on_the_plain_scan_of_a_small_table() {
    // A limit takes whatever comes first; an exchange or a join may take its time.
    let limited = coalesce(integers(&["n", "r"]), Some(3));
    let exchanged = coalesce(exchange(integers(&["n", "r"]), &[0]), None);
    let joined = Join::collected(JoinType::Inner).on(
        coalesce(integers(&["x"]), None),
        integers(&["n", "r"]),
        &[(0, 0)],
    );
    for (nations, key) in [(limited, 1), (exchanged, 1), (coalesce(joined, None), 2)] {
        let broadcast = Join::collected(JoinType::Inner);
        let inner = broadcast.on(nations, rows(), &[(key - 1, 0)]);
        let plan = broadcast.on(regions(), inner, &[(0, key)]);
        let mut waits = vec![];
        collect_waits(&forced(&plan, Mode::Cluster).plan, &mut waits);
        assert!(!waits.contains(&WaitClass::Early), "{}", render(&plan));
    }
}

#[test]
fn no_stone_below_an_outer_join_that_pads_it() {
    let inner = Join::collected(JoinType::Right).on(
        coalesce(integers(&["n", "r"]), None),
        rows(),
        &[(0, 0)],
    );
    let plan = Join::collected(JoinType::Inner).on(regions(), inner, &[(0, 1)]);
    assert!(forced(&plan, Mode::Cluster).filters.is_empty());
}

#[tokio::test]
async fn a_stone_must_cost_far_less_than_what_it_leads_to_saves() {
    let context = session(&COLLECTED).await;
    let broadcast = Join::collected(JoinType::Inner);
    let placed_filters = async |regions: &str, options: &RuntimeFilterOptions| {
        let regions = coalesce(plan(&context, regions).await, None);
        let nations = coalesce(
            plan(&context, "select o_key, o_second from other").await,
            None,
        );
        let rows = exchange(plan(&context, "select f_key from fact").await, &[0]);
        let inner = broadcast.on(nations, rows, &[(0, 0)]);
        let plan = broadcast.on(regions, inner, &[(0, 1)]);
        placed(&plan, options, &config(&[]), Mode::Cluster)
            .filters
            .len()
    };
    let default = RuntimeFilterOptions::default();
    let few = "select d_key from dim where d_value < 5";
    let many = "select f_key from fact where f_value < 5";
    let all = "select d_key from dim";
    assert_eq!(placed_filters(few, &default).await, 2);
    // The second one is worth it by its few keys.
    assert_eq!(placed_filters(many, &default).await, 0);
    assert_eq!(placed_filters(many, &force()).await, 2);
    assert_eq!(placed_filters(all, &default).await, 0);
}
