//! Network faults between the real ends of the exchange.
//!
//! ```text
//!   host "coordinator"             network of `turmoil`            hosts "worker-0", ...
//!   InProcessExchange, Links  --[partition, hold, cut, latency]--  ExchangeService, Registry
//!                             --[proxy: lose, repeat, damage]----  build tasks, probes
//! ```
//!
//! A [`Plan`] is drawn from a seed and holds everything that happens; [`run`] lets it happen on a
//! simulated clock. So a seed that shows a fault shows it again.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`plan`] | what can happen to a cluster, and how likely it is (pure) |
//! | `network` | how the gRPC ends run over the simulated network |
//! | `proxy` | what a proxy does to the messages that pass |
//! | `cluster` | what a coordinator and a worker do |
//! | [`simulation`] | how a plan is run, and what must hold |
//! | [`report`] | the totals |

mod cluster;
mod network;
pub mod plan;
mod proxy;
pub mod report;
pub mod simulation;

pub use plan::Plan;
pub use report::Report;
pub use simulation::{run, run_many};
