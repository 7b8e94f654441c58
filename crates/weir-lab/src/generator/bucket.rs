//! A token bucket: when may how many frames go.
//!
//! Arithmetic only: time comes in as nanoseconds, so tests use a clock of their own.

pub(super) use crate::limits::GRANT_MAX;

/// Time made up for at most. A sender that did not get the CPU for longer gives up the rest, so that
/// it does not flood the receiver: 50 ms at 1 Mpps are 50,000 frames, some 6 MiB of ring at 60 B.
pub(super) const DEPTH_NS: f64 = 50e6;
/// Aim of one grant: short enough to look steady, long enough to pay for a system call.
pub(super) const GRANT_NS: f64 = 200e3;

/// Grants frames at a rate.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    frames_per_ns: f64,
    /// Frames that may go now. Whole grants are taken from it, the fraction stays.
    tokens: f64,
    depth: f64,
    /// Frames wanted together before it is worth sending.
    grant: u64,
    last_ns: u64,
    /// Frames that were due and are not made up for.
    given_up: f64,
}

/// Answer of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send this many now; they are taken from the bucket.
    Send(u64),
    /// Come back after this many nanoseconds.
    WaitNs(u64),
}

impl Bucket {
    /// A bucket with one frame in it at `now_ns`: at 1 frame a second, the first goes at once. `frames_per_s` is above
    /// zero and finite.
    pub(super) fn new(frames_per_s: f64, now_ns: u64) -> Bucket {
        assert!(frames_per_s > 0.0 && frames_per_s.is_finite(), "checked with the options");
        let frames_per_ns = frames_per_s / 1e9;
        let grant = ((frames_per_ns * GRANT_NS) as u64).clamp(1, GRANT_MAX);
        let depth = (frames_per_ns * DEPTH_NS).max(grant as f64);
        Bucket { frames_per_ns, tokens: 1.0, depth, grant, last_ns: now_ns, given_up: 0.0 }
    }

    /// Asks for frames, at most `most` (above zero).
    pub(super) fn ask(&mut self, now_ns: u64, most: u64) -> Verdict {
        self.fill(now_ns, most);
        let wanted = self.grant.min(most);
        if self.tokens >= wanted as f64 {
            let frames = (self.tokens as u64).min(most).min(GRANT_MAX);
            self.tokens -= frames as f64;
            return Verdict::Send(frames);
        }
        // Rounded up: asking after exactly this long gets the grant.
        let missing = wanted as f64 - self.tokens;
        Verdict::WaitNs((missing / self.frames_per_ns).ceil() as u64 + 1)
    }

    /// The last grant, of a run that ends at `end_ns`: all that was due before then, at most `most`, and at most
    /// [`GRANT_MAX`], so that a sender far behind its rate does not go on long after its end. It may be none. Frames
    /// that are due beyond [`GRANT_MAX`] are given up; frames that are due beyond `most` were not requested.
    ///
    /// Without it the frames of the time since the last ask would be missing: a whole pause of the sender, if
    /// the run ended in one.
    pub(super) fn last(&mut self, end_ns: u64, most: u64) -> u64 {
        // A frame that is due at the very end is the first of the time after it.
        self.fill(end_ns.saturating_sub(1), most);
        let due = self.tokens.min(most as f64);
        let frames = (due as u64).min(GRANT_MAX);
        self.given_up += (due - frames as f64).floor();
        self.tokens = 0.0;
        frames
    }

    /// Time given up: the rate asked for frames then that nobody made up for.
    pub(super) fn given_up_ns(&self) -> u64 {
        (self.given_up / self.frames_per_ns) as u64
    }

