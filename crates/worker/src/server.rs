//! How a worker process starts and stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use runtime_filter_exchange::Registry;
use runtime_filter_transport::keep_alive;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::session::RuntimeFilterWorker;

/// How long a shutdown waits for running tasks before it drops them.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Why a worker cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The address is in use, not this machine's, or not permitted.
    #[error(
        "cannot listen on {addr}: {source}; choose another address, or port 0 for any free one"
    )]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server stopped by itself.
    #[error("the worker stopped serving: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Starts workers.
#[derive(Debug)]
pub struct WorkerServer;

impl WorkerServer {
    /// Serves a default worker on `addr`, ready when this returns. Port 0 takes a
    /// free one; see [`RunningWorker::addr`].
    ///
    /// # Errors
    /// If `addr` cannot be listened on.
    pub async fn bind(addr: SocketAddr) -> Result<RunningWorker, WorkerError> {
        Self::bind_worker(addr, RuntimeFilterWorker::default()).await
    }

    /// Serves `worker` on `addr`, as [`Self::bind`] does.
    ///
    /// # Errors
    /// If `addr` cannot be listened on.
    pub async fn bind_worker(
        addr: SocketAddr,
        worker: RuntimeFilterWorker,
    ) -> Result<RunningWorker, WorkerError> {
        let bind = |source| WorkerError::Bind { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let registry = Arc::clone(worker.registry());
        let service = worker.service().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        // Small answers, such as a Began, must not wait for an acknowledgement.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = keep_alive(Server::builder())
            .add_routes(worker.into_routes())
            .serve_with_incoming_shutdown(incoming, async move {
                let _ = stopped.await;
                // A server shuts down when its streams have ended; ours never would.
                service.close();
            });
        Ok(RunningWorker {
            addr,
            registry,
            stop: Some(stop),
            server: tokio::spawn(server),
        })
    }
}

/// A worker that serves. Dropping it stops it without grace.
#[derive(Debug)]
pub struct RunningWorker {
    addr: SocketAddr,
    registry: Arc<Registry>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl RunningWorker {
    /// Address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The same as a URL, `http://address:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Executions that it takes part in.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Stops: no new connection, a few seconds for what runs, then the end.
    ///
    /// # Errors
    /// If the server had failed before.
    pub async fn shutdown(mut self) -> Result<(), WorkerError> {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        match tokio::time::timeout(SHUTDOWN_GRACE, &mut self.server).await {
            Ok(Ok(served)) => Ok(served?),
            // Panicked, cancelled, or still busy: dropping `self` aborts it.
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Returns when the server has stopped by itself.
    ///
    /// # Errors
    /// What made it stop.
    pub async fn stopped(&mut self) -> Result<(), WorkerError> {
        match (&mut self.server).await {
            Ok(served) => Ok(served?),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.server.abort();
    }
}
