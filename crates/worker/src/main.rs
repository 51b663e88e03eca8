//! The worker daemon: serves datafusion-distributed's tasks and the exchange of
//! runtime filters on one address.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use runtime_filter_worker::WorkerServer;
use tokio::signal::unix::{SignalKind, signal};

/// A worker of a DataFusion cluster with join runtime filters.
///
/// Tables are read by the worker itself: files must be found under the same path
/// as on the coordinating side.
#[derive(Debug, Parser)]
#[command(name = "runtime-filter-worker", version)]
struct Args {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(serve(args)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("runtime-filter-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    // Before the address is announced: whoever reads it may send a signal at once.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut worker = WorkerServer::bind(args.listen).await?;
    announce(&worker.url());
    tokio::select! {
        stopped = worker.stopped() => stopped?,
        _ = interrupt.recv() => worker.shutdown().await?,
        _ = terminate.recv() => worker.shutdown().await?,
    }
    Ok(())
}

fn announce(url: &str) {
    use std::io::Write;
    // Whoever started this may have closed its end; that is no reason to stop.
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "listening on {url}");
    let _ = stdout.flush();
}
