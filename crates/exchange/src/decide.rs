//! Whether a complete filter is worth sending. Pure.

use runtime_filter_core::{Partial, RuntimeFilter, SizingPolicy};

use crate::verdict::{PassAllReason, Verdict};

/// What the plan and the options say about one filter.
#[derive(Debug, Clone)]
pub struct FilterPolicy {
    /// Number of the filter in its plan.
    pub id: u32,
    /// How large the filter gets.
    pub sizing: SizingPolicy,
    /// Estimated bytes on the wire that the filter can thin out; `None` without statistics.
    pub probe_bytes: Option<u64>,
    /// Share of `probe_bytes` that sending the filter may cost, in `0.0..=1.0`.
    pub max_cost_share: f64,
    /// Send whatever the cost.
    pub force: bool,
}

/// The verdict for `keys`, given how many remote processes would receive it.
pub fn decide(keys: Partial, policy: &FilterPolicy, remote_receivers: usize) -> Verdict {
    weigh(build(keys, policy), policy, remote_receivers)
}

/// The filter of `keys`: the part of a decision that takes time.
pub(crate) fn build(keys: Partial, policy: &FilterPolicy) -> Result<RuntimeFilter, PassAllReason> {
    RuntimeFilter::from_partial(keys, &policy.sizing).map_err(|_| PassAllReason::OutOfMemory)
}

/// Whether a filter is worth sending to that many remote processes.
pub(crate) fn weigh(
    filter: Result<RuntimeFilter, PassAllReason>,
    policy: &FilterPolicy,
    remote_receivers: usize,
) -> Verdict {
    let filter = match filter {
        Ok(filter) => filter,
        Err(reason) => return Verdict::PassAll(reason),
    };
    if !policy.force
        && let Some(probe_bytes) = policy.probe_bytes
    {
        let cost = filter.byte_len() as f64 * remote_receivers as f64;
        if cost > probe_bytes as f64 * policy.max_cost_share {
            return Verdict::PassAll(PassAllReason::TooLarge);
        }
    }
    Verdict::Filter(std::sync::Arc::new(filter))
}

#[cfg(test)]
mod tests;
