//! Delays of frames, as percentiles.

use serde::{Deserialize, Serialize};

use super::stats::Spread;

/// Percentiles of the delays that `weir capture --latency` reports, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of frames that had a stamp.
    pub frames: u64,
    /// 50 % of the frames took at most this long.
    pub p50_us: f64,
    /// 90 % of the frames took at most this long.
    pub p90_us: f64,
    /// 99 % of the frames took at most this long.
    pub p99_us: f64,
    /// 99.9 % of the frames took at most this long.
    pub p999_us: f64,
    /// The longest delay.
    pub max_us: f64,
}

impl Percentiles {
    /// Combines several rounds: the median of each percentile, and the longest delay of all.
    #[must_use]
    pub fn over(rounds: &[Percentiles]) -> Option<Percentiles> {
        let median = |what: fn(&Percentiles) -> f64| Spread::of(rounds.iter().map(what));
        Some(Percentiles {
            frames: rounds.iter().map(|round| round.frames).sum(),
            p50_us: median(|round| round.p50_us)?.median,
            p90_us: median(|round| round.p90_us)?.median,
            p99_us: median(|round| round.p99_us)?.median,
            p999_us: median(|round| round.p999_us)?.median,
            max_us: median(|round| round.max_us)?.max,
        })
    }

    /// Returns all five values, in the order of the fields.
    #[must_use]
    pub fn all_us(&self) -> [f64; 5] {
        [self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_to_medians_and_the_longest_of_all() {
        let round = |us: f64| Percentiles {
            frames: 10,
            p50_us: us,
            p90_us: us,
            p99_us: us,
            p999_us: us,
            max_us: us,
        };
        let all = Percentiles::over(&[round(1.0), round(9.0), round(2.0)]).unwrap();
        assert_eq!(all.all_us(), [2.0, 2.0, 2.0, 2.0, 9.0]);
        assert_eq!(all.frames, 30);
        assert_eq!(Percentiles::over(&[]), None);
    }
}
