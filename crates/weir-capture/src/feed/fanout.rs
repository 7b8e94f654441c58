//! From one thread to every feed that wants the frame: filters that run in user space.
//!
//! Each thread of an engine that moves frames has one fan-out, and the fan-out has a ring for each feed. What a feed leaves out
//! it counts by name, and what it takes it writes, cut at its own length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_filter::block::BlockList;
use weir_filter::{Program, UserFilterSet};
use weir_frame::flow::{FlowKey, shard_hash};
use weir_frame::headers::FrameView;
use weir_frame::record::{CAPLEN_MAX, Meta};
use weir_frame::shard::Shard;
use weir_ring::wake::Waker;
use weir_ring::{Clock, Ledger, Mapping, Ring, RingError, Writer, WriterKind, memory};

use super::block_lists::BlockLists;
use super::update_queue::{Update, UpdateQueue};
use crate::error::CaptureError;
use crate::feed::change::Change;
use crate::feed::counts::count_written;
use crate::feed::direction::Direction;
use crate::feed::filters::Prefilter;
use crate::feed::location::FilterLocation;
use crate::feed::pace::{Gate, Pace};
use crate::feed::wakers::Wakers;
use crate::feed::{Feed, Sampler};
use crate::kernel::rcu;
use crate::setup::Setup;

/// Frames that a feed left out, of one ring. One thread counts, any may look.
#[derive(Debug, Default)]
struct LeftOut {
    filtered: AtomicU64,
    blocked: AtomicU64,
    sampled: AtomicU64,
}

/// The rings of a source whose frames pass through fan-outs, and what its feeds left out.
pub(crate) struct Feeds {
    /// All rings of the first feed, then those of the second: a ring for each fan-out.
    rings: Vec<Ring<Mapping>>,
    left_out: Vec<Arc<LeftOut>>,
    /// As their filters are now.
    feeds: Vec<Feed>,
    /// To each fan-out, if filters may change.
    queues: Vec<Arc<UpdateQueue>>,
    lists: BlockLists,
}

impl Feeds {
    /// Makes the rings, and as many fan-outs as threads will fill them.
    ///
    /// # Errors
    /// No memory for rings, or a size that no ring can have.
    pub(crate) fn create(
        setup: &Setup,
        fanouts: usize,
        clock: Clock,
    ) -> Result<(Feeds, Vec<Fanout>), CaptureError> {
        let count = if setup.may_change { fanouts } else { 0 };
        let queues: Vec<Arc<UpdateQueue>> = (0..count).map(|_| Arc::default()).collect();
        let lists = BlockLists::new(setup.feeds.len(), &queues);
        let (rings, left_out, feeds) = (Vec::new(), Vec::new(), setup.feeds.clone());
        let mut own = Feeds { rings, left_out, feeds, queues, lists };
        let mut all: Vec<Fanout> = (0..fanouts).map(|_| Fanout::default()).collect();
        let offered = setup.direction();
        for (number, feed) in setup.feeds.iter().enumerate() {
            let mut feed = feed.clone();
            // Nothing else comes.
            if feed.direction == offered {
                feed.direction = Direction::Both;
            }
            for fanout in &mut all {
                let spec =
                    setup.ring_spec(number, fanouts as u64, None, clock, WriterKind::User)?;
                let ring = memory::create_memfd("weir-ring", &spec)?;
                let left_out = Arc::new(LeftOut::default());
                let place = own.rings.len();
                fanout.branches.push(Branch::new(&feed, place, &ring, Arc::clone(&left_out)));
                own.rings.push(ring);
                own.left_out.push(left_out);
            }
        }
        let by_flow = setup.feeds.iter().any(Feed::goes_by_flow);
        // Now or later. Of one feed, every frame that comes goes its way.
        let chooses = setup.may_change || setup.feeds.len() > 1 || !setup.feeds[0].takes_all();
        for (number, fanout) in all.iter_mut().enumerate() {
            fanout.by_flow = by_flow;
            fanout.filters = chooses.then(|| filters_of(&setup.feeds));
            fanout.updates = own.queues.get(number).map(Arc::clone);
        }
        Ok((own, all))
    }

