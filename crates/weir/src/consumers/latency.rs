//! `--latency`: measures the delay of frames from the generator's stamp to a consumer.
//!
//! `weir gen --stamp` writes the time of CLOCK_TAI into each frame before it is sent. This consumer copies frames out
//! of the rings, like every consumer that reads their bytes, and then reads the same clock. The delay includes the
//! link, the engine, the ring, the consumer's sleep, and the earlier frames of the same batch.

use hdrhistogram::Histogram;
use serde::Serialize;
use weir_consumer::consumer::TURN_FRAMES;
use weir_consumer::{Consumer, ConsumerError, Delivered, JoinedFeed, Lanes, Rings, Step};
use weir_lab::generator::tai_ns;
use weir_lab::generator::template::stamp_of;
use weir_ring::idle::{DISTANCE_BYTES, Spin};
use weir_ring::{Batch, Poll};

use super::RunConsumer;
use crate::cli::LatencyName;

pub(super) fn open(how: LatencyName) -> Box<dyn RunConsumer> {
    Box::new(Latency::new(how))
}

/// Longer delays are recorded with this value.
const DELAY_MAX_NS: u64 = 60_000_000_000;
/// Significant digits of the histogram: its error is below one in a thousand.
const DIGITS: u8 = 3;

/// Summary of a run's delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Frames with a stamp.
    pub frames: u64,
    /// Frames without a stamp: from elsewhere, or generated without `--stamp`.
    pub unstamped: u64,
    /// Frames whose stamp is in the future, because two clocks differ or the clock was set. No other field counts them.
    pub early: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// Delays so far.
struct Delays {
    histogram: Histogram<u64>,
    max_ns: u64,
    unstamped: u64,
    early: u64,
}

impl Delays {
    fn new() -> Delays {
        let histogram = Histogram::new_with_bounds(1, DELAY_MAX_NS, DIGITS);
        let histogram = histogram.expect("constant bounds that it takes");
        Delays { histogram, max_ns: 0, unstamped: 0, early: 0 }
    }

    fn add(&mut self, stamp_ns: Option<u64>, now_ns: u64) {
        match stamp_ns.map(|stamp| now_ns.checked_sub(stamp)) {
            None => self.unstamped += 1,
            Some(None) => self.early += 1,
            Some(Some(delay_ns)) => {
                self.histogram.saturating_record(delay_ns);
                self.max_ns = self.max_ns.max(delay_ns);
            }
        }
    }

    fn report(&self) -> LatencyReport {
        let us = |ns: u64| ns as f64 / 1e3;
        let quantile = |quantile| us(self.histogram.value_at_quantile(quantile).min(self.max_ns));
        LatencyReport {
            frames: self.histogram.len(),
            unstamped: self.unstamped,
            early: self.early,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: us(self.max_ns),
        }
    }
}

/// Measures the delays of frames.
pub struct Latency {
    lanes: Lanes,
    batch: Batch,
    frames: u64,
    wire_bytes: u64,
    delays: Delays,
    /// With `--latency poll`, the consumer spins instead of sleeping.
    spin: Option<Spin>,
}

impl Latency {
    pub fn new(how: LatencyName) -> Latency {
        Latency {
            lanes: Lanes::new(),
            batch: Batch::new(),
            frames: 0,
            wire_bytes: 0,
            delays: Delays::new(),
            spin: (how == LatencyName::Poll).then(Spin::new),
        }
    }
}

impl RunConsumer for Latency {
    fn latency(&self) -> Option<LatencyReport> {
        Some(self.delays.report())
    }
}

impl Consumer for Latency {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError> {
        self.lanes.join(feed)?;
        if self.spin.is_some() {
            self.lanes.iter_mut().for_each(|lane| lane.cursor.keep_distance(DISTANCE_BYTES));
        }
        Ok(())
    }

    fn step(&mut self, _frames_max: u64) -> Result<Step, ConsumerError> {
        let Latency { lanes, batch, frames, wire_bytes, delays, spin } = self;
        let until = *frames + TURN_FRAMES;
        let mut moved = false;
        for lane in lanes.round() {
            while *frames < until {
                match lane.cursor.poll(batch)? {
                    Poll::Frames(count) => {
                        moved = true;
                        lane.cursor.take(count.into());
                        for record in batch.records() {
                            *frames += 1;
                            *wire_bytes += u64::from(record.meta.wire_len);
                            delays.add(stamp_of(record.frame), tai_ns());
                        }
                    }
                    Poll::Lapped(_) => moved = true,
                    Poll::Empty | Poll::Closed => break,
                }
            }
        }
        lanes.retire();
        let step = Step::of_round(moved, lanes.is_empty());
        if let Some(spin) = spin {
            if step == Step::Idle { spin.wait() } else { spin.reset() }
        }
        Ok(step)
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.frames,
            wire_bytes: self.wire_bytes,
            lapped: self.lanes.taken().lapped,
            ..Delivered::default()
        }
    }

    fn rings(&self) -> &dyn Rings {
        &self.lanes
    }

    fn rings_mut(&mut self) -> &mut dyn Rings {
        &mut self.lanes
    }

    fn rests(&self) -> bool {
        self.spin.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_delays_and_nothing_else() {
        let mut delays = Delays::new();
        for us in 1..=1000 {
            delays.add(Some(5_000_000), 5_000_000 + us * 1000);
        }
        delays.add(None, 1);
        delays.add(Some(9), 8);
        let report = delays.report();
        assert_eq!((report.frames, report.unstamped, report.early), (1000, 1, 1));
        let about = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.002;
        assert!(about(report.p50_us, 500.0) && about(report.p90_us, 900.0), "{report:?}");
        assert!(about(report.p99_us, 990.0) && about(report.p999_us, 999.0), "{report:?}");
        assert_eq!(report.max_us, 1000.0);
    }

    #[test]
    fn no_frame_has_no_delay_and_a_forgotten_one_is_seen() {
        assert_eq!(Delays::new().report(), LatencyReport::default());
        let mut delays = Delays::new();
        delays.add(Some(0), DELAY_MAX_NS * 3);
        assert_eq!(delays.report().max_us, DELAY_MAX_NS as f64 * 3.0 / 1e3);
    }
}
