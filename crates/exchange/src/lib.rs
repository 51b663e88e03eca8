//! From the partial filters of build tasks to one verdict per filter.
//!
//! ```text
//!  build task --seal--> Execution --TaskReport--> Hub --Verdict--> Execution --> probe
//!  (any process)        (its Registry)   uplink   (coordinator)    (every process with a probe)
//! ```
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`id`] | how executions are named |
//! | [`verdict`] | what a probe can be told |
//! | [`merge`] | when a filter is complete (pure state machine) |
//! | [`decide`] | whether a complete filter is worth sending, and in which form (pure) |
//! | [`hub`] | the coordinator's side of one execution |
//! | [`registry`] | the state of a process that runs build and probe nodes |
//! | [`in_process`] | the transport without a network |
//! | [`streams`] | what either end of a coordinator's stream to a worker does with a message |
//! | [`wire`] | the gRPC messages and their checks |
//!
//! This crate knows nothing of query plans, and only [`in_process`] and the
//! generated gRPC stubs know of transports.

pub mod decide;
pub mod hub;
pub mod id;
pub mod in_process;
pub mod merge;
pub mod registry;
pub mod streams;
mod sync;
#[cfg(test)]
mod testing;
pub mod verdict;
pub mod wire;

pub use decide::{Basis, Decision, FilterPolicy, ForcedForm, SizeRule};
pub use hub::{FilterRecord, Hub, VerdictSink};
pub use id::ExecutionId;
pub use in_process::{ActiveExecution, ExecutionRequest, InProcessExchange};
pub use merge::{Merge, Step, TaskReport};
pub use registry::{BuildTask, Execution, ExecutionSettings, Registry, Uplink};
pub use streams::{CoordinatorEnd, Hubs, WorkerEnd};
pub use verdict::{Announcement, PassAllReason, Verdict};
