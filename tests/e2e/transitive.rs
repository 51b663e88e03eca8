//! Filters that reach further than the other side of their join: copies across equal keys,
//! parts of composite keys, and broadcast filters that make the next ones strict.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_distributed::{DistributedMetricsFormat, rewrite_distributed_plan_with_metrics};
use datafusion_runtime_filter::{FilterReport, RuntimeFilterProbeExec, RuntimeFilterScopeExec};

use crate::joins::{register, write_tables};
use crate::support::{
    Cluster, HANG, ORACLE, PARTITIONED, Rows, Run, plan, register_folder, run, tpch_folder,
};

const FORCE: [(&str, &str); 2] = [
    ("runtime_filter.force", "true"),
    ("runtime_filter.begin_timeout_ms", "30000"),
];

/// `few` is broadcast, `many` is not.
const MIXED: [(&str, &str); 2] = [
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        "50000",
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        "1000",
    ),
];

const MERGE: [(&str, &str); 1] = [("datafusion.optimizer.prefer_hash_join", "false")];

/// What a scan leaves out never reaches the probes, whose rows are counted here.
const AT_PROBES: [(&str, &str); 1] = [("runtime_filter.storage_pruning", "false")];

/// The probes of a query: for each filter the column that a place goes by, and the rows
/// that were dropped there.
type Probes = BTreeMap<u32, Vec<(String, usize)>>;

async fn probes(context: &SessionContext, sql: &str) -> (Rows, Probes) {
    let plan = plan(context, sql).await;
    let batches = tokio::time::timeout(HANG, collect(Arc::clone(&plan), context.task_ctx()))
        .await
        .unwrap_or_else(|_| panic!("hangs: {sql}"))
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
    let scope = RuntimeFilterScopeExec::find(&plan).unwrap_or(plan);
    let measured =
        rewrite_distributed_plan_with_metrics(scope, DistributedMetricsFormat::Aggregated)
            .await
            .unwrap();
    let mut probes = Probes::new();
    let note = |node: &Arc<dyn ExecutionPlan>| {
        if let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() {
            let names: Vec<_> = probe
                .keys()
                .iter()
                .map(|key| probe.schema().field(*key).name().clone())
                .collect();
            let dropped = node
                .metrics()
                .and_then(|metrics| metrics.sum(|metric| metric.value().name() == "rows_dropped"));
            let dropped = dropped.map_or(0, |dropped| dropped.as_usize());
            let places = probes.entry(probe.spec().id).or_default();
            places.push((names.join(", "), dropped));
        }
        Ok(TreeNodeRecursion::Continue)
    };
    measured.apply(note).unwrap();
    (Rows::new(&batches), probes)
}

struct Setting {
    cluster: Cluster,
    oracle: SessionContext,
    filtered: SessionContext,
    _folder: tempfile::TempDir,
}

impl Setting {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_tables(folder.path()).await;
        let cluster = Cluster::start(3).await;
        let oracle = cluster.session(&[&ORACLE[..], settings].concat());
        let filtered = cluster.session(&[&FORCE[..], settings].concat());
        register(&oracle, folder.path()).await;
        register(&filtered, folder.path()).await;
        Self {
            cluster,
            oracle,
            filtered,
            _folder: folder,
        }
    }

    /// Runs a query with filters off and on, for a small side of some rows and of none.
    /// Returns the probes of the former.
    async fn compare(&self, query: &str) -> Probes {
        let none = query.replace("{x}", "0");
        let (off, on) = (
            run(&self.oracle, &none).await,
            run(&self.filtered, &none).await,
        );
        on.rows.assert_same(&off.rows, &none);
        let some = query.replace("{x}", "130");
        let off = run(&self.oracle, &some).await;
        let (rows, probes) = probes(&self.filtered, &some).await;
        rows.assert_same(&off.rows, &some);
        probes
    }

    async fn end(self) {
        self.cluster.assert_empty().await;
    }
}

