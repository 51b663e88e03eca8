#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod columns;
mod cost;
mod legality;
mod places;
mod selectivity;
mod support;
mod waits;
