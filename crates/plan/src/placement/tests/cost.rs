//! What is worth a filter.

use datafusion::common::JoinType;

use super::super::*;
use super::support::*;

async fn judged(settings: &[(&str, &str)], mode: Mode, sql: &str) -> Placement {
    let context = session(settings).await;
    let plan = plan(&context, sql).await;
    placed(
        &plan,
        &RuntimeFilterOptions::default(),
        context.state().config_options(),
        mode,
    )
}

#[tokio::test]
async fn an_unfiltered_build_side_is_refused() {
    let placement = judged(
        &[],
        Mode::Cluster,
        "select * from dim join fact on d_key = f_key",
    )
    .await;
    assert_eq!(only_refusal(&placement), Refusal::BuildNotSelective);
    let sql = "select * from dim join fact on d_key = f_key where d_key is not null";
    let placement = judged(&[], Mode::Cluster, sql).await;
    assert_eq!(only_refusal(&placement), Refusal::BuildNotSelective);
}

#[tokio::test]
async fn a_selective_build_side_is_placed() {
    for build in [
        "(select * from dim where d_name = 'n1')",
        "(select d_key from dim group by d_key having count(*) > 1)",
        "(select * from dim order by d_value limit 5)",
        "(select * from dim where exists (select 1 from other where o_key = d_second))",
        "(select dim.* from dim join other on o_key = d_second where o_value = 1)",
    ] {
        let sql = format!("select * from {build} d join fact on d_key = f_key");
        let placement = judged(&[], Mode::Cluster, &sql).await;
        let outcome = &placement.ledger[0].outcome;
        assert!(
            matches!(outcome, JoinOutcome::Placed { .. }),
            "{build} {outcome:?}"
        );
    }
}

/// A filtered scan of one table, joined to the scan of another.
async fn joined(build: &str, probe: &str) -> Plan {
    let context = session(&[]).await;
    let (build, probe) = (plan(&context, build).await, plan(&context, probe).await);
    Join::of(JoinType::LeftSemi).on(exchange(build, &[0]), exchange(probe, &[0]), &[(0, 0)])
}

#[tokio::test]
async fn a_filter_larger_than_its_saving_is_refused() {
    let plan = joined(
        "select f_key from fact where f_value > 1",
        "select d_key from dim",
    )
    .await;
    let placement = placed(
        &plan,
        &RuntimeFilterOptions::default(),
        &config(&[]),
        Mode::Cluster,
    );
    assert_eq!(only_refusal(&placement), Refusal::FilterTooLarge);
    assert_eq!(
        placed(&plan, &force(), &config(&[]), Mode::Cluster)
            .filters
            .len(),
        1
    );
}

#[tokio::test]
async fn the_saving_must_be_as_large_as_asked_for() {
    let plan = joined(
        "select d_key from dim where d_value < 5",
        "select f_key from fact",
    )
    .await;
    for (min_saving, filters) in [(1.0, 0), (0.9, 1)] {
        let options = RuntimeFilterOptions {
            min_saving,
            ..Default::default()
        };
        let placement = placed(&plan, &options, &config(&[]), Mode::Cluster);
        assert_eq!(placement.filters.len(), filters);
    }
}

#[tokio::test]
async fn more_receivers_make_a_filter_dearer() {
    let plan = joined(
        "select f_key from fact where f_value > 1",
        "select o_name from other",
    )
    .await;
    let receivers =
        |settings: &[_]| Environment::new(&plan, &config(settings), Mode::Cluster).receivers;
    assert_eq!(receivers(&[("distributed.max_tasks_per_stage", "64")]), 64);
    assert_eq!(
        receivers(&[("datafusion.execution.target_partitions", "3")]),
        3
    );
    assert_eq!(
        receivers(&[("datafusion.execution.target_partitions", "96")]),
        8
    );
}

#[tokio::test]
async fn estimates_are_noted() {
    let sql = "select f_key, d_key from dim join fact on d_key = f_key where d_value < 5";
    let placement = judged(&[], Mode::Cluster, sql).await;
    let estimates = placement.filters[0].estimates;
    assert_eq!(estimates.probe_rows, Some(40_000));
    assert_eq!(estimates.probe_bytes, Some(40_000 * 8));
    assert!(estimates.build_rows.is_some_and(|rows| rows <= 160));
}

#[tokio::test]
async fn in_one_process_the_probe_side_must_be_clearly_larger() {
    let larger = "select * from dim join fact on d_key = f_key where d_value < 5";
    assert_eq!(judged(&[], Mode::InProcess, larger).await.filters.len(), 1);
    // Few rows are not worth it, however few the build side has.
    let few = "select * from dim join other on d_key = o_key where d_value = 1";
    let placement = judged(&[], Mode::InProcess, few).await;
    assert_eq!(only_refusal(&placement), Refusal::NotInOneProcess);
    let alike = "select * from fact a join fact b on a.f_key = b.f_key where a.f_value < 1000";
    let placement = judged(&[], Mode::InProcess, alike).await;
    assert_eq!(only_refusal(&placement), Refusal::NotInOneProcess);
    assert_eq!(
        only_refusal(&placement).to_string(),
        "cannot pay in one process"
    );
}

#[test]
fn without_statistics_a_cluster_tries_and_one_process_does_not() {
    use crate::spec::Estimates;
    use cost::gate;
    let plan = Join::of(JoinType::LeftSemi).on(
        exchange(integers(&["a"]), &[0]),
        exchange(integers(&["b"]), &[0]),
        &[(0, 0)],
    );
    let unknown = Estimates::default();
    let options = RuntimeFilterOptions::default();
    let cluster = Environment::new(&plan, &config(&[]), Mode::Cluster);
    assert_eq!(gate(&plan, &unknown, &options, &cluster), Ok(()));
    let process = Environment::new(&plan, &config(&[]), Mode::InProcess);
    assert_eq!(
        gate(&plan, &unknown, &options, &process),
        Err(Refusal::NotInOneProcess)
    );
}
