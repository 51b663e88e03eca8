//! The exploration: every order in which the events of a scenario can happen.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use runtime_filter_exchange::PassAllReason;
use stateright::{Checker, Model, Property};

use crate::scenario::Scenario;
use crate::world::{Action, Seen, Violation, World};

/// A state of the cluster, by the events that lead to it.
///
/// The types of the exchange are built for one process each and cannot be copied. A state
/// therefore keeps the way to it, and what must be known of it: its fingerprint tells two states
/// apart, whichever way led to them.
#[derive(Clone)]
pub struct State {
    log: Vec<Action>,
    fingerprint: u64,
    enabled: Vec<Action>,
    violations: Vec<Violation>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("steps", &self.log.len())
            .field("violations", &self.violations)
            .finish_non_exhaustive()
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

/// What probes have been told, over all states.
#[derive(Debug, Default)]
struct Told(AtomicU64);

impl Told {
    const FILTER: u32 = 63;

    fn add(&self, seen: &Seen) {
        let bit = match seen {
            Seen::Filter => Self::FILTER,
            Seen::PassAll(reason) => reason.code(),
            Seen::Nothing => return,
        };
        self.0.fetch_or(1 << bit, Ordering::Relaxed);
    }

    fn has(&self, bit: u32) -> bool {
        self.0.load(Ordering::Relaxed) >> bit & 1 == 1
    }
}

/// The model of one scenario.
#[derive(Debug)]
pub struct Protocol {
    scenario: Scenario,
    told: Arc<Told>,
}

impl Protocol {
    fn state(&self, log: Vec<Action>) -> State {
        let mut world = World::new(&self.scenario);
        for action in &log {
            world.apply(*action);
        }
        let enabled = world.enabled();
        let fingerprint = world.fingerprint();
        for seen in world.seen() {
            self.told.add(&seen);
        }
        // Last: what must hold at the end is looked at with the streams closed.
        let violations = world.violations(enabled.is_empty());
        State {
            log,
            fingerprint,
            enabled,
            violations,
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend_from_slice(&state.enabled);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut log = Vec::with_capacity(state.log.len() + 1);
        log.extend_from_slice(&state.log);
        log.push(action);
        Some(self.state(log))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! properties {
            ($($violation:ident),*) => {
                vec![$(Property::always(Violation::$violation.rule(), |_, state: &State| {
                    !state.violations.contains(&Violation::$violation)
                })),*]
            };
        }
        properties![
            Incomplete, LosesKeys, Changed, Needless, Protocol, Waiting, Unfinished, Registered,
            Owed
        ]
    }
}

/// What the exploration of a scenario has shown.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// States that differ.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// Most events of one run.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Whether a probe was told a filter in some state.
    pub filter_told: bool,
    /// The reasons that a probe was told in some state.
    pub reasons_told: Vec<PassAllReason>,
    /// Rules that are broken, each with the events that lead there.
    pub broken: Vec<(&'static str, Vec<String>)>,
}

/// Explores every state of `scenario`, on `threads` threads.
pub fn check(scenario: &Scenario, threads: usize) -> Outcome {
    let told = Arc::new(Told::default());
    let protocol = Protocol {
        scenario: scenario.clone(),
        told: Arc::clone(&told),
    };
    let begin = Instant::now();
    let checker = protocol.checker().threads(threads).spawn_bfs().join();
    let mut broken: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(rule, path)| {
            let events = path.into_actions();
            (rule, events.iter().map(|e| format!("{e:?}")).collect())
        })
        .collect();
    broken.sort();
    Outcome {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        elapsed: begin.elapsed(),
        filter_told: told.has(Told::FILTER),
        reasons_told: PassAllReason::ALL
            .iter()
            .copied()
            .filter(|reason| told.has(reason.code()))
            .collect(),
        broken,
    }
}
