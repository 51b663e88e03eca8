//! The worker's end of the exchange: one stream per coordinator.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use runtime_filter_exchange::wire::{self, WireError, proto};
use runtime_filter_exchange::{ExecutionId, PassAllReason, Registry, TaskReport, Uplink};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use proto::runtime_filter_exchange_server::{RuntimeFilterExchange, RuntimeFilterExchangeServer};
use proto::to_worker::Message;

/// How long a new stream may stay silent.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Executions that one coordinator may have in progress here; bounds the memory
/// that a stream of Begins without Ends can take.
const MAX_EXECUTIONS: usize = 16 * 1024;

/// The gRPC service of a worker.
#[derive(Debug, Clone)]
pub(crate) struct ExchangeService {
    registry: Arc<Registry>,
    closing: watch::Sender<bool>,
}

impl ExchangeService {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            closing: watch::Sender::new(false),
        }
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Ends every stream, now and later.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn into_server(self) -> RuntimeFilterExchangeServer<Self> {
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
        let session = Session {
            registry: Arc::clone(&self.registry),
            uplink: Arc::new(StreamUplink {
                outbound: outbound.clone(),
            }),
            outbound,
            coordinator: None,
            executions: HashSet::new(),
        };
        // The reader owns the session, whose drop ends its executions, however the
        // stream ends. The response ends when the reader has let go of its sender.
        tokio::spawn(async move {
            tokio::select! {
                () = session.run(inbound) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        Ok(Response::new(
            UnboundedReceiverStream::new(messages).boxed(),
        ))
    }
}

/// One coordinator's stream.
struct Session {
    registry: Arc<Registry>,
    uplink: Arc<StreamUplink>,
    outbound: mpsc::UnboundedSender<ToCoordinator>,
    coordinator: Option<u64>,
    executions: HashSet<u64>,
}

impl Session {
    async fn run(mut self, mut inbound: Streaming<proto::ToWorker>) {
        let Ok(first) = tokio::time::timeout(HELLO_TIMEOUT, inbound.message()).await else {
            let _ = self
                .outbound
                .send(Err(Status::deadline_exceeded("no Hello came")));
            return;
        };
        let mut next = first;
        while let Ok(Some(message)) = next {
            if let Err(error) = self.handle(message) {
                let _ = self
                    .outbound
                    .send(Err(Status::failed_precondition(error.to_string())));
                return;
            }
            next = inbound.message().await;
        }
    }

    fn handle(&mut self, message: proto::ToWorker) -> Result<(), WireError> {
        let Some(message) = message.message else {
            return Err(WireError::Unexpected {
                expected: "a message",
                got: "an empty one",
            });
        };
        let coordinator = match (self.coordinator, message) {
            (None, Message::Hello(hello)) => {
                wire::check_versions(hello.protocol_version, hello.hash_scheme)?;
                self.coordinator = Some(hello.coordinator);
                self.send(wire::welcome());
                return Ok(());
            }
            (None, _) => {
                return Err(WireError::Unexpected {
                    expected: "Hello",
                    got: "another message",
                });
            }
            (Some(_), Message::Hello(_)) => {
                return Err(WireError::Unexpected {
                    expected: "a request",
                    got: "a second Hello",
                });
            }
            (Some(coordinator), message) => (coordinator, message),
        };
        let (coordinator, message) = coordinator;
        let id = |sequence| ExecutionId {
            coordinator,
            sequence,
        };
        match message {
            Message::Hello(_) => {}
            Message::Begin(begin) => {
                let settings = wire::read_begin(&begin)?;
                if self.executions.len() >= MAX_EXECUTIONS {
                    return Err(WireError::Unexpected {
                        expected: "fewer executions at once",
                        got: "one more Begin",
                    });
                }
                let uplink = Arc::clone(&self.uplink);
                // One that has begun on another stream of this coordinator stays there.
                if self
                    .registry
                    .begin(id(begin.sequence), settings, uplink)
                    .is_some()
                {
                    self.executions.insert(begin.sequence);
                    self.send(wire::began(begin.sequence));
                }
            }
            Message::Verdict(verdict) => {
                // An execution that is not here has ended already.
                if let Some(execution) = self.registry.execution(&id(verdict.sequence)) {
                    let read = wire::read_verdict(&verdict, execution.settings());
                    execution.deliver(verdict.filter, read);
                }
            }
            Message::End(end) => {
                if self.executions.remove(&end.sequence) {
                    self.registry.end(&id(end.sequence), PassAllReason::Ended);
                }
            }
        }
        Ok(())
    }

    fn send(&self, message: proto::ToCoordinator) {
        let _ = self.outbound.send(Ok(message));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(coordinator) = self.coordinator else {
            return;
        };
        for sequence in self.executions.drain() {
            let id = ExecutionId {
                coordinator,
                sequence,
            };
            self.registry.end(&id, PassAllReason::CoordinatorLost);
        }
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
