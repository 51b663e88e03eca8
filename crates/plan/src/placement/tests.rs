#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use datafusion::prelude::*;

#[tokio::test]
async fn dump() {
    let Ok(dir) = std::env::var("TPCH_DIR") else {
        return;
    };
    let thr = std::env::var("THR").ok();
    let mode_cluster = std::env::var("INPROC").is_err();
    let config = SessionConfig::new().with_target_partitions(4);
    let ctx = SessionContext::new_with_config(config);
    if let Some(thr) = thr {
        let (b, r) = thr.split_once('/').unwrap();
        for (k, v) in [
            ("hash_join_single_partition_threshold", b),
            ("hash_join_single_partition_threshold_rows", r),
        ] {
            ctx.sql(&format!("set datafusion.optimizer.{k} = {v}"))
                .await
                .unwrap();
        }
    }
    if mode_cluster {
        ctx.sql("set datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery = false")
            .await
            .unwrap();
    }
    for t in [
        "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
    ] {
        ctx.register_parquet(
            t,
            format!("{dir}/{t}.parquet"),
            ParquetReadOptions::default(),
        )
        .await
        .unwrap();
    }
    for q in 1..=22 {
        let sql = std::fs::read_to_string(format!(
            "{}/../tpch/queries/q{q}.sql",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap();
        let df = ctx.sql(&sql).await.unwrap();
        let state = ctx.state();
        let plan = df.create_physical_plan().await.unwrap();
        let mut o = RuntimeFilterOptions::default();
        o.force = std::env::var("FORCE").is_ok();
        let mode = if std::env::var("INPROC").is_ok() {
            Mode::InProcess
        } else {
            Mode::Cluster
        };
        let p = place(plan, &o, state.config_options(), mode).unwrap();
        println!("=== Q{q}");
        for v in &p.ledger {
            match &v.outcome {
                JoinOutcome::Placed { filter } => println!(
                    "  PLACED f{filter} {} {:?} {:?}",
                    v.join, p.filters[*filter as usize].wait, p.filters[*filter as usize].estimates
                ),
                JoinOutcome::Refused(r) => println!("  no     {}: {r}", v.join),
            }
        }
        if std::env::var("PLAN").is_ok_and(|w| w == "all" || w == q.to_string()) {
            println!(
                "{}",
                datafusion::physical_plan::displayable(p.plan.as_ref()).indent(false)
            );
        }
    }
}
