//! One worker's stream.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runtime_filter_exchange::wire::{self, WireError, proto};
use runtime_filter_exchange::{Announcement, ExecutionId, Hub, PassAllReason, VerdictSink};
use tokio::sync::mpsc::{self, UnboundedSender, WeakUnboundedSender};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;
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

pub(crate) fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The executions of a coordinator, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Hubs(Mutex<HashMap<u64, Arc<Hub>>>);

impl Hubs {
    pub(crate) fn insert(&self, sequence: u64, hub: Arc<Hub>) {
        relock(&self.0).insert(sequence, hub);
    }

    pub(crate) fn remove(&self, sequence: u64) {
        relock(&self.0).remove(&sequence);
    }

    pub(crate) fn len(&self) -> usize {
        relock(&self.0).len()
    }

    fn get(&self, sequence: u64) -> Option<Arc<Hub>> {
        relock(&self.0).get(&sequence).cloned()
    }
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

/// Answers that the worker still owes, and executions that it takes part in.
#[derive(Debug, Default)]
struct Pending {
    begun: HashMap<u64, oneshot::Sender<()>>,
    takes_part: HashSet<u64>,
}

#[derive(Debug)]
pub(crate) struct Link {
    outbound: UnboundedSender<proto::ToWorker>,
    open: Arc<AtomicBool>,
    pending: Arc<Mutex<Pending>>,
}

impl Link {
    /// Connects to `url` and agrees on the protocol.
    pub(crate) async fn dial(
        url: &Url,
        coordinator: u64,
        hubs: Arc<Hubs>,
    ) -> Result<Self, LinkError> {
        static NEXT_RECEIVER: AtomicU64 = AtomicU64::new(0);
        let channel = Endpoint::from_shared(url.to_string())?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(2 * STREAM_WINDOW_BYTES)
            .connect()
            .await?;
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
        let link = Self {
            outbound,
            open: Arc::new(AtomicBool::new(true)),
            pending: Arc::default(),
        };
        let reader = Reader {
            receiver: NEXT_RECEIVER.fetch_add(1, Ordering::Relaxed),
            // Weak: when the last owner of the link lets go, the stream ends.
            outbound: link.outbound.downgrade(),
            open: Arc::clone(&link.open),
            pending: Arc::clone(&link.pending),
            hubs,
        };
        tokio::spawn(reader.run(inbound));
        Ok(link)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        relock(&self.pending)
    }

    /// The worker takes part in `execution` once this returns. If it is given up
    /// before, the worker is told to forget the execution again.
    pub(crate) async fn begin(&self, execution: ExecutionId, hub: &Hub) -> Result<(), LinkError> {
        let (sender, begun) = oneshot::channel();
        {
            let mut pending = self.pending();
            pending.begun.insert(execution.sequence, sender);
            pending.takes_part.insert(execution.sequence);
        }
        let mut attempt = Attempt {
            link: self,
            execution,
            succeeded: false,
        };
        let message = wire::begin(execution, hub.settings());
        hub.add_bytes_down(wire::wire_len(&message));
        // The reader drops what is pending when the stream ends, before or after this.
        if self.outbound.send(message).is_err() || !self.is_open() {
            return Err(LinkError::Closed);
        }
        begun.await.map_err(|_| LinkError::Closed)?;
        attempt.succeeded = true;
        Ok(())
    }

    /// The worker forgets `execution`.
    pub(crate) fn end(&self, execution: ExecutionId) {
        {
            let mut pending = self.pending();
            pending.begun.remove(&execution.sequence);
            pending.takes_part.remove(&execution.sequence);
        }
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

struct Reader {
    receiver: u64,
    outbound: WeakUnboundedSender<proto::ToWorker>,
    open: Arc<AtomicBool>,
    pending: Arc<Mutex<Pending>>,
    hubs: Arc<Hubs>,
}

impl Reader {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        relock(&self.pending)
    }

    async fn run(self, mut inbound: Streaming<proto::ToCoordinator>) {
        while let Ok(Some(message)) = inbound.message().await {
            if self.handle(message).is_err() {
                break;
            }
        }
        self.open.store(false, Ordering::Release);
        let takes_part = {
            let mut pending = self.pending();
            pending.begun.clear();
            std::mem::take(&mut pending.takes_part)
        };
        for sequence in takes_part {
            if let Some(hub) = self.hubs.get(sequence) {
                hub.unsubscribe(self.receiver);
                hub.fail(None, PassAllReason::WorkerLost);
            }
        }
    }

    fn handle(&self, message: proto::ToCoordinator) -> Result<(), WireError> {
        let bytes = wire::wire_len(&message);
        let Some(message) = message.message else {
            return Err(WireError::Unexpected {
                expected: "an answer",
                got: "an empty message",
            });
        };
        match message {
            Message::Welcome(_) => {
                return Err(WireError::Unexpected {
                    expected: "an answer",
                    got: "a second Welcome",
                });
            }
            Message::Began(began) => {
                if let Some(sender) = self.pending().begun.remove(&began.sequence) {
                    let _ = sender.send(());
                }
            }
            Message::Interest(interest) => {
                // An execution that is not here has ended already.
                if let Some(hub) = self.hubs.get(interest.sequence) {
                    hub.add_bytes_up(bytes);
                    let sink = Sink {
                        sequence: interest.sequence,
                        outbound: WeakUnboundedSender::clone(&self.outbound),
                    };
                    hub.subscribe(interest.filter, self.receiver, Arc::new(sink));
                }
            }
            Message::Partial(partial) => {
                if let Some(hub) = self.hubs.get(partial.sequence) {
                    hub.add_bytes_up(bytes);
                    hub.report(partial.filter, wire::read_partial(&partial, hub.settings()));
                }
            }
        }
        Ok(())
    }
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
