//! Optimizer rule, placement, cost gate and plan nodes of distributed join
//! runtime filters.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`config`] | an option a user can set |
//! | [`spec`] | what the plan fixes about one filter |
//! | [`placement`] | which join gets a filter, where its nodes go, and why not |
//! | [`ledger`] | what is said about each join |
//! | [`rule`] | how placement enters DataFusion's planning |
//! | [`nodes`] | what happens to the batches of a query |
//! | [`codec`] | how the nodes travel to a worker |
//! | [`report`] | what a user sees after a query |
//!
//! This crate knows nothing of gRPC: it speaks to the exchange through
//! [`runtime_filter_exchange`].

pub mod codec;
pub mod config;
pub mod ledger;
pub mod nodes;
pub mod placement;
pub mod report;
pub mod rule;
pub mod spec;
