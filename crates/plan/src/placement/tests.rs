#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod columns;
mod copies;
mod cost;
mod legality;
mod other_joins;
mod parts;
mod places;
mod selectivity;
mod stones;
mod support;
mod waits;
