//! The branches of a fan-out. Work that they share is done once for each frame. Changes are applied between
//! two frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_filter::UserFilterSet;
use weir_filter::block::BlockList;
use weir_frame::flow::{FlowKey, shard_hash};
use weir_frame::headers::FrameView;
use weir_frame::record::Meta;
use weir_ring::wake::Waker;

use super::branch::Branch;
use crate::feed::control::{FeedSlot, WakerSlot};
use crate::feed::interfaces::{Column, Tally};
use crate::feed::update_queue::Updated;
use crate::feed::wakers::AddedWaker;

/// A change to a fan-out.
pub(crate) enum Update {
    /// One branch leaves, and another takes its place or joins as the last one.
    Exchange { leaves: Option<FeedSlot>, joins: Option<Box<Branch>> },
    /// The filters of all branches, in the order that the branches have after the preceding updates; `None`
    /// if no branch has a filter.
    Filters(Option<UserFilterSet>),
    /// The block list of a branch.
    Block(FeedSlot, Arc<BlockList>),
    /// A waker for a branch, with its line for this fan-out's ring.
    Attach(FeedSlot, WakerSlot, Waker, usize),
    /// Removes a waker.
    Detach(FeedSlot, WakerSlot),
}

/// Objects that an update has replaced. They are freed by a thread that moves no frames.
pub(crate) enum Retired {
    Branch(Box<Branch>),
    Filters(#[expect(dead_code, reason = "to be dropped")] Option<UserFilterSet>),
    List(#[expect(dead_code, reason = "to be dropped")] Arc<BlockList>),
    Waker(#[expect(dead_code, reason = "to be dropped")] Waker),
    AddedWaker(#[expect(dead_code, reason = "to be dropped")] AddedWaker),
}

/// The branches of a fan-out.
#[derive(Default)]
pub(crate) struct Branches {
    pub(super) list: Vec<Branch>,
    /// `None` if no branch has a filter.
    filters: Option<UserFilterSet>,
    /// Whether there is one branch that takes every frame, and no counts by interface.
    takes_all: bool,
    /// Whether a branch selects by flow hash.
    by_flow: bool,
    /// Whether a branch has a block list that is not empty.
    pub(super) has_blocks: bool,
    /// Number of frames that came to this fan-out.
    pub(super) seen: u64,
    seen_visible: Arc<AtomicU64>,
    /// `seen` by interface, for a source with several.
    by_interface: Option<Arc<Tally>>,
}

impl Branches {
    /// Creates a list without branches. Publishing stores the number of seen frames in `seen`.
    pub(in crate::feed) fn new(seen: Arc<AtomicU64>, by_interface: Option<Arc<Tally>>) -> Branches {
        Branches { seen_visible: seen, by_interface, ..Branches::default() }
    }

    /// As [`Fanout::push`](super::Fanout::push).
    #[inline]
    pub(crate) fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.seen += 1;
        match &mut self.list[..] {
            [only] if self.takes_all && meta.interface_id == 0 => only.write(meta, frame),
            _ => self.offer(meta, frame),
        }
    }

    /// Offers a burst of frames. If the only branch takes every frame, the whole burst is written at once.
    #[inline]
    pub(crate) fn push_burst<'a>(
        &mut self,
        frames: impl ExactSizeIterator<Item = (Meta, &'a [u8])>,
    ) {
        self.seen += frames.len() as u64;
        match &mut self.list[..] {
            [only] if self.takes_all => only.write_burst(frames),
            _ => frames.for_each(|(meta, frame)| self.offer(&meta, frame)),
        }
    }

    /// Offers the frame to each branch.
    fn offer(&mut self, meta: &Meta, frame: &[u8]) {
        if let Some(tally) = &self.by_interface {
            tally.add(meta.interface_id, Column::Seen, 1);
        }
        let taken = self.filters.as_ref().map_or(u32::MAX, |set| set.run(frame, meta.wire_len));
        let (mut flow_hash, mut key) = (0, None);
        if self.by_flow || self.has_blocks {
            let view = FrameView::parse(frame);
            flow_hash = if self.by_flow { shard_hash(&view) } else { 0 };
            key = if self.has_blocks { FlowKey::of(&view) } else { None };
        }
        for (number, branch) in self.list.iter_mut().enumerate() {
            branch.offer(meta, frame, taken >> number & 1 != 0, flow_hash, key.as_ref());
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        for branch in &mut self.list {
            branch.publish();
        }
        self.seen_visible.store(self.seen, Ordering::Release);
    }

    /// Returns the number of frames that were written to all rings together.
    pub(super) fn frames(&self) -> u64 {
        self.list.iter().map(Branch::frames).sum()
    }

    /// As [`Fanout::is_open`](super::Fanout::is_open).
    #[inline]
    pub(super) fn are_open(&mut self) -> bool {
        // All gates must be called, without a short circuit: each follows the blocks of its own ring.
        self.list.iter_mut().map(Branch::is_open).fold(true, |all, one| all & one)
    }

    pub(super) fn close(&mut self) {
        self.list.iter_mut().for_each(Branch::close);
    }

    pub(super) fn join(&mut self, at: usize, branch: Box<Branch>) {
        if let (Some(own), Some(all)) = (&branch.counts.by_interface, &self.by_interface) {
            own.join(all);
        }
        // This value is stored last: a thread that reads it also sees the counts by interface.
        branch.counts.joined_at.store(self.seen, Ordering::Release);
        self.list.insert(at, *branch);
    }

    fn find(&mut self, slot: FeedSlot) -> Option<usize> {
        self.list.iter().position(|branch| branch.slot == slot)
    }

    /// Updates the properties that the branches share, after a change.
    pub(super) fn look(&mut self) {
        self.by_flow = self.list.iter().any(|branch| branch.goes_by_flow);
        self.has_blocks = self.list.iter().any(|branch| !branch.blocked.is_empty());
        let [only] = &self.list[..] else {
            self.takes_all = false;
            return;
        };
        let has_conditions = self.filters.is_some() || self.has_blocks || !only.takes_all;
        self.takes_all = !has_conditions && self.by_interface.is_none();
    }

    fn exchange(
        &mut self,
        leaves: Option<FeedSlot>,
        joins: Option<Box<Branch>>,
    ) -> Option<Retired> {
        let place = leaves.and_then(|slot| self.find(slot));
        let gone = place.map(|at| {
            let mut branch = self.list.remove(at);
            branch.publish();
            branch.counts.left_at.store(self.seen, Ordering::Release);
            branch
        });
        if let Some(branch) = joins {
            self.join(place.unwrap_or(self.list.len()), branch);
        }
        gone.map(|branch| Retired::Branch(Box::new(branch)))
    }
}

impl Updated for Branches {
    type Update = Update;
    type Retired = Retired;

    fn apply(&mut self, update: Update) -> Option<Retired> {
        let retired = match update {
            Update::Exchange { leaves, joins } => self.exchange(leaves, joins),
            Update::Filters(new) => {
                Some(Retired::Filters(std::mem::replace(&mut self.filters, new)))
            }
            Update::Block(slot, new) => self
                .find(slot)
                .map(|at| Retired::List(std::mem::replace(&mut self.list[at].blocked, new))),
            Update::Attach(slot, number, new, line) => match self.find(slot) {
                Some(at) => {
                    self.list[at].add_waker(number, new, line);
                    None
                }
                None => Some(Retired::Waker(new)),
            },
            Update::Detach(slot, number) => {
                let at = self.find(slot)?;
                self.list[at].wakers.remove(number).map(Retired::AddedWaker)
            }
        };
        self.look();
        retired
    }
}
