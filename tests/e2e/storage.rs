//! Parquet scans below a probe leave out what holds no key: files, row groups, pages
//! and, where the session asks for it, rows. Equal rows in every case.

use std::path::Path;
use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_runtime_filter::{RuntimeFilterOptions, RuntimeFilterRule};

use crate::support::{Cluster, ORACLE, PARTITIONED, Run, run, set};

/// `big`: 40,000 rows over four files in row groups of 1,000, sorted by every key
/// column at once. In `n` every 13th is NULL, `shuffled` is in no order. `small`: 200
/// rows whose keys lie in the middle of `big`'s second file.
async fn write_tables(folder: &Path) {
    let context = SessionContext::new();
    set(
        &context,
        &[
            ("datafusion.execution.parquet.max_row_group_size", "1000"),
            (
                "datafusion.execution.parquet.data_page_row_count_limit",
                "250",
            ),
            ("datafusion.execution.parquet.write_batch_size", "250"),
            ("datafusion.execution.target_partitions", "1"),
        ],
    );
    let columns = "
        v as k,
        case when v % 13 = 0 then null else v end as n,
        'a common prefix of some length: ' || lpad(cast(v as varchar), 8, '0') as s,
        cast(v as decimal(18, 2)) / 4 as d,
        date '2000-01-01' + cast((v / 10) || ' days' as interval) as day,
        arrow_cast(v, 'Timestamp(Microsecond, None)') as t,
        arrow_cast(v, 'UInt32') as u,
        v + 0.5 as f,
        v * 7919 % 40000 as shuffled,
        v as id";
    for (table, files) in [
        (
            "big",
            &[
                (0, 10_000),
                (10_000, 20_000),
                (20_000, 30_000),
                (30_000, 40_000),
            ][..],
        ),
        ("small", &[(14_000, 14_100), (14_100, 14_200)][..]),
    ] {
        std::fs::create_dir_all(folder.join(table)).unwrap();
        for (i, (from, to)) in files.iter().enumerate() {
            let file = folder.join(table).join(format!("{i}.parquet"));
            let sql = format!(
                "copy (select {columns} from (select value as v from range({from}, {to}))) to '{}' stored as parquet",
                file.display()
            );
            context.sql(&sql).await.unwrap().collect().await.unwrap();
        }
    }
}

async fn register(context: &SessionContext, folder: &Path) {
    for table in ["big", "small"] {
        let path = folder.join(table);
        context
            .register_parquet(table, path.to_str().unwrap(), ParquetReadOptions::default())
            .await
            .unwrap();
    }
}

const FORCE: [(&str, &str); 3] = [
    ("runtime_filter.force", "true"),
    ("runtime_filter.late_materialization", "true"),
    ("runtime_filter.begin_timeout_ms", "30000"),
];

/// One query under the same settings with filters off, with filters that do not reach
/// into storage, and with all.
#[derive(Debug)]
struct Three {
    off: Run,
    above: Run,
    on: Run,
}

impl Three {
    #[track_caller]
    fn pruned(&self, least: u64) {
        let (off, above, on) = (
            self.off.report.storage,
            self.above.report.storage,
            self.on.report.storage,
        );
        assert_eq!(off.row_groups_pruned, above.row_groups_pruned);
        let left_out = |storage: datafusion_runtime_filter::Storage| {
            storage.row_groups_pruned + 10 * storage.files_pruned
        };
        assert!(
            left_out(on) >= left_out(off) + least,
            "{off:?}\n{on:?}\n{}",
            self.on.report
        );
        assert!(on.bytes_scanned < off.bytes_scanned, "{off:?}\n{on:?}");
        assert_eq!(on.file_bytes, off.file_bytes);
        let spared = off.bytes_scanned - on.bytes_scanned;
        assert_eq!(on.bytes_pruned, off.bytes_pruned + spared);
    }

    #[track_caller]
    fn not_pruned(&self) {
        let (off, on) = (self.off.report.storage, self.on.report.storage);
        assert_eq!(
            (off.files_pruned, off.row_groups_pruned, off.pages_pruned),
            (on.files_pruned, on.row_groups_pruned, on.pages_pruned)
        );
    }

    /// A filter was really applied, in storage or above it.
    #[track_caller]
    fn applied(&self) {
        let report = &self.on.report;
        assert!(
            report.filters.iter().any(|f| f.verdict == "applied"),
            "{report}"
        );
    }
}

/// Where queries run.
struct Bench {
    folder: tempfile::TempDir,
    cluster: Option<Cluster>,
}

impl Bench {
    async fn new(clustered: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_tables(folder.path()).await;
        let cluster = match clustered {
            true => Some(Cluster::start(2).await),
            false => None,
        };
        Self { folder, cluster }
    }