    /// Of what is due, only what the limit `most` allows can be given up.
    fn fill(&mut self, now_ns: u64, most: u64) {
        let elapsed = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.tokens += elapsed as f64 * self.frames_per_ns;
        self.given_up += (self.tokens.min(most as f64) - self.depth).max(0.0);
        self.tokens = self.tokens.min(self.depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks until `until_ns`, waiting as told; gives frames granted and the largest grant.
    fn play(rate: f64, until_ns: u64) -> (u64, u64) {
        let (mut bucket, mut now, mut total, mut largest) = (Bucket::new(rate, 0), 0, 0, 0);
        while now < until_ns {
            match bucket.ask(now, u64::MAX) {
                Verdict::Send(frames) => {
                    total += frames;
                    largest = largest.max(frames);
                }
                Verdict::WaitNs(ns) => now += ns,
            }
        }
        (total, largest)
    }

    #[test]
    fn the_rate_is_kept_over_ten_seconds() {
        for rate in [0.5, 1.0, 999.0, 100_000.0, 1_234_567.8, 14_880_952.0, 148_809_523.0] {
            let (total, largest) = play(rate, 10_000_000_000);
            let expected = rate * 10.0;
            let grant = (rate * GRANT_NS / 1e9).clamp(1.0, GRANT_MAX as f64);
            assert!((total as f64 - expected).abs() <= grant + 1.0, "{rate}: {total}");
            assert!(largest as f64 <= grant + 1.0, "{rate}: {largest}");
        }
    }

    #[test]
    fn waiting_as_told_gets_the_grant() {
        let mut bucket = Bucket::new(1_000_000.0, 5);
        let Verdict::WaitNs(ns) = bucket.ask(5, u64::MAX) else { panic!("holds one") };
        assert_eq!(bucket.ask(5 + ns, u64::MAX), Verdict::Send(200));
        // The last few of a fixed number do not wait for a full grant.
        let Verdict::WaitNs(ns) = bucket.ask(5 + ns, 3) else { panic!("just emptied") };
        assert!(ns <= 3002);
    }

    #[test]
    fn a_long_pause_is_not_made_up_beyond_the_depth() {
        let mut bucket = Bucket::new(100_000.0, 0);
        let mut burst = 0;
        while let Verdict::Send(frames) = bucket.ask(60_000_000_000, u64::MAX) {
            burst += frames;
        }
        assert_eq!(burst, 5_000); // 50 ms of 100 kpps
        assert_eq!(bucket.given_up_ns() / 1_000_000, 59_950);
    }

    #[test]
    fn what_is_sent_and_what_is_given_up_make_the_rate_to_the_frame() {
        // A sender that is held up now and then, once for longer than is made up for, and at the end.
        for rate in [1.0, 999.0, 100_000.0, 14_880_952.0] {
            for pause in [1_000, 3_000_000, 49_000_000, 220_000_000] {
                let (mut bucket, mut now, mut sent, mut turn) = (Bucket::new(rate, 0), 0, 0, 0u64);
                while now < 1_000_000_000 {
                    turn += 1;
                    match bucket.ask(now, u64::MAX) {
                        Verdict::Send(frames) => sent += frames,
                        Verdict::WaitNs(ns) => now += ns.min(1_000_000_000 - now),
                    }
                    now += if turn.is_multiple_of(50) { pause } else { 0 };
                }
                sent += bucket.last(1_000_000_000, u64::MAX);
                let given_up = bucket.given_up_ns() as f64 * rate / 1e9;
                assert!(
                    (sent as f64 + given_up - rate).abs() <= 2.0,
                    "{rate} {pause}: {sent} {given_up}"
                );
                assert!(pause > 1_000_000 || given_up == 0.0, "{rate} {pause}: {given_up}");
            }
        }
    }

    #[test]
    fn the_last_grant_is_what_was_due_before_the_end() {
        let mut bucket = Bucket::new(1_000.0, 0);
        assert_eq!(bucket.ask(0, 9), Verdict::Send(1));
        assert_eq!(bucket.last(10_000_000, 3), 3); // 9 are due, a limit takes 3
        assert_eq!(bucket.given_up_ns(), 0); // the other 6 are the limit's
        assert_eq!(bucket.last(10_000_000, 9), 0);
    }

    #[test]
    fn the_last_grant_is_no_longer_than_another_and_the_rest_is_given_up() {
        let mut bucket = Bucket::new(1_000_000.0, 0);
        // 40 ms, which would be made up for before the end.
        assert_eq!(bucket.last(40_000_000, u64::MAX), GRANT_MAX);
        assert_eq!(bucket.given_up_ns() / 1_000_000, 23);
    }

    #[test]
    fn what_a_limit_forbids_is_not_given_up() {
        let mut bucket = Bucket::new(1_000.0, 0);
        // A second late, with 3 frames to go and with 100, of which 50 ms are made up for.
        assert_eq!(bucket.last(1_000_000_000, 3), 3);
        assert_eq!(bucket.given_up_ns(), 0);
        assert_eq!(bucket.ask(2_000_000_000, 100), Verdict::Send(50));
        assert_eq!(bucket.given_up_ns(), 50_000_000);
    }

    #[test]
    fn a_clock_that_steps_back_grants_nothing() {
        let mut bucket = Bucket::new(1e6, 1_000_000);
        assert_eq!(bucket.ask(1_000_000, 1), Verdict::Send(1));
        assert!(matches!(bucket.ask(500_000, 10), Verdict::WaitNs(_)));
        assert!(matches!(bucket.ask(1_000_000, 10), Verdict::WaitNs(_)));
        assert_eq!(bucket.ask(1_010_001, 10), Verdict::Send(10));
    }
}
