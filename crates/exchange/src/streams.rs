//! What either end of a stream between a coordinator and a worker does with a message,
//! free of the network that carries it.
//!
//! ```text
//!            coordinator                                     worker
//!   Hubs <- CoordinatorEnd <---- Began, Interest, Partial ---- WorkerEnd -> Registry
//!                          ---- Hello, Begin, Verdict, End --->
//! ```
//!
//! A stream delivers in order and either all or, once it has broken, nothing more. Neither
//! end relies on that for the rows of a query: what is lost, repeated or overtaken ends in a
//! filter that passes all.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use crate::hub::{Hub, VerdictSink};
use crate::id::ExecutionId;
use crate::registry::{Registry, Uplink};
use crate::sync::{Mutex, MutexGuard};
use crate::verdict::PassAllReason;
use crate::wire::{self, WireError, proto};

/// Executions that one coordinator may have in progress at one worker; bounds the memory
/// that a stream of Begins without Ends can take.
pub const MAX_EXECUTIONS: usize = 16 * 1024;

/// Ends that a worker remembers, so that a Begin which comes after its End begins nothing.
const REMEMBERED_ENDS: usize = 1024;

fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The executions of a coordinator, by sequence number.
#[derive(Debug, Default)]
pub struct Hubs(Mutex<HashMap<u64, Arc<Hub>>>);

impl Hubs {
    /// An execution begins.
    pub fn insert(&self, sequence: u64, hub: Arc<Hub>) {
        relock(&self.0).insert(sequence, hub);
    }

    /// An execution has ended.
    pub fn remove(&self, sequence: u64) {
        relock(&self.0).remove(&sequence);
    }

    /// The execution, if it is in progress.
    pub fn get(&self, sequence: u64) -> Option<Arc<Hub>> {
        relock(&self.0).get(&sequence).cloned()
    }

    /// Executions in progress.
    pub fn len(&self) -> usize {
        relock(&self.0).len()
    }

    /// Whether none is in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Answers that the worker still owes, and executions that it takes part in.
#[derive(Debug, Default)]
struct Pending {
    begun: HashMap<u64, oneshot::Sender<()>>,
    takes_part: HashSet<u64>,
    lost: bool,
}

/// The coordinator's end of the stream to one worker.
#[derive(Debug)]
pub struct CoordinatorEnd {
    receiver: u64,
    hubs: Arc<Hubs>,
    pending: Mutex<Pending>,
}

impl CoordinatorEnd {
    /// The end of a stream whose versions have been agreed on. `receiver` tells streams
    /// apart.
    pub fn new(receiver: u64, hubs: Arc<Hubs>) -> Self {
        Self {
            receiver,
            hubs,
            pending: Mutex::default(),
        }
    }

    /// Whether the stream is in use.
    pub fn is_open(&self) -> bool {
        !relock(&self.pending).lost
    }

    /// The worker is asked to take part in `execution`: a Begin is on its way. Resolves when
    /// it does, and fails when it no longer can.
    pub fn begin(&self, execution: ExecutionId) -> oneshot::Receiver<()> {
        let (sender, begun) = oneshot::channel();
        let mut pending = relock(&self.pending);
        // The sender is dropped with a stream that is lost, before this or after.
        if !pending.lost {
            pending.begun.insert(execution.sequence, sender);
            pending.takes_part.insert(execution.sequence);
        }
        begun
    }

    /// `execution` is over, or was given up: an End is on its way.
    pub fn end(&self, execution: ExecutionId) {
        let mut pending = relock(&self.pending);
        pending.begun.remove(&execution.sequence);
        pending.takes_part.remove(&execution.sequence);
    }

