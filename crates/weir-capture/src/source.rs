//! The interface of every engine: a source fills rings and accounts for each frame.

use std::sync::Arc;
use std::time::Duration;

use weir_ring::{Ledger, Mapping, Ring};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::feed::counts::of_all_feeds;
use crate::kernel::netns::Owner;

/// Facts about a source, once it is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// As the user named it: `eth0`, `file:trace.pcapng`.
    pub source: String,
    /// The engine's name.
    pub engine: &'static str,
    /// Where in the kernel frames are taken, if in the kernel: `tc`, `xdp`, `xdp-generic`, `socket`.
    pub hook: Option<&'static str>,
    /// Why this engine and this hook.
    pub why: String,
    /// Notes for the user: limitations of this engine here, and the remedy.
    pub notes: Vec<String>,
    /// Owner of the frames, for a source in another network namespace.
    pub owner: Option<Owner>,
}

/// Result of a turn of [`Source::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// There may be more.
    More,
    /// The source is at its end: a file read to the end, a count reached.
    Ended,
}

/// Event of an interface of a source that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// It is there now, and its frames are captured.
    Joined {
        /// Its name.
        iface: String,
    },
    /// It is gone, or has another name now.
    Left {
        /// Its name.
        iface: String,
    },
    /// It was set down. Its frames are captured when it comes up.
    Down {
        /// Its name.
        iface: String,
    },
    /// It was set up.
    Up {
        /// Its name.
        iface: String,
    },
    /// It fits, and its frames are not captured.
    LeftOut {
        /// Its name.
        iface: String,
        /// Why, and what helps.
        why: String,
    },
}

/// A source of frames, opened by one engine: fills rings, wakes sleepers, keeps the ledger.
///
/// One thread owns it. Open, [`start`](Source::start), [`pump`](Source::pump) until told to stop or `Ended`, then
/// [`stop`](Source::stop); dropping it undoes whatever it attached. Feeds and their sleepers come and go by its
/// [`control`](Source::control), from any thread.
pub trait Source: Send {
    /// Engine, hook and reasons.
    fn info(&self) -> &Info;

    /// Its feeds, and what changes them from any thread, also while it pumps. Readers may attach before `start`.
    fn control(&self) -> Arc<dyn FeedControl>;

    /// Begins: from here on frames are offered. For an engine that has nothing to attach the first
    /// [`pump`](Source::pump) is early enough.
    ///
    /// The calling thread must be in the network namespace in which the source was opened: an engine may find its
    /// interface again by its index, and in another namespace the same index is another interface.
    ///
    /// # Errors
    /// Whatever keeps the engine from attaching.
    fn start(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }

    /// Moves frames, wakes sleepers, follows the clock; returns after about `limit` at the latest.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`] and other ends that the user must hear of. The source can still be
    /// stopped, and its ledger read.
    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError>;

    /// Whether [`FeedControl::wake`] ends a [`pump`](Source::pump) that waits: it may then be given a long limit.
    fn can_be_woken(&self) -> bool {
        false
    }

    /// Events of its interfaces since the last call, for a source that has several.
    fn take_events(&mut self) -> Vec<SourceEvent> {
        Vec::new()
    }

    /// Stops the offering, drains frames that are under way into the rings and closes them. From here on the
    /// ledgers are exact to the frame.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn stop(&mut self) -> Result<(), CaptureError>;

    /// The rings of its feeds: of each feed one, or as many as threads or CPUs write; those of the first feed first.
    fn rings(&self) -> Vec<Ring<Mapping>> {
        self.control().feeds().into_iter().flat_map(|feed| feed.rings).collect()
    }

    /// The ledgers of its feeds. While frames come, their counts are not of one instant.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read, or one of the feeds is removed meanwhile.
    fn ledgers(&self) -> Result<Vec<Ledger>, CaptureError> {
        let control = self.control();
        control.feeds().iter().map(|feed| control.ledger(feed.slot)).collect()
    }

    /// All of these together: a frame that is offered to two of them counts twice.
    ///
    /// # Errors
    /// As [`ledgers`](Source::ledgers).
    fn ledger(&self) -> Result<Ledger, CaptureError> {
        Ok(of_all_feeds(&self.ledgers()?))
    }

    /// Stops, and gives the ledger of its feeds.
    ///
    /// # Errors
    /// As [`stop`](Source::stop) and [`ledgers`](Source::ledgers).
    fn finish(&mut self) -> Result<Ledger, CaptureError> {
        self.stop()?;
        self.ledger()
    }
}
