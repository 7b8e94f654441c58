//! From one thread to every feed that wants the frame: where filters run in user space.
//!
//! Each thread of an engine that moves frames has one fan-out, and the fan-out has a branch for each feed: a ring, and
//! what that feed wants of a frame. What a feed leaves out it counts by name, and what it takes it writes, cut at its
//! own length. Branches join and leave between two frames ([`UpdateQueue`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_filter::UserFilterSet;
use weir_filter::block::BlockList;
use weir_frame::flow::{FlowKey, shard_hash};
use weir_frame::headers::FrameView;
use weir_frame::record::{CAPLEN_MAX, Flags, Meta};
use weir_frame::shard::Shard;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring, Writer};

use super::pace::{Gate, Pace};
use super::update_queue::{UpdateQueue, Updated};
use super::wakers::Wakers;
use crate::feed::control::{FeedSlot, WakerSlot};
use crate::feed::direction::Direction;
use crate::feed::interfaces::{Column, Tally};
use crate::feed::{Feed, Sampler};

/// A position that no fan-out reaches: the branch has not joined, or not left.
const NOT_YET: u64 = u64::MAX;

/// Counts of one branch. One thread counts, any may look.
#[derive(Debug)]
pub(crate) struct BranchCounts {
    /// Frames that the fan-out had seen when the branch joined and left it.
    joined_at: AtomicU64,
    left_at: AtomicU64,
    pub(super) filtered: AtomicU64,
    pub(super) blocked: AtomicU64,
    pub(super) sampled: AtomicU64,
    /// Of a source with several interfaces: the same by interface.
    pub(super) by_interface: Option<Tally>,
}

impl Default for BranchCounts {
    fn default() -> Self {
        let (joined_at, left_at) = (AtomicU64::new(NOT_YET), AtomicU64::new(NOT_YET));
        let [filtered, blocked, sampled] = [0; 3].map(AtomicU64::new);
        BranchCounts { joined_at, left_at, filtered, blocked, sampled, by_interface: None }
    }
}

impl BranchCounts {
    /// Of a source with several interfaces.
    pub(super) fn by_interface() -> BranchCounts {
        BranchCounts { by_interface: Some(Tally::new()), ..BranchCounts::default() }
    }

    /// Frames that the fan-out had seen when the branch joined; `None` before it has.
    pub(super) fn joined_at(&self) -> Option<u64> {
        Some(self.joined_at.load(Ordering::Acquire)).filter(|&at| at != NOT_YET)
    }

    /// Frames that the fan-out had seen when the branch left; `None` before it has.
    pub(super) fn left_at(&self) -> Option<u64> {
        Some(self.left_at.load(Ordering::Acquire)).filter(|&at| at != NOT_YET)
    }
}

/// A change to a fan-out.
pub(crate) enum Update {
    /// One branch leaves, and another takes its place or joins as the last one.
    Exchange { leaves: Option<FeedSlot>, joins: Option<Box<Branch>> },
    /// The filters of all branches, in their order once the updates before this one are applied; `None` if they have
    /// none.
    Filters(Option<UserFilterSet>),
    /// The block list of a branch.
    Block(FeedSlot, Arc<BlockList>),
    /// A sleeper for a branch; its line for this fan-out's ring is the last.
    Attach(FeedSlot, WakerSlot, Waker, usize),
    /// One less.
    Detach(FeedSlot, WakerSlot),
}

/// What an update took out of service, to be freed where no frame waits.
pub(crate) enum Retired {
    Branch(Box<Branch>),
    Other { _filters: Option<UserFilterSet>, _list: Option<Arc<BlockList>>, _waker: Option<Waker> },
}

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
        self.branches().list.iter().map(|branch| branch.writer.frames()).sum()
    }

    /// Whether a burst that opens one block of a ring at most would overtake nobody who is waited for. Everything must
    /// be published.
    #[inline]
    pub fn is_open(&mut self) -> bool {
        let is_open = |branch: &mut Branch| match &mut branch.gate {
            None => true,
            Some(gate) => gate.is_open(branch.writer.frames()),
        };
        // Every gate looks: each follows its own ring's blocks.
        self.branches().list.iter_mut().map(is_open).fold(true, |all, one| all & one)
    }

    /// Offers one frame to every feed: the bytes that there are of it, tags and all. Whose feeds
    /// differ in direction, its flags say which way it went.
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
        self.branches().list.iter_mut().for_each(Branch::close);
        self.leave();
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        // Whoever changes feeds waits for this thread otherwise.
        if let Some(own) = self.own.take() {
            self.queue.park(own);
        }
    }
}

