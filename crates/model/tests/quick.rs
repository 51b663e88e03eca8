//! The quick scenarios hold, and the checker can tell when one does not.
#![allow(clippy::panic)]

use runtime_filter_exchange::PassAllReason;
use runtime_filter_model::{Fault, Scenario, Violation, check};

#[test]
fn every_state_of_the_quick_scenarios_keeps_every_rule() {
    let mut filter_told = false;
    let mut reasons = Vec::new();
    for scenario in Scenario::quick() {
        let outcome = check(&scenario, 2);
        assert_eq!(outcome.broken, [], "{}", scenario.name);
        println!("{} states: {}", outcome.states, scenario.name);
        filter_told |= outcome.filter_told;
        reasons.extend(outcome.reasons_told);
    }
    assert!(filter_told, "no probe was ever told a filter");
    for reason in [
        PassAllReason::BuildCancelled,
        PassAllReason::WorkerLost,
        PassAllReason::CoordinatorLost,
        PassAllReason::InconsistentTasks,
        PassAllReason::Ended,
        PassAllReason::WorkerUnavailable,
    ] {
        assert!(
            reasons.contains(&reason),
            "no probe was ever told: {reason}"
        );
    }
}

#[test]
fn a_scenario_is_found_by_its_name_only() {
    let names: Vec<_> = Scenario::all().iter().map(|s| s.name).collect();
    for name in &names {
        assert_eq!(Scenario::named(name).map(|s| s.name), Some(*name));
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1);
    }
    assert!(Scenario::named("no such").is_none());
}

/// What a stream cannot do is made good by timers only: a wait without one is found to be a hang.
#[test]
fn the_checker_finds_the_wait_that_nothing_ends() {
    let scenario = Scenario {
        kinds: &[Fault::Drop],
        faults: 1,
        timers: false,
        workers: 1,
        ..Scenario::quick().remove(0)
    };
    let broken = check(&scenario, 1).broken;
    let rules: Vec<_> = broken.iter().map(|(rule, _)| *rule).collect();
    assert!(rules.contains(&Violation::Waiting.rule()), "{rules:?}");
    assert!(rules.contains(&Violation::Unfinished.rule()), "{rules:?}");
    let loses = Violation::LosesKeys.rule();
    assert!(!rules.contains(&loses), "{rules:?}");
    for (_, events) in &broken {
        assert!(events.iter().any(|e| e.starts_with("Drop")), "{events:?}");
    }
}
