//! stub, to be replaced
use std::sync::Arc;
use datafusion::common::Result; use datafusion::config::ConfigOptions; use datafusion::physical_plan::ExecutionPlan;
use crate::{config::RuntimeFilterOptions, ledger::JoinVerdict, spec::FilterSpec};
pub enum Mode { Cluster, InProcess }
pub struct Placement { pub plan: Arc<dyn ExecutionPlan>, pub filters: Vec<Arc<FilterSpec>>, pub ledger: Vec<JoinVerdict> }
pub fn place(plan: Arc<dyn ExecutionPlan>, _: &RuntimeFilterOptions, _: &ConfigOptions, _: Mode) -> Result<Placement> { Ok(Placement { plan, filters: vec![], ledger: vec![] }) }
