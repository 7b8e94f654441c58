//! What every engine is to the rest: something that fills rings and accounts for each frame.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::CaptureError;
use crate::feed::block_lists::BlockLists;
use crate::feed::change::Change;
use crate::feed::counts::of_all_feeds;
use crate::feed::location::FilterLocation;

/// What a source says about itself, once it is open.
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
    /// Things the user should know: what this engine cannot see here, and the remedy.
    pub notes: Vec<String>,
    /// Where each feed's frames are chosen, feed by feed.
    pub homes: Vec<FilterLocation>,
}

/// What a turn of [`Source::pump`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// There may be more.
    More,
    /// The source is at its end: a file read to the end, a count reached.
    Ended,
}

/// A source of frames, opened by one engine: fills rings, wakes sleepers, keeps the ledger.
///
/// One thread owns it. Open, [`start`](Source::start), [`pump`](Source::pump) until told to stop or
/// `Ended`, then [`stop`](Source::stop); dropping it undoes whatever it attached.
pub trait Source: Send {
    /// Engine, hook and reasons.
    fn info(&self) -> &Info;

    /// The rings it fills: of each feed one, or as many as threads or CPUs write; those of the first feed
    /// first, and all feeds have as many. Readers may attach before `start`.
    fn rings(&self) -> &[Ring<Mapping>];

    /// An eventfd that sleepers signal after a new threshold, where the writer cannot look by itself.
    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A sleeper to wake; the source's first ring is the sleeper's ring number `first`.
    ///
    /// # Errors
    /// If there are no descriptors left for those who wake it.
    fn add_waker(&mut self, waker: Waker, first: usize) -> Result<(), CaptureError>;

    /// Begins: from here on frames are offered.
    ///
    /// # Errors
    /// Whatever keeps the engine from attaching.
    fn start(&mut self) -> Result<(), CaptureError>;

    /// Moves frames, wakes sleepers, follows the clock; returns after about `limit` at the latest.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`] and other ends that the user must hear of. The source can still be
    /// stopped, and its ledger read.
    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError>;

    /// The ledgers so far, feed by feed. While frames come, their counts are not of one instant.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn ledgers(&mut self) -> Result<Vec<Ledger>, CaptureError>;

    /// All feeds together: a frame that is offered to two of them counts twice.
    ///
    /// # Errors
    /// As [`ledgers`](Source::ledgers).
    fn ledger(&mut self) -> Result<Ledger, CaptureError> {
        Ok(of_all_feeds(&self.ledgers()?))
    }

    /// What changes its feeds' block lists from any thread; `None` where only [`change`](Source::change) does.
    fn lists(&self) -> Option<BlockLists> {
        None
    }

    /// Changes what feed number `feed` chooses, of a source whose [`Setup::may_change`](crate::Setup::may_change) was set. It holds for every
    /// frame that comes after this returns.
    ///
    /// # Errors
    /// If the place where this feed's frames are chosen cannot do it; nothing has changed then.
    fn change(&mut self, feed: usize, change: Change) -> Result<(), CaptureError>;

    /// Stops the offering, drains what is under way into the rings and closes them. From here on the ledgers are
    /// exact to the frame; gives that of all feeds together.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn stop(&mut self) -> Result<Ledger, CaptureError>;
}
