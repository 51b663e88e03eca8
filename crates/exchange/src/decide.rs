//! Whether a complete filter is worth sending, and in which form. Pure.
//!
//! | the policy says | and then | the form |
//! |---|---|---|
//! | [`SizeRule::Auto`] | nothing crosses a network | [`sizing::for_local_probes`] |
//! | | the probe bytes are known | the fewest expected bytes: [`sizing::choose`] |
//! | | they are not | the default of `sizing`, sent whatever it costs |
//! | [`SizeRule::Fixed`] | | the target of `sizing`, sent if the budget allows it |
//! | [`SizeRule::Forced`] | | that one, sent whatever it costs |

use std::sync::Arc;

use runtime_filter_core::sizing::{self, Candidate, KeyFacts, NotWorth, Stakes};
use runtime_filter_core::{Partial, RuntimeFilter, SizingPolicy};

use crate::verdict::{PassAllReason, Verdict};

/// How the form of a filter is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum SizeRule {
    /// The form with the fewest expected bytes.
    #[default]
    Auto,
    /// The target of [`FilterPolicy::sizing`].
    Fixed,
    /// One form, to measure what it costs.
    Forced(ForcedForm),
}

/// A form that a benchmark asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ForcedForm {
    /// The smallest Bloom filter of that false positive probability, or the largest allowed.
    Bloom(f64),
    /// The list of the keys, if they are known one by one and fit; else the largest Bloom filter.
    Keys,
    /// No filter.
    Nothing,
}

/// What the plan and the options say about one filter.
#[derive(Debug, Clone)]
pub struct FilterPolicy {
    /// Number of the filter in its plan.
    pub id: u32,
    /// How its form is chosen.
    pub rule: SizeRule,
    /// How large the filter gets; `target_fpp` holds where `rule` has nothing to go by.
    pub sizing: SizingPolicy,
    /// Estimated bytes on the wire that the filter can thin out; `None` without statistics.
    pub probe_bytes: Option<u64>,
    /// Estimated distinct keys of the probe side; `None` if nothing tells.
    pub probe_keys: Option<u64>,
    /// Share of `probe_bytes` that sending the filter may cost, in `0.0..=1.0`.
    pub max_cost_share: f64,
    /// Send whatever the cost.
    pub force: bool,
}

impl FilterPolicy {
    fn stakes(&self, distinct: u64, receivers: usize) -> Option<Stakes> {
        self.probe_bytes.map(|probe_bytes| Stakes {
            receivers: receivers as u64,
            probe_bytes,
            keep: Stakes::keep_rate(distinct, self.probe_keys),
            max_cost_share: self.max_cost_share,
        })
    }

    /// Most bytes that sending the filter may cost, over all receivers; `None` for any number.
    pub(crate) fn budget(&self) -> Option<f64> {
        if self.force || matches!(self.rule, SizeRule::Forced(_)) {
            return None;
        }
        self.stakes(0, 0).map(|stakes| stakes.budget())
    }
}

/// What a verdict was based on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Basis {
    /// `local`, `bytes`, `default`, `fixed` or `forced`: the row of the [module](self)'s table.
    pub rule: &'static str,
    /// Processes that were expected to receive the filter over a network.
    pub receivers: usize,
    /// Bytes on the wire that the filter can thin out, as estimated; `None` without statistics.
    pub probe_bytes: Option<u64>,
    /// Share of them expected to match, 0 to 1.
    pub keep: f64,
    /// The form that was sent, or would have been for the target of the policy.
    pub candidate: Candidate,
    /// Bytes expected to be sent for the filter.
    pub sending_bytes: f64,
    /// Bytes expected to cross the network in all: copies of the filter, matching rows, false positives.
    /// `None` without statistics.
    pub expected_bytes: Option<f64>,
    /// Bytes that this is expected to spare. `None` without statistics.
    pub expected_saving: Option<f64>,
}

/// A verdict and why it is so.
#[derive(Debug, Clone)]
pub struct Decision {
    /// What the probes are told.
    pub verdict: Verdict,
    /// What it was based on.
    pub basis: Basis,
}

