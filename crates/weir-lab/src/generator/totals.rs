//! Totals of a run of the generator or of a replay.

use std::time::Duration;

/// Totals of sent frames, from any source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Frames that the link accepted, by its own count.
    pub sent: u64,
    /// Bytes of these frames with FCS, without preamble, gap and padding by a NIC. If frames of
    /// several sizes were attempted and some were refused, the value is from the link's own count
    /// of bytes.
    pub bytes: u64,
    /// Time from before the first frame to after the last one.
    pub duration: Duration,
    /// Frames handed to the kernel.
    pub attempted: u64,
    /// `attempted - sent`: frames that the link did not accept.
    pub refused: u64,
    /// Time that the sender was late beyond the 50 ms that it may catch up; zero without a rate.
    pub given_up: Duration,
    /// The counter that `sent` is read from, and its limitation if it has one.
    pub counted_by: &'static str,
}

impl Totals {
    /// Returns the sent frames a second, in millions.
    pub fn mpps(&self) -> f64 {
        self.per_second(self.sent as f64) / 1e6
    }

    /// Returns the Gbit/s of the sent frames, FCS included.
    pub fn gbps(&self) -> f64 {
        self.per_second(self.bytes as f64 * 8.0) / 1e9
    }

    fn per_second(&self, amount: f64) -> f64 {
        if self.duration.is_zero() { 0.0 } else { amount / self.duration.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_time_has_no_rate() {
        let run = |duration| Totals {
            sent: 3_000_000,
            bytes: 500_000_000,
            duration,
            ..Totals::default()
        };
        let (still, timed) = (run(Duration::ZERO), run(Duration::from_secs(2)));
        assert_eq!((still.mpps(), still.gbps()), (0.0, 0.0));
        assert_eq!((timed.mpps(), timed.gbps()), (1.5, 2.0));
    }
}
