//! From one thread to every feed that wants the frame: where filters run in user space.
//!
//! Each thread of an engine that moves frames has one fan-out, and the fan-out has a branch for each feed: a ring, and
//! what that feed wants of a frame. Each feed counts frames that it rejects by reason, and writes the others, cut at
//! its own length. Branches join and leave between two frames ([`UpdateQueue`]).

mod branch;
mod branches;

use std::sync::Arc;

use weir_frame::record::Meta;
use weir_ring::{Mapping, Ring};

pub(crate) use self::branch::{Branch, BranchCounts};
pub(crate) use self::branches::{Branches, Retired, Update};
use super::update_queue::UpdateQueue;
use crate::feed::Feed;
use crate::feed::control::FeedSlot;

/// One thread's way into the rings of all feeds.
pub struct Fanout {
    queue: Arc<UpdateQueue<Branches>>,
    /// Parked in the queue while this thread moves no frames.
    own: Option<Box<Branches>>,
}

impl Fanout {
    pub(super) fn new(queue: Arc<UpdateQueue<Branches>>) -> Fanout {
        Fanout { queue, own: None }
    }

    /// A fan-out of one feed that takes all, into a ring that is no source's.
    pub(crate) fn into_ring(ring: &Ring<Mapping>, caplen_max: usize) -> Fanout {
        let feed = Feed { snaplen: caplen_max as u32, ..Feed::default() };
        let mut branches = Branches::default();
        let branch = Branch::new(FeedSlot::first(), &feed, ring, Arc::default());
        branches.join(0, Box::new(branch));
        branches.look();
        Fanout::new(Arc::new(UpdateQueue::new(Box::new(branches))))
    }

    /// The branches, with all updates that were posted until now: for one frame, or for a burst of frames that are all
    /// here already, since an update that is posted meanwhile holds only from the next call on.
    #[inline]
    pub(crate) fn branches(&mut self) -> &mut Branches {
        if self.own.is_none() || self.queue.is_fresh() {
            self.take_over();
        }
        self.own.as_mut().expect("taken over above")
    }

    #[cold]
    fn take_over(&mut self) {
        self.own = Some(self.queue.take_over(self.own.take()));
    }

    /// Frames written, into all rings together.
    pub(crate) fn frames(&mut self) -> u64 {
        self.branches().frames()
    }

    /// Whether a burst that opens one block of a ring at most would overtake nobody who is waited for. Everything must
    /// be published.
    #[inline]
    pub fn is_open(&mut self) -> bool {
        self.branches().are_open()
    }

    /// Offers one frame to every feed: the bytes that there are of it, tags and all. If the feeds
    /// differ in direction, the flags of a frame say in which direction it went.
    #[inline]
    pub fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.branches().push(meta, frame);
    }

    /// Makes everything so far visible, and wakes who waited for it.
    #[inline]
    pub fn publish(&mut self) {
        self.branches().publish();
    }

    /// Before this thread waits, ends its turn or ends: publishes, and lets others change the feeds meanwhile.
    pub fn leave(&mut self) {
        if let Some(mut own) = self.own.take() {
            own.publish();
            self.queue.park(own);
        }
    }

    /// Says that nothing more will come: readers that have read all are at the end.
    pub fn close(&mut self) {
        self.branches().close();
        self.leave();
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        // Otherwise a thread that changes feeds waits for this thread.
        if let Some(own) = self.own.take() {
            self.queue.park(own);
        }
    }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
