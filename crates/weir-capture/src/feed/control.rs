//! Changes to the feeds and wakers of a running source.

use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::change::Change;
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;

/// Changes a source from any thread, also while another thread runs [`pump`](crate::Source::pump). Every call makes its
/// rings and loads its programs on the calling thread, never on a thread that moves frames.
pub trait FeedControl: Send + Sync {
    /// Returns the present feeds. Those with which the source was opened come first, in that order; their slots begin
    /// at 0.
    fn feeds(&self) -> Vec<FeedHandle>;

    /// Adds a feed. It selects from all frames that are offered after the return, and from some that were
    /// offered shortly before. Its ledger counts from the first of these. Needs
    /// [`Setup::may_change`](crate::Setup::may_change).
    ///
    /// # Errors
    /// Too many feeds, no memory, or a feed that the engine does not support. Nothing has changed then.
    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError>;

    /// Removes a feed: closes its rings and returns its final ledger, exact to the frame. No frame of the
    /// other feeds is lost, duplicated or delayed.
    ///
    /// # Errors
    /// [`CaptureError::NoFeed`]; or the kernel refused the change, and the feed remains.
    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError>;

    /// Moves a feed to new rings that no other process has mapped: adds a feed with the same selection, and
    /// removes this one at the same instant. Every frame goes to exactly one of the two.
    ///
    /// # Errors
    /// As [`add`](FeedControl::add) and [`remove`](FeedControl::remove).
    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError>;

    /// Changes the selection of a feed, for every frame that is offered after the return. Returns the place
    /// where its filter runs now.
    ///
    /// # Errors
    /// The place where this feed's filter runs does not support the change. Nothing has changed then.
    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError>;

    /// Adds a waker, which is called when the feed has new frames. The feed's first ring is line
    /// `first_line` of the waker, and its other rings are the lines after that.
    ///
    /// # Errors
    /// [`CaptureError::NarrowWaker`], or no free file descriptor.
    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError>;

    /// Removes a waker. Does nothing if there is no such waker.
    fn detach(&self, feed: FeedSlot, waker: WakerSlot);

    /// Returns the ledger of a feed so far.
    ///
    /// # Errors
    /// [`CaptureError::NoFeed`]; or the kernel's counts cannot be read.
    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError>;

    /// Makes a [`pump`](crate::Source::pump) that waits return, if the source [can be
    /// woken](crate::Source::can_be_woken).
    fn wake(&self) {}

    /// Returns, for each ring, the ordinal of the first frame that no longer belongs to the feed, for a source that has
    /// stopped while another writer still fills its rings. `None`: the rings are closed.
    fn ends(&self, _feed: FeedSlot) -> Option<Vec<u64>> {
        None
    }

    /// Returns the ledger of a feed by interface, present or former, for a source that has several. Empty for other
    /// sources.
    ///
    /// # Errors
    /// As [`ledger`](FeedControl::ledger).
    fn interfaces(&self, _feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        Ok(Vec::new())
    }
}

/// Identifies a feed of a source. A source never reuses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedSlot(u32);

impl FeedSlot {
    /// Returns the slot of feed number `number` since the source was opened.
    #[must_use]
    pub const fn new(number: u32) -> FeedSlot {
        FeedSlot(number)
    }

    /// Returns the slot of the first feed.
    #[must_use]
    pub const fn first() -> FeedSlot {
        FeedSlot(0)
    }

    /// Returns all slots, in the order in which a source uses them.
    pub fn all() -> impl Iterator<Item = FeedSlot> {
        (0..).map(FeedSlot)
    }
}

/// Identifies a waker of a feed. A source never reuses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakerSlot(u32);

impl WakerSlot {
    /// Returns the slot of waker number `number` since the source was opened.
    #[must_use]
    pub const fn new(number: u32) -> WakerSlot {
        WakerSlot(number)
    }
}

/// A feed of a source: its slot, and all that its consumers need.
pub struct FeedHandle {
    /// Identifies it in [`FeedControl`].
    pub slot: FeedSlot,
    /// Its rings, one for each thread or CPU that writes.
    pub rings: Vec<Ring<Mapping>>,
    /// For each ring, the ordinal of the first frame that belongs to the feed, if earlier frames belong to
    /// others. Empty: all frames do.
    pub from: Vec<u64>,
    /// The place where its filter runs.
    pub location: FilterLocation,
    /// The feed's pace, if its writer waits for readers. The writer waits for those readers that have joined the pace.
    pub pace: Option<Pace>,
}
