//! The time that placing filters adds to planning a query of 30 joins.
//!
//!     cargo run --release -p runtime-filter-bench -- planning
//!
//! 31 small tables with statistics, joined in a chain and in a star, some of them filtered. The
//! optimised logical plan is turned into a physical one by the distributed planner, without runtime
//! filters and with them, in turns. Besides, the optimizer rule is timed alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::MemTable;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    RuntimeFilterOptions, RuntimeFilterProbeExec, RuntimeFilterRule, RuntimeFilterSessionExt,
    Workers,
};

use crate::Result;

const JOINS: usize = 30;

#[derive(Debug, clap::Args)]
pub(crate) struct PlanningArgs {
    /// Plans made of each query, with and without filters.
    #[arg(long, default_value_t = 101)]
    repeats: usize,
    /// Greatest difference that passes, in milliseconds.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

/// Whether no query takes longer to plan by more than the bar.
pub(crate) async fn bench(args: PlanningArgs) -> Result<bool> {
    println!(
        "{:>20} {:>8} {:>8} {:>10} {:>10} {:>12} {:>9} {:>11}",
        "query", "joins", "filters", "off ms", "on ms", "difference", "rule ms", "least ms"
    );
    let mut worst: f64 = 0.0;
    for (shape, sql) in [("chain", chain()), ("star", star())] {
        for (joins, threshold) in [("default", None), ("partitioned", Some("0"))] {
            let off = state(false, threshold)?;
            let on = state(true, threshold)?;
            let logical = off.optimize(&off.create_logical_plan(&sql).await?)?;
            let (mut off_ms, mut on_ms) = (vec![], vec![]);
            let (mut differences, mut rule_ms) = (vec![], vec![]);
            let plain = DefaultPhysicalPlanner::default()
                .create_physical_plan(&logical, &off)
                .await?;
            let mut placed = Arc::clone(&plain);
            let rule = RuntimeFilterRule::for_cluster(RuntimeFilterOptions::default());
            // The first plans warm up caches and the allocator.
            for i in 0..args.repeats.max(1) + 3 {
                let without = planning(&off, &logical).await?;
                let with = planning(&on, &logical).await?;
                let start = Instant::now();
                placed = rule.optimize(Arc::clone(&plain), off.config_options())?;
                let alone = start.elapsed();
                if i >= 3 {
                    off_ms.push(ms(without));
                    on_ms.push(ms(with));
                    differences.push(ms(with) - ms(without));
                    rule_ms.push(ms(alone));
                }
            }
            let difference = median(&mut differences);
            worst = worst.max(difference);
            println!(
                "{:>20} {:>8} {:>8} {:>10.3} {:>10.3} {:>12.3} {:>9.3} {:>11.3}",
                format!("{shape} {joins}"),
                JOINS,
                probes(&placed),
                median(&mut off_ms),
                median(&mut on_ms),
                difference,
                median(&mut rule_ms),
                // What other processes do to the machine it does not show.
                rule_ms.iter().copied().fold(f64::INFINITY, f64::min),
            );
        }
    }
    println!(
        "greatest difference {worst:.3} ms (bar {} ms)\n\
         medians of {} plans; off, on: physical planning by the distributed planner without and with filters;\n\
         difference: median of on - off, pair by pair; rule: the optimizer rule alone, least: the fastest of its runs; filters: probe nodes",
        args.bar,
        args.repeats.max(1)
    );
    Ok(worst <= args.bar)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn planning(state: &SessionState, logical: &LogicalPlan) -> Result<Duration> {
    let planner = state.query_planner();
    let start = Instant::now();
    let plan = planner.create_physical_plan(logical, state).await?;
    let elapsed = start.elapsed();
    drop(plan);
    Ok(elapsed)
}

fn probes(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let mut probes = 0;
    let _ = plan.apply(|node| {
        probes += usize::from(node.is::<RuntimeFilterProbeExec>());
        Ok(TreeNodeRecursion::Continue)
    });
    probes
}

/// `t0` to `t30`, of 100 to 20,000 rows: key `k`, references `f0` and `f1` to other tables, value `v`.
fn state(filters: bool, threshold: Option<&str>) -> Result<SessionState> {
    let builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(4))
        .with_distributed_worker_resolver(Workers::try_new(
            (1..=4).map(|port| format!("http://127.0.0.1:{port}")),
        )?)
        .with_distributed_planner();
    let mut state = if filters {
        builder.with_runtime_filters(RuntimeFilterOptions::default())
    } else {
        builder
    }
    .build();
    if let Some(threshold) = threshold {
        let options = state.config_mut().options_mut();
        for name in [
            "single_partition_threshold",
            "single_partition_threshold_rows",
        ] {
            options.set(&format!("datafusion.optimizer.hash_join_{name}"), threshold)?;
        }
    }
    let context = SessionContext::new_with_state(state);
    for table in 0..=JOINS as i64 {
        let rows = 100 + (table * 7919) % 19_901;
        let column = |f: &dyn Fn(i64) -> i64| Arc::new((0..rows).map(f).collect::<Int64Array>());
        let batch = RecordBatch::try_from_iter([
            ("k", column(&|i| i) as ArrayRef),
            ("f0", column(&|i| i * 31 % 100)),
            ("f1", column(&|i| i * 17 % 100)),
            ("v", column(&|i| i % 1000)),
        ])?;
        let data = MemTable::try_new(batch.schema(), vec![vec![batch]; 2])?;
        context.register_table(format!("t{table}"), Arc::new(data))?;
    }
    Ok(context.state())
}

/// Each table refers to the one before it; every third is filtered.
fn chain() -> String {
    let mut sql = "select count(*), sum(t0.v) from t0".to_string();
    for i in 1..=JOINS {
        sql += &format!(" join t{i} on t{i}.f0 = t{}.k", i - 1);
    }
    sql + " where " + &conditions()
}

/// The first table refers to all others; every third is filtered.
fn star() -> String {
    let mut sql = "select count(*), sum(t0.v) from t0".to_string();
    for i in 1..=JOINS {
        sql += &format!(" join t{i} on t{i}.k = t0.f{}", i % 2);
    }
    sql + " where " + &conditions()
}

fn conditions() -> String {
    let filtered = (0..=JOINS)
        .step_by(3)
        .map(|i| format!("t{i}.v < {}", 10 + i));
    filtered.collect::<Vec<_>>().join(" and ")
}
