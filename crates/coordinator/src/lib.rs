//! Coordinator of distributed join runtime filters.
//!
//! Begins a query on the workers of its session; the streams to them, the merging and the
//! verdicts are those of `runtime-filter-transport` and `runtime-filter-exchange`.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`Coordinator`] | which workers take part in a query |
//!
//! This crate knows nothing of query plans or of how a filter is built.

mod coordinator;

pub use coordinator::Coordinator;
