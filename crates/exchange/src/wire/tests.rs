#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use proptest::collection::vec;
use proptest::prelude::*;
use runtime_filter_core::{Keys, PartialBuilder};

use super::*;
use crate::decide::{FilterPolicy, decide};
use crate::testing::{CAP_BLOCKS, SETTINGS, partial, passing, policy, reason, report, unknown};

const ID: ExecutionId = ExecutionId {
    coordinator: 9,
    sequence: 300,
};

/// What the other side gets of a message.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn sent_to_worker(message: &proto::ToWorker) -> proto::to_worker::Message {
    sent(message).message.unwrap()
}

fn sent_to_coordinator(message: &proto::ToCoordinator) -> proto::to_coordinator::Message {
    sent(message).message.unwrap()
}

fn sent_partial(report: &TaskReport) -> proto::Partial {
    match sent_to_coordinator(&super::partial(300, 5, report)) {
        proto::to_coordinator::Message::Partial(partial) => partial,
        message => panic!("{message:?}"),
    }
}

fn sent_verdict(decided: &Verdict) -> proto::Verdict {
    match sent_to_worker(&verdict(300, 5, &Announcement::new(decided.clone()))) {
        proto::to_worker::Message::Verdict(verdict) => verdict,
        message => panic!("{message:?}"),
    }
}

fn pass_all(reason: PassAllReason) -> Announcement {
    Announcement::new(Verdict::PassAll(reason))
}

fn filter_verdict(hashes: &[u64]) -> Verdict {
    decide(partial(hashes), &policy(5), 0).verdict
}

