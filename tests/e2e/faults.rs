//! What may go wrong in a cluster: right rows or the engine's own error, no hang,
//! nothing left behind.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::{collect, execute_stream};
use datafusion_distributed::{DistributedExt, Worker, WorkerQueryContext};
use datafusion_runtime_filter::{RuntimeFilterCodec, RuntimeFilterWorker, WorkerServer};
use futures::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;

use crate::support::{
    Cluster, HANG, ORACLE, PARTITIONED, Rows, plan, register_folder, run, run_plan, session,
    session_with, tpch_folder,
};

const SCALE: f64 = 0.01;

/// Two filtered joins, one above the other.
const CHAIN: &str = "select count(*) from customer \
    join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey \
    where c_nationkey = 3 and o_orderdate < date '1995-01-01'";

/// Every join partitioned, every legal filter placed.
fn forced() -> Vec<(&'static str, &'static str)> {
    // Several queries at once on a loaded machine of tests may begin late.
    let patient = [
        ("runtime_filter.force", "true"),
        ("runtime_filter.begin_timeout_ms", "30000"),
    ];
    [&PARTITIONED[..], &patient].concat()
}

async fn sessions(
    cluster: &Cluster,
) -> (
    datafusion::prelude::SessionContext,
    datafusion::prelude::SessionContext,
) {
    let (oracle, filtered) = (
        cluster.session(&[&ORACLE[..], &PARTITIONED].concat()),
        cluster.session(&forced()),
    );
    for context in [&oracle, &filtered] {
        register_folder(context, &tpch_folder(SCALE)).await;
    }
    (oracle, filtered)
}

/// A worker daemon in a process of its own.
struct Daemon {
    process: Child,
    url: String,
}