    /// [`create`](Feeds::create) for an engine with one thread.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_one(setup: &Setup, clock: Clock) -> Result<(Feeds, Fanout), CaptureError> {
        let (feeds, mut fanouts) = Feeds::create(setup, 1, clock)?;
        Ok((feeds, fanouts.pop().expect("one was asked for")))
    }

    /// The rings, feed by feed.
    pub(crate) fn rings(&self) -> &[Ring<Mapping>] {
        &self.rings
    }

    /// The ledgers, feed by feed: what the engine counted for all of them, and what went into each one's rings and was
    /// left out of them.
    pub(crate) fn ledgers(&self, all: &Ledger) -> Vec<Ledger> {
        let each = self.rings.len() / self.feeds.len();
        let rings = self.rings.chunks(each).zip(self.left_out.chunks(each));
        rings
            .map(|(rings, left_out)| {
                let sum = |count: fn(&LeftOut) -> &AtomicU64| {
                    left_out.iter().map(|one| count(one).load(Ordering::Acquire)).sum::<u64>()
                };
                let mut ledger = all.clone();
                count_written(&mut ledger, rings);
                ledger.filtered += sum(|one| &one.filtered);
                ledger.blocked += sum(|one| &one.blocked);
                ledger.sampled += sum(|one| &one.sampled);
                ledger
            })
            .collect()
    }

    /// What changes the feeds' block lists from any thread, if the setup allows that.
    pub(crate) fn lists(&self) -> Option<BlockLists> {
        (!self.queues.is_empty()).then(|| self.lists.clone())
    }

    /// Changes what a feed chooses: in every fan-out, from its next frame on. `home`: where that is done.
    ///
    /// What is new is made here, on the thread that asks, and fan-outs take it over ready. Where that thread moves the frames
    /// itself (one fan-out, one thread), they wait for a filter that long in the kernel's buffer, or in their file; block lists
    /// are better changed by [`lists`](Feeds::lists).
    ///
    /// # Errors
    /// A block list without room; nothing has changed then.
    ///
    /// # Panics
    /// If the source was not set up for changes.
    pub(crate) fn change(
        &mut self,
        feed: usize,
        change: Change,
        home: &mut FilterLocation,
    ) -> Result<(), CaptureError> {
        assert!(!self.queues.is_empty(), "the setup allows no changes");
        match change {
            Change::Filter(filter) => {
                self.feeds[feed].filter = filter;
                for updates in &self.queues {
                    let filters = filters_of(&self.feeds);
                    *home = home_of(Some(&filters));
                    updates.post(Update::Filters(filters));
                }
            }
            Change::Block { remove, add } => self.lists.change(feed, &remove, &add)?,
        }
        Ok(())
    }

    /// The same, behind what leaves out frames that no feed wants.
    ///
    /// # Errors
    /// As above, and those of [`Prefilter::choose`]; nothing has changed then.
    pub(crate) fn change_behind(
        &mut self,
        feed: usize,
        change: Change,
        home: &mut FilterLocation,
        prefilter: &mut dyn Prefilter,
    ) -> Result<(), CaptureError> {
        let Change::Filter(filter) = &change else { return self.change(feed, change, home) };
        let mut feeds = self.feeds.clone();
        feeds[feed].filter.clone_from(filter);
        // The kernel first: it may refuse.
        let chosen = prefilter.choose(&feeds)?;
        self.change(feed, change, home)?;
        if let Some(chosen) = chosen {
            *home = chosen;
        }
        // What still runs by the old program is over when this returns.
        rcu::synchronize()?;
        Ok(())
    }

    /// Frames that passed through the fan-outs so far, as far as it is visible.
    pub(crate) fn seen(&self) -> u64 {
        // Every feed sees every frame.
        let first = &self.rings[..self.rings.len() / self.feeds.len()];
        let left_out = &self.left_out[..first.len()];
        let written: u64 = first.iter().map(Ring::frames_written).sum();
        let rest = |one: &Arc<LeftOut>| {
            let counts = [&one.filtered, &one.blocked, &one.sampled];
            counts.map(|count| count.load(Ordering::Acquire)).iter().sum::<u64>()
        };
        written + left_out.iter().map(rest).sum::<u64>()
    }
}

