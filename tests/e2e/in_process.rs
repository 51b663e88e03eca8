//! The rule on its own, in one process without a cluster.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_runtime_filter::{
    JoinOutcome, RuntimeFilterOptions, RuntimeFilterRule, RuntimeFilterScopeExec,
};

use crate::support::{PARTITIONED, plan, register_folder, run, set, tpch_folder};

const JOIN: &str = "select count(*), sum(l_quantity) from orders join lineitem \
    on l_orderkey = o_orderkey where o_orderdate < date '1992-02-01'";

async fn context(filters: bool, force: bool) -> SessionContext {
    let mut options = RuntimeFilterOptions::default();
    options.force = force;
    let builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(4));
    let builder = if filters {
        builder.with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::new(options)))
    } else {
        builder
    };
    let context = SessionContext::new_with_state(builder.build());
    set(
        &context,
        &[(
            "datafusion.optimizer.enable_dynamic_filter_pushdown",
            "false",
        )],
    );
    register_folder(&context, &tpch_folder(0.01)).await;
    context
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partitioned_join_drops_rows() {
    let (oracle, filtered) = (context(false, false).await, context(true, true).await);
    for context in [&oracle, &filtered] {
        set(context, &PARTITIONED);
    }
    let (off, on) = (run(&oracle, JOIN).await, run(&filtered, JOIN).await);
    on.rows.assert_same(&off.rows, JOIN);
    let [filter] = on.report.filters.as_slice() else {
        panic!("not one filter: {}", on.report);
    };
    assert_eq!(filter.verdict, "applied");
    assert!(
        filter.probe.rows_dropped > 50_000,
        "of 60175 rows: {}",
        on.report
    );
    assert_eq!(filter.build.tasks, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_cannot_pay_nothing_is_placed() {
    let filtered = context(true, false).await;
    // Below the default thresholds the small side is collected: no exchange below
    // the large side, so nothing to save.
    let plan = plan(&filtered, JOIN).await;
    let scope = RuntimeFilterScopeExec::find(&plan).expect("a scope with a verdict");
    let scope = RuntimeFilterScopeExec::from_plan(&scope).unwrap();
    assert!(scope.filters().is_empty());
    let [verdict] = scope.ledger() else {
        panic!("not one verdict: {:?}", scope.ledger());
    };
    assert!(
        matches!(verdict.outcome, JoinOutcome::Refused(_)),
        "{verdict:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tpch_query_gives_equal_rows() {
    let (oracle, filtered) = (context(false, false).await, context(true, true).await);
    for context in [&oracle, &filtered] {
        set(context, &PARTITIONED);
    }
    let mut dropped = 0;
    for number in 2..=22 {
        let sql = runtime_filter_tpch::query(number).unwrap();
        let (off, on) = (run(&oracle, sql).await, run(&filtered, sql).await);
        on.rows.assert_same(&off.rows, &format!("Q{number}"));
        dropped += on.report.rows_dropped();
    }
    assert!(dropped > 200_000, "{dropped} rows dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_plan_object_runs_again() {
    let (oracle, filtered) = (context(false, false).await, context(true, true).await);
    for context in [&oracle, &filtered] {
        set(context, &PARTITIONED);
    }
    let expected = run(&oracle, JOIN).await.rows;
    for _ in 0..3 {
        let run = run(&filtered, JOIN).await;
        run.rows.assert_same(&expected, JOIN);
        assert!(run.report.rows_dropped() > 50_000);
    }
}