    /// A message of the worker. `sink` makes the way back for the verdicts of an execution,
    /// given its sequence number.
    ///
    /// # Errors
    /// If the worker does not follow the protocol; the stream is then of no use.
    pub fn handle(
        &self,
        message: proto::ToCoordinator,
        sink: impl FnOnce(u64) -> Arc<dyn VerdictSink>,
    ) -> Result<(), WireError> {
        use proto::to_coordinator::Message;
        let bytes = wire::wire_len(&message);
        let Some(message) = message.message else {
            return Err(WireError::Unexpected {
                expected: "an answer",
                got: "an empty message",
            });
        };
        // An execution that is not here has ended already.
        match message {
            Message::Welcome(_) => {
                return Err(WireError::Unexpected {
                    expected: "an answer",
                    got: "a second Welcome",
                });
            }
            Message::Began(began) => {
                if let Some(sender) = relock(&self.pending).begun.remove(&began.sequence) {
                    let _ = sender.send(());
                }
            }
            Message::Interest(interest) => {
                if let Some(hub) = self.hubs.get(interest.sequence) {
                    hub.add_bytes_up(bytes);
                    hub.subscribe(interest.filter, self.receiver, sink(interest.sequence));
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

    /// Tells the hasher all that what this end does next could depend on, for a model checker: ends
    /// that tell the same behave the same.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        let pending = relock(&self.pending);
        // By name, so that a new field cannot be left out.
        let Pending {
            begun,
            takes_part,
            lost,
        } = &*pending;
        begun.keys().collect::<BTreeSet<_>>().hash(into);
        takes_part.iter().collect::<BTreeSet<_>>().hash(into);
        (self.receiver, lost).hash(into);
    }

    /// Executions that the worker is in, or has been asked into.
    pub fn executions(&self) -> usize {
        let pending = relock(&self.pending);
        pending.takes_part.len().max(pending.begun.len())
    }

    /// The stream has ended, however it did: the worker's reports will never come.
    pub fn lost(&self) {
        let takes_part = {
            let mut pending = relock(&self.pending);
            pending.lost = true;
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
}

/// A worker's end of the stream from one coordinator. Dropping it, when the stream has
/// ended, ends the executions that it began.
pub struct WorkerEnd {
    registry: Arc<Registry>,
    uplink: Arc<dyn Uplink>,
    coordinator: Option<u64>,
    executions: HashSet<u64>,
    /// The latest by number, and there are at most [`REMEMBERED_ENDS`].
    ended: BTreeSet<u64>,
}

impl std::fmt::Debug for WorkerEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerEnd")
            .field("coordinator", &self.coordinator)
            .field("executions", &self.executions.len())
            .finish_non_exhaustive()
    }
}

impl WorkerEnd {
    /// The end of a stream that nothing has come from. `uplink` is the way back.
    pub fn new(registry: Arc<Registry>, uplink: Arc<dyn Uplink>) -> Self {
        Self {
            registry,
            uplink,
            coordinator: None,
            executions: HashSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// A message of the coordinator. Returns the answer to it, if there is one.
    ///
    /// # Errors
    /// If the coordinator does not follow the protocol, or speaks another version of it;
    /// the stream is then of no use.
    pub fn handle(
        &mut self,
        message: proto::ToWorker,
    ) -> Result<Option<proto::ToCoordinator>, WireError> {
        use proto::to_worker::Message;
        let Some(message) = message.message else {
            return Err(WireError::Unexpected {
                expected: "a message",
                got: "an empty one",
            });
        };
        let coordinator = match (self.coordinator, &message) {
            (None, Message::Hello(hello)) => {
                wire::check_versions(hello.protocol_version, hello.hash_scheme)?;
                self.coordinator = Some(hello.coordinator);
                return Ok(Some(wire::welcome()));
            }
            (None, _) => {
                return Err(WireError::Unexpected {
                    expected: "Hello",
                    got: "another message",
                });
            }
            (Some(coordinator), _) => coordinator,
        };
        let id = |sequence| ExecutionId {
            coordinator,
            sequence,
        };
        match message {
            Message::Hello(_) => {
                return Err(WireError::Unexpected {
                    expected: "a request",
                    got: "a second Hello",
                });
            }
            Message::Begin(begin) => {
                let settings = wire::read_begin(&begin)?;
                if self.executions.len() >= MAX_EXECUTIONS {
                    return Err(WireError::Unexpected {
                        expected: "fewer executions at once",
                        got: "one more Begin",
                    });
                }
                // Nobody would end it again.
                if self.ended.contains(&begin.sequence) {
                    return Ok(None);
                }
                let uplink = Arc::clone(&self.uplink);
                // One that has begun on another stream of this coordinator stays there.
                let begun = self.registry.begin(id(begin.sequence), settings, uplink);
                if begun.is_some() {
                    self.executions.insert(begin.sequence);
                    return Ok(Some(wire::began(begin.sequence)));
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
                self.ended.insert(end.sequence);
                if self.ended.len() > REMEMBERED_ENDS {
                    self.ended.pop_first();
                }
                if self.executions.remove(&end.sequence) {
                    self.registry.end(&id(end.sequence), PassAllReason::Ended);
                }
            }
        }
        Ok(None)
    }
}

impl WorkerEnd {
    /// Tells the hasher all that what this end does next could depend on, the registry aside, for a
    /// model checker: ends that tell the same behave the same.
    pub fn fingerprint(&self, into: &mut impl Hasher) {
        // By name, so that a new field cannot be left out.
        let Self {
            registry: _,
            uplink: _,
            coordinator,
            executions,
            ended,
        } = self;
        coordinator.hash(into);
        executions.iter().collect::<BTreeSet<_>>().hash(into);
        ended.hash(into);
    }
}

impl Drop for WorkerEnd {
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

#[cfg(test)]
mod tests;
