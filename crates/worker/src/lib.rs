//! Worker of distributed join runtime filters.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | `session` | what a task's session must know |
//! | `server` | how a worker process starts and stops |
//!
//! This crate knows nothing of merging: it passes partials on and verdicts down.

mod server;
mod session;

pub use server::{RunningWorker, WorkerError, WorkerServer};
pub use session::RuntimeFilterWorker;
