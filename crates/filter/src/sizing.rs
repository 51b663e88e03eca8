//! Which form of a filter is expected to move the fewest bytes. Pure.
//!
//! With `r` processes to receive the filter, `P` bytes of probe rows on the network without one, and
//! `k` the share of them that has a partner on the build side, a filter of `s` encoded bytes and false
//! positive probability `f` is expected to lead to
//!
//! ```text
//! s * r  +  P * (k + (1 - k) * f)      bytes,  and no filter to  P.
//! ```
//!
//! What the partials cost is spent by then and part of neither. [`choose`] takes the least over every
//! legal Bloom filter size up to the limit, the list of the keys, and no filter.
//!
//! This is the optimisation that Mullin (Optimal semijoins for distributed database systems, IEEE
//! Transactions on Software Engineering 16(5), 1990) states for Bloom filters in distributed joins: as
//! many bits as pay for themselves in rows not sent. There is no closed form for split blocks, and
//! about a hundred sizes: so they are all looked at. `f` is that of
//! [`expected_fpp`](runtime_filter_bloom::expected_fpp).
//!
//! The processors' work is not in the formula: bytes of the filter (encoded, checked and decoded by
//! every receiver) and bytes of false positives (hashed, encoded and decoded once) both cost it. Where
//! nothing crosses a network ([`for_local_probes`]), and where `P` is not known, another rule must do.

use runtime_filter_bloom::{expected_fpp, geometry, geometry_for, largest_within};

use crate::filter::SizingPolicy;
use crate::partial::{Keys, Partial};
use crate::{rice, wire};

/// False positive probability to aim at where nothing tells what a false positive costs: 10 bits a key.
pub const DEFAULT_FPP: f64 = 0.01;

/// The same for probes of this process, as long as the filter stays below [`LOCAL_BYTES`]. A probe costs
/// about 2 ns then whatever the size, and a row that is copied for nothing some 100 ns.
pub const LOCAL_FPP: f64 = 0.001;

/// What fits into the second level cache of any server core built since 2008.
pub const LOCAL_BYTES: usize = 256 << 10;

/// What a filter is to be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing, for a build side without keys.
    Empty,
    /// A list of the keys' hashes.
    Keys,
    /// A Bloom filter of that many blocks of 32 bytes.
    Bloom(u32),
}

/// A form that a filter could be sent in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// What it is made of.
    pub form: Form,
    /// Bytes of its encoded form, header included.
    pub bytes: u64,
    /// Expected false positive probability, 0 to 1.
    pub fpp: f64,
}

/// What is known about the keys of a filter that decides which forms it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFacts {
    /// Distinct keys.
    pub distinct: u64,
    /// Bytes of their list, headers not counted; `None` if they are not to be listed.
    pub list_bytes: Option<u64>,
    /// Blocks of the Bloom filter that they are in, which can only be folded; `None` while each key is
    /// known.
    pub dense_blocks: Option<u32>,
}

impl KeyFacts {
    /// The facts about a partial. Its keys can be listed if `policy` allows it and they are known.
    pub fn of(partial: &Partial, policy: &SizingPolicy) -> Self {
        let (list_bytes, dense_blocks) = match partial.keys() {
            Keys::Sparse(hashes) => {
                let listed = hashes.len() <= policy.max_exact_keys
                    && hashes.len().saturating_mul(8) <= policy.max_bytes;
                let bytes = listed.then(|| rice::encoded_len(hashes) as u64);
                (bytes, None)
            }
            Keys::Dense(filter) => (None, Some(filter.blocks())),
        };
        Self {
            distinct: partial.distinct_keys(),
            list_bytes,
            dense_blocks,
        }
    }

    /// The Bloom filter sizes that the keys can be brought to within `max_bytes`, in blocks, descending.
    /// At least one: the smallest there is, if none is small enough.
    fn sizes(&self, max_bytes: usize) -> Vec<u32> {
        let limit = largest_within(max_bytes);
        match self.dense_blocks {
            None => std::iter::successors(Some(limit), |&size| {
                (size > 1).then(|| geometry::largest_at_most(size - 1))
            })
            .collect(),
            Some(blocks) => {
                let mut sizes: Vec<u32> = geometry::fold_sizes(blocks)
                    .take_while(|&size| size <= limit)
                    .collect();
                sizes.reverse();
                sizes
            }
        }
    }

    fn bloom(&self, blocks: u32) -> Candidate {
        let headers = (wire::HEADER_LEN + runtime_filter_bloom::HEADER_LEN) as u64;
        Candidate {
            form: Form::Bloom(blocks),
            bytes: headers + u64::from(blocks) * 32,
            fpp: expected_fpp(blocks, self.distinct),
        }
    }

    /// The list of the keys, or what stands for no keys at all, if they may be listed.
    pub fn list(&self) -> Option<Candidate> {
        let header = wire::HEADER_LEN as u64;
        if self.distinct == 0 {
            return Some(Candidate {
                form: Form::Empty,
                bytes: header,
                fpp: 0.0,
            });
        }
        self.list_bytes.map(|bytes| Candidate {
            form: Form::Keys,
            bytes: header.saturating_add(bytes),
            fpp: 0.0,
        })
    }

    /// Every form within `max_bytes`, by ascending bytes.
    pub fn candidates(&self, max_bytes: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = self.list().into_iter().collect();
        if self.distinct > 0 {
            all.extend(
                self.sizes(max_bytes)
                    .into_iter()
                    .map(|size| self.bloom(size)),
            );
        }
        all.sort_by_key(|candidate| candidate.bytes);
        all
    }

