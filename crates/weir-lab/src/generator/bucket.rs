//! A token bucket: decides how many frames may be sent, and when.
//!
//! The code is only arithmetic. The caller passes the time in nanoseconds, so tests can use a clock of their own.

pub(super) use crate::limits::GRANT_MAX;

/// How much lateness a sender catches up. Frames that are due earlier are given up, so that the receiver is not
/// flooded: 50 ms at 1 Mpps are 50,000 frames, about 6 MiB of ring at 60 B.
pub(super) const DEPTH_NS: f64 = 50e6;
/// Duration of one grant: short enough for a steady rate, long enough to amortize a system call.
pub(super) const GRANT_NS: f64 = 200e3;

/// Grants frames at a given rate.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    frames_per_ns: f64,
    /// Frames that may be sent now. Only whole frames are taken; the fraction stays.
    tokens: f64,
    depth: f64,
    /// Number of due frames for which a grant waits, so that a system call is worth its cost.
    grant: u64,
    last_ns: u64,
    /// Frames that were due and will not be sent.
    given_up: f64,
}

/// Answer of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send this many frames now. They are taken from the bucket.
    Send(u64),
    /// Ask again after this number of nanoseconds.
    WaitNs(u64),
}

impl Bucket {
    /// Creates a bucket with one frame at `now_ns`, so that even at 1 frame a second the first frame is sent at once.
    /// `frames_per_s` is above zero and finite.
    pub(super) fn new(frames_per_s: f64, now_ns: u64) -> Bucket {
        assert!(frames_per_s > 0.0 && frames_per_s.is_finite(), "checked with the options");
        let frames_per_ns = frames_per_s / 1e9;
        let grant = ((frames_per_ns * GRANT_NS) as u64).clamp(1, GRANT_MAX);
        let depth = (frames_per_ns * DEPTH_NS).max(grant as f64);
        Bucket { frames_per_ns, tokens: 1.0, depth, grant, last_ns: now_ns, given_up: 0.0 }
    }

    /// Asks for at most `most` frames; `most` is above zero.
    pub(super) fn ask(&mut self, now_ns: u64, most: u64) -> Verdict {
        self.fill(now_ns, most);
        let wanted = self.grant.min(most);
        if self.tokens >= wanted as f64 {
            let frames = (self.tokens as u64).min(most).min(GRANT_MAX);
            self.tokens -= frames as f64;
            return Verdict::Send(frames);
        }
        // Rounded up, so that asking after exactly this time gets the grant.
        let missing = wanted as f64 - self.tokens;
        Verdict::WaitNs((missing / self.frames_per_ns).ceil() as u64 + 1)
    }

    /// Returns the last grant of a run that ends at `end_ns`: all frames that were due before the end, but at most
    /// `most` and at most [`GRANT_MAX`], so that a sender far behind its rate stops soon after the end. The grant may
    /// be 0. Due frames beyond [`GRANT_MAX`] are given up. Due frames beyond `most` were not requested.
    ///
    /// Without this grant, the frames that became due since the last call of [`Bucket::ask`] would be missing: if the
    /// run ends while the sender waits, those of the whole wait.
    pub(super) fn last(&mut self, end_ns: u64, most: u64) -> u64 {
        // A frame that is due exactly at the end belongs to the time after it.
        self.fill(end_ns.saturating_sub(1), most);
        let due = self.tokens.min(most as f64);
        let frames = (due as u64).min(GRANT_MAX);
        self.given_up += (due - frames as f64).floor();
        self.tokens = 0.0;
        frames
    }

    /// Returns the time that corresponds to the given-up frames.
    pub(super) fn given_up_ns(&self) -> u64 {
        (self.given_up / self.frames_per_ns) as u64
    }

    /// Adds the frames that have become due. Those that exceed the depth are given up; frames beyond `most` do not
    /// count as given up.
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

    /// Asks until `until_ns` and waits as told. Gives the frames granted and the largest grant.
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
        // The last frames of a fixed number do not wait for a full grant.
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
        // A sender that is delayed at times, once for longer than it may catch up, and also at the
        // end.
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
        assert_eq!(bucket.last(10_000_000, 3), 3); // 9 are due, the limit allows 3
        assert_eq!(bucket.given_up_ns(), 0); // the other 6 are beyond the limit
        assert_eq!(bucket.last(10_000_000, 9), 0);
    }

    #[test]
    fn the_last_grant_is_no_longer_than_another_and_the_rest_is_given_up() {
        let mut bucket = Bucket::new(1_000_000.0, 0);
        // 40 ms, which before the end would be caught up.
        assert_eq!(bucket.last(40_000_000, u64::MAX), GRANT_MAX);
        assert_eq!(bucket.given_up_ns() / 1_000_000, 23);
    }

    #[test]
    fn what_a_limit_forbids_is_not_given_up() {
        let mut bucket = Bucket::new(1_000.0, 0);
        // A second late, with 3 frames left, and with 100, of which 50 ms are caught up.
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
