//! Current rates: the difference of two readings of the counters.

use std::time::{Duration, Instant};

use crate::run_result::Rates;

/// The shortest time over which rates are computed, if there is a reading of that age. Rates over shorter times are
/// noisy.
const OVER_MIN: Duration = Duration::from_millis(500);

/// Counters from which rates are computed. `delivered` and `lapped` are those of the main consumer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub offered: u64,
    pub captured: u64,
    pub wire_bytes: u64,
    pub dropped: u64,
    pub delivered: u64,
    pub lapped: u64,
}

/// The last two readings, the older one first.
#[derive(Debug, Default)]
pub struct Readings([Option<(Instant, Totals)>; 2]);

impl Readings {
    /// Keeps a reading.
    pub fn take(&mut self, at: Instant, totals: Totals) {
        self.0 = [self.0[1], Some((at, totals))];
    }

    /// Returns the rates from the last reading that is old enough to these counters; `None` before the first reading.
    pub fn rates(&self, now: Instant, totals: Totals) -> Option<Rates> {
        let [older, newer] = self.0;
        let age = |(at, _): &(Instant, Totals)| now.saturating_duration_since(*at);
        let (at, then) = newer.filter(|last| age(last) >= OVER_MIN).or(older).or(newer)?;
        let over_s = now.saturating_duration_since(at).as_secs_f64();
        if over_s <= 0.0 {
            return None;
        }
        // Counters are not read at one instant, so a difference may be negative for a moment. It then counts as 0.
        let rate =
            |count: fn(&Totals) -> u64| count(&totals).saturating_sub(count(&then)) as f64 / over_s;
        Some(Rates {
            over_s,
            offered_pps: rate(|totals| totals.offered),
            captured_pps: rate(|totals| totals.captured),
            captured_bps: rate(|totals| totals.wire_bytes) * 8.0,
            dropped_pps: rate(|totals| totals.dropped),
            delivered_pps: rate(|totals| totals.delivered),
            lapped_pps: rate(|totals| totals.lapped),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_reading_that_is_old_enough() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let totals =
            |captured| Totals { captured, wire_bytes: captured * 100, ..Totals::default() };
        let mut readings = Readings::default();
        assert_eq!(readings.rates(at(0), totals(0)), None);
        readings.take(at(0), totals(0));
        assert_eq!(readings.rates(at(0), totals(7)), None, "of no time at all");
        let rates = readings.rates(at(250), totals(100)).unwrap();
        assert_eq!(
            (rates.over_s, rates.captured_pps, rates.captured_bps),
            (0.25, 400.0, 320_000.0)
        );
        readings.take(at(1000), totals(1000));
        // The last one is too young.
        let rates = readings.rates(at(1250), totals(2250)).unwrap();
        assert_eq!((rates.over_s, rates.captured_pps), (1.25, 1800.0));
        let rates = readings.rates(at(1500), totals(1500)).unwrap();
        assert_eq!((rates.over_s, rates.captured_pps), (0.5, 1000.0));
        readings.take(at(2000), totals(3000));
        let rates = readings.rates(at(3000), totals(2999)).unwrap();
        assert_eq!((rates.over_s, rates.captured_pps), (1.0, 0.0));
    }
}