/// The most rows that a filter dropped on the left side of a join, with another probe on
/// its right. (There the join's own filter has dropped the same rows before.)
fn dropped_by_a_copy(probes: &Probes) -> usize {
    let first = |places: &Vec<(String, usize)>| match places.as_slice() {
        [copy, _, ..] => copy.1,
        _ => 0,
    };
    probes.values().map(first).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_drop_rows_on_the_other_side_of_a_join() {
    // The join of two large tables has its own condition on the larger side of it, so that
    // the filter by `few` reaches the left side by its own column or as a copy.
    let queries = [
        "select count(*), sum(m.aid), sum(m.bid) from few f join (
            select a.k, b.k as bk, a.id as aid, b.id as bid from many a join many b on a.k = b.k
         ) m on f.k = m.bk where f.id < {x}",
        "select count(*), sum(m.bid) from few f join (
            select b.k, b.id as bid from many a right semi join many b on a.k = b.k
         ) m on f.k = m.k where f.id < {x}",
        "select count(*), sum(m.n) from few f join (
            select b.k, count(*) as n from (select k, sum(id) from many group by k) a
                join many b on a.k = b.k group by b.k
         ) m on f.k = m.k where f.id < {x}",
    ];
    for settings in [&PARTITIONED[..], &MIXED, &MERGE] {
        let setting = Setting::new(&[settings, &AT_PROBES].concat()).await;
        let mut most = 0;
        for query in queries {
            let probes = setting.compare(query).await;
            most = most.max(dropped_by_a_copy(&probes));
        }
        assert!(most > 30_000, "{settings:?}: {most} rows dropped by a copy");
        setting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_respect_what_null_means_to_either_join() {
    let equalities = ["=", "is not distinct from"];
    for settings in [&PARTITIONED[..], &MIXED] {
        let setting = Setting::new(settings).await;
        for inner in equalities {
            for outer in equalities {
                for key in ["ak", "bk"] {
                    let query = format!(
                        "select count(*), sum(m.aid), sum(m.bid) from few f join (
                            select a.k as ak, b.k as bk, a.id as aid, b.id as bid
                            from (select * from many where id < 2000) a
                                join many b on a.k {inner} b.k
                            where b.id < 9000
                         ) m on f.k {outer} m.{key} where f.id < {{x}}"
                    );
                    setting.compare(&query).await;
                    // No NULL among the build keys.
                    let query = query.replace("f.id <", "f.k is not null and f.id <");
                    setting.compare(&query).await;
                }
            }
        }
        setting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_copy_goes_across_an_outer_or_anti_join() {
    // Each gives other rows if a row of `b` is missing that the filter by `few` would drop
    // before its NULLs, its marks or its absence have been told from those of others.
    let queries = [
        "select count(*), count(m.bk), sum(m.aid) from few f join (
            select a.k as ak, b.k as bk, a.id as aid from many a left join many b
                on a.k = b.k and b.id < 9000
         ) m on f.k is not distinct from m.bk where f.id < {x}",
        "select count(*), sum(m.aid), sum(m.bid) from few f join (
            select a.k as ak, a.id as aid, b.id as bid from many a left join many b
                on a.k = b.k and b.id < 9000
         ) m on f.k = m.ak where f.id < {x}",
        "select count(*), count(m.ak), count(m.bk) from few f join (
            select a.k as ak, b.k as bk from (select * from many where id < 9000) a
                full join (select * from many where id > 4000 and id < 12000) b on a.k = b.k
         ) m on f.k is not distinct from m.bk where f.id < {x}",
        "select count(*), sum(m.id) from few f join (
            select a.k, a.id from many a where not exists (
                select 1 from many b where a.k = b.k and b.id < a.id)
         ) m on f.k = m.k where f.id < {x}",
        "select count(*), sum(m.id) from few f join (
            select a.k, a.id from many a where a.id < 900 or exists (
                select 1 from many b where a.k = b.k and b.id > 39000)
         ) m on f.k = m.k where f.id < {x}",
    ];
    for settings in [&PARTITIONED[..], &MIXED, &MERGE] {
        let setting = Setting::new(settings).await;
        for query in queries {
            setting.compare(query).await;
        }
        setting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_key_go_where_the_whole_cannot() {
    let query = "select count(*), sum(m.aid), sum(m.bid) from few f join (
            select a.k, b.i, a.id as aid, b.id as bid from many a join many b on a.id = b.id
         ) m on (f.k {eq} m.k) and (f.i {eq} m.i) where f.id < {x}";
    for settings in [&PARTITIONED[..], &MIXED, &MERGE] {
        let setting = Setting::new(&[settings, &AT_PROBES].concat()).await;
        for eq in ["=", "is not distinct from"] {
            let probes = setting.compare(&query.replace("{eq}", eq)).await;
            // Which of them drops a row first depends on how the inner join is read.
            let mut dropped = 0;
            for key in ["k", "i"] {
                let places: Vec<_> = probes.values().flatten().filter(|p| p.0 == key).collect();
                assert!(!places.is_empty(), "{settings:?} {eq} {key}: {probes:?}");
                dropped += places.iter().map(|place| place.1).sum::<usize>();
            }
            assert!(dropped > 39_000, "{settings:?} {eq}: {probes:?}");
        }
        setting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcast_filters_make_the_next_ones_strict() {
    // Only one row of `g` belongs to a row of `f`; both are broadcast.
    let query = "select count(*), sum(a.id) from many a join many b on a.id = b.id
        join few g on g.k = b.k join few f on f.i = g.i where f.id = {x}";
    let settings = [&MIXED[..], &AT_PROBES].concat();
    let setting = Setting::new(&settings).await;
    let probes = setting.compare(query).await;
    let (stone, next) = probes
        .iter()
        .find(|(_, places)| places.iter().any(|place| place.0 == "i"))
        .map(|(filter, _)| (*filter, *filter + 1))
        .unwrap_or_else(|| panic!("no stepping stone: {probes:?}"));
    // Of 60 rows of `g` all but those of one value.
    assert!(probes[&stone][0].1 >= 50, "{probes:?}");
    // So that the filter by `g` keeps less than one by all of `few` could: 60 of 5000 keys.
    let dropped: usize = probes[&next].iter().map(|place| place.1).sum();
    assert!(dropped > 39_900, "{probes:?}");
    setting.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_a_missed_one_should_have_made_strict_is_not_sent() {
    // Region -> nation -> customer -> orders; without the first all customers are left.
    let sql = runtime_filter_tpch::query(8).unwrap();
    let cluster = Cluster::start(4).await;
    let folder = tpch_folder(0.1);
    let session = async |settings: &[(&str, &str)]| {
        let context = cluster.session(&[&MIXED[..], settings].concat());
        register_folder(&context, &folder).await;
        context
    };
    let off = run(&session(&ORACLE).await, sql).await;
    let patient = session(&[("runtime_filter.wait_timeout_ms", "30000")]).await;
    let hasty = session(&[("runtime_filter.wait_timeout_ms", "0")]).await;
    let (patient, hasty) = (run(&patient, sql).await, run(&hasty, sql).await);
    patient
        .rows
        .assert_same(&off.rows, "with a patient stepping stone");
    hasty
        .rows
        .assert_same(&off.rows, "with a hasty stepping stone");
    let customers = |run: &Run| {
        let by_key = |filter: &&FilterReport| filter.join.contains("c_custkey");
        run.report.filters.iter().find(by_key).cloned().unwrap()
    };
    let with = customers(&patient);
    assert_eq!(with.verdict, "applied", "{}", patient.report);
    // A fifth of the customers.
    assert!(with.build.rows < 4_000, "{}", patient.report);
    assert!(with.probe.rows_dropped > 10_000, "{}", patient.report);
    // The nations are read at once, so that the region's filter nearly always is too late.
    if hasty.report.filters[0].probe.rows_dropped == 0 {
        let without = customers(&hasty);
        let reason = without.reason.unwrap_or_default();
        assert_eq!(
            reason, "the filter would keep nearly every row",
            "{}",
            hasty.report
        );
    }
    cluster.assert_empty().await;
}