impl Daemon {
    fn start() -> Self {
        // Beside the folder of the test binaries; `cargo test --workspace` builds it.
        let test = std::env::current_exe().unwrap();
        let binary: PathBuf = test
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .join("runtime-filter-worker");
        assert!(
            binary.exists(),
            "run `cargo build -p runtime-filter-worker` first"
        );
        let mut process = Command::new(binary)
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .expect("an address")
            .to_owned();
        Self { process, url }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_processes_apply_filters() {
    let daemons = [Daemon::start(), Daemon::start()];
    let urls = daemons
        .iter()
        .map(|daemon| daemon.url.clone())
        .collect::<Vec<_>>();
    let coordinator = Arc::default();
    let oracle = session(&urls, &coordinator, &[&ORACLE[..], &PARTITIONED].concat());
    let filtered = session(&urls, &coordinator, &forced());
    for context in [&oracle, &filtered] {
        register_folder(context, &tpch_folder(SCALE)).await;
    }
    let (off, on) = (run(&oracle, CHAIN).await, run(&filtered, CHAIN).await);
    on.rows.assert_same(&off.rows, CHAIN);
    assert!(on.report.rows_dropped() > 0, "{}", on.report);
    assert!(on.report.filter_traffic.bytes_up > 0 && on.report.filter_traffic.bytes_down > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_a_worker_too_applies_filters() {
    let worker = RuntimeFilterWorker::default();
    let engine = worker.worker().clone();
    let mut cluster = Cluster::start(2).await;
    let addr = ([127, 0, 0, 1], 0).into();
    cluster
        .workers
        .push(WorkerServer::bind_worker(addr, worker).await.unwrap());
    let expected = {
        let (oracle, _) = sessions(&cluster).await;
        run(&oracle, CHAIN).await.rows
    };
    let urls = cluster.urls();
    let own = engine.to_local_worker_context(urls[2].parse().unwrap());
    let context = session_with(&urls, &cluster.coordinator, &forced(), |builder| {
        builder.with_distributed_local_worker_context(own)
    });
    register_folder(&context, &tpch_folder(SCALE)).await;
    let run = run(&context, CHAIN).await;
    run.rows.assert_same(&expected, CHAIN);
    assert!(
        run.report.filters.iter().all(|f| f.verdict == "applied"),
        "{}",
        run.report
    );
    assert!(run.report.rows_dropped() > 0, "{}", run.report);
    cluster.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_ends_in_rows_or_an_error() {
    let cluster = Cluster::start(3).await;
    let expected = {
        let (oracle, _) = sessions(&cluster).await;
        run(&oracle, CHAIN).await.rows
    };
    // From before the first task until after the last: each run kills elsewhere.
    for delay in [0, 5, 20, 40, 80, 160, 320] {
        let mut daemon = Daemon::start();
        let urls = [cluster.urls(), vec![daemon.url.clone()]].concat();
        let context = session(&urls, &cluster.coordinator, &forced());
        register_folder(&context, &tpch_folder(SCALE)).await;
        let plan = plan(&context, CHAIN).await;
        let query = tokio::spawn(collect(plan, context.task_ctx()));
        tokio::time::sleep(Duration::from_millis(delay)).await;
        daemon.process.kill().unwrap();
        let result = tokio::time::timeout(HANG, query)
            .await
            .expect("hangs")
            .expect("panics");
        if let Ok(batches) = result {
            Rows::new(&batches).assert_same(&expected, CHAIN);
        }
        cluster.assert_empty().await;
    }
    // The others still serve.
    let (_, filtered) = sessions(&cluster).await;
    let after = run(&filtered, CHAIN).await;
    after.rows.assert_same(&expected, CHAIN);
    assert!(after.report.rows_dropped() > 0, "{}", after.report);
    cluster.assert_empty().await;
}

/// The engine's service alone: its tasks know our nodes, but nobody serves the exchange.
async fn worker_without_exchange() -> String {
    let builder = |context: WorkerQueryContext| async move {
        Ok(context
            .builder
            .with_distributed_user_codec(RuntimeFilterCodec)
            .build())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(Worker::from_session_builder(builder).into_worker_server());
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_the_exchange_switches_filters_off() {
    let cluster = Cluster::start(2).await;
    let expected = {
        let (oracle, _) = sessions(&cluster).await;
        run(&oracle, CHAIN).await.rows
    };
    let urls = [cluster.urls(), vec![worker_without_exchange().await]].concat();
    let context = session(&urls, &cluster.coordinator, &forced());
    register_folder(&context, &tpch_folder(SCALE)).await;
    let run = run(&context, CHAIN).await;
    run.rows.assert_same(&expected, CHAIN);
    assert!(!run.report.filters.is_empty());
    for filter in &run.report.filters {
        assert_eq!(filter.verdict, "pass_all");
        assert_eq!(filter.probe.rows_dropped, 0);
        assert_eq!(filter.probe.timeouts, 0, "known before the first probe");
        let reason = filter.reason.as_deref().unwrap_or_default();
        assert!(reason.contains("not ready"), "{reason}");
    }
    cluster.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_cancels_without_a_trace() {
    let cluster = Cluster::start(4).await;
    let (_, filtered) = sessions(&cluster).await;
    let limited = "select l_orderkey, c_name from customer join orders on c_custkey = o_custkey \
        join lineitem on l_orderkey = o_orderkey where c_nationkey < 20 limit 5";
    for _ in 0..5 {
        let run = run(&filtered, limited).await;
        assert_eq!(run.rows.0.len(), 5);
        cluster.assert_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_leaves_nothing() {
    let cluster = Cluster::start(4).await;
    let (_, filtered) = sessions(&cluster).await;
    let sql = "select l_comment from orders join lineitem on l_orderkey = o_orderkey \
        where o_orderdate < date '1997-01-01'";
    for batches in 0..3 {
        let mut stream = execute_stream(plan(&filtered, sql).await, filtered.task_ctx()).unwrap();
        for _ in 0..batches {
            tokio::time::timeout(HANG, stream.next())
                .await
                .expect("hangs")
                .unwrap()
                .unwrap();
        }
        drop(stream);
        cluster.assert_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_build_side_drops_everything_or_nothing() {
    let cluster = Cluster::start(4).await;
    let (oracle, filtered) = sessions(&cluster).await;
    // No worker has a build row; one worker has some: one customer of one file range.
    let cases = [
        (
            "select count(*) from customer join orders on c_custkey = o_custkey where c_nationkey = 99",
            Some(0),
        ),
        (
            "select count(*) from customer left join orders on c_custkey = o_custkey where c_nationkey = 99",
            Some(0),
        ),
        (
            "select count(*) from orders where not exists (select 1 from customer where c_custkey = o_custkey and c_nationkey = 99)",
            Some(15_000),
        ),
        (
            "select count(*) from orders where exists (select 1 from customer where c_custkey = o_custkey and c_nationkey = 99)",
            Some(0),
        ),
        (
            "select count(*) from customer join orders on c_custkey = o_custkey where c_custkey = 7",
            None,
        ),
        (
            "select count(*) from customer left join orders on c_custkey = o_custkey where c_custkey in (7, 1499)",
            None,
        ),
    ];
    for (sql, expected) in cases {
        let (off, on) = (run(&oracle, sql).await, run(&filtered, sql).await);
        on.rows.assert_same(&off.rows, sql);
        if let Some(expected) = expected {
            assert_eq!(on.rows.number(), expected, "{sql}");
        }
        cluster.assert_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_at_once_do_not_mix() {
    let cluster = Cluster::start(4).await;
    let (oracle, filtered) = sessions(&cluster).await;
    let sql = |nation: usize| CHAIN.replace("c_nationkey = 3", &format!("c_nationkey = {nation}"));
    let mut expected = vec![];
    for nation in 0..6 {
        expected.push(run(&oracle, &sql(nation)).await.rows);
    }
    // Two coordinators share the workers.
    let other = session(&cluster.urls(), &Arc::default(), &forced());
    register_folder(&other, &tpch_folder(SCALE)).await;
    let queries = (0..6).map(|nation| {
        let context = if nation % 2 == 0 {
            filtered.clone()
        } else {
            other.clone()
        };
        let sql = sql(nation);
        tokio::spawn(async move { run(&context, &sql).await })
    });
    for (query, expected) in futures::future::join_all(queries)
        .await
        .into_iter()
        .zip(&expected)
    {
        let run = query.unwrap();
        run.rows.assert_same(expected, &run.report.query);
        assert!(run.report.rows_dropped() > 0, "{}", run.report);
    }
    cluster.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_plan_runs_again_but_not_twice_at_once() {
    let cluster = Cluster::start(4).await;
    let (oracle, filtered) = sessions(&cluster).await;
    let expected = run(&oracle, CHAIN).await.rows;
    let plan = plan(&filtered, CHAIN).await;
    let mut dropped = vec![];
    for _ in 0..3 {
        let run = run_plan(&filtered, CHAIN, Arc::clone(&plan)).await;
        run.rows.assert_same(&expected, CHAIN);
        assert!(
            run.report.filters.iter().all(|f| f.verdict == "applied"),
            "{}",
            run.report
        );
        dropped.push(run.report.rows_dropped());
    }
    assert!(dropped[0] > 0);
    let first = execute_stream(Arc::clone(&plan), filtered.task_ctx()).unwrap();
    let error = execute_stream(Arc::clone(&plan), filtered.task_ctx())
        .err()
        .expect("a second execution at once is refused")
        .to_string();
    assert!(error.contains("being executed already"), "{error}");
    drop(first);
    let again = run_plan(&filtered, CHAIN, plan).await;
    again.rows.assert_same(&expected, CHAIN);
    cluster.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_are_counted_and_bounded() {
    let cluster = Cluster::start(4).await;
    let (oracle, _) = sessions(&cluster).await;
    let expected = run(&oracle, CHAIN).await.rows;
    // Probes that may not wait at all: whatever comes late is counted, nothing hangs.
    let none = cluster.session(
        &[
            &forced()[..],
            &[
                ("runtime_filter.wait_timeout_ms", "0"),
                ("runtime_filter.in_stage_wait_ms", "0"),
            ],
        ]
        .concat(),
    );
    register_folder(&none, &tpch_folder(SCALE)).await;
    let run = run(&none, CHAIN).await;
    run.rows.assert_same(&expected, CHAIN);
    let polls: u64 = run.report.filters.iter().map(|f| f.probe.first_polls).sum();
    assert!(polls > 0, "{}", run.report);
    for filter in &run.report.filters {
        assert!(filter.probe.polls_before_verdict <= filter.probe.first_polls);
        assert_eq!(
            filter.probe.timeouts, 0,
            "nothing waits, so nothing times out"
        );
        // The engine's encoding of a time that never ran is a nanosecond a partition.
        assert!(filter.probe.wait_ms < 0.001, "{} ms", filter.probe.wait_ms);
    }
    cluster.assert_empty().await;
}
