//! A thousand seeds of network faults.

use runtime_filter_faults::{run, run_many};

#[test]
fn a_thousand_seeds_lose_no_row_hang_nowhere_and_leave_nothing_behind() {
    let report = run_many(0..1_000, 2, |_| ());
    println!("seeds 0..1000\n{report}");
    assert_eq!(report.runs, 1_000);
    assert!(report.is_clean(), "{report}");
    // It has happened, and filters have come through none the less.
    assert!(report.filters() > 500, "{report}");
    for fault in [
        "partition",
        "partition from the worker",
        "partition to the worker",
        "hold",
        "slow link",
        "worker killed",
        "worker restarted",
        "coordinator killed",
        "worker of another protocol",
        "worker of another hash scheme",
        "silent worker",
        "connection cut",
        "message: lost",
        "message: repeated",
        "message: overtaken",
        "message: delayed",
        "message: damaged",
        "message: stream aborted",
    ] {
        assert!(report.faults.contains_key(fault), "no {fault}: {report}");
    }
}

#[test]
fn a_seed_shows_the_same_again() {
    for seed in 0..20 {
        let (once, again) = (run(seed), run(seed));
        assert_eq!(once.queries, again.queries, "seed {seed}");
        assert_eq!(once.faults, again.faults, "seed {seed}");
        assert_eq!(once.probes, again.probes, "seed {seed}");
    }
}
