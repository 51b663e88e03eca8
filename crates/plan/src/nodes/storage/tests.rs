#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::path::Path;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{Field, Int64Type, Schema};
use datafusion::physical_plan::displayable;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use runtime_filter_core::{KeyHasher, PartialBuilder, SizingPolicy};
use runtime_filter_exchange::{ActiveExecution, ExecutionRequest, FilterPolicy, InProcessExchange};

use super::*;
use crate::nodes::adaptive::Adaptive;
use crate::nodes::metric::ScanRows;
use crate::spec::{Estimates, FilterSpec, WaitClass};

const ROWS_A_FILE: i64 = 5_000;

/// `k` and `v` from 0 on, `files` files of 5,000 rows in row groups of 500.
async fn table(folder: &Path, files: i64) {
    let context = SessionContext::new();
    for (key, value) in [
        ("datafusion.execution.parquet.max_row_group_size", "500"),
        ("datafusion.execution.target_partitions", "1"),
    ] {
        let state = context.state_ref();
        let mut state = state.write();
        state.config_mut().options_mut().set(key, value).unwrap();
    }
    for file in 0..files {
        let (from, to) = (file * ROWS_A_FILE, (file + 1) * ROWS_A_FILE);
        let sql = format!(
            "copy (select value as k, value as v from range({from}, {to})) to '{}' stored as parquet",
            folder.join(format!("{file}.parquet")).display()
        );
        context.sql(&sql).await.unwrap().collect().await.unwrap();
    }
}

fn spec(null_equals_null: bool) -> Arc<FilterSpec> {
    Arc::new(FilterSpec {
        id: 0,
        join: "Inner k = k".into(),
        null_equals_null,
        wait: WaitClass::Ordered,
        estimates: Estimates::default(),
        leans_on_probes: false,
    })
}

/// The scan of the table that `sql` reads under a probe on its first column, pruned.
async fn plan(
    folder: &Path,
    sql: &str,
    partitions: usize,
    settings: &[(&str, &str)],
) -> (Arc<dyn ExecutionPlan>, SessionContext) {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(100)
        .with_option_extension(RuntimeFilterOptions::default());
    let context = SessionContext::new_with_config(config);
    let late = ("runtime_filter.late_materialization", "true");
    for (key, value) in [late].iter().chain(settings) {
        let state = context.state_ref();
        let mut state = state.write();
        state.config_mut().options_mut().set(key, value).unwrap();
    }
    let options = ParquetReadOptions::default();
    let path = folder.to_str().unwrap();
    context.register_parquet("t", path, options).await.unwrap();
    let input = context.sql(sql).await.unwrap();
    let input = input.create_physical_plan().await.unwrap();
    let probe = RuntimeFilterProbeExec::try_new(spec(false), vec![0], input).unwrap();
    let plan = prune_scans(Arc::new(probe), context.state().config()).unwrap();
    (plan, context)
}

fn is_pruned(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let text = displayable(plan.as_ref()).indent(true).to_string();
    text.contains("runtime_filters=[0]")
}

fn begin() -> ActiveExecution {
    InProcessExchange::new().begin(ExecutionRequest {
        max_filter_bytes: 1 << 16,
        filters: vec![FilterPolicy {
            id: 0,
            sizing: SizingPolicy::default(),
            rule: Default::default(),
            probe_bytes: None,
            probe_keys: None,
            max_cost_share: 1.0,
            force: true,
        }],
    })
}

/// A task of `execution`.
fn task(context: &SessionContext, execution: &ActiveExecution) -> Arc<TaskContext> {
    let mut config = context.state().config().clone();
    let options = RuntimeFilterOptions {
        execution_id: execution.id().to_string(),
        ..RuntimeFilterOptions::from_config(config.options())
            .unwrap()
            .clone()
    };
    config.options_mut().extensions.insert(options);
    config.set_extension(Arc::clone(execution.registry()));
    let task = TaskContext::default().with_session_config(config);
    Arc::new(task.with_runtime(context.runtime_env()))
}

fn filter_of(keys: Vec<Option<i64>>, seed: u64) -> RuntimeFilter {
    let columns: [ArrayRef; 1] = [Arc::new(Int64Array::from(keys))];
    let mut builder = PartialBuilder::new(64, seed);
    let mut hashes = vec![];
    let validity = KeyHasher::try_new(&[DataType::Int64], seed)
        .unwrap()
        .hash_batch(&columns, &mut hashes)
        .unwrap();
    builder
        .insert_batch(&columns, &hashes, validity.as_ref())
        .unwrap();
    RuntimeFilter::from_partial(builder.finish(), &SizingPolicy::default()).unwrap()
}

