//! Examines new frames for triggers.

use std::collections::BTreeMap;

use weir_filter::UserFilter;
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, RingError, Start};

use super::look_back::{Cause, Watch};

/// The interval over which a rate is measured, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
const WINDOWS_PER_SECOND: u64 = 1_000_000_000 / WINDOW_NS;
/// Number of windows that are kept. Rings are read one after the other, so frames do not come in order of time.
const WINDOWS_MAX: usize = 64;
/// Most bytes that a poll copies.
const CHUNK_BYTES: u32 = 256 << 10;
/// Most polls in one call of [`Watcher::look`].
const POLLS_MAX: u32 = 16;

/// Reads one ring for triggers, ahead of the part that is saved.
pub struct Watcher {
    reader: Reader<Mapping>,
    batch: Batch,
    filters: Vec<UserFilter>,
}

/// Frames and bytes of all rings in each window of time.
#[derive(Default)]
pub struct Windows {
    frames_and_bits: BTreeMap<u64, (u64, u64)>,
    /// The last window for which an exceeded rate was reported.
    told: Option<u64>,
}

impl Watcher {
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself.
    pub fn new(ring: &Ring<Mapping>, link_type: u16, watch: &Watch) -> Result<Watcher, RingError> {
        let mut batch = Batch::new();
        batch.set_chunk_bytes(CHUNK_BYTES);
        // A filter that cannot be compiled for the link type accepts none of its frames.
        let filters = watch.filters.iter().filter_map(|compile| compile(link_type).ok());
        let filters = filters.map(UserFilter::new).collect();
        Ok(Watcher { reader: Reader::new(ring, Start::Oldest)?, batch, filters })
    }

    /// Returns the ordinal of the next frame. All frames before it were examined.
    pub fn ordinal(&self) -> u64 {
        self.reader.ordinal()
    }

    /// Examines available frames, a limited number in each call. `found` is called with the cause and the time of each
    /// trigger. Returns whether there may be more frames, and how many were lapped before they were examined.
    ///
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself.
    pub fn look(
        &mut self,
        watch: &Watch,
        windows: &mut Windows,
        found: &mut impl FnMut(Cause, u64),
    ) -> Result<(bool, u64), RingError> {
        let mut unseen = 0;
        for _ in 0..POLLS_MAX {
            match self.reader.poll(&mut self.batch)? {
                Poll::Frames(_) => {}
                Poll::Lapped(frames) => {
                    unseen += frames;
                    continue;
                }
                Poll::Empty | Poll::Closed => return Ok((false, unseen)),
            }
            for record in self.batch.records() {
                let (ts_ns, wire_len) = (record.meta.ts_ns, record.meta.wire_len);
                if self.filters.iter().any(|filter| filter.run(record.frame, wire_len) > 0) {
                    found(Cause::Filter, ts_ns);
                }
                if windows.is_too_much(watch, ts_ns, wire_len) {
                    found(Cause::Rate, ts_ns);
                }
            }
        }
        Ok((true, unseen))
    }
}

impl Windows {
    /// Counts a frame. Returns whether its window exceeds the rate, and neither this window nor a later one was
    /// reported before.
    fn is_too_much(&mut self, watch: &Watch, ts_ns: u64, wire_len: u32) -> bool {
        if watch.frames_per_second.is_none() && watch.bits_per_second.is_none() {
            return false;
        }
        let window = ts_ns / WINDOW_NS;
        let (frames, bits) = self.frames_and_bits.entry(window).or_default();
        *frames += 1;
        *bits += 8 * u64::from(wire_len);
        let is_above = |count: u64, limit: Option<u64>| {
            limit.is_some_and(|limit| count.saturating_mul(WINDOWS_PER_SECOND) > limit)
        };
        let above =
            is_above(*frames, watch.frames_per_second) || is_above(*bits, watch.bits_per_second);
        if self.frames_and_bits.len() > WINDOWS_MAX {
            self.frames_and_bits.pop_first();
        }
        let is_new = above && self.told.is_none_or(|told| told < window);
        if is_new {
            self.told = Some(window);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_too_high_once_in_a_window() {
        let watch = Watch { frames_per_second: Some(100), ..Watch::default() };
        let mut windows = Windows::default();
        let at = |window: u64, n: u64| window * WINDOW_NS + n;
        let mut count = |window, frames| {
            (0..frames).filter(|n| windows.is_too_much(&watch, at(window, *n), 60)).count()
        };
        assert_eq!(count(7, 10), 0, "exactly 100 a second");
        assert_eq!(count(7, 1), 1, "more");
        assert_eq!(count(7, 50), 0, "said already");
        assert_eq!((count(8, 11), count(7, 1), count(6, 50)), (1, 0, 0));
        let watch = Watch { bits_per_second: Some(8000), ..Watch::default() };
        let mut windows = Windows::default();
        assert!(!windows.is_too_much(&watch, at(1, 0), 100));
        assert!(windows.is_too_much(&watch, at(1, 0), 1));
    }
}