/// The branches of a fan-out.
#[derive(Default)]
pub(crate) struct Branches {
    list: Vec<Branch>,
    /// `None` if no branch has a filter.
    filters: Option<UserFilterSet>,
    /// There is one branch, it takes every frame, and nothing is counted by interface.
    takes_all: bool,
    /// Some branch goes by the flow's hash.
    by_flow: bool,
    /// Some branch has a block list that is not empty.
    has_blocks: bool,
    /// Frames that came, for whatever branches.
    seen: u64,
    seen_visible: Arc<AtomicU64>,
    /// Of a source with several interfaces: the same by interface.
    by_interface: Option<Tally>,
}

impl Branches {
    /// None yet. `seen`: where to say how many frames have come.
    pub(super) fn new(seen: Arc<AtomicU64>, by_interface: Option<Tally>) -> Branches {
        Branches { seen_visible: seen, by_interface, ..Branches::default() }
    }

    /// As [`Fanout::push`].
    #[inline]
    pub(crate) fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.seen += 1;
        match &mut self.list[..] {
            [only] if self.takes_all && meta.interface_id == 0 => only.write(meta, frame),
            _ => self.offer(meta, frame),
        }
    }

    /// Asks each branch whether it wants the frame.
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
    fn publish(&mut self) {
        for branch in &mut self.list {
            branch.publish();
        }
        self.seen_visible.store(self.seen, Ordering::Release);
    }

    fn join(&mut self, at: usize, branch: Box<Branch>) {
        branch.counts.joined_at.store(self.seen, Ordering::Release);
        if let (Some(own), Some(all)) = (&branch.counts.by_interface, &self.by_interface) {
            own.join(all);
        }
        self.list.insert(at, *branch);
    }

    fn find(&mut self, slot: FeedSlot) -> Option<usize> {
        self.list.iter().position(|branch| branch.slot == slot)
    }

    /// After a change: what the branches have in common.
    fn look(&mut self) {
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
        let (mut filters, mut list, mut waker) = (None, None, None);
        match update {
            Update::Exchange { leaves, joins } => {
                let gone = self.exchange(leaves, joins);
                self.look();
                return gone;
            }
            Update::Filters(new) => filters = std::mem::replace(&mut self.filters, new),
            Update::Block(slot, new) => {
                if let Some(at) = self.find(slot) {
                    list = Some(std::mem::replace(&mut self.list[at].blocked, new));
                }
            }
            Update::Attach(slot, number, new, line) => match self.find(slot) {
                Some(at) => {
                    let branch = &mut self.list[at];
                    branch.wakers.add(number, new, line);
                    // Frames may have come since the sleeper looked.
                    branch.wakers.published(0, branch.published);
                }
                None => waker = Some(new),
            },
            Update::Detach(slot, number) => {
                let at = self.find(slot)?;
                waker = self.list[at].wakers.remove(number);
            }
        }
        self.look();
        Some(Retired::Other { _filters: filters, _list: list, _waker: waker })
    }
}

/// One feed's ring.
pub(crate) struct Branch {
    slot: FeedSlot,
    writer: Writer<Mapping>,
    /// Frames that readers see.
    published: u64,
    caplen_max: usize,
    direction: Direction,
    shard: Shard,
    sampler: Sampler,
    goes_by_flow: bool,
    /// But for its filter and block list.
    takes_all: bool,
    /// Frames that it leaves out.
    blocked: Arc<BlockList>,
    filtered: u64,
    blocked_frames: u64,
    sampled: u64,
    counts: Arc<BranchCounts>,
    wakers: Wakers,
    gate: Option<Gate>,
}

