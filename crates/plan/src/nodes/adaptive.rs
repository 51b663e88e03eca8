//! When a filter that keeps nearly all rows is switched off, and when it is tried
//! again: a state machine without clock, lock or stream.
//!
//! ```text
//!        window keeps too much               pause is over
//!   On ----------------------> Pausing ----------------------> Sampling
//!    ^                            ^                               |  |
//!    |                            +---- sample keeps too much ----+  |
//!    |                                  (pause doubles, to a limit)  |
//!    +---------------- sample drops enough (pause starts over) ------+
//! ```
//!
//! One machine serves one partition. Partitions read different files, so what one
//! has seen says little about another; and they would have to meet at a shared
//! counter with every batch. The price is one window for each partition.

/// Decides for each batch whether to look its rows up.
#[derive(Debug, Clone)]
pub(super) struct Adaptive {
    /// `None`: never off.
    max_keep_rate: Option<f64>,
    phase: Phase,
    looked_at: usize,
    kept: usize,
    next_pause: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    On,
    /// Rows that still pass unlooked-at.
    Pausing(usize),
    Sampling,
}

/// What came of a batch that was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    SwitchedOff,
    SwitchedOn,
}

impl Adaptive {
    /// Rows after which a keep rate decides over a filter that is on.
    pub(super) const WINDOW: usize = 32 * 1024;
    /// Rows that a filter that is off is tried on: half a batch of the usual size, so
    /// that one batch suffices and small ones add up.
    pub(super) const SAMPLE: usize = 4 * 1024;
    /// Rows that pass between switching off and the first sample.
    pub(super) const FIRST_PAUSE: usize = 256 * 1024;
    /// Most rows that pass between two samples.
    pub(super) const LAST_PAUSE: usize = 1024 * 1024;

    /// A filter that is on. It is switched off while it keeps more than
    /// `max_keep_rate` (a share) of its rows; with `None` it never is.
    pub(super) fn new(max_keep_rate: Option<f64>) -> Self {
        Self {
            max_keep_rate,
            phase: Phase::On,
            looked_at: 0,
            kept: 0,
            next_pause: Self::FIRST_PAUSE,
        }
    }

    /// Whether the next batch, of `rows` rows, passes unlooked-at. If not, the caller
    /// looks it up and says by [`observe`](Self::observe) what came of it.
    pub(super) fn skips(&mut self, rows: usize) -> bool {
        let Phase::Pausing(left) = self.phase else {
            return false;
        };
        self.phase = match left.saturating_sub(rows) {
            0 => Phase::Sampling,
            left => Phase::Pausing(left),
        };
        true
    }

