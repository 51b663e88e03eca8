//! The worker's end of the exchange: one stream per coordinator.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use runtime_filter_exchange::wire::{self, proto};
use runtime_filter_exchange::{ExecutionId, Registry, TaskReport, Uplink, WorkerEnd};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use proto::runtime_filter_exchange_server::{RuntimeFilterExchange, RuntimeFilterExchangeServer};

/// How long a new stream may stay silent.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A coordinator that vanished without closing its connection is noticed after both. Longer than the
/// coordinator's own: the server's connections carry the rows of queries, too, and a process that is
/// busy for some seconds must not lose them.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// `server` with what it takes to notice that a coordinator has vanished: without, the
/// executions of one that lost its power stay registered.
pub fn keep_alive(server: Server) -> Server {
    server
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
}

/// The gRPC service of a worker: [`runtime_filter_exchange::wire`] over one stream per
/// coordinator.
#[derive(Debug, Clone)]
pub struct ExchangeService {
    registry: Arc<Registry>,
    closing: watch::Sender<bool>,
}

impl ExchangeService {
    /// A service that acts on `registry`.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            closing: watch::Sender::new(false),
        }
    }

    /// Executions that this worker takes part in.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Ends every stream, now and later.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// What a [`Server`] serves; see [`keep_alive`].
    pub fn into_server(self) -> RuntimeFilterExchangeServer<Self> {
        RuntimeFilterExchangeServer::new(self)
            .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(wire::MAX_MESSAGE_BYTES)
    }
}

type ToCoordinator = Result<proto::ToCoordinator, Status>;

#[tonic::async_trait]
impl RuntimeFilterExchange for ExchangeService {
    type ExchangeStream = Pin<Box<dyn Stream<Item = ToCoordinator> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<proto::ToWorker>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let inbound = request.into_inner();
        let (outbound, messages) = mpsc::unbounded_channel();
        let mut closing = self.closing.subscribe();
        let uplink = Arc::new(StreamUplink {
            outbound: outbound.clone(),
        });
        let end = WorkerEnd::new(Arc::clone(&self.registry), uplink);
        // The reader owns this end, whose drop ends its executions, however the
        // stream ends. The response ends when the reader has let go of its sender.
        tokio::spawn(async move {
            tokio::select! {
                () = read(end, outbound, inbound) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        Ok(Response::new(
            UnboundedReceiverStream::new(messages).boxed(),
        ))
    }
}

/// Acts on what the coordinator says, and answers, until its stream ends.
async fn read(
    mut end: WorkerEnd,
    outbound: mpsc::UnboundedSender<ToCoordinator>,
    mut inbound: Streaming<proto::ToWorker>,
) {
    let Ok(first) = tokio::time::timeout(HELLO_TIMEOUT, inbound.message()).await else {
        let _ = outbound.send(Err(Status::deadline_exceeded("no Hello came")));
        return;
    };
    let mut next = first;
    while let Ok(Some(message)) = next {
        match end.handle(message) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                let _ = outbound.send(Ok(answer));
            }
            Err(error) => {
                let _ = outbound.send(Err(Status::failed_precondition(error.to_string())));
                return;
            }
        }
        next = inbound.message().await;
    }
}

/// From this worker's nodes to their coordinator. What is sent after the stream
/// has ended is lost, as is the execution.
#[derive(Debug)]
struct StreamUplink {
    outbound: mpsc::UnboundedSender<ToCoordinator>,
}

impl Uplink for StreamUplink {
    fn report(&self, execution: ExecutionId, filter: u32, report: TaskReport) {
        let _ = self
            .outbound
            .send(Ok(wire::partial(execution.sequence, filter, &report)));
    }

    fn interest(&self, execution: ExecutionId, filter: u32) {
        let _ = self
            .outbound
            .send(Ok(wire::interest(execution.sequence, filter)));
    }
}
