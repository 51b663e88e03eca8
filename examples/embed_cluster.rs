//! Runtime filters on a cluster of your own: one call on each side.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    RuntimeFilterOptions, RuntimeFilterSessionExt, RuntimeFilterWorker, Workers, query_report,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

const QUERY: &str = "select count(*) from orders, lineitem where l_orderkey = o_orderkey \
    and o_orderdate < date '1992-03-01'";

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut urls = vec![];
    for _ in 0..2 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        urls.push(format!("http://{}", listener.local_addr()?));
        // The worker side: the engine's service and the exchange's, on one server.
        let server = Server::builder().add_routes(RuntimeFilterWorker::default().into_routes());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    }

    let mut config = SessionConfig::new().with_target_partitions(urls.len());
    for limit in ["threshold", "threshold_rows"] {
        // As with large tables: both sides of a join are repartitioned.
        let key = format!("datafusion.optimizer.hash_join_single_partition_{limit}");
        config = config.set_usize(&key, 0);
    }
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_distributed_worker_resolver(Workers::try_new(&urls)?)
        .with_distributed_file_scan_config_bytes_per_partition(1)?
        .with_distributed_planner()
        // The coordinating side, after the distributed planner.
        .with_runtime_filters(RuntimeFilterOptions::default())
        .build();
    let context = SessionContext::new_with_state(state);
    let folder = std::env::temp_dir().join("embed-cluster-tpch");
    runtime_filter_tpch::generate(&folder, 0.1, &mut |_| {})?;
    for table in ["orders", "lineitem"] {
        let path = format!("{}/{table}.parquet", folder.display());
        let options = ParquetReadOptions::default();
        context.register_parquet(table, path, options).await?;
    }
    let plan = context.sql(QUERY).await?.create_physical_plan().await?;
    let start = std::time::Instant::now();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    println!("{}", arrow::util::pretty::pretty_format_batches(&batches)?);
    println!("{}", query_report(&plan, QUERY, 1, start.elapsed()).await?);
    Ok(())
}
