//! The distributed plan of every TPC-H query, with its filters and the verdict of every join, as
//! text: what a change of placement changes is seen in review.
//!
//! After a change that is meant: `INSTA_UPDATE=always cargo test --test e2e snapshots`, and read the
//! difference.

use datafusion_distributed::display_plan_ascii;
use datafusion_runtime_filter::RuntimeFilterScopeExec;

use crate::support::{Cluster, PARTITIONED, plan, register_folder, tpch_folder};

/// Large enough for some joins to be partitioned and some filters to pay at default thresholds.
const SCALE: f64 = 0.1;

/// The plan without what depends on the machine: where files lie and how they are cut.
fn skeleton(plan: &str) -> String {
    let lines = plan.lines().filter_map(|line| {
        let Some((before, scan)) = line.split_once("DataSourceExec: file_groups=") else {
            return Some(line.to_string());
        };
        // The tasks of a stage read other parts of the same file in the same way.
        let before = before.strip_suffix("t0: ")?;
        let (files, rest) = scan.split_once("]}, ")?;
        let (table, _) = files.rsplit('/').next()?.split_once(".parquet")?;
        let (projection, _) = rest.split_once(", file_type=")?;
        Some(format!("{before}{table}: {projection}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

async fn snapshot(settings: &[(&str, &str)], suffix: &str) {
    let cluster = Cluster::start(4).await;
    let session = cluster.session(settings);
    register_folder(&session, &tpch_folder(SCALE)).await;
    let mut insta = insta::Settings::clone_current();
    insta.set_prepend_module_to_snapshot(false);
    insta.set_omit_expression(true);
    let mut placed = 0;
    for number in 1..=22 {
        let plan = plan(&session, runtime_filter_tpch::query(number).unwrap()).await;
        let scope = RuntimeFilterScopeExec::find(&plan);
        let scope = scope.as_ref().and_then(RuntimeFilterScopeExec::from_plan);
        let ledger = scope.map_or(&[][..], RuntimeFilterScopeExec::ledger);
        let joins: Vec<String> = ledger.iter().map(ToString::to_string).collect();
        placed += joins
            .iter()
            .filter(|join| join.contains(": filter "))
            .count();
        let tree = skeleton(&display_plan_ascii(plan.as_ref(), false));
        let text = format!("{}\n\n{tree}", joins.join("\n"));
        insta.bind(|| insta::assert_snapshot!(format!("q{number:02}-{suffix}"), text));
    }
    assert!(placed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_at_default_thresholds() {
    snapshot(&[], "default").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_with_all_joins_partitioned() {
    snapshot(&PARTITIONED, "partitioned").await;
}
