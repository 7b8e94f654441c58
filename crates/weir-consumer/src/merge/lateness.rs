//! Counts late frames: those that come after a newer one of the same run of the clock.
//!
//! When a clock is set back, a new *run* of the clock begins. Frames of the new run have lower timestamps than those of
//! the run before, but this does not make them late. The frames of one ring are in order, or nearly so. If its
//! timestamps go back further than any disorder, the clock was set back, and the following frames of the ring belong to
//! the new run. The rings enter the new run one after another.

/// If the timestamps of a ring go back further than this, the clock was set back.
const STEP_NS: u64 = 100_000_000;

/// Run and timestamp of a ring's last frame.
#[derive(Debug, Default)]
pub(super) struct RingClock {
    /// The run of the ring's last frame.
    run: u64,
    /// The timestamp of the ring's last frame; `None` before the first.
    last_ns: Option<u64>,
}

/// Counts late frames.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// The newest run.
    run: u64,
    /// Timestamps of the newest frames that were delivered: of the newest run, and of the run before it.
    youngest_ns: [u64; 2],
    late: u64,
}

impl Lateness {
    /// Counts a frame of the ring if it is late. Must be called for each frame that is delivered.
    pub(super) fn pass(&mut self, ring: &mut RingClock, ts_ns: u64) {
        match ring.last_ns.replace(ts_ns) {
            None => ring.run = self.nearest(ts_ns),
            Some(last_ns) if is_step(last_ns, ts_ns) => ring.run = self.run_after(ring.run, ts_ns),
            Some(_) => {}
        }
        // Runs before these two are no longer remembered.
        if let Some(youngest_ns) = self.youngest_ns.get_mut((self.run - ring.run) as usize) {
            self.late += u64::from(ts_ns < *youngest_ns);
            *youngest_ns = ts_ns.max(*youngest_ns);
        }
    }

    /// Returns the number of late frames.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Returns the run of a ring's first frame: the one whose newest timestamp is nearest.
    fn nearest(&self, ts_ns: u64) -> u64 {
        let [newest, before] = self.youngest_ns.map(|youngest_ns| youngest_ns.abs_diff(ts_ns));
        if self.run > 0 && before < newest { self.run - 1 } else { self.run }
    }

    /// Returns the new run of a ring that was in run number `run` when its clock was set back: the newest run, if
    /// another ring has begun it and the clock was not set back once more; else a new one.
    fn run_after(&mut self, run: u64, ts_ns: u64) -> u64 {
        if run == self.run || is_step(self.youngest_ns[0], ts_ns) {
            self.run += 1;
            self.youngest_ns = [0, self.youngest_ns[0]];
        }
        self.run
    }
}

fn is_step(before_ns: u64, ts_ns: u64) -> bool {
    ts_ns.saturating_add(STEP_NS) < before_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// When a run of the clock begins, of so many.
    fn begin_of(run: u64) -> u64 {
        (10 - run) * 3_600_000_000_000
    }

    fn late_of(passed: &[(usize, u64)]) -> u64 {
        let mut lateness = Lateness::default();
        let mut rings: Vec<RingClock> = (0..8).map(|_| RingClock::default()).collect();
        passed.iter().for_each(|&(ring, ts_ns)| lateness.pass(&mut rings[ring], ts_ns));
        lateness.late()
    }

    proptest! {
        /// Rings in order within each run, passed on in any order between them; they come to the new run one by one.
        #[test]
        fn a_frame_is_late_against_its_own_run_only(
            turns in proptest::collection::vec((0usize..4, 0..STEP_NS / 100), 4..300),
            steps in proptest::collection::vec(10usize..60, 4),
        ) {
            let (mut passed, mut late) = (Vec::new(), 0);
            let mut youngest_ns = [0; 2];
            let mut rings = [(0, 0); 4];
            for (ring, more) in (0..4).map(|ring| (ring, 1)).chain(turns) {
                let (frames, since) = &mut rings[ring];
                *frames += 1;
                let run = u64::from(*frames > steps[ring]);
                // Within a run, stamps differ by less than a step.
                *since = if *frames == steps[ring] + 1 { 0 } else { (*since + more).min(STEP_NS / 2) };
                let ts_ns = begin_of(run) + *since;
                let youngest_ns = &mut youngest_ns[run as usize];
                late += u64::from(ts_ns < *youngest_ns);
                *youngest_ns = ts_ns.max(*youngest_ns);
                passed.push((ring, ts_ns));
            }
            prop_assert_eq!(late_of(&passed), late);
        }
    }

    #[test]
    fn one_ring_that_is_set_back_again_and_again_is_never_late() {
        let passed: Vec<_> =
            (0..9).flat_map(|run| [(0, begin_of(run)), (0, begin_of(run) + 1)]).collect();
        assert_eq!(late_of(&passed), 0);
    }

    #[test]
    fn a_ring_that_was_silent_for_a_run_comes_to_the_newest() {
        let [a, b, c] = [0, 1, 2].map(begin_of);
        assert_eq!(
            late_of(&[(0, a), (1, a), (0, b), (0, c), (1, c + 1), (0, c + 2), (1, c + 3)]),
            0
        );
        // It is the first to see the second step.
        assert_eq!(
            late_of(&[(0, a), (1, a), (0, b), (1, c), (1, c + 1), (0, c + 2), (1, c + 3)]),
            0
        );
    }

    #[test]
    fn the_first_frame_of_a_ring_may_be_of_the_run_before() {
        let [a, b] = [0, 1].map(begin_of);
        assert_eq!(late_of(&[(0, a), (0, b), (1, a + 1), (0, b + 1), (1, b + 2), (0, b + 3)]), 0);
        assert_eq!(late_of(&[(0, a), (0, b + 1), (1, b)]), 1);
    }

    #[test]
    fn less_than_a_step_back_is_disorder() {
        assert_eq!(late_of(&[(0, 2 * STEP_NS), (0, STEP_NS)]), 1);
        assert_eq!(late_of(&[(0, 2 * STEP_NS), (0, STEP_NS - 1)]), 0);
    }
}
