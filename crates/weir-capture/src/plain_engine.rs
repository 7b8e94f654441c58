//! A plain engine: one thread moves its frames, and the RX queue of a frame is not known.
//!
//! With [`PlainEngine::open`], any crate can define an engine: see
//! `weir-probe/examples/write_an_engine.rs`.

use std::sync::Arc;
use std::time::Duration;

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::record::Meta;
use weir_ring::{Clock, Ledger};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::feed::feeds::RingUse;
use crate::feed::{Fanout, Feed, Feeds};
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source};

/// The properties of a plain engine's frames that feeds depend on.
#[derive(Clone, Copy, Debug)]
pub struct PlainEngine {
    /// The origin of its frames, in the words of error messages: `a file`.
    pub origin: &'static str,
    /// The link type of all its frames, as in pcapng.
    pub link_type: u16,
    /// The clock of the stamps.
    pub clock: Clock,
    /// Whether the direction of a frame is known; the engine then pushes only frames of
    /// [`Setup::direction`]. If it is not known, every feed gets all frames, whatever its direction.
    pub has_directions: bool,
    /// Whether it waits for readers that have joined a feed's [`Pace`](crate::feed::pace::Pace): it pushes
    /// frames only while [`Fanout::is_open`].
    pub waits: bool,
}

impl PlainEngine {
    /// Describes an engine for Ethernet frames of unknown direction, stamped by the realtime clock.
    #[must_use]
    pub const fn ethernet(origin: &'static str) -> PlainEngine {
        let (link_type, clock) = (LINKTYPE_ETHERNET, Clock::Realtime);
        PlainEngine { origin, link_type, clock, has_directions: false, waits: false }
    }

    /// Makes the rings of the feeds in `setup`, and the fan-out that writes them. Checks the setup, and
    /// adapts it to the engine.
    ///
    /// # Errors
    /// [`CaptureError::Options`] for feeds that such an engine does not support; no memory for rings, or a
    /// size that no ring can have.
    pub fn open_feeds(&self, setup: &mut Setup) -> Result<(Feeds, Fanout), CaptureError> {
        let PlainEngine { origin, link_type, clock, has_directions, waits } = *self;
        setup.check()?;
        setup.refuse_queues(origin)?;
        setup.set_link_type(link_type)?;
        if !has_directions {
            setup.ignore_direction();
        }
        let offered = setup.direction();
        let admit = move |feed: &mut Feed| {
            match has_directions {
                true => Setup::admit_direction(offered, feed)?,
                false => feed.direction = Direction::Both,
            }
            refuse_queue(feed, origin)
        };
        Feeds::create_one_with(setup, clock, Box::new(admit), RingUse { waits })
    }

    /// Opens a source that attaches nothing. `pump` moves frames as [`Source::pump`] does, and the source
    /// keeps their ledger. It never waits for slow readers, even if [`waits`](Self::waits) is set.
    ///
    /// # Errors
    /// As [`open_feeds`](PlainEngine::open_feeds).
    pub fn open(
        &self,
        info: Info,
        mut setup: Setup,
        pump: impl FnMut(&mut FrameInput, Duration) -> Result<Pumped, CaptureError> + Send + 'static,
    ) -> Result<Box<dyn Source>, CaptureError> {
        let engine = PlainEngine { waits: false, ..*self };
        let (feeds, fanout) = engine.open_feeds(&mut setup)?;
        let input = FrameInput { feeds, fanout, offered: 0 };
        Ok(Box::new(PlainSource { info, input, pump, is_closed: false }))
    }
}

/// Writes a plain engine's frames into the rings of its feeds.
pub struct FrameInput {
    feeds: Feeds,
    fanout: Fanout,
    offered: u64,
}

impl FrameInput {
    /// Offers one frame to every feed. Readers see it at the latest when `pump` returns.
    #[inline]
    pub fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.offered += 1;
        self.fanout.push(meta, frame);
    }

    fn end_turn(&mut self) {
        // `offered` is set before the frames become visible, so that no frame is visible but not yet
        // counted as offered.
        self.feeds.count(Ledger { offered: self.offered, ..Ledger::default() });
        self.fanout.leave();
    }
}

/// The source that [`PlainEngine::open`] opens.
struct PlainSource<F> {
    info: Info,
    input: FrameInput,
    pump: F,
    is_closed: bool,
}

impl<F> Source for PlainSource<F>
where
    F: FnMut(&mut FrameInput, Duration) -> Result<Pumped, CaptureError> + Send,
{
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.input.feeds.control()
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let pumped = (self.pump)(&mut self.input, limit);
        self.input.end_turn();
        pumped
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.input.feeds.end();
        if !std::mem::replace(&mut self.is_closed, true) {
            self.input.fanout.close();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_turn_that_failed_are_in_a_ledger_that_closes() {
        let setup = Setup {
            feeds: vec![Feed { snaplen: 4, ..Feed::default() }],
            ring_bytes: 4 << 20,
            promiscuous: false,
            ..Setup::default()
        };
        let info = Info { engine: "test", ..Info::default() };
        let pump = |input: &mut FrameInput, _| {
            for _ in 0..3 {
                input.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]);
            }
            Err(CaptureError::Ended)
        };
        let mut source = PlainEngine::ethernet("a test").open(info, setup, pump).unwrap();
        assert_eq!(source.info().engine, "test");
        assert!(source.pump(Duration::ZERO).is_err());
        let ledger = source.ledger().unwrap();
        assert_eq!((ledger.offered, ledger.captured), (3, 3), "before it stops");
        source.stop().unwrap();
        let ledger = source.finish().unwrap();
        assert_eq!((ledger.offered, ledger.captured), (3, 3));
        assert!(source.rings()[0].is_closed());
    }
}
