//! How long probes may wait: no wait may hold up what it waits for.

use datafusion::common::JoinType;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::buffer::BufferExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

use super::super::*;
use super::support::*;

fn wait(plan: &Plan, settings: &[(&str, &str)], mode: Mode) -> WaitClass {
    let options = force();
    placed(plan, &options, &config(settings), mode).filters[0].wait
}

fn plain() -> Plan {
    Join::default().on(
        exchange(integers(&["a"]), &[0]),
        exchange(integers(&["b"]), &[0]),
        &[(0, 0)],
    )
}

#[test]
fn a_plain_join_waits() {
    for mode in [Mode::Cluster, Mode::InProcess] {
        assert_eq!(wait(&plain(), &[], mode), WaitClass::Ordered);
    }
}

#[test]
fn dynamic_task_counts_never_wait() {
    let dynamic = [("distributed.dynamic_task_count", "true")];
    assert_eq!(wait(&plain(), &dynamic, Mode::Cluster), WaitClass::Never);
    assert_eq!(
        wait(&plain(), &dynamic, Mode::InProcess),
        WaitClass::Ordered
    );
}

#[test]
fn a_buffered_probe_side_never_waits() {
    let buffering = [(
        "datafusion.execution.hash_join_buffering_capacity",
        "1048576",
    )];
    for mode in [Mode::Cluster, Mode::InProcess] {
        assert_eq!(wait(&plain(), &buffering, mode), WaitClass::Never);
    }
}

fn sorted(input: Plan) -> Plan {
    let order = LexOrdering::new([PhysicalSortExpr::new_default(col(&input, 0))]).unwrap();
    let sort = SortExec::new(order.clone(), input).with_preserve_partitioning(true);
    Arc::new(SortPreservingMergeExec::new(order, Arc::new(sort)))
}

#[test]
fn behind_an_eager_poller_a_probe_never_waits() {
    let eager: [fn(Plan) -> Plan; 3] = [
        |input| coalesce(input, None),
        sorted,
        |input| Arc::new(BufferExec::new(input, 1 << 20)),
    ];
    for make in eager {
        let left = coalesce(integers(&["p"]), None);
        let right = make(exchange(integers(&["a"]), &[0]));
        let plan = Join::collected(JoinType::Inner).on(left, right, &[(0, 0)]);
        for mode in [Mode::Cluster, Mode::InProcess] {
            assert_eq!(
                wait(&plan, &[], mode),
                WaitClass::Never,
                "{}",
                render(&plan)
            );
        }
    }
}

#[test]
fn a_place_before_an_eager_poller_is_better() {
    let right = coalesce(exchange(integers(&["a"]), &[0]), None);
    let plan = probing(right, 0);
    let placement = forced(&plan, Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
    assert!(render(&placement.plan).contains("probe f0 [a@0]\n      CoalescePartitions"));
}

#[test]
fn the_build_side_of_a_broadcast_join_is_read_too_early() {
    let broadcast = || {
        let left = coalesce(exchange(integers(&["d", "n"]), &[0]), None);
        Join::collected(JoinType::Inner).on(left, integers(&["b"]), &[(0, 0)])
    };
    // With an exchange above, the probe stays above the broadcast join and may wait.
    let placement = forced(&probing(broadcast(), 1), Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::Ordered);
    assert!(render(&placement.plan).contains("probe f0 [n@1]\n      Inner CollectLeft"));
    // Without one it goes below, and does not wait.
    let outer = coalesce(integers(&["p"]), None);
    let plan = Join::collected(JoinType::Inner).on(outer, broadcast(), &[(0, 1)]);
    let placement = forced(&plan, Mode::Cluster);
    assert_eq!(placement.filters[0].wait, WaitClass::Never);
    assert!(render(&placement.plan).contains("probe f0 [n@1]\n          DataSource"));
}
