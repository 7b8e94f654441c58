//! Totals of a run of either generator.

use std::time::Duration;

/// Totals of sent frames, from any source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Frames that the link took, by its own count.
    pub sent: u64,
    /// Bytes of these with FCS, without preamble, gap and what a NIC pads. Where frames of several sizes were tried and
    /// some were refused, by the link's own count of bytes.
    pub bytes: u64,
    /// From before the first frame to after the last.
    pub duration: Duration,
    /// Frames handed over.
    pub attempted: u64,
    /// `attempted - sent`: not taken by the link.
    pub refused: u64,
    /// How long the sender was held up beyond the 50 ms that a rate makes up for; zero without a rate.
    pub given_up: Duration,
    /// The counter that `sent` is read from, and its weakness if it has one.
    pub counted_by: &'static str,
}

impl Totals {
    /// Million frames a second, of those sent.
    pub fn mpps(&self) -> f64 {
        self.per_second(self.sent as f64) / 1e6
    }

    /// Gbit/s, of those sent, FCS included.
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