    /// The smallest Bloom filter within `max_bytes` that reaches `fpp`, or else the largest.
    pub fn bloom_for(&self, fpp: f64, max_bytes: usize) -> Candidate {
        let wanted = geometry_for(self.distinct, fpp, max_bytes);
        let sizes = self.sizes(max_bytes);
        let at_least = sizes.iter().rev().find(|&&size| size >= wanted);
        let size = at_least.or(sizes.first()).copied().unwrap_or(1);
        self.bloom(size)
    }
}

/// The form for a fixed false positive probability: the list while there are few keys, else the smallest
/// Bloom filter that reaches it.
pub fn for_target(keys: &KeyFacts, policy: &SizingPolicy) -> Candidate {
    keys.list()
        .unwrap_or_else(|| keys.bloom_for(policy.target_fpp, policy.max_bytes))
}

/// The form for probes that share this process, to which a filter is handed for nothing: as good as the
/// cache allows ([`LOCAL_FPP`] within [`LOCAL_BYTES`]), and [`DEFAULT_FPP`] at least, within `policy`'s
/// limits.
pub fn for_local_probes(keys: &KeyFacts, policy: &SizingPolicy) -> Candidate {
    keys.list().unwrap_or_else(|| {
        let cached = keys.bloom_for(LOCAL_FPP, policy.max_bytes.min(LOCAL_BYTES));
        let default = keys.bloom_for(DEFAULT_FPP, policy.max_bytes);
        if cached.bytes > default.bytes {
            cached
        } else {
            default
        }
    })
}

/// What a filter can save, and what it may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stakes {
    /// Processes that the filter is sent to over a network.
    pub receivers: u64,
    /// Bytes of probe rows that cross a network if there is no filter.
    pub probe_bytes: u64,
    /// Share of them, 0 to 1, that have a partner on the build side. Taken as 0 if it is not a number.
    pub keep: f64,
    /// Share of `probe_bytes`, 0 to 1, that sending the filter may cost. Taken as 0 if it is not a number.
    pub max_cost_share: f64,
}

/// Why no form of a filter is worth sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWorth {
    /// It would cost more than it is allowed to, or than all probe rows.
    TooLarge,
    /// So many rows match that the rest is not worth it.
    NotSelective,
}

impl Stakes {
    /// The keep rate if each of `distinct` build keys is among `probe_keys` distinct probe keys and rows
    /// spread evenly over these (the containment assumption of Selinger et al., Access path selection in
    /// a relational database management system, 1979). 0 if `probe_keys` is not known: the plan has a
    /// filter because most rows are expected to go.
    pub fn keep_rate(distinct: u64, probe_keys: Option<u64>) -> f64 {
        probe_keys.map_or(0.0, |probe_keys| {
            (distinct as f64 / probe_keys.max(1) as f64).min(1.0)
        })
    }

    /// Bytes that cross the network to send a filter of `bytes` bytes.
    pub fn sending(&self, bytes: u64) -> f64 {
        bytes as f64 * self.receivers as f64
    }

    /// Most bytes that sending may cost.
    pub fn budget(&self) -> f64 {
        self.probe_bytes as f64 * unit(self.max_cost_share)
    }

    /// The part of the expected bytes that depends on the candidate: the copies sent, and the false
    /// positives.
    fn spent(&self, candidate: &Candidate) -> f64 {
        let no_partner = self.probe_bytes as f64 * (1.0 - unit(self.keep));
        self.sending(candidate.bytes) + no_partner * candidate.fpp
    }

    /// Bytes expected to cross the network with that filter; see the [module](self).
    pub fn expected_bytes(&self, candidate: &Candidate) -> f64 {
        self.probe_bytes as f64 * unit(self.keep) + self.spent(candidate)
    }

    /// Bytes that the filter is expected to spare; negative if it costs more than it spares.
    pub fn expected_saving(&self, candidate: &Candidate) -> f64 {
        self.probe_bytes as f64 * (1.0 - unit(self.keep)) - self.spent(candidate)
    }
}

/// `share` within 0 to 1, NaN as 0.
fn unit(share: f64) -> f64 {
    if share.is_nan() {
        0.0
    } else {
        share.clamp(0.0, 1.0)
    }
}

/// The candidate of the least [`Stakes::expected_bytes`] among those whose sending stays within
/// [`Stakes::budget`]; of equals, the first. `candidates` should ascend by bytes.
///
/// # Errors
///
/// [`NotWorth::TooLarge`] if none stays within the budget, or none spares more than it costs even if no
/// row matched; [`NotWorth::NotSelective`] if none does because too many rows match.
pub fn choose(candidates: &[Candidate], stakes: &Stakes) -> Result<Candidate, NotWorth> {
    let best = candidates
        .iter()
        .filter(|candidate| stakes.sending(candidate.bytes) <= stakes.budget())
        .min_by(|a, b| stakes.spent(a).total_cmp(&stakes.spent(b)))
        .ok_or(NotWorth::TooLarge)?;
    if stakes.expected_saving(best) > 0.0 {
        return Ok(*best);
    }
    let if_none_matched = Stakes {
        keep: 0.0,
        ..*stakes
    };
    let selective = candidates.iter().any(|candidate| {
        stakes.sending(candidate.bytes) <= stakes.budget()
            && if_none_matched.expected_saving(candidate) > 0.0
    });
    Err(if selective {
        NotWorth::NotSelective
    } else {
        NotWorth::TooLarge
    })
}

#[cfg(test)]
mod tests;
