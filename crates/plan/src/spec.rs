//! What the plan fixes about one filter, shared by its build and probe nodes.

use serde::{Deserialize, Serialize};

/// Bytes on the wire per byte in memory, for weighing a filter against the rows that
/// it saves: TPC-H at scale 1 shuffles 1,623 MB in memory as 416 MB (LZ4).
pub const WIRE_SHARE: f64 = 0.25;

/// How long the probes of a filter may wait for its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitClass {
    /// The engine drains the build side before it polls the probe side, so that
    /// only publish, merge and broadcast are waited for: `wait_timeout_ms`.
    Ordered,
    /// The build node sits in the stage of the join itself, so that its
    /// partitions may end late or never: `in_stage_wait_ms`.
    InStage,
    /// Waiting could hold up the very task that is waited for: zero.
    Never,
    /// The probe is polled from the start of the query on, and so is the build side;
    /// nothing that the build side needs is held up: `wait_timeout_ms`.
    Early,
}

/// What was estimated about a filter while planning. `None` = no statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// Rows that reach the build node, over all tasks.
    pub build_rows: Option<u64>,
    /// Rows that reach the probe nodes, over all tasks.
    pub probe_rows: Option<u64>,
    /// Bytes in memory of the rows that enter the exchanges between the probe nodes
    /// and their join, counted once for each exchange: what a filter can thin out.
    pub probe_bytes: Option<u64>,
    /// Distinct keys that reach the probe nodes, where statistics tell their number and
    /// not only a range of them.
    pub probe_keys: Option<u64>,
}

/// One runtime filter of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FilterSpec {
    /// Number of the filter, unique within one plan.
    pub id: u32,
    /// The join it serves, as a person reads it: `Inner o_orderkey = l_orderkey`.
    pub join: String,
    /// The join's NULL keys equal each other (`IS NOT DISTINCT FROM`).
    pub null_equals_null: bool,
    /// How long probes may wait.
    pub wait: WaitClass,
    /// What the cost gate knew.
    pub estimates: Estimates,
    /// Nothing but the probes of other filters makes the build side selective: without
    /// their verdicts it holds every key, and its own is not worth sending.
    pub leans_on_probes: bool,
}
