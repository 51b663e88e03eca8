//! gRPC streams between a coordinator and its workers.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`Links`] | how an execution begins and ends at the workers; which streams are kept |
//! | `link` | the coordinator's end of one stream |
//! | [`ExchangeService`] | the worker's end of one stream |
//!
//! What a message does is the business of `runtime-filter-exchange`; this crate carries
//! them, and knows nothing of query plans or of DataFusion.

mod link;
mod links;
mod service;

pub use link::{Dial, Tcp};
pub use links::Links;
pub use service::{ExchangeService, keep_alive};