    /// Size of both tables.
    fn file_bytes(&self) -> u64 {
        let folders = ["big", "small"].map(|table| self.folder.path().join(table));
        let files = folders
            .iter()
            .flat_map(|folder| std::fs::read_dir(folder).unwrap());
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum()
    }

    async fn session(&self, filters: bool, settings: &[(&str, &str)]) -> SessionContext {
        let context = match &self.cluster {
            Some(cluster) => cluster.session(settings),
            None => {
                let builder = SessionStateBuilder::new()
                    .with_default_features()
                    .with_config(
                        SessionConfig::new()
                            .with_target_partitions(2)
                            .with_option_extension(RuntimeFilterOptions::default()),
                    );
                let rule = RuntimeFilterRule::new(RuntimeFilterOptions::default());
                let builder = match filters {
                    true => builder.with_physical_optimizer_rule(Arc::new(rule)),
                    false => builder,
                };
                let context = SessionContext::new_with_state(builder.build());
                set(&context, settings);
                context
            }
        };
        register(&context, self.folder.path()).await;
        context
    }

    async fn three(&self, sql: &str, settings: &[(&str, &str)]) -> Three {
        let settings = [&PARTITIONED[..], settings].concat();
        let dynamic = [ORACLE[1]];
        let on = [&FORCE[..], &dynamic, &settings].concat();
        let above = [&on[..], &[("runtime_filter.storage_pruning", "false")]].concat();
        let off = [&ORACLE[..], &settings].concat();
        let off = run(&self.session(false, &off).await, sql).await;
        let above = run(&self.session(true, &above).await, sql).await;
        let on = run(&self.session(true, &on).await, sql).await;
        above.rows.assert_same(&off.rows, sql);
        on.rows.assert_same(&off.rows, sql);
        Three { off, above, on }
    }
}

