//! One worker's stream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use runtime_filter_exchange::wire::{self, WireError, proto};
use runtime_filter_exchange::{Announcement, CoordinatorEnd, ExecutionId, Hub, Hubs, VerdictSink};
use tokio::sync::mpsc::{self, UnboundedSender, WeakUnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use url::Url;

use proto::runtime_filter_exchange_client::RuntimeFilterExchangeClient;
use proto::to_coordinator::Message;

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A worker that vanished without closing its connection is noticed after both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Lets a filter of some megabytes travel without waiting for window updates.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// Makes connections to workers.
pub trait Dial: Send + Sync {
    /// Connects to `endpoint`.
    fn connect(
        &self,
        endpoint: Endpoint,
    ) -> BoxFuture<'static, Result<Channel, tonic::transport::Error>>;
}

/// Connections over TCP.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

impl Dial for Tcp {
    fn connect(
        &self,
        endpoint: Endpoint,
    ) -> BoxFuture<'static, Result<Channel, tonic::transport::Error>> {
        Box::pin(async move { endpoint.connect().await })
    }
}

pub(crate) fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a worker takes no part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the worker cannot be reached: {0}")]
    Transport(#[from] tonic::transport::Error),
    #[error("the worker refused the exchange: {0}")]
    Refused(#[from] Box<tonic::Status>),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the worker closed the exchange")]
    Closed,
}

#[derive(Debug)]
pub(crate) struct Link {
    outbound: UnboundedSender<proto::ToWorker>,
    end: Arc<CoordinatorEnd>,
}

impl Link {
    /// Connects to `url` and agrees on the protocol.
    pub(crate) async fn dial(
        dial: &dyn Dial,
        url: &Url,
        coordinator: u64,
        hubs: Arc<Hubs>,
    ) -> Result<Self, LinkError> {
        static NEXT_RECEIVER: AtomicU64 = AtomicU64::new(0);
        let endpoint = Endpoint::from_shared(url.to_string())?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(2 * STREAM_WINDOW_BYTES);
        let channel = dial.connect(endpoint).await?;
        let mut client = RuntimeFilterExchangeClient::new(channel)
            .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(wire::MAX_MESSAGE_BYTES);
        let (outbound, messages) = mpsc::unbounded_channel();
        let _ = outbound.send(wire::hello(coordinator));
        let mut inbound = client
            .exchange(UnboundedReceiverStream::new(messages))
            .await
            .map_err(Box::new)?
            .into_inner();
        match inbound
            .message()
            .await
            .map_err(Box::new)?
            .and_then(|m| m.message)
        {
            Some(Message::Welcome(welcome)) => {
                wire::check_versions(welcome.protocol_version, welcome.hash_scheme)?;
            }
            Some(_) => {
                return Err(WireError::Unexpected {
                    expected: "Welcome",
                    got: "another message",
                }
                .into());
            }
            None => return Err(LinkError::Closed),
        }
        let receiver = NEXT_RECEIVER.fetch_add(1, Ordering::Relaxed);
        let link = Self {
            outbound,
            end: Arc::new(CoordinatorEnd::new(receiver, hubs)),
        };
        // Weak: when the last owner of the link lets go, the stream ends.
        let outbound = link.outbound.downgrade();
        tokio::spawn(read(Arc::clone(&link.end), outbound, inbound));
        Ok(link)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end.is_open()
    }

    /// The worker takes part in `execution` once this returns. If it is given up
    /// before, the worker is told to forget the execution again.
    pub(crate) async fn begin(&self, execution: ExecutionId, hub: &Hub) -> Result<(), LinkError> {
        let begun = self.end.begin(execution);
        let mut attempt = Attempt {
            link: self,
            execution,
            succeeded: false,
        };
        let message = wire::begin(execution, hub.settings());
        hub.add_bytes_down(wire::wire_len(&message));
        if self.outbound.send(message).is_err() {
            return Err(LinkError::Closed);
        }
        begun.await.map_err(|_| LinkError::Closed)?;
        attempt.succeeded = true;
        Ok(())
    }

    /// The worker forgets `execution`.
    pub(crate) fn end(&self, execution: ExecutionId) {
        self.end.end(execution);
        let _ = self.outbound.send(wire::end(execution.sequence));
    }
}

/// A Begin without an answer so far.
struct Attempt<'a> {
    link: &'a Link,
    execution: ExecutionId,
    succeeded: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.link.end(self.execution);
        }
    }
}

/// Hands on what the worker says until its stream ends.
async fn read(
    end: Arc<CoordinatorEnd>,
    outbound: WeakUnboundedSender<proto::ToWorker>,
    mut inbound: Streaming<proto::ToCoordinator>,
) {
    while let Ok(Some(message)) = inbound.message().await {
        let sink = |sequence| -> Arc<dyn VerdictSink> {
            Arc::new(Sink {
                sequence,
                outbound: WeakUnboundedSender::clone(&outbound),
            })
        };
        if end.handle(message, sink).is_err() {
            break;
        }
    }
    end.lost();
}

struct Sink {
    sequence: u64,
    outbound: WeakUnboundedSender<proto::ToWorker>,
}

impl VerdictSink for Sink {
    fn deliver(&self, filter: u32, announcement: &Announcement) -> u64 {
        let Some(outbound) = self.outbound.upgrade() else {
            return 0;
        };
        let message = wire::verdict(self.sequence, filter, announcement);
        let bytes = wire::wire_len(&message);
        if outbound.send(message).is_ok() {
            bytes
        } else {
            0
        }
    }

    fn is_remote(&self) -> bool {
        true
    }
}