/// One thread's way into the rings of all feeds.
#[derive(Default)]
pub(crate) struct Fanout {
    branches: Vec<Branch>,
    wakers: Wakers,
    /// The filters of all branches; `None` if there is one feed, and it takes every frame.
    filters: Option<UserFilterSet>,
    /// Some feed goes by the flow's hash.
    by_flow: bool,
    /// Some feed has a block list that is not empty.
    has_blocks: bool,
    updates: Option<Arc<UpdateQueue>>,
}

/// The filters of all feeds.
fn filters_of(feeds: &[Feed]) -> UserFilterSet {
    let program = |feed: &'_ Feed| feed.filter.as_ref().map(|filter| filter.program.clone());
    let programs: Vec<Option<Program>> = feeds.iter().map(program).collect();
    UserFilterSet::new(&programs.iter().map(Option::as_ref).collect::<Vec<_>>())
}

fn home_of(filters: Option<&UserFilterSet>) -> FilterLocation {
    match filters {
        None => FilterLocation::Nowhere,
        Some(filters) if filters.is_compiled() => FilterLocation::Compiled,
        Some(_) => FilterLocation::Interpreted,
    }
}

impl Fanout {
    /// A fan-out of one feed that takes all, into a ring that is no source's.
    pub(crate) fn into_ring(ring: &Ring<Mapping>, caplen_max: usize) -> Fanout {
        let feed = Feed { snaplen: caplen_max as u32, ..Feed::default() };
        let mut fanout = Fanout::default();
        fanout.branches.push(Branch::new(&feed, 0, ring, Arc::default()));
        fanout
    }

    /// Where the feeds' frames are chosen.
    pub(crate) fn homes(&self) -> Vec<FilterLocation> {
        let home = home_of(self.filters.as_ref());
        vec![home; self.branches.len()]
    }

    /// Frames written, into all rings together.
    pub(crate) fn frames(&self) -> u64 {
        self.branches.iter().map(|branch| branch.writer.frames()).sum()
    }

    /// Has the writers of each feed's ring wait for readers; of an engine that can wait. By feed.
    pub(crate) fn wait_for(&mut self, paces: Vec<Pace>) {
        for (branch, pace) in self.branches.iter_mut().zip(paces) {
            branch.gate = Some(Gate::new(Some(pace), branch.writer.ring().clone()));
        }
    }

    /// Whether a burst that opens one block of a ring at most would overtake nobody who is waited for. Everything must be
    /// published.
    #[inline]
    pub(crate) fn is_open(&mut self) -> bool {
        let is_open = |branch: &mut Branch| match &mut branch.gate {
            None => true,
            Some(gate) => gate.is_open(branch.writer.frames()),
        };
        // Every gate looks: each follows its own ring's blocks.
        self.branches.iter_mut().map(is_open).fold(true, |all, one| all & one)
    }

    /// Has its rings be those of other numbers among the source's rings: `numbers` by the old ones.
    pub(crate) fn renumber(&mut self, numbers: &[usize]) {
        self.branches.iter_mut().for_each(|branch| branch.ring = numbers[branch.ring]);
    }

    /// A sleeper whose line for this source's first ring is `first`.
    pub(crate) fn add_waker(&mut self, waker: Waker, first: usize) {
        self.wakers.add(waker, first);
    }

