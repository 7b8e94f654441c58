//! Feeds of a plain engine: one thread moves its frames, and nobody knows which RX queue a frame came from.
//!
//! With this and [`Source`](crate::Source) an engine can live in any crate: `weir-probe/examples/write_an_engine.rs`.

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_ring::Clock;

use super::Feed;
use super::direction::Direction;
use super::fanout::Fanout;
use super::feeds::Feeds;
use crate::error::CaptureError;
use crate::setup::{Setup, refuse_queue};

/// Frames of a plain engine, as far as feeds must know them.
#[derive(Clone, Copy, Debug)]
pub struct PlainEngine {
    /// Where its frames come from, as errors say it: `a file`.
    pub origin: &'static str,
    /// The link type of all its frames, as in pcapng.
    pub link_type: u16,
    /// The clock of their stamps.
    pub clock: Clock,
    /// Whether frames say which way they went, and only those are pushed that [`Setup::direction`] takes. Otherwise
    /// every feed gets them all, whatever its direction.
    pub has_directions: bool,
    /// It does not overtake readers that have joined a feed's [`Pace`](super::pace::Pace): it pushes only what
    /// [`Fanout::is_open`] lets it.
    pub waits: bool,
}

impl PlainEngine {
    /// Ethernet frames that do not say which way they went, stamped with the time of day.
    #[must_use]
    pub const fn ethernet(origin: &'static str) -> PlainEngine {
        let (link_type, clock) = (LINKTYPE_ETHERNET, Clock::Realtime);
        PlainEngine { origin, link_type, clock, has_directions: false, waits: false }
    }

    /// Makes the rings of the feeds in `setup`, and the way into them. The setup is checked, and adapted to the engine.
    ///
    /// # Errors
    /// [`CaptureError::Options`] for feeds that such an engine cannot give; no memory for rings, or a size that no ring
    /// can have.
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
        Feeds::create_one_that_waits(setup, clock, Box::new(admit), waits)
    }
}