impl Branch {
    /// `feed.direction`: as far as frames of another one come.
    pub(super) fn new(
        slot: FeedSlot,
        feed: &Feed,
        ring: &Ring<Mapping>,
        counts: Arc<BranchCounts>,
    ) -> Branch {
        let takes_all =
            feed.direction == Direction::Both && Feed { filter: None, ..feed.clone() }.takes_all();
        Branch {
            slot,
            writer: Writer::new(ring.clone()),
            published: 0,
            caplen_max: feed.snaplen.min(CAPLEN_MAX) as usize,
            direction: feed.direction,
            shard: feed.shard,
            sampler: Sampler::new(feed.sampling),
            goes_by_flow: feed.goes_by_flow(),
            takes_all,
            blocked: Arc::default(),
            filtered: 0,
            blocked_frames: 0,
            sampled: 0,
            counts,
            wakers: Wakers::default(),
            gate: None,
        }
    }

    /// The same with a writer that does not overtake these readers, of an engine that asks [`Fanout::is_open`].
    pub(super) fn that_waits_for(mut self, pace: Option<&Pace>) -> Branch {
        self.gate = pace.map(|pace| Gate::new(pace.clone(), self.writer.ring().clone()));
        self
    }

    /// Ends its ring, and wakes its readers.
    pub(super) fn close(&mut self) {
        self.publish();
        self.writer.close();
        self.wakers.wake_all();
    }

    #[inline]
    fn kept_of<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[..frame.len().min(self.caplen_max)]
    }

    /// Writes a frame of interface 0, the only one.
    #[inline]
    fn write(&mut self, meta: &Meta, frame: &[u8]) {
        self.writer.push(meta, self.kept_of(frame));
    }

    /// Writes a frame that was chosen.
    fn take(&mut self, meta: &Meta, frame: &[u8]) {
        let Some(tally) = &self.counts.by_interface else {
            // A feed of one interface, whatever its frames' numbers were before.
            return self.write(&Meta { interface_id: 0, ..*meta }, frame);
        };
        let kept = self.kept_of(frame);
        self.writer.push(meta, kept);
        let caplen = kept.len().min(CAPLEN_MAX as usize) as u64;
        tally.add(meta.interface_id, Column::Captured, 1);
        tally.add(meta.interface_id, Column::KeptBytes, caplen);
        tally.add(meta.interface_id, Column::WireBytes, meta.wire_len.into());
        if meta.flags.is_some_and(|flags| flags.has(Flags::SUPER_FRAME)) {
            tally.add(meta.interface_id, Column::SuperFrames, 1);
        }
    }

    /// A frame that it leaves out.
    #[inline]
    fn leave_out(&self, meta: &Meta, why: Column) {
        if let Some(tally) = &self.counts.by_interface {
            tally.add(meta.interface_id, why, 1);
        }
    }

    #[inline]
    fn offer(
        &mut self,
        meta: &Meta,
        frame: &[u8],
        passes_filter: bool,
        flow_hash: u64,
        key: Option<&FlowKey>,
    ) {
        let is_chosen = passes_filter
            && self.direction.takes(meta.flags)
            && (self.shard == Shard::WHOLE || self.shard.takes(flow_hash));
        if !is_chosen {
            self.filtered += 1;
            self.leave_out(meta, Column::Filtered);
        } else if key.is_some_and(|key| self.blocked.contains(key)) {
            self.blocked_frames += 1;
            self.leave_out(meta, Column::Blocked);
        } else if !self.sampler.takes(flow_hash) {
            self.sampled += 1;
            self.leave_out(meta, Column::Sampled);
        } else {
            self.take(meta, frame);
        }
    }

    #[inline]
    fn publish(&mut self) {
        self.writer.publish();
        self.published = self.writer.frames();
        self.counts.filtered.store(self.filtered, Ordering::Release);
        self.counts.blocked.store(self.blocked_frames, Ordering::Release);
        self.counts.sampled.store(self.sampled, Ordering::Release);
        self.wakers.published(0, self.published);
    }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