#[test]
fn the_bytes_of_small_messages_are_those_of_the_contract() {
    assert_eq!(HASH_SCHEME, 2, "the bytes below have it");
    assert_eq!(
        hello(0x0102).encode_to_vec(),
        [0x0a, 13, 0x08, 1, 0x10, 2, 0x19, 2, 1, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(welcome().encode_to_vec(), [0x0a, 4, 0x08, 1, 0x10, 2]);
    // 300 is the varint ac 02.
    assert_eq!(began(300).encode_to_vec(), [0x12, 3, 0x08, 0xac, 0x02]);
    assert_eq!(end(1).encode_to_vec(), [0x22, 2, 0x08, 1]);
    assert_eq!(interest(1, 2).encode_to_vec(), [0x1a, 4, 0x08, 1, 0x10, 2]);
    assert_eq!(
        verdict(1, 2, &pass_all(PassAllReason::TooLarge)).encode_to_vec(),
        [0x1a, 6, 0x08, 1, 0x10, 2, 0x20, 7]
    );
    // A reason of code 0 is a reason all the same: a oneof has a presence.
    assert_eq!(
        verdict(1, 2, &pass_all(PassAllReason::Unrecognised)).encode_to_vec(),
        [0x1a, 6, 0x08, 1, 0x10, 2, 0x20, 0]
    );
}

#[test]
fn wire_len_counts_the_frame() {
    assert_eq!(wire_len(&end(1)), 4 + 5);
    assert_eq!(wire_len(&hello(0x0102)), 15 + 5);
    let message = super::partial(1, 2, &report(0, 1, &[1, 2, 3]));
    assert_eq!(wire_len(&message), message.encode_to_vec().len() as u64 + 5);
}

#[test]
fn only_equal_versions_agree() {
    assert_eq!(check_versions(PROTOCOL_VERSION, HASH_SCHEME), Ok(()));
    assert_eq!(
        check_versions(PROTOCOL_VERSION + 1, HASH_SCHEME),
        Err(WireError::Protocol {
            theirs: PROTOCOL_VERSION + 1
        })
    );
    assert_eq!(
        check_versions(PROTOCOL_VERSION, HASH_SCHEME + 1),
        Err(WireError::HashScheme {
            theirs: HASH_SCHEME + 1
        })
    );
    // Fields that are not set.
    assert_eq!(check_versions(0, 0), Err(WireError::Protocol { theirs: 0 }));
    assert_eq!(
        check_versions(PROTOCOL_VERSION, 0),
        Err(WireError::HashScheme { theirs: 0 })
    );
}

#[test]
fn a_begin_round_trips() {
    let proto::to_worker::Message::Begin(begin) = sent_to_worker(&begin(ID, &SETTINGS)) else {
        panic!("not a Begin");
    };
    assert_eq!(begin.sequence, 300);
    assert_eq!(read_begin(&begin), Ok(SETTINGS));
}

#[test]
fn a_begin_over_the_limit_is_refused() {
    let of = |max_filter_bytes| proto::Begin {
        sequence: 1,
        seed: 2,
        max_filter_bytes,
    };
    assert_eq!(
        read_begin(&of(268_435_456)),
        Ok(ExecutionSettings {
            seed: 2,
            max_filter_bytes: 268_435_456
        })
    );
    for bytes in [268_435_457, u64::from(u32::MAX) + 1, u64::MAX] {
        assert_eq!(
            read_begin(&of(bytes)),
            Err(WireError::TooLarge { bytes }),
            "{bytes}"
        );
    }
}

#[test]
fn a_partial_round_trips_with_keys_or_a_reason() {
    let known = TaskReport {
        task_index: 3,
        task_count: 8,
        partition_count: 4,
        partitions_covered: 2,
        outcome: Ok(partial(&[7, 1 << 60, 7])),
    };
    let message = sent_partial(&known);
    assert_eq!((message.sequence, message.filter), (300, 5));
    let read = read_partial(&message, &SETTINGS);
    assert_eq!((read.task_index, read.task_count), (3, 8));
    assert_eq!((read.partition_count, read.partitions_covered), (4, 2));
    let keys = read.outcome.unwrap();
    assert_eq!(keys.keys(), &Keys::Sparse(vec![7, 1 << 60]));
    assert_eq!((keys.rows(), keys.cap_blocks()), (3, CAP_BLOCKS));

    for reason in PassAllReason::ALL {
        let read = read_partial(&sent_partial(&unknown(0, 1, *reason)), &SETTINGS);
        assert_eq!(read.outcome.unwrap_err(), *reason);
        assert_eq!((read.partition_count, read.partitions_covered), (1, 0));
    }
}

#[test]
fn a_dense_partial_round_trips() {
    let small = ExecutionSettings {
        max_filter_bytes: 64,
        ..SETTINGS
    };
    let mut builder = PartialBuilder::new(small.cap_blocks(), SETTINGS.seed);
    let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    builder
        .insert(&(1..200).map(spread).collect::<Vec<_>>(), None)
        .unwrap();
    let dense = builder.finish();
    assert!(matches!(dense.keys(), Keys::Dense(filter) if filter.blocks() == 2));
    let sent = sent_partial(&TaskReport {
        outcome: Ok(dense.clone()),
        ..report(0, 1, &[])
    });
    assert_eq!(read_partial(&sent, &small).outcome.unwrap(), dense);
}

#[test]
fn the_one_block_that_is_always_granted_can_be_sent() {
    for max_filter_bytes in [0, 31] {
        let tiny = ExecutionSettings {
            max_filter_bytes,
            ..SETTINGS
        };
        let mut builder = PartialBuilder::new(tiny.cap_blocks(), SETTINGS.seed);
        builder.insert(&[4], None).unwrap();
        let keys = builder.finish();
        let sent = sent_partial(&TaskReport {
            outcome: Ok(keys.clone()),
            ..report(0, 1, &[])
        });
        assert_eq!(read_partial(&sent, &tiny).outcome.unwrap(), keys);
    }
}

#[test]
fn a_partial_that_cannot_be_read_is_malformed() {
    let good = sent_partial(&report(0, 1, &[1, 2, 3]));
    let Some(proto::partial::Outcome::Keys(bytes)) = &good.outcome else {
        panic!("no keys");
    };
    let read = |outcome| {
        let partial = proto::Partial {
            outcome,
            ..good.clone()
        };
        read_partial(&partial, &SETTINGS).outcome
    };
    let keys = |bytes: &[u8]| read(Some(proto::partial::Outcome::Keys(bytes.to_vec())));
    assert!(keys(bytes).is_ok());
    for len in 0..bytes.len() {
        assert_eq!(keys(&bytes[..len]), Err(PassAllReason::Malformed), "{len}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert_eq!(keys(&damaged), Err(PassAllReason::Malformed), "{at}");
    }
    assert_eq!(
        keys(&[bytes.as_slice(), &[0]].concat()),
        Err(PassAllReason::Malformed)
    );
    assert_eq!(keys(b"garbage"), Err(PassAllReason::Malformed));
    assert_eq!(read(None), Err(PassAllReason::Malformed));
}

#[test]
fn a_partial_larger_than_agreed_is_malformed() {
    let sent = sent_partial(&report(0, 1, &[1]));
    let half = ExecutionSettings {
        max_filter_bytes: SETTINGS.max_filter_bytes / 2,
        ..SETTINGS
    };
    assert_eq!(
        read_partial(&sent, &half).outcome,
        Err(PassAllReason::Malformed)
    );
}

#[test]
fn a_reason_of_a_newer_version_is_unrecognised_and_passes_all() {
    let partial = proto::Partial {
        outcome: Some(proto::partial::Outcome::Unknown(4_000)),
        ..proto::Partial::default()
    };
    assert_eq!(
        read_partial(&partial, &SETTINGS).outcome,
        Err(PassAllReason::Unrecognised)
    );
    let verdict = proto::Verdict {
        outcome: Some(proto::verdict::Outcome::PassAll(4_000)),
        ..proto::Verdict::default()
    };
    assert_eq!(
        reason(&read_verdict(&verdict, &SETTINGS)),
        PassAllReason::Unrecognised
    );
}

#[test]
fn a_verdict_round_trips() {
    let message = sent_verdict(&filter_verdict(&[3, 60, 3]));
    assert_eq!((message.sequence, message.filter), (300, 5));
    let read = read_verdict(&message, &SETTINGS);
    assert_eq!(passing(&read), [3, 60]);
    let Verdict::Filter(filter) = read else {
        panic!("{read:?}");
    };
    assert_eq!((filter.rows(), filter.distinct_keys()), (3, 2));
    assert_eq!(filter.seed(), SETTINGS.seed);
    // An empty filter drops all, so it must not be mistaken for an empty message.
    let empty = read_verdict(&sent_verdict(&filter_verdict(&[])), &SETTINGS);
    assert_eq!(passing(&empty), [0u64; 0]);
    for pass_all in PassAllReason::ALL {
        let message = sent_verdict(&Verdict::PassAll(*pass_all));
        assert_eq!(reason(&read_verdict(&message, &SETTINGS)), *pass_all);
    }
}

#[test]
fn a_bloom_verdict_round_trips_and_is_bounded() {
    let bloom = FilterPolicy {
        sizing: runtime_filter_core::SizingPolicy {
            max_exact_keys: 0,
            ..policy(5).sizing
        },
        ..policy(5)
    };
    let hashes: Vec<u64> = (1..=500u64)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    let message = sent_verdict(&decide(partial(&hashes), &bloom, 0).verdict);
    let Verdict::Filter(filter) = read_verdict(&message, &SETTINGS) else {
        panic!("a pass-all");
    };
    assert_eq!(filter.kind_name(), "bloom");
    let mut bitmap = Vec::new();
    filter.probe(&hashes, &mut bitmap);
    assert_eq!(
        bitmap.iter().map(|word| word.count_ones()).sum::<u32>(),
        500
    );
    let tight = ExecutionSettings {
        max_filter_bytes: 256,
        ..SETTINGS
    };
    assert_eq!(
        reason(&read_verdict(&message, &tight)),
        PassAllReason::Malformed
    );
}

#[test]
fn a_verdict_that_cannot_be_trusted_passes_all() {
    let good = sent_verdict(&filter_verdict(&[1, 2, 3]));
    let foreign = ExecutionSettings {
        seed: SETTINGS.seed + 1,
        ..SETTINGS
    };
    assert_eq!(
        reason(&read_verdict(&good, &foreign)),
        PassAllReason::Malformed
    );
    let Some(proto::verdict::Outcome::RuntimeFilter(bytes)) = &good.outcome else {
        panic!("no filter");
    };
    let read = |outcome| {
        let verdict = proto::Verdict {
            outcome,
            ..good.clone()
        };
        reason(&read_verdict(&verdict, &SETTINGS))
    };
    let filter = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        read(Some(proto::verdict::Outcome::RuntimeFilter(bytes.into())))
    };
    for len in 0..bytes.len() {
        assert_eq!(filter(&bytes[..len]), PassAllReason::Malformed, "{len}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 0x10;
        assert_eq!(filter(&damaged), PassAllReason::Malformed, "{at}");
    }
    assert_eq!(read(None), PassAllReason::Malformed);
}

#[test]
fn the_largest_partial_fits_a_message() {
    // Its headers: 48 bytes of the partial, 24 of the Bloom filter, and a few of protobuf.
    let largest = sent_partial(&report(0, 1, &[])).encoded_len() + 24 + MAX_FILTER_BYTES;
    assert!(largest + 64 <= MAX_MESSAGE_BYTES);
}

proptest! {
    #[test]
    fn no_bytes_panic_and_none_make_a_filter(bytes in vec(any::<u8>(), 0..300)) {
        let read = read_partial(
            &proto::Partial {
                outcome: Some(proto::partial::Outcome::Keys(bytes.clone())),
                ..proto::Partial::default()
            },
            &SETTINGS,
        );
        prop_assert_eq!(read.outcome, Err(PassAllReason::Malformed));
        let read = read_verdict(
            &proto::Verdict {
                outcome: Some(proto::verdict::Outcome::RuntimeFilter(bytes.clone().into())),
                ..proto::Verdict::default()
            },
            &SETTINGS,
        );
        prop_assert_eq!(reason(&read), PassAllReason::Malformed);
        // As whole messages: whatever decodes can be read.
        if let Ok(proto::ToWorker { message: Some(message) }) =
            proto::ToWorker::decode(bytes.as_slice())
        {
            match message {
                proto::to_worker::Message::Begin(begin) => drop(read_begin(&begin)),
                proto::to_worker::Message::Verdict(verdict) => {
                    drop(read_verdict(&verdict, &SETTINGS));
                }
                _ => {}
            }
        }
        if let Ok(proto::ToCoordinator {
            message: Some(proto::to_coordinator::Message::Partial(partial)),
        }) = proto::ToCoordinator::decode(bytes.as_slice())
        {
            drop(read_partial(&partial, &SETTINGS));
        }
    }

    #[test]
    fn damaged_keys_never_read_as_others(
        hashes in vec(any::<u64>(), 0..40),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let Some(proto::partial::Outcome::Keys(mut bytes)) =
            sent_partial(&report(0, 1, &hashes)).outcome
        else {
            return Err(TestCaseError::fail("no keys"));
        };
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let damaged = proto::Partial {
            outcome: Some(proto::partial::Outcome::Keys(bytes)),
            ..proto::Partial::default()
        };
        prop_assert_eq!(
            read_partial(&damaged, &SETTINGS).outcome,
            Err(PassAllReason::Malformed)
        );
    }
}
