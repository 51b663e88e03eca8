//! Coordinator of distributed join runtime filters.
//!
//! Dials the workers of a session, keeps one stream to each, merges what their
//! build tasks send and tells their probes the verdicts.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`Coordinator`] | how a query begins and ends on the workers |
//! | `link` | one worker's stream |
//!
//! This crate knows nothing of query plans or of how a filter is built.

mod coordinator;
mod link;

pub use coordinator::Coordinator;