    /// The same sleepers as another fan-out's.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub(crate) fn set_wakers(&mut self, wakers: &Wakers) -> Result<(), RingError> {
        self.wakers = wakers.try_clone()?;
        Ok(())
    }

    /// Offers one frame to every feed: the bytes that there are of it, tags and all. Whose feeds
    /// differ in direction, its flags say which way it went.
    #[inline]
    pub(crate) fn push(&mut self, meta: &Meta, frame: &[u8]) {
        if let Some(updates) = &self.updates {
            let updates = updates.take();
            if !updates.is_empty() {
                self.hear(updates);
            }
        }
        let Some(filters) = &self.filters else { return self.branches[0].write(meta, frame) };
        let taken = filters.run(frame, meta.wire_len);
        let (mut flow_hash, mut key) = (0, None);
        if self.by_flow || self.has_blocks {
            let view = FrameView::parse(frame);
            flow_hash = if self.by_flow { shard_hash(&view) } else { 0 };
            key = if self.has_blocks { FlowKey::of(&view) } else { None };
        }
        for (number, branch) in self.branches.iter_mut().enumerate() {
            branch.offer(meta, frame, taken >> number & 1 != 0, flow_hash, key.as_ref());
        }
    }

    #[cold]
    fn hear(&mut self, updates: Vec<Update>) {
        for one in updates {
            match one {
                Update::Filters(filters) => self.filters = Some(filters),
                Update::Block(branch, list) => self.branches[branch].blocked = list,
            }
        }
        self.has_blocks = self.branches.iter().any(|branch| !branch.blocked.is_empty());
    }

    /// Makes everything so far visible, and wakes who waited for it.
    #[inline]
    pub(crate) fn publish(&mut self) {
        for branch in &mut self.branches {
            branch.publish();
            self.wakers.published(branch.ring, branch.writer.frames());
        }
    }

    /// Says that nothing more will come.
    pub(crate) fn close(&mut self) {
        for branch in &mut self.branches {
            branch.publish();
            branch.writer.close();
        }
        self.wakers.wake_all();
    }
}

/// One feed's ring.
struct Branch {
    writer: Writer<Mapping>,
    /// Its number among the source's rings.
    ring: usize,
    caplen_max: usize,
    direction: Direction,
    shard: Shard,
    sampler: Sampler,
    /// Frames that it leaves out.
    blocked: Arc<BlockList>,
    filtered: u64,
    blocked_frames: u64,
    sampled: u64,
    left_out: Arc<LeftOut>,
    gate: Option<Gate>,
}

impl Branch {
    fn new(feed: &Feed, place: usize, ring: &Ring<Mapping>, left_out: Arc<LeftOut>) -> Branch {
        Branch {
            writer: Writer::new(ring.clone()),
            ring: place,
            caplen_max: feed.snaplen.min(CAPLEN_MAX) as usize,
            direction: feed.direction,
            shard: feed.shard,
            sampler: Sampler::new(feed.sampling),
            blocked: Arc::default(),
            filtered: 0,
            blocked_frames: 0,
            sampled: 0,
            left_out,
            gate: None,
        }
    }

    #[inline]
    fn write(&mut self, meta: &Meta, frame: &[u8]) {
        // A feed has one interface, whatever its frames' numbers were before.
        let meta = Meta { interface_id: 0, ..*meta };
        self.writer.push(&meta, &frame[..frame.len().min(self.caplen_max)]);
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
        } else if key.is_some_and(|key| self.blocked.contains(key)) {
            self.blocked_frames += 1;
        } else if !self.sampler.takes(flow_hash) {
            self.sampled += 1;
        } else {
            self.write(meta, frame);
        }
    }

    #[inline]
    fn publish(&mut self) {
        self.writer.publish();
        self.left_out.filtered.store(self.filtered, Ordering::Release);
        self.left_out.blocked.store(self.blocked_frames, Ordering::Release);
        self.left_out.sampled.store(self.sampled, Ordering::Release);
    }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
