//! Distributed join runtime filters for Apache DataFusion.
//!
//! Workers build Bloom filters on the small side of a join while it is being read,
//! the coordinator merges them and sends the result to the scans of the large
//! side, which drop rows that cannot join before those rows are shuffled.
//!
//! * A cluster of `datafusion-distributed`: [`RuntimeFilterSessionExt::with_runtime_filters`]
//!   on the coordinating session, [`RuntimeFilterWorker`] (or [`WorkerServer`]) on the workers.
//! * One process: [`RuntimeFilterRule`] as the last physical optimizer rule.
//! * After a query: [`query_report`].

mod session;

pub use runtime_filter_coordinator::Coordinator;
pub use runtime_filter_plan::codec::RuntimeFilterCodec;
pub use runtime_filter_plan::config::RuntimeFilterOptions;
pub use runtime_filter_plan::ledger::{JoinOutcome, JoinVerdict, Refusal};
pub use runtime_filter_plan::nodes::{
    RuntimeFilterBuildExec, RuntimeFilterProbeExec, RuntimeFilterScopeExec,
};
pub use runtime_filter_plan::report::{FilterReport, QueryReport, Storage, query_report};
pub use runtime_filter_plan::rule::RuntimeFilterRule;
pub use runtime_filter_worker::{RunningWorker, RuntimeFilterWorker, WorkerError, WorkerServer};
pub use session::{RuntimeFilterSessionExt, Workers};