fn deliver(execution: &ActiveExecution, keys: std::ops::Range<i64>) {
    let execution = execution.registry().execution(&execution.id()).unwrap();
    let filter = filter_of(keys.map(Some).collect(), execution.settings().seed);
    execution.deliver(0, Verdict::Filter(Arc::new(filter)));
}

async fn rest(mut stream: SendableRecordBatchStream) -> Vec<i64> {
    let mut found = vec![];
    while let Some(batch) = stream.next().await {
        found.extend(
            batch
                .unwrap()
                .column(0)
                .as_primitive::<Int64Type>()
                .values(),
        );
    }
    found
}

fn scan_metrics(plan: &Arc<dyn ExecutionPlan>) -> MetricsSet {
    let mut metrics = MetricsSet::new();
    plan.apply(|node| {
        if node.is::<DataSourceExec>() {
            metrics = node.metrics().unwrap();
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    metrics
}

fn counter(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let metrics = scan_metrics(plan);
    let sum = metrics.sum(|metric| metric.value().name() == name);
    sum.map_or(0, |value| value.as_usize())
}

#[tokio::test]
async fn a_filter_that_comes_while_a_file_is_read_prunes_the_rest_of_it() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 1).await;
    let (plan, context) = plan(folder.path(), "select k, v from t", 1, &[]).await;
    assert!(is_pruned(&plan));
    let scan = plan.children()[0];
    let execution = begin();
    let mut stream = scan.execute(0, task(&context, &execution)).unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert!(first.num_rows() > 0);
    deliver(&execution, 4_100..4_200);
    let found = rest(stream).await;
    assert!((4_100..4_200).all(|key| found.contains(&key)));
    assert!(found.len() < 2_000, "{} rows read", found.len());
    assert!(counter(scan, "row_groups_pruned_dynamic_filter") >= 5);
}

#[tokio::test]
async fn siblings_share_files_as_without_filters() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 6).await;
    for stealing in ["true", "false"] {
        let setting = (
            "datafusion.execution.enable_file_stream_work_stealing",
            stealing,
        );
        for execute_all_first in [true, false] {
            let (plan, context) = plan(folder.path(), "select k, v from t", 3, &[setting]).await;
            assert!(is_pruned(&plan));
            let scan = Arc::clone(plan.children()[0]);
            let execution = begin();
            let context = task(&context, &execution);
            let open = |partition| scan.execute(partition, Arc::clone(&context)).unwrap();
            let partitions = scan.properties().partitioning.partition_count();
            assert!(partitions > 1);
            let mut found = vec![];
            // The last one first, and to its end, before the others are polled.
            if execute_all_first {
                let streams: Vec<_> = (0..partitions).map(open).collect();
                for stream in streams.into_iter().rev() {
                    found.extend(rest(stream).await);
                }
            } else {
                for partition in (0..partitions).rev() {
                    found.extend(rest(open(partition)).await);
                }
            }
            found.sort_unstable();
            assert_eq!(
                found,
                (0..6 * ROWS_A_FILE).collect::<Vec<_>>(),
                "{setting:?}"
            );
        }
    }
}

#[tokio::test]
async fn each_execution_of_a_plan_has_its_own_bounds() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 1).await;
    // Without sharing of files a plan can be executed again, even at the same time.
    let setting = (
        "datafusion.execution.enable_file_stream_work_stealing",
        "false",
    );
    let (plan, context) = plan(folder.path(), "select k, v from t", 1, &[setting]).await;
    let scan = Arc::clone(plan.children()[0]);
    let (low, high, none) = (begin(), begin(), begin());
    deliver(&low, 0..100);
    deliver(&high, 4_900..5_000);
    let open = |execution| scan.execute(0, task(&context, execution)).unwrap();
    let (low_rows, high_rows, all) = (open(&low), open(&high), open(&none));
    let (low_rows, high_rows) = (rest(low_rows).await, rest(high_rows).await);
    assert!((0..100).all(|key| low_rows.contains(&key)) && low_rows.len() <= 500);
    assert!((4_900..5_000).all(|key| high_rows.contains(&key)) && high_rows.len() <= 500);
    assert_eq!(rest(all).await.len(), 5_000);
    let outside = scan.execute(0, context.task_ctx()).unwrap();
    assert_eq!(rest(outside).await.len(), 5_000, "no execution at all");
}

