//! Model checker of the exchange between a coordinator and its workers.
//!
//! ```text
//!   Scenario --> Protocol (stateright) --> every order of events
//!                   |
//!                   v  replays the events of a state on
//!   World: Hub, Hubs, CoordinatorEnd  <- messages ->  WorkerEnd, Registry, Execution
//! ```
//!
//! The shipped types of `runtime-filter-exchange` are what runs, and the shipped messages are
//! what travels. The model adds only what surrounds them: streams that break, lose, repeat and
//! swap messages, workers that crash, tasks that end in every order or not at all.
//!
//! | module | a change belongs here when it touches |
//! |---|---|
//! | [`scenario`] | how large a cluster is explored, and what goes wrong in it |
//! | [`world`] | what can happen in a cluster, and what must hold |
//! | [`protocol`] | how the states are explored and counted |

pub mod protocol;
pub mod scenario;
pub mod world;

pub use protocol::{Outcome, check};
pub use scenario::{Fault, Scenario};
pub use world::Violation;
