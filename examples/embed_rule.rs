//! Runtime filters in one process: the rule alone, no cluster.
//!
//!     cargo run --release --example embed_rule

use std::sync::Arc;
use std::time::Instant;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_runtime_filter::{RuntimeFilterOptions, RuntimeFilterRule, query_report};

const TABLES: &str = "
    create table customers as
        select value as id, 'country' || (value % 100) as country from range(200000);
    create table sales as
        select value % 200000 as customer, value * 3 % 1000 as amount from range(3000000);";

const QUERY: &str = "select count(*), sum(amount) from customers join sales on customer = id
    where country = 'country7'";

#[tokio::main]
async fn main() -> Result<()> {
    let config = SessionConfig::new()
        .with_target_partitions(4)
        // Large build sides, as in real data: both sides are repartitioned.
        .set_usize(
            "datafusion.optimizer.hash_join_single_partition_threshold",
            0,
        )
        .set_usize(
            "datafusion.optimizer.hash_join_single_partition_threshold_rows",
            0,
        );
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        // The last rule: it sees the plan as it will run.
        .with_physical_optimizer_rule(Arc::new(RuntimeFilterRule::new(
            RuntimeFilterOptions::default(),
        )))
        .build();
    let context = SessionContext::new_with_state(state);
    for statement in TABLES.split_terminator(';') {
        context.sql(statement).await?.collect().await?;
    }

    let plan = context.sql(QUERY).await?.create_physical_plan().await?;
    let start = Instant::now();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let elapsed = start.elapsed();
    println!("{}", arrow::util::pretty::pretty_format_batches(&batches)?);
    let rows = batches.iter().map(|batch| batch.num_rows()).sum();
    println!("{}", query_report(&plan, QUERY, rows, elapsed).await?);
    Ok(())
}
