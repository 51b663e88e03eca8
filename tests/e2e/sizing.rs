//! How large filters get on a cluster, and what the report says of it.

use datafusion_runtime_filter::FilterReport;

use crate::support::{Cluster, ORACLE, PARTITIONED, Run, register_folder, run, set, tpch_folder};

/// `orders` of one month against all of `lineitem`.
const SQL: &str = "select count(*), sum(l_extendedprice) from orders join lineitem \
                   on o_orderkey = l_orderkey \
                   where o_orderdate between date '1995-01-01' and date '1995-01-31'";

/// Probes must not run ahead of the verdict here, however busy the machine is.
const PATIENT: (&str, &str) = ("runtime_filter.wait_timeout_ms", "60000");

async fn runs(sizes: &[&str]) -> Vec<Run> {
    let cluster = Cluster::start(3).await;
    let folder = tpch_folder(0.05);
    let oracle = cluster.session(&ORACLE);
    let context = cluster.session(&PARTITIONED);
    set(&context, &[PATIENT]);
    for context in [&oracle, &context] {
        register_folder(context, &folder).await;
    }
    let oracle = run(&oracle, SQL).await;
    let mut runs = vec![];
    for size in sizes {
        set(&context, &[("runtime_filter.forced_sizes", size)]);
        let run = run(&context, SQL).await;
        run.rows.assert_same(&oracle.rows, size);
        runs.push(run);
    }
    cluster.assert_empty().await;
    runs
}

fn only(run: &Run) -> &FilterReport {
    match run.report.filters.as_slice() {
        [filter] => filter,
        filters => panic!("{} filters", filters.len()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_gives_the_same_rows_and_is_what_was_asked_for() {
    let runs = runs(&["", "*=0.3", "0=0.001", "*=keys", "*=nothing"]).await;
    let [auto, coarse, fine, keys, nothing] = runs.as_slice() else {
        panic!("{} runs", runs.len());
    };
    let shape = |run| only(run).filter.unwrap();
    for (run, kind) in [(coarse, "bloom"), (fine, "bloom"), (keys, "keys")] {
        assert_eq!(shape(run).kind, kind);
        assert_eq!(only(run).decision.unwrap().rule, "forced");
        assert!(run.report.total_bytes() < nothing.report.total_bytes() * 2 / 3);
    }
    assert!(shape(coarse).bytes * 3 < shape(fine).bytes);
    assert!((0.1..0.35).contains(&shape(coarse).estimated_fpp));
    assert!(shape(fine).estimated_fpp < 0.0015);
    assert_eq!(only(nothing).verdict, "pass_all");
    assert_eq!(only(nothing).probe.rows_dropped, 0);
    // What is chosen by itself moves no more bytes than the best of these, but for the noise.
    let least = [coarse, fine, keys, nothing].map(|run| run.report.total_bytes());
    let least = least.into_iter().min().unwrap();
    assert!(auto.report.total_bytes() as f64 <= least as f64 * 1.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_says_what_the_size_was_based_on() {
    let runs = runs(&[""]).await;
    let filter = only(&runs[0]);
    let decision = filter.decision.unwrap();
    assert_eq!(decision.rule, "bytes");
    assert_eq!(decision.expected_receivers, 3, "asked or not");
    assert_eq!((decision.receivers, decision.receivers_refused), (3, 0));
    let sent = decision.bytes as f64 * 3.0;
    assert_eq!(decision.sending_bytes, sent);
    let (expected, saving) = (
        decision.expected_bytes.unwrap(),
        decision.expected_saving.unwrap(),
    );
    assert!(expected > sent && saving > 0.0);
    let probe_bytes = decision.probe_bytes.unwrap() as f64;
    assert!((expected + saving - probe_bytes).abs() < 1.0);
    let json = runs[0].report.to_json();
    assert!(json.contains("\"decision\":{\"rule\":\"bytes\""), "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_false_positives_agree_with_the_estimate() {
    let runs = runs(&["*=0.3", "*=0.02", "*=keys", "*=nothing"]).await;
    for (run, tolerance) in runs.iter().zip([0.15, 0.3]) {
        let filter = only(run);
        let estimated = filter.filter.unwrap().estimated_fpp;
        let measured = filter.measured_fpp.unwrap_or_else(|| panic!("{filter:#?}"));
        assert!(
            (measured / estimated - 1.0).abs() < tolerance,
            "measured {measured}, estimated {estimated}"
        );
    }
    assert_eq!(only(&runs[2]).measured_fpp, Some(0.0));
    // Without a filter there is nothing to measure.
    assert_eq!(only(&runs[3]).measured_fpp, None);
}
