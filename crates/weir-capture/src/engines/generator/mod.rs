//! The engine `gen`: makes frames in memory, to test and measure everything except the NIC. Needs no privileges.

mod addresses;
pub(crate) mod declaration;
mod frames;
mod spec;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_frame::record::Meta;
use weir_ring::{Clock, Ledger};

pub use addresses::Addresses;
pub use spec::{Flows, GenSpec, Rate, Stamps};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::feed::pace;
use crate::feed::{Fanout, Feeds};
use crate::plain_engine::PlainEngine;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use frames::Maker;

/// Most frames that are made, written and published together.
const BURST: u64 = 64;
/// Most bytes of the frames that are made together. So few bytes are still in the first-level cache when they are
/// copied, and open at most one block.
const BURST_BYTES: usize = 16 * 1024;
/// Bursts between two readings of the clock that check the time limit of `pump`.
const BURSTS_A_LOOK: u32 = 16;
/// The first synthetic time stamp: 2023-11-14 22:13:20 UTC, a round number of seconds.
pub const SYNTHETIC_START_NS: u64 = 1_700_000_000_000_000_000;

/// A source that generates frames in memory.
pub struct MemGen {
    info: Info,
    spec: GenSpec,
    feeds: Feeds,
    fanout: Fanout,
    maker: Maker,
    /// The next time stamp, unless the clock is read for each frame.
    next_ns: u64,
    step_ns: u64,
    /// Number of generated frames, which are all offered.
    made: u64,
    frames_max: u64,
    began: Option<Instant>,
    closed: bool,
}

impl MemGen {
    /// Creates a generator, and a ring for each feed. `waits`: wait for readers that have joined a feed's
    /// [`Pace`](pace::Pace), for tests and benches in which every frame must be read; otherwise slow readers are
    /// lapped, as in any capture.
    ///
    /// # Errors
    /// [`CaptureError::Options`] for an invalid `spec`; [`CaptureError::Ring`].
    pub fn open(spec: GenSpec, mut setup: Setup, waits: bool) -> Result<MemGen, CaptureError> {
        spec.check()?;
        let clock = match spec.stamps {
            Stamps::Synthetic => Clock::Foreign,
            Stamps::PerFrame | Stamps::PerBurst => Clock::Realtime,
        };
        let engine = PlainEngine { clock, waits, ..PlainEngine::ethernet("a generator") };
        let (feeds, fanout) = engine.open_feeds(&mut setup)?;
        let frame_bytes = spec.frame_bytes();
        let together = (BURST_BYTES / frame_bytes).clamp(1, BURST as usize);
        let info = Info {
            source: format!("gen:{spec}"),
            engine: "gen",
            hook: None,
            why: "the frames are made in memory".into(),
            notes: Vec::new(),
            owner: None,
        };
        Ok(MemGen {
            info,
            feeds,
            fanout,
            maker: Maker::new(&spec, together),
            next_ns: SYNTHETIC_START_NS,
            step_ns: spec.step_ns(),
            made: 0,
            frames_max: spec.frames.unwrap_or(u64::MAX),
            began: None,
            closed: false,
            spec,
        })
    }

    /// Makes a burst of at most `frames_max` frames, writes it to the rings and publishes it.
    fn burst(&mut self, frames_max: u64) {
        let MemGen { fanout, maker, next_ns, step_ns, spec, .. } = self;
        let frames = maker.make(self.made, frames_max);
        let (count, wire_len) = (frames.len() as u64, spec.frame_bytes() as u32);
        let (is_per_frame, step_ns) = match spec.stamps {
            Stamps::PerFrame => (true, 0),
            Stamps::PerBurst => {
                *next_ns = now_ns();
                (false, 0)
            }
            Stamps::Synthetic => (false, *step_ns),
        };
        let stamped = |frame| {
            let ts_ns = if is_per_frame { now_ns() } else { *next_ns };
            *next_ns = next_ns.wrapping_add(step_ns);
            (Meta { ts_ns, wire_len, ..Meta::default() }, frame)
        };
        fanout.branches().push_burst(frames.map(stamped));
        self.made += count;
        self.fanout.publish();
    }

    /// Returns the number of frames that may be made now, by the rate; without a rate, the number of all remaining
    /// frames.
    fn due(&mut self) -> u64 {
        let left = self.frames_max - self.made;
        let Some(rate_pps) = self.spec.rate_pps() else { return left };
        let began = *self.began.get_or_insert_with(Instant::now);
        let by_now = (began.elapsed().as_secs_f64() * rate_pps) as u64;
        by_now.saturating_sub(self.made).min(left)
    }

    /// Returns the time until the next frame is due; 0 without a rate.
    fn until_due(&self) -> Duration {
        let (Some(rate_pps), Some(began)) = (self.spec.rate_pps(), self.began) else {
            return Duration::ZERO;
        };
        let at = Duration::try_from_secs_f64((self.made + 1) as f64 / rate_pps);
        at.unwrap_or(Duration::MAX).saturating_sub(began.elapsed())
    }
}

fn now_ns() -> u64 {
    // If the clock is set to a time before 1970, the time stamp is 0.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Source for MemGen {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let pumped = self.make_until(Instant::now() + limit);
        self.fanout.leave();
        self.count();
        Ok(pumped)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            self.closed = true;
            self.fanout.close();
        }
        self.count();
        Ok(())
    }
}

impl MemGen {
    fn count(&self) {
        self.feeds.count(Ledger { offered: self.made, ..Ledger::default() });
    }

    fn make_until(&mut self, deadline: Instant) -> Pumped {
        let left = || deadline.saturating_duration_since(Instant::now());
        while self.made < self.frames_max {
            let mut due = self.due();
            if due == 0 {
                self.fanout.leave();
                std::thread::sleep(self.until_due().min(left()));
            }
            for _ in 0..BURSTS_A_LOOK {
                if due == 0 {
                    break;
                }
                if !self.fanout.is_open() {
                    pace::nap();
                    break;
                }
                let before = self.made;
                self.burst(due);
                due -= self.made - before;
            }
            if left().is_zero() {
                return Pumped::More;
            }
        }
        Pumped::Ended
    }
}
