//! End-to-end tests: real workers, real gRPC, real files. One binary, so that
//! DataFusion is linked once.
//!
//! The oracle of every test is the same query with our filters and DataFusion's
//! own dynamic filters off.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub
)]

mod cli;
mod exchange;
mod faults;
mod in_process;
mod joins;
mod sizing;
mod snapshots;
mod storage;
mod support;
mod tpcds;
mod tpch;
mod transitive;
