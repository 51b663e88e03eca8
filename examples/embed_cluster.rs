//! Runtime filters on a cluster of your own: one call on each side.
//!
//!     cargo run --release --example embed_cluster

use std::sync::Arc;
use std::time::Instant;

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use datafusion_runtime_filter::{
    RuntimeFilterOptions, RuntimeFilterSessionExt, RuntimeFilterWorker, Workers, query_report,
};
use tokio_stream::wrappers::TcpListenerStream;

const QUERY: &str = "select count(*) from orders join lineitem on l_orderkey = o_orderkey
    where o_orderdate < date '1992-03-01'";

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut urls = vec![];
    for _ in 0..2 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        urls.push(format!("http://{}", listener.local_addr()?));
        // The worker side: the engine's service and the exchange's, on one server.
        let routes = RuntimeFilterWorker::default().into_routes();
        let server = tonic::transport::Server::builder().add_routes(routes);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    }

    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(urls.len()))
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
        context
            .register_parquet(table, path, ParquetReadOptions::default())
            .await?;
    }
    let plan = context.sql(QUERY).await?.create_physical_plan().await?;
    let start = Instant::now();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    println!("{}", arrow::util::pretty::pretty_format_batches(&batches)?);
    println!("{}", query_report(&plan, QUERY, 1, start.elapsed()).await?);
    Ok(())
}
