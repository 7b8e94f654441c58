//! Distributes a thread's frames to all feeds that want them. Filters in user space run here.
//!
//! Each thread of an engine that moves frames has one fan-out, and the fan-out has a branch for each feed:
//! its ring and its selection. A branch counts the frames that it rejects, by reason, and writes the
//! others, cut at its snaplen. Branches join and leave between two frames ([`UpdateQueue`]).

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

/// Writes one thread's frames to the rings of all feeds.
pub struct Fanout {
    queue: Arc<UpdateQueue<Branches>>,
    /// Parked in the queue while this thread moves no frames.
    own: Option<Box<Branches>>,
}

impl Fanout {
    pub(super) fn new(queue: Arc<UpdateQueue<Branches>>) -> Fanout {
        Fanout { queue, own: None }
    }

    /// Creates a fan-out with one feed that takes all frames, for a ring that belongs to no source.
    pub(crate) fn into_ring(ring: &Ring<Mapping>, caplen_max: usize) -> Fanout {
        let feed = Feed { snaplen: caplen_max as u32, ..Feed::default() };
        let mut branches = Branches::default();
        let branch = Branch::new(FeedSlot::first(), &feed, ring, Arc::default());
        branches.join(0, Box::new(branch));
        branches.look();
        Fanout::new(Arc::new(UpdateQueue::new(Box::new(branches))))
    }

    /// Returns the branches, with all updates that were posted until now. Call this for each frame, or for each burst
    /// of frames that have already arrived: later updates take effect at the next call.
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

    /// Returns the number of frames written to all rings.
    pub(crate) fn frames(&mut self) -> u64 {
        self.branches().frames()
    }

    /// Returns whether a burst that opens at most one block of a ring would overtake no reader that has joined a
    /// [`Pace`](crate::feed::pace::Pace). All frames must be published.
    #[inline]
    pub fn is_open(&mut self) -> bool {
        self.branches().are_open()
    }

    /// Offers one frame to every feed: all bytes that were captured, including VLAN tags. If the feeds
    /// differ in direction, the frame's flags or its Linux cooked header must contain its direction.
    #[inline]
    pub fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.branches().push(meta, frame);
    }

    /// Makes all frames so far visible, and wakes the readers that wait for them.
    #[inline]
    pub fn publish(&mut self) {
        self.branches().publish();
    }

    /// Publishes, and parks the branches so that other threads can change them. Call this before the thread
    /// waits, returns from `pump` or ends.
    pub fn leave(&mut self) {
        if let Some(mut own) = self.own.take() {
            own.publish();
            self.queue.park(own);
        }
    }

    /// Closes the rings: readers that have read all frames are at the end.
    pub fn close(&mut self) {
        self.branches().close();
        self.leave();
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        // Otherwise a thread that changes feeds would wait for this thread.
        if let Some(own) = self.own.take() {
            self.queue.park(own);
        }
    }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
