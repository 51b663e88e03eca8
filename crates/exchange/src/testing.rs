//! What the tests of several modules share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use runtime_filter_core::{Partial, PartialBuilder, SizingPolicy};

use crate::decide::{FilterPolicy, SizeRule};
use crate::hub::VerdictSink;
use crate::id::ExecutionId;
use crate::merge::TaskReport;
use crate::registry::{ExecutionSettings, Uplink};
use crate::verdict::{Announcement, PassAllReason, Verdict};

/// 64 KiB a filter, that is 2048 blocks.
pub(crate) const SETTINGS: ExecutionSettings = ExecutionSettings {
    seed: 0x5eed,
    max_filter_bytes: 1 << 16,
};

pub(crate) const CAP_BLOCKS: u32 = 2048;

/// The partial of rows with these key hashes.
pub(crate) fn partial(hashes: &[u64]) -> Partial {
    partial_in(&SETTINGS, hashes)
}

/// The partial of rows with these key hashes, in an execution of other settings.
pub(crate) fn partial_in(settings: &ExecutionSettings, hashes: &[u64]) -> Partial {
    let mut builder = PartialBuilder::new(settings.cap_blocks(), settings.seed);
    builder.insert(hashes, None).unwrap();
    builder.finish()
}

/// A report of one partition, fully covered.
pub(crate) fn report(task_index: u32, task_count: u32, hashes: &[u64]) -> TaskReport {
    TaskReport {
        task_index,
        task_count,
        partition_count: 1,
        partitions_covered: 1,
        outcome: Ok(partial(hashes)),
    }
}

pub(crate) fn unknown(task_index: u32, task_count: u32, reason: PassAllReason) -> TaskReport {
    TaskReport {
        partitions_covered: 0,
        outcome: Err(reason),
        ..report(task_index, task_count, &[])
    }
}

/// A filter that is sent whatever it costs.
pub(crate) fn policy(id: u32) -> FilterPolicy {
    FilterPolicy {
        id,
        rule: SizeRule::Fixed,
        sizing: SizingPolicy {
            target_fpp: 0.005,
            max_bytes: SETTINGS.max_filter_bytes,
            max_exact_keys: 256,
        },
        probe_bytes: None,
        probe_keys: None,
        max_cost_share: 0.5,
        force: false,
    }
}

/// The reason of a pass-all; panics on a filter.
pub(crate) fn reason(verdict: &Verdict) -> PassAllReason {
    match verdict {
        Verdict::PassAll(reason) => *reason,
        Verdict::Filter(filter) => panic!("a filter of {} keys", filter.distinct_keys()),
    }
}

/// Those of `0..64` that pass, among the hashes of that range; panics on a pass-all.
pub(crate) fn passing(verdict: &Verdict) -> Vec<u64> {
    let Verdict::Filter(filter) = verdict else {
        panic!("{verdict:?}");
    };
    let hashes: Vec<u64> = (0..64).collect();
    let mut bitmap = Vec::new();
    filter.probe(&hashes, &mut bitmap);
    hashes
        .into_iter()
        .filter(|hash| bitmap[0] >> hash & 1 == 1)
        .collect()
}

/// Remembers what it was handed.
#[derive(Default)]
pub(crate) struct RecordingSink {
    /// Bytes that each delivery puts on a network; zero for a sink of this process.
    pub(crate) bytes: u64,
    delivered: Mutex<Vec<(u32, Verdict)>>,
    /// The encoded filters, of a sink that is remote.
    encoded: Mutex<Vec<bytes::Bytes>>,
}

impl RecordingSink {
    pub(crate) fn local() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn remote(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            ..Self::default()
        })
    }

    pub(crate) fn delivered(&self) -> Vec<(u32, Verdict)> {
        self.delivered.lock().unwrap().clone()
    }

    /// The encoded filters that came.
    pub(crate) fn encoded(&self) -> Vec<bytes::Bytes> {
        self.encoded.lock().unwrap().clone()
    }

    /// The one verdict that came.
    pub(crate) fn only(&self) -> Verdict {
        let delivered = self.delivered();
        assert_eq!(delivered.len(), 1, "{delivered:?}");
        delivered[0].1.clone()
    }
}

impl VerdictSink for RecordingSink {
    fn deliver(&self, filter: u32, announcement: &Announcement) -> u64 {
        let verdict = announcement.verdict().clone();
        self.delivered.lock().unwrap().push((filter, verdict));
        if self.is_remote() {
            let encoded = announcement.encoded_filter();
            self.encoded.lock().unwrap().extend(encoded);
        }
        self.bytes
    }

    fn is_remote(&self) -> bool {
        self.bytes > 0
    }
}

/// Remembers what it was told.
#[derive(Default)]
pub(crate) struct RecordingUplink {
    reports: Mutex<Vec<(u32, TaskReport)>>,
    interests: Mutex<Vec<u32>>,
}

impl RecordingUplink {
    pub(crate) fn reports(&self) -> Vec<(u32, TaskReport)> {
        self.reports.lock().unwrap().clone()
    }

    pub(crate) fn interests(&self) -> Vec<u32> {
        self.interests.lock().unwrap().clone()
    }
}

impl Uplink for RecordingUplink {
    fn report(&self, _: ExecutionId, filter: u32, report: TaskReport) {
        self.reports.lock().unwrap().push((filter, report));
    }

    fn interest(&self, _: ExecutionId, filter: u32) {
        self.interests.lock().unwrap().push(filter);
    }
}

/// What `f` returns; panics if it is stuck, as on a lock.
pub(crate) fn in_time<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(Duration::from_secs(20)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("stuck"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => panic!("no value came"),
        },
    }
}
