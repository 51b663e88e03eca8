//! TPC-H: every query gives the same rows with filters as without.

use datafusion::prelude::SessionContext;

use crate::support::{Cluster, ORACLE, PARTITIONED, Rows, register_folder, run, set, tpch_folder};

const SCALE: f64 = 0.01;

/// Queries with a join.
const JOINS: [u8; 20] = [
    2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
];

/// Runs Q2-Q22 off and on. Returns how many filters were applied and how many
/// rows they dropped.
async fn off_and_on(settings: &[(&str, &str)]) -> (usize, u64) {
    let cluster = Cluster::start(4).await;
    let folder = tpch_folder(SCALE);
    let oracle = cluster.session(&[&ORACLE, settings].concat());
    let filtered = cluster.session(settings);
    register_folder(&oracle, &folder).await;
    register_folder(&filtered, &folder).await;
    let (mut applied, mut dropped) = (0, 0);
    for number in 2..=22 {
        let sql = runtime_filter_tpch::query(number).unwrap();
        let off = run(&oracle, sql).await;
        let on = run(&filtered, sql).await;
        on.rows
            .assert_same(&off.rows, &format!("Q{number} with {settings:?}"));
        assert!(
            off.report.filters.is_empty(),
            "the oracle of Q{number} has filters"
        );
        if JOINS.contains(&number) {
            let looked_at = on.report.filters.len() + on.report.refusals.len();
            assert!(looked_at > 0, "no join of Q{number} got a verdict");
        }
        applied += on
            .report
            .filters
            .iter()
            .filter(|f| f.verdict == "applied")
            .count();
        dropped += on.report.rows_dropped();
    }
    cluster.assert_empty().await;
    (applied, dropped)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_thresholds_give_equal_rows() {
    off_and_on(&[]).await;
}

/// An oracle of its own: DataFusion in one process, without engine or filters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filtered_cluster_gives_the_rows_of_one_process() {
    let cluster = Cluster::start(4).await;
    let folder = tpch_folder(SCALE);
    let one_process = SessionContext::new();
    set(&one_process, &[ORACLE[1]]);
    let filtered = cluster.session(&[("runtime_filter.force", "true")]);
    register_folder(&one_process, &folder).await;
    register_folder(&filtered, &folder).await;
    for number in 1..=22 {
        let sql = runtime_filter_tpch::query(number).unwrap();
        let batches = one_process.sql(sql).await.unwrap().collect().await.unwrap();
        let on = run(&filtered, sql).await;
        on.rows
            .assert_same(&Rows::new(&batches), &format!("Q{number}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_joins_give_equal_rows_and_drop_many() {
    let (applied, dropped) = off_and_on(&PARTITIONED).await;
    // Measured: see the table of ARCHITECTURE.md. Far below it, filters are broken.
    assert!(applied >= 20, "{applied} filters applied");
    assert!(dropped >= 200_000, "{dropped} rows dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_filters_give_equal_rows() {
    let force = [
        ("runtime_filter.force", "true"),
        ("runtime_filter.late_materialization", "true"),
    ];
    let (applied, _) = off_and_on(&[&PARTITIONED[..], &force].concat()).await;
    assert!(applied >= 40, "{applied} filters applied");
}