    /// Takes note of a batch that was looked up: `kept` of its `rows` rows passed.
    pub(super) fn observe(&mut self, rows: usize, kept: usize) -> Change {
        let Some(max_keep_rate) = self.max_keep_rate else {
            return Change::None;
        };
        self.looked_at = self.looked_at.saturating_add(rows);
        self.kept = self.kept.saturating_add(kept);
        let enough = match self.phase {
            Phase::On => Self::WINDOW,
            Phase::Sampling | Phase::Pausing(_) => Self::SAMPLE,
        };
        if self.looked_at < enough {
            return Change::None;
        }
        let useless = self.kept as f64 > self.looked_at as f64 * max_keep_rate;
        (self.looked_at, self.kept) = (0, 0);
        let was_on = self.phase == Phase::On;
        if useless {
            self.phase = Phase::Pausing(self.next_pause);
            self.next_pause = (self.next_pause * 2).min(Self::LAST_PAUSE);
        } else {
            self.phase = Phase::On;
            self.next_pause = Self::FIRST_PAUSE;
        }
        match (was_on, useless) {
            (true, true) => Change::SwitchedOff,
            (false, false) => Change::SwitchedOn,
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const BATCH: usize = 8192;

    /// Runs batches of (rows, share kept in percent) through a machine. For each:
    /// whether it was looked up, and what changed.
    fn run(
        adaptive: &mut Adaptive,
        batches: impl IntoIterator<Item = (usize, usize)>,
    ) -> Vec<(usize, bool, Change)> {
        batches
            .into_iter()
            .map(|(rows, percent)| {
                if adaptive.skips(rows) {
                    return (rows, false, Change::None);
                }
                (rows, true, adaptive.observe(rows, rows * percent / 100))
            })
            .collect()
    }

    fn looked_at(seen: &[(usize, bool, Change)]) -> usize {
        seen.iter().filter(|s| s.1).map(|s| s.0).sum()
    }

    #[test]
    fn a_useless_filter_is_off_after_one_window_and_tried_ever_more_rarely() {
        let mut adaptive = Adaptive::new(Some(0.95));
        let seen = run(&mut adaptive, vec![(BATCH, 100); 1000]);
        let lookups: Vec<usize> = (0..seen.len()).filter(|&i| seen[i].1).collect();
        // A window of 4 batches; pauses of 32, 64, 128, 128, ... batches.
        assert_eq!(lookups[..8], [0, 1, 2, 3, 36, 101, 230, 359]);
        assert_eq!(seen[3].2, Change::SwitchedOff);
        assert!(seen[4..].iter().all(|s| s.2 == Change::None));
    }

    #[test]
    fn data_that_changes_along_the_scan_switches_it_on_again() {
        let mut adaptive = Adaptive::new(Some(0.95));
        run(&mut adaptive, vec![(BATCH, 100); 500]);
        let seen = run(&mut adaptive, vec![(BATCH, 10); 500]);
        let on = seen
            .iter()
            .position(|s| s.2 == Change::SwitchedOn)
            .expect("never on again");
        assert!(on * BATCH <= Adaptive::LAST_PAUSE);
        assert!(seen[on..].iter().all(|s| s.1), "and stays on");
        // The next time, the first pause is the short one again.
        let seen = run(&mut adaptive, vec![(BATCH, 100); 100]);
        let off = seen
            .iter()
            .position(|s| s.2 == Change::SwitchedOff)
            .unwrap();
        let next = (off + 1..seen.len()).find(|&i| seen[i].1).unwrap();
        assert_eq!((next - off - 1) * BATCH, Adaptive::FIRST_PAUSE);
    }

    #[test]
    fn without_a_limit_it_is_never_off() {
        let mut adaptive = Adaptive::new(None);
        assert!(
            run(&mut adaptive, vec![(BATCH, 100); 500])
                .iter()
                .all(|s| s.1)
        );
        let mut adaptive = Adaptive::new(Some(1.0));
        assert!(
            run(&mut adaptive, vec![(BATCH, 100); 500])
                .iter()
                .all(|s| s.1)
        );
    }

    proptest! {
        #[test]
        fn never_off_while_little_is_kept(
            batches in vec((1usize..20_000, 0usize..=94), 0..300),
        ) {
            let mut adaptive = Adaptive::new(Some(0.95));
            prop_assert!(run(&mut adaptive, batches).iter().all(|s| s.1));
        }

        #[test]
        fn off_within_a_window_when_all_is_kept(
            before in vec((1usize..20_000, 0usize..=100), 0..200),
            size in 1usize..20_000,
        ) {
            // Whatever came before, windows of the old data included.
            let mut adaptive = Adaptive::new(Some(0.95));
            run(&mut adaptive, before);
            let bound = 2 * (Adaptive::WINDOW + size);
            let batches = bound.div_ceil(size);
            let seen = run(&mut adaptive, vec![(size, 100); batches]);
            prop_assert!(seen.iter().any(|s| !s.1));
        }

        #[test]
        fn on_again_within_the_longest_pause_when_the_data_changes(
            before in vec((1usize..100_000, 98usize..=100), 0..400),
            size in 1usize..20_000,
        ) {
            let mut adaptive = Adaptive::new(Some(0.95));
            run(&mut adaptive, before);
            // A sample may have begun with old rows; the one after it has not.
            let bound = 2 * (Adaptive::LAST_PAUSE + Adaptive::SAMPLE + Adaptive::WINDOW + 2 * size);
            let seen = run(&mut adaptive, vec![(size, 10); bound.div_ceil(size)]);
            prop_assert!(seen.last().unwrap().1, "off after {bound} rows");
        }

        #[test]
        fn a_useless_filter_looks_at_few_rows(
            sizes in vec(1usize..=8192, 1..3000),
        ) {
            let mut adaptive = Adaptive::new(Some(0.95));
            let rows: usize = sizes.iter().sum();
            let seen = run(&mut adaptive, sizes.into_iter().map(|rows| (rows, 100)));
            // One window, then a sample for each pause: less than two batches in 256 Ki
            // rows, 4.5 %.
            let sample = Adaptive::SAMPLE + 8192;
            let bound = Adaptive::WINDOW + 8192 + (rows / Adaptive::FIRST_PAUSE + 1) * sample;
            prop_assert!(looked_at(&seen) <= bound);
        }
    }
}