async fn narrow_keys_leave_most_of_the_file_out(clustered: bool) {
    let bench = Bench::new(clustered).await;
    for (key, matches) in [
        ("k", 200),
        ("n", 184),
        ("s", 200),
        ("d", 200),
        ("t", 200),
        ("u", 200),
        ("day", 2000),
    ] {
        let sql = format!(
            "select count(*), sum(b.id), min(b.shuffled) from small a join big b on a.{key} = b.{key}"
        );
        let three = bench.three(&sql, &[]).await;
        three.applied();
        three.pruned(30);
        let count = format!("select count(*) from small a join big b on a.{key} = b.{key}");
        let three = bench.three(&count, &[]).await;
        assert_eq!(three.on.rows.number(), matches, "{key}");
    }
    // Through a projection, a condition and an aggregation of the large side, and with
    // a composite key of which one column is sorted.
    for sql in [
        "select count(*), sum(x) from small a join (select id + 1 as x, k as z from big where shuffled % 2 = 0) b on a.k = b.z",
        "select count(*), sum(b.id) from small a join big b on a.shuffled = b.shuffled and a.d = b.d",
        "select count(*), sum(c) from small a join (select k, count(*) c from big group by k) b on a.k = b.k",
        "select count(*), sum(b.id) from small a join big b on a.k = b.k join small c on b.s = c.s",
    ] {
        let three = bench.three(sql, &[]).await;
        three.applied();
        three.pruned(30);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn narrow_keys_leave_most_of_the_file_out_on_a_cluster() {
    narrow_keys_leave_most_of_the_file_out(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn narrow_keys_leave_most_of_the_file_out_in_one_process() {
    narrow_keys_leave_most_of_the_file_out(false).await;
}

async fn null_keys_find_their_partners(clustered: bool) {
    let bench = Bench::new(clustered).await;
    // 14,000 to 14,199 has 16 multiples of 13: NULL joins NULL, 16 times 3,077 rows.
    let sql = "select count(*) from small a join big b on a.n is not distinct from b.n";
    let three = bench.three(sql, &[]).await;
    assert_eq!(three.on.rows.number(), 184 + 16 * 3077);
    three.applied();
    three.not_pruned();
    // Without a NULL on the build side the NULLs of the probe side have no partner.
    let sql = "select count(*) from (select n from small where n is not null) a \
               join big b on a.n is not distinct from b.n";
    let three = bench.three(sql, &[]).await;
    assert_eq!(three.on.rows.number(), 184);
    three.pruned(30);
    // NULL in one column of two.
    let sql = "select count(*), sum(b.id) from small a join big b \
               on (a.n is not distinct from b.n) and (a.k is not distinct from b.k)";
    bench.three(sql, &[]).await.not_pruned();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_keys_find_their_partners_on_a_cluster() {
    null_keys_find_their_partners(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_keys_find_their_partners_in_one_process() {
    null_keys_find_their_partners(false).await;
}

/// Keys all over the files: nothing can be left out but the other columns of the rows.
async fn other_columns_are_decoded_only_where_a_key_matches(clustered: bool) {
    let bench = Bench::new(clustered).await;
    let sql =
        "select count(*), sum(b.id), min(b.s) from small a join big b on a.shuffled = b.shuffled";
    let off = [("runtime_filter.late_materialization", "false")];
    let three = bench.three(sql, &[]).await;
    three.not_pruned();
    assert_eq!(three.on.report.storage.file_bytes, bench.file_bytes());
    let without = bench.three(sql, &off).await.on.report;
    let with = three.on.report;
    let [with, without] = [with, without].map(|report| report.filters[0].clone());
    assert_eq!(without.probe.rows_dropped_in_scan, 0);
    assert!(with.probe.rows_dropped_in_scan > 39_000, "{with:?}");
    // Whoever drops them, the rows and what is measured of them stay the same.
    assert_eq!(with.probe.rows_in, 40_000);
    assert_eq!(with.probe.rows_in, without.probe.rows_in);
    assert_eq!(with.probe.switched_off, 0);
    assert!(
        (39_000..=39_800).contains(&with.probe.rows_dropped),
        "{with:?}"
    );
    assert!(with.measured_fpp.is_some_and(|fpp| fpp < 0.05), "{with:?}");
    let count = "select count(*) from small a join big b on a.shuffled = b.shuffled and a.id = b.id where b.f > 0";
    assert_eq!(bench.three(count, &[]).await.on.rows.number(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_columns_are_decoded_only_where_a_key_matches_on_a_cluster() {
    other_columns_are_decoded_only_where_a_key_matches(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_columns_are_decoded_only_where_a_key_matches_in_one_process() {
    other_columns_are_decoded_only_where_a_key_matches(false).await;
}

async fn nothing_is_pruned_where_nothing_may_be(clustered: bool) {
    let bench = Bench::new(clustered).await;
    for sql in [
        // Keys all over the files.
        "select count(*), sum(b.id) from small a join big b on a.shuffled = b.shuffled",
        // No order to rely on.
        "select count(*), sum(b.id) from small a join big b on a.f = b.f",
        // Not a column of the file.
        "select count(*), sum(b.id) from small a join (select k + 1 as z, id from big) b on a.k = b.z",
        // Other rows would come within the limit.
        "select count(*), sum(b.id) from small a join (select k, id from big order by id limit 15000) b on a.k = b.k",
        // The large side is preserved.
        "select count(*), count(a.id), sum(b.id) from small a right join big b on a.k = b.k",
    ] {
        bench.three(sql, &[]).await.not_pruned();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_pruned_where_nothing_may_be_on_a_cluster() {
    nothing_is_pruned_where_nothing_may_be(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_pruned_where_nothing_may_be_in_one_process() {
    nothing_is_pruned_where_nothing_may_be(false).await;
}

async fn late_filters_and_row_filters_change_no_row(clustered: bool) {
    let bench = Bench::new(clustered).await;
    let late = [
        ("runtime_filter.wait_timeout_ms", "0"),
        ("runtime_filter.in_stage_wait_ms", "0"),
    ];
    let rows = [
        ("datafusion.execution.parquet.pushdown_filters", "true"),
        ("datafusion.execution.parquet.reorder_filters", "true"),
    ];
    let stealing = [(
        "datafusion.execution.enable_file_stream_work_stealing",
        "false",
    )];
    let no_index = [("datafusion.execution.parquet.enable_page_index", "false")];
    for settings in [
        late.to_vec(),
        rows.to_vec(),
        [&late[..], &rows].concat(),
        stealing.to_vec(),
        [&late[..], &no_index].concat(),
    ] {
        for sql in [
            "select count(*), sum(b.id) from small a join big b on a.k = b.k",
            "select count(*), sum(b.id) from small a join big b on a.s = b.s where b.shuffled % 3 = 0",
            "select count(*), sum(b.id) from small a join big b on a.n is not distinct from b.n",
            "select count(*), sum(b.id) from small a join big b on a.shuffled = b.shuffled",
            "select count(*), sum(b.id) from big b where exists (select 1 from small a where a.d = b.d)",
        ] {
            bench.three(sql, &settings).await;
        }
    }
    let sql = "select count(*), sum(b.id) from small a join big b on a.n = b.n";
    let three = bench.three(sql, &rows).await;
    assert!(
        three.on.report.storage.rows_pruned > 0,
        "{}",
        three.on.report
    );
    assert_eq!(three.off.report.storage.rows_pruned, 0);
    three.pruned(30);
    if let Some(cluster) = &bench.cluster {
        cluster.assert_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_filters_and_row_filters_change_no_row_on_a_cluster() {
    late_filters_and_row_filters_change_no_row(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_filters_and_row_filters_change_no_row_in_one_process() {
    late_filters_and_row_filters_change_no_row(false).await;
}
