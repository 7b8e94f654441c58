//! Feeds and sleepers that come and go while a source runs.

use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::change::Change;
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;

/// Changes a source from any thread, also while it pumps. Every call works on the thread that makes it: rings are made
/// and programs loaded there, never on a thread that moves frames.
pub trait FeedControl: Send + Sync {
    /// The feeds that there are. Those that the source was opened with come first, in that order, with the slots from
    /// 0.
    fn feeds(&self) -> Vec<FeedHandle>;

    /// Adds a feed: it chooses among all frames that are offered after the return, and some that were offered before.
    /// Its ledger counts from the first of them on. Needs [`Setup::may_change`](crate::Setup::may_change).
    ///
    /// # Errors
    /// Too many feeds, no memory, or what the engine cannot give; then nothing has changed.
    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError>;

    /// Removes a feed: closes its rings, and gives its final ledger, exact to the frame. The other feeds neither lose
    /// nor double a frame, and none is delayed.
    ///
    /// # Errors
    /// [`CaptureError::NoFeed`]; or the kernel does not take the feed out, which then stays.
    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError>;

    /// Moves a feed to rings of its own kind that nobody else has: a new feed that takes what this one takes, and this
    /// one removed at the same instant. Every frame goes to exactly one of the two.
    ///
    /// # Errors
    /// As [`add`](FeedControl::add) and [`remove`](FeedControl::remove).
    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError>;

    /// Changes what a feed chooses. It holds for every frame that comes after this returns. Gives where that is done
    /// now.
    ///
    /// # Errors
    /// If the place where this feed's frames are chosen cannot do it; nothing has changed then.
    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError>;

    /// A sleeper to wake when frames come; the feed's first ring is the sleeper's line `first_line`, and its other
    /// rings follow.
    ///
    /// # Errors
    /// [`CaptureError::NarrowWaker`], or there are no descriptors left.
    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError>;

    /// Forgets a sleeper. One that is not there makes no difference.
    fn detach(&self, feed: FeedSlot, waker: WakerSlot);

    /// The ledger of a feed so far.
    ///
    /// # Errors
    /// [`CaptureError::NoFeed`]; or the kernel's counts cannot be read.
    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError>;

    /// Has a [`pump`](crate::Source::pump) that waits return, of a source that [can be
    /// woken](crate::Source::can_be_woken).
    fn wake(&self) {}

    /// Ordinals of the first frames that are not the feed's any more, ring by ring, of a source that has stopped while
    /// others go on writing its rings. `None`: the rings are closed.
    fn ends(&self, _feed: FeedSlot) -> Option<Vec<u64>> {
        None
    }

    /// The shares of the interfaces in the ledger of a feed, of a source that has several: those that are there, and
    /// those that were. Empty for others.
    ///
    /// # Errors
    /// As [`ledger`](FeedControl::ledger).
    fn interfaces(&self, _feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        Ok(Vec::new())
    }
}

/// A feed of a source. Never reused within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedSlot(u32);

impl FeedSlot {
    /// The slot of feed number `number` since the source was opened.
    #[must_use]
    pub const fn new(number: u32) -> FeedSlot {
        FeedSlot(number)
    }

    /// The slot of the first feed.
    #[must_use]
    pub const fn first() -> FeedSlot {
        FeedSlot(0)
    }

    /// All slots, in the order in which a source uses them.
    pub fn all() -> impl Iterator<Item = FeedSlot> {
        (0..).map(FeedSlot)
    }
}

/// A sleeper of a feed. Never reused within a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakerSlot(u32);

impl WakerSlot {
    /// The slot of sleeper number `number` since the source was opened.
    #[must_use]
    pub const fn new(number: u32) -> WakerSlot {
        WakerSlot(number)
    }
}

/// A feed as its owner hands it out.
pub struct FeedHandle {
    /// Its name in [`FeedControl`].
    pub slot: FeedSlot,
    /// Its rings: one, or as many as threads or CPUs write.
    pub rings: Vec<Ring<Mapping>>,
    /// Ordinals of the first frames that are the feed's, ring by ring, if others had frames of these rings before;
    /// empty: all are.
    pub from: Vec<u64>,
    /// Where its frames are chosen.
    pub location: FilterLocation,
    /// Where readers join whom its writer waits for, if it waits for readers.
    pub pace: Option<Pace>,
}
