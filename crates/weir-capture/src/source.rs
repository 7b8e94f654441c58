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
    /// The name that the user gave: `eth0`, `file:trace.pcapng`.
    pub source: String,
    /// The engine's name.
    pub engine: &'static str,
    /// The place in the kernel where frames are captured: `tc`, `xdp`, `xdp-generic`, `socket`. `None` if frames are
    /// not captured in the kernel.
    pub hook: Option<&'static str>,
    /// The reason for this engine and this hook.
    pub why: String,
    /// Notes for the user: limitations of this engine here, and the remedy.
    pub notes: Vec<String>,
    /// Owner of the frames, for a source in another network namespace.
    pub owner: Option<Owner>,
}

/// Result of one call of [`Source::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// There may be more frames.
    More,
    /// The source is at its end: a file read to the end, a count reached.
    Ended,
}

/// An event of one interface of a source that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// The interface appeared, and its frames are captured.
    Joined {
        /// Name of the interface.
        iface: String,
    },
    /// The interface was removed or renamed.
    Left {
        /// Name of the interface.
        iface: String,
    },
    /// The interface was set down. Its frames are captured when it comes up.
    Down {
        /// Name of the interface.
        iface: String,
    },
    /// The interface was set up.
    Up {
        /// Name of the interface.
        iface: String,
    },
    /// The interface matches the source's pattern, but its frames are not captured.
    LeftOut {
        /// Name of the interface.
        iface: String,
        /// The reason and a remedy.
        why: String,
    },
}

/// A source of frames, opened by one engine. It fills rings, wakes sleeping readers and keeps the ledger.
///
/// One thread owns it: it calls [`start`](Source::start), then [`pump`](Source::pump) until it is told to
/// stop or `pump` returns `Ended`, then [`stop`](Source::stop). Dropping a source detaches everything that
/// it attached. Any thread may add and remove feeds and wakers through its [`control`](Source::control).
pub trait Source: Send {
    /// Returns facts about the source: the engine, the hook, and the reasons for them.
    fn info(&self) -> &Info;

    /// Returns the interface for changing the source's feeds from any thread, also while it pumps. Readers may attach
    /// before `start`.
    fn control(&self) -> Arc<dyn FeedControl>;

    /// Begins to offer frames. An engine that attaches nothing may begin at the first
    /// [`pump`](Source::pump) instead.
    ///
    /// The calling thread must be in the network namespace in which the source was opened: an engine may
    /// look up its interface by index, and in another namespace the same index names another interface.
    ///
    /// # Errors
    /// The engine could not attach.
    fn start(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }

    /// Moves frames, wakes readers and does periodic work. Returns after about `limit` at the latest.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`], [`CaptureError::FeedEnded`], or another end of the source that must be reported to
    /// the user. The source can still be stopped, and its ledger read.
    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError>;

    /// Returns whether [`FeedControl::wake`] ends a [`pump`](Source::pump) that waits, so that `pump` can have a long
    /// limit.
    fn can_be_woken(&self) -> bool {
        false
    }

    /// Returns the events of the interfaces since the last call, for a source that has several interfaces.
    fn take_events(&mut self) -> Vec<SourceEvent> {
        Vec::new()
    }

    /// Stops offering frames, drains pending frames into the rings and closes the rings. From then on the
    /// ledgers are exact to the frame.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn stop(&mut self) -> Result<(), CaptureError>;

    /// Returns the rings of the source's feeds, those of the first feed first. A feed has one ring for each thread or
    /// CPU that writes.
    fn rings(&self) -> Vec<Ring<Mapping>> {
        self.control().feeds().into_iter().flat_map(|feed| feed.rings).collect()
    }

    /// Returns the ledgers of the source's feeds. While frames come, the counts of a ledger are not all read at the
    /// same moment.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read, or one of the feeds is removed meanwhile.
    fn ledgers(&self) -> Result<Vec<Ledger>, CaptureError> {
        let control = self.control();
        control.feeds().iter().map(|feed| control.ledger(feed.slot)).collect()
    }

    /// Returns the sum of the ledgers of the source's feeds. A frame that is offered to two feeds counts twice.
    ///
    /// # Errors
    /// As [`ledgers`](Source::ledgers).
    fn ledger(&self) -> Result<Ledger, CaptureError> {
        Ok(of_all_feeds(&self.ledgers()?))
    }

    /// Stops, and returns the sum of the ledgers of its feeds.
    ///
    /// # Errors
    /// As [`stop`](Source::stop) and [`ledgers`](Source::ledgers).
    fn finish(&mut self) -> Result<Ledger, CaptureError> {
        self.stop()?;
        self.ledger()
    }
}