#[tokio::test]
async fn only_scans_that_the_key_plainly_comes_from_are_pruned() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 1).await;
    for (sql, wanted) in [
        ("select v, k from t", true),
        ("select k as x from t where v % 2 = 0", true),
        ("select k + 1 as k from t", false),
        ("select k from t limit 10", false),
        ("select k from t where random() < 0.5", false),
        ("select k from t order by v", false),
        ("select k from t union all select v from t", false),
        ("select value as k from range(0, 10)", false),
    ] {
        let (plan, _) = plan(folder.path(), sql, 1, &[]).await;
        assert_eq!(is_pruned(&plan), wanted, "{sql}");
    }
    let off = [("runtime_filter.storage_pruning", "false")];
    let (plan, _) = plan(folder.path(), "select k from t", 1, &off).await;
    assert!(!is_pruned(&plan));
}

fn scan_filter(data_type: DataType, null_equals_null: bool) -> ScanFilter {
    ScanFilter {
        id: 0,
        null_equals_null,
        keys: vec![ScanKey {
            column: Column::new("k", 0),
            data_type,
            extent: Some((ScalarValue::Int64(Some(0)), ScalarValue::Int64(Some(10)))),
        }],
        spared: None,
    }
}

fn predicates(of: &ScanFilter, filter: &RuntimeFilter) -> [Option<String>; 2] {
    let data_type = of.keys[0].data_type.clone();
    let schema = Arc::new(Schema::new(vec![Field::new("k", data_type, true)]));
    let values = values_predicate(of, filter, &schema).unwrap();
    [bounds_predicate(of, filter), values].map(|p| p.map(|p| p.to_string()))
}

#[test]
fn predicates_say_what_the_filter_knows_and_no_more() {
    let ints = scan_filter(DataType::Int64, false);
    let [bounds, values] = predicates(&ints, &filter_of(vec![Some(3), Some(5), None], 1));
    assert_eq!(bounds.unwrap(), "k@0 >= 3 AND k@0 <= 5");
    assert!(values.unwrap().starts_with("k@0 IN (SET) ([3, 5])"));
    // One value is a range, and a range that covers the files says nothing.
    let [bounds, values] = predicates(&ints, &filter_of(vec![Some(3)], 1));
    assert_eq!(bounds.unwrap(), "k@0 >= 3 AND k@0 <= 3");
    assert_eq!(values, None);
    let all = filter_of((0..=100).map(Some).collect(), 1);
    assert_eq!(predicates(&ints, &all), [None, None]);
    // No key, no partner.
    let empty = filter_of(vec![None], 1);
    assert_eq!(predicates(&ints, &empty)[0].as_deref(), Some("false"));
    // NULL finds NULL.
    let nulls = scan_filter(DataType::Int64, true);
    assert_eq!(
        predicates(&nulls, &filter_of(vec![Some(3), Some(4), None], 1)),
        [None, None]
    );
    assert_eq!(predicates(&nulls, &empty), [None, None]);
    assert!(predicates(&nulls, &filter_of(vec![Some(3)], 1))[0].is_some());
    // Values that the column cannot hold.
    let narrow = scan_filter(DataType::Int8, false);
    assert_eq!(
        predicates(&narrow, &filter_of(vec![Some(3), Some(300)], 1)),
        [None, None]
    );
    let text = scan_filter(DataType::Utf8, false);
    assert_eq!(
        predicates(&text, &filter_of(vec![Some(3), Some(4)], 1)),
        [None, None]
    );
}

/// Rows that the scan of `sql` returns under a filter of `keys` that is there in time, and
/// how many rows it looked up in the filter and dropped.
async fn late(
    folder: &Path,
    sql: &str,
    keys: impl IntoIterator<Item = i64>,
    settings: &[(&str, &str)],
) -> (Vec<i64>, [usize; 2]) {
    let (plan, context) = plan(folder, sql, 1, settings).await;
    let execution = begin();
    let running = execution.registry().execution(&execution.id()).unwrap();
    let filter = filter_of(
        keys.into_iter().map(Some).collect(),
        running.settings().seed,
    );
    running.deliver(0, Verdict::Filter(Arc::new(filter)));
    let scan = plan.children()[0];
    let found = rest(scan.execute(0, task(&context, &execution)).unwrap()).await;
    let counts = [ScanRows::In, ScanRows::Dropped].map(|rows| counter(scan, &rows.name(0)));
    (found, counts)
}

