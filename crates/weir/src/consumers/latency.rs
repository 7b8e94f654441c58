//! `--latency`: how long frames take from the generator's stamp to a consumer's hands.
//!
//! `weir gen --stamp` writes CLOCK_TAI into each frame when it makes it, before the link has it. This
//! consumer copies frames out of the rings, as every consumer that looks into them does, and reads the same
//! clock when it comes to the frame. In between lie the link, the engine, the ring, the consumer's own
//! rest, and the frames of its batch before this one.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;
use weir_consumer::account::{behind, fullest};
use weir_consumer::consumer::TURN_FRAMES;
use weir_consumer::{Consumer, ConsumerError, Delivered, Step};
use weir_lab::generator::tai_ns;
use weir_lab::generator::template::stamp_of;
use weir_ring::idle::{DISTANCE_BYTES, Spin};
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, RingError, Start};

use super::{Input, RunConsumer};
use crate::cli::LatencyName;

pub(super) fn open(input: &Input<'_>, how: LatencyName) -> Result<Box<dyn RunConsumer>> {
    Ok(Box::new(Latency::new(input.rings, how)?))
}

/// Longer delays count as this one: a frame that took a minute was not late but forgotten.
const DELAY_MAX_NS: u64 = 60_000_000_000;
/// Digits of a delay that are kept: the histogram's error is below one in a thousand.
const DIGITS: u8 = 3;

/// What a run's delays came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Frames with a stamp.
    pub frames: u64,
    /// Frames without one: not the generator's, or made without `--stamp`.
    pub unstamped: u64,
    /// Stamps that lie in the future: two clocks, or one that was set meanwhile. In none of the others.
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

/// Times frames.
pub struct Latency {
    readers: Vec<Reader<Mapping>>,
    /// The ring that the next turn begins with.
    first: usize,
    batch: Batch,
    frames: u64,
    wire_bytes: u64,
    delays: Delays,
    /// Of a consumer that looks all the time.
    spin: Option<Spin>,
}

impl Latency {
    pub fn new(rings: &[Ring<Mapping>], how: LatencyName) -> Result<Latency, RingError> {
        let readers = rings.iter().map(|ring| Reader::new(ring, Start::Oldest));
        let mut readers = readers.collect::<Result<Vec<_>, _>>()?;
        let spin = (how == LatencyName::Poll).then(Spin::new);
        if spin.is_some() {
            readers.iter_mut().for_each(|reader| reader.keep_distance(DISTANCE_BYTES));
        }
        Ok(Latency {
            readers,
            first: 0,
            batch: Batch::new(),
            frames: 0,
            wire_bytes: 0,
            delays: Delays::new(),
            spin,
        })
    }

    fn take_batch(&mut self) {
        for record in self.batch.records() {
            self.frames += 1;
            self.wire_bytes += u64::from(record.meta.wire_len);
            self.delays.add(stamp_of(record.frame), tai_ns());
        }
    }
}

impl RunConsumer for Latency {
    fn latency(&self) -> Option<LatencyReport> {
        Some(self.delays.report())
    }
}

impl Consumer for Latency {
    fn step(&mut self, _frames_max: u64) -> Result<Step, ConsumerError> {
        let before = self.frames;
        let (mut moved, mut closed) = (false, 0);
        let count = self.readers.len();
        self.first = (self.first + 1) % count;
        for index in (self.first..count).chain(0..self.first) {
            while self.frames - before < TURN_FRAMES {
                match self.readers[index].poll(&mut self.batch)? {
                    Poll::Frames(_) => {
                        moved = true;
                        self.take_batch();
                    }
                    Poll::Lapped(_) => moved = true,
                    Poll::Empty => break,
                    Poll::Closed => {
                        closed += 1;
                        break;
                    }
                }
            }
        }
        let step = match (moved, closed == count) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        };
        if let Some(spin) = &mut self.spin {
            if step == Step::Idle { spin.wait() } else { spin.reset() }
        }
        Ok(step)
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.frames,
            wire_bytes: self.wire_bytes,
            lapped: self.readers.iter().map(Reader::lapped).sum(),
            ..Delivered::default()
        }
    }

    fn readers(&self) -> Vec<Reader<Mapping>> {
        self.readers.clone()
    }

    fn rests(&self) -> bool {
        self.spin.is_none()
    }

    fn ordinal(&self, ring: usize) -> u64 {
        self.readers[ring].ordinal()
    }

    fn unread(&self) -> u64 {
        self.readers.iter().map(behind).sum()
    }

    fn fill(&self) -> f64 {
        fullest(self.readers.iter())
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