/// The verdict for `keys`, given how many remote processes are expected to receive it. Builds the filter,
/// which takes time.
pub fn decide(keys: Partial, policy: &FilterPolicy, receivers: usize) -> Decision {
    let facts = KeyFacts::of(&keys, &limits(policy));
    let (basis, chosen) = choose(&facts, policy, receivers);
    let verdict = match chosen {
        Err(reason) => Verdict::PassAll(reason),
        Ok(candidate) => match RuntimeFilter::in_form(keys, candidate.form) {
            Ok(filter) => Verdict::Filter(Arc::new(filter)),
            Err(_) => Verdict::PassAll(PassAllReason::OutOfMemory),
        },
    };
    Decision { verdict, basis }
}

/// The limits that hold under `policy`'s rule.
fn limits(policy: &FilterPolicy) -> SizingPolicy {
    let max_exact_keys = match policy.rule {
        SizeRule::Forced(ForcedForm::Keys) => usize::MAX,
        SizeRule::Forced(ForcedForm::Bloom(_)) => 0,
        _ => policy.sizing.max_exact_keys,
    };
    SizingPolicy {
        max_exact_keys,
        ..policy.sizing
    }
}

fn choose(
    keys: &KeyFacts,
    policy: &FilterPolicy,
    receivers: usize,
) -> (Basis, Result<Candidate, PassAllReason>) {
    let limits = limits(policy);
    let stakes = policy.stakes(keys.distinct, receivers);
    let (rule, candidate, refused) = match (policy.rule, &stakes) {
        (SizeRule::Auto, _) if receivers == 0 => {
            ("local", sizing::for_local_probes(keys, &limits), None)
        }
        (SizeRule::Auto, Some(stakes)) => {
            // With force every cost is allowed, so only the bytes count.
            let stakes = Stakes {
                max_cost_share: if policy.force {
                    1.0
                } else {
                    stakes.max_cost_share
                },
                ..*stakes
            };
            match sizing::choose(&keys.candidates(limits.max_bytes), &stakes) {
                Ok(candidate) => ("bytes", candidate, None),
                Err(not_worth) => {
                    let closest = sizing::for_target(keys, &limits);
                    let reason = match not_worth {
                        NotWorth::TooLarge => PassAllReason::TooLarge,
                        NotWorth::NotSelective => PassAllReason::NotSelective,
                    };
                    ("bytes", closest, (!policy.force).then_some(reason))
                }
            }
        }
        (SizeRule::Auto, None) => ("default", sizing::for_target(keys, &limits), None),
        (SizeRule::Fixed, stakes) => {
            let candidate = sizing::for_target(keys, &limits);
            let too_large =
                !policy.force && stakes.is_some_and(|s| s.sending(candidate.bytes) > s.budget());
            (
                "fixed",
                candidate,
                too_large.then_some(PassAllReason::TooLarge),
            )
        }
        (SizeRule::Forced(form), _) => {
            let bloom = |fpp| keys.bloom_for(fpp, limits.max_bytes);
            let (candidate, refused) = match form {
                ForcedForm::Bloom(fpp) => (keys.list().unwrap_or_else(|| bloom(fpp)), None),
                ForcedForm::Keys => (keys.list().unwrap_or_else(|| bloom(0.0)), None),
                ForcedForm::Nothing => (bloom(1.0), Some(PassAllReason::NotSelective)),
            };
            ("forced", candidate, refused)
        }
    };
    let sent = refused.is_none();
    let basis = Basis {
        rule,
        receivers,
        probe_bytes: policy.probe_bytes,
        keep: Stakes::keep_rate(keys.distinct, policy.probe_keys),
        candidate,
        sending_bytes: if sent {
            candidate.bytes as f64 * receivers as f64
        } else {
            0.0
        },
        expected_bytes: stakes.map(|stakes| match sent {
            true => stakes.expected_bytes(&candidate),
            false => stakes.probe_bytes as f64,
        }),
        expected_saving: stakes.map(|stakes| match sent {
            true => stakes.expected_saving(&candidate),
            false => 0.0,
        }),
    };
    (basis, refused.map_or(Ok(candidate), Err))
}

#[cfg(test)]
mod tests;