#[tokio::test]
async fn a_strict_filter_spares_the_decoding_of_other_columns() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 1).await;
    // Ten keys in each row group, so that none can be left out, and too many for a list.
    let keys = || (0..5_000).step_by(50);
    let sql = "select k, v from t";
    let (found, counts) = late(folder.path(), sql, keys(), &[]).await;
    assert_eq!(found, keys().collect::<Vec<_>>());
    assert_eq!(counts, [5_000, 4_900]);
    // The query's own condition comes first.
    let odd = "select k, v from t where v % 20 = 0";
    let force = [("runtime_filter.force", "true")];
    let (found, counts) = late(folder.path(), odd, keys(), &force).await;
    assert_eq!(found, (0..5_000).step_by(100).collect::<Vec<_>>());
    assert_eq!(counts, [250, 200]);
    // A reader that takes one condition takes them all, which costs more than it spares.
    assert_eq!(late(folder.path(), odd, keys(), &[]).await.1, [0, 0]);
}

#[tokio::test]
async fn rows_are_not_dropped_in_a_scan_where_that_does_not_pay() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), 1).await;
    let few = || (0..5_000).step_by(50);
    // To the ends, so that the bounds drop no row.
    let many = || (0..5_000).step_by(2).chain([4_999]);
    let off = [("runtime_filter.late_materialization", "false")];
    let force = [("runtime_filter.force", "true")];
    let none = [0, 0];
    let scan = |sql, keys, settings| late(folder.path(), sql, keys, settings);
    let both = "select k, v from t";
    // Switched off; no other column to spare; half of the rows pass.
    assert_eq!(scan(both, few().collect::<Vec<_>>(), &off).await.1, none);
    let (found, counts) = scan("select k from t", few().collect(), &[]).await;
    assert_eq!((found.len(), counts), (5_000, none));
    let (found, counts) = scan(both, many().collect(), &[]).await;
    assert_eq!((found.len(), counts), (5_000, none));
    // Unless it is asked for. So many keys are a Bloom filter, which lets others pass.
    let (found, counts) = scan(both, many().collect(), &force).await;
    assert!(many().all(|key| found.contains(&key)) && found.len() < 3_000);
    assert_eq!(counts, [5_000, 5_000 - found.len()]);
}

#[tokio::test]
async fn a_filter_stricter_in_theory_than_in_fact_is_left_out_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    // All rows have one of the few keys of the build side, far from each other.
    let sql = format!(
        "copy (select value % 2 * 1000000 as k, value as v from range(0, 100000)) to '{}' stored as parquet",
        folder.path().join("0.parquet").display()
    );
    let context = SessionContext::new();
    context.sql(&sql).await.unwrap().collect().await.unwrap();
    let keys = (0..100).map(|i| i * 10_000 + 1).chain([0, 1_000_000]);
    let (found, [rows_in, dropped]) = late(folder.path(), "select k, v from t", keys, &[]).await;
    assert_eq!((found.len(), dropped), (100_000, 0));
    assert!(
        (Adaptive::WINDOW..Adaptive::WINDOW + 10_000).contains(&rows_in),
        "{rows_in} rows looked up"
    );
}

#[tokio::test]
async fn a_key_column_that_is_one_value_in_a_file_is_looked_up_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let sql = format!(
        "copy (select cast(7 as bigint) as k, value as v from range(0, 1000)) to '{}' stored as parquet",
        folder.path().join("0.parquet").display()
    );
    let context = SessionContext::new();
    context.sql(&sql).await.unwrap().collect().await.unwrap();
    // A hundred keys around the value: neither bounds nor a list say anything of it.
    let force = [("runtime_filter.force", "true")];
    for (first, rows) in [(0, 0), (1, 1_000)] {
        let keys = (first..200).step_by(2);
        let (found, _) = late(folder.path(), "select k, v from t", keys, &force).await;
        assert_eq!(found.len(), rows, "keys from {first} on");
    }
}
