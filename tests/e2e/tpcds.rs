//! TPC-DS: every query that DataFusion runs gives the same rows with filters as without.
//!
//! The gate takes the smallest scale. A larger one, with the thresholds of a user as well:
//!
//! ```text
//! TPCDS_SCALE=1 cargo test --release --workspace --test e2e tpcds -- --ignored --nocapture
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::prelude::SessionContext;
use datafusion_runtime_filter::{RuntimeFilterOptions, query_report};
use runtime_filter_tpcds::{MIN_SCALE, QUERY_COUNT, generate, query};

use crate::support::{Cluster, ORACLE, PARTITIONED, plan, register_folder, rows_of};

const FORCED: [(&str, &str); 1] = [("runtime_filter.force", "true")];

/// The slack of a loaded machine.
const GRACE: Duration = Duration::from_secs(2);

fn folder(scale: f64) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tpcds-{scale}"));
    generate(&folder, scale, &mut |_| {}).unwrap();
    folder
}

/// The text without the LIMIT of the whole, where rows that compare equal make any choice of
/// them right.
fn unlimited(sql: &str) -> Option<&str> {
    let (head, count) = sql.rsplit_once(|c: char| c.is_whitespace())?;
    let head = head.trim_end();
    let limit = head.len().checked_sub("limit".len())?;
    let ends = head.get(limit..)?.eq_ignore_ascii_case("limit") && count.parse::<u64>().is_ok();
    ends.then(|| &head[..limit])
}

#[test]
fn the_limit_of_the_whole_is_left_out() {
    assert_eq!(unlimited("SELECT 1\nLIMIT 100"), Some("SELECT 1\n"));
    assert_eq!(unlimited("SELECT * FROM (SELECT 1 LIMIT 2)"), None);
    assert_eq!(unlimited("SELECT 1"), None);
}

#[derive(Debug, Default)]
struct Totals {
    queries: usize,
    rows: usize,
    filters: usize,
    applied: usize,
    dropped: u64,
    /// Compared without the limit of the whole, because it was reached.
    unlimited: usize,
    /// Without the metrics of some task.
    unmeasured: usize,
    /// Longer than without filters, the wait budget and two seconds together.
    hangs: usize,
    off: Duration,
    on: Duration,
}

impl Totals {
    async fn compare(&mut self, number: u8, off: &SessionContext, on: &SessionContext) {
        let sql = query(number).unwrap();
        let planned = plan(on, sql).await;
        let (plain, took_off) = rows_of(off, sql, &plan(off, sql).await).await;
        let (filtered, took_on) = rows_of(on, sql, &planned).await;
        match unlimited(sql) {
            // Full, so that which of the rows at the end are among them is open.
            Some(all) if plain.0.len() >= 100 => {
                assert_eq!(filtered.0.len(), plain.0.len(), "Q{number}");
                let (plain, _) = rows_of(off, all, &plan(off, all).await).await;
                let (filtered, _) = rows_of(on, all, &plan(on, all).await).await;
                filtered.assert_same(&plain, &format!("Q{number} without its limit"));
                self.unlimited += 1;
            }
            _ => filtered.assert_same(&plain, &format!("Q{number}")),
        }
        self.queries += 1;
        self.rows += plain.0.len();
        let wait = Duration::from_millis(RuntimeFilterOptions::default().wait_timeout_ms);
        self.hangs += usize::from(took_on > took_off + wait + GRACE);
        self.off += took_off;
        self.on += took_on;
        let (off, on) = (took_off.as_secs_f64(), took_on.as_secs_f64());
        // The engine never runs some tasks of a union, and waits for what they report.
        let Ok(report) = query_report(&planned, sql, filtered.0.len(), took_on).await else {
            self.unmeasured += 1;
            println!(
                "Q{number}: {} rows, unmeasured, {off:.2} s off, {on:.2} s on",
                plain.0.len()
            );
            return;
        };
        let dropped = report.rows_dropped();
        let applied = report.filters.iter().filter(|f| f.verdict == "applied");
        let applied = applied.count();
        self.filters += report.filters.len();
        self.applied += applied;
        self.dropped += dropped;
        println!(
            "Q{number}: {} rows, {applied} of {} filters applied, {dropped} rows dropped, {off:.2} s off, {on:.2} s on",
            plain.0.len(),
            report.filters.len(),
        );
    }
}

async fn off_and_on(scale: f64, settings: &[(&str, &str)]) -> Totals {
    let cluster = Cluster::start(2).await;
    let folder = folder(scale);
    let off = cluster.session(&[&ORACLE, settings].concat());
    let on = cluster.session(settings);
    register_folder(&off, &folder).await;
    register_folder(&on, &folder).await;
    let mut totals = Totals::default();
    for number in 1..=QUERY_COUNT {
        totals.compare(number, &off, &on).await;
    }
    cluster.assert_empty().await;
    println!("scale {scale}, {settings:?}: {totals:?}, 0 wrong, 0 left registered");
    totals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_filters_give_equal_rows() {
    let totals = off_and_on(MIN_SCALE, &[&PARTITIONED[..], &FORCED].concat()).await;
    assert_eq!(totals.queries, usize::from(QUERY_COUNT));
    assert!(totals.unmeasured <= 3, "{totals:?}");
    assert!(
        totals.applied >= 400 && totals.dropped > 10_000_000,
        "{totals:?}"
    );
}

/// For a scale of one's own, and with the gate of costs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and more at a larger scale"]
async fn filters_give_equal_rows_at_scale() {
    let scale = std::env::var("TPCDS_SCALE").map_or(MIN_SCALE, |scale| scale.parse().unwrap());
    for settings in [
        vec![],
        PARTITIONED.to_vec(),
        [&PARTITIONED[..], &FORCED].concat(),
    ] {
        let totals = off_and_on(scale, &settings).await;
        assert_eq!(totals.hangs, 0, "{totals:?}");
    }
}
