//! Writes the frames that one feed selects into its ring for one fan-out, and counts the others by reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_filter::block::BlockList;
use weir_frame::flow::FlowKey;
use weir_frame::record::{CAPLEN_MAX, Flags, Meta};
use weir_frame::shard::Shard;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring, Writer};

use crate::feed::control::{FeedSlot, WakerSlot};
use crate::feed::direction::Direction;
use crate::feed::interfaces::{Column, Tally};
use crate::feed::pace::{Gate, Pace};
use crate::feed::wakers::Wakers;
use crate::feed::{Feed, Sampler};

/// A position that no fan-out reaches: the branch has not joined, or has not left.
const NOT_YET: u64 = u64::MAX;

/// Counts of one branch. One thread counts; any thread may read.
#[derive(Debug)]
pub(crate) struct BranchCounts {
    /// Number of frames that the fan-out had seen when the branch joined, and when it left.
    pub(super) joined_at: AtomicU64,
    pub(super) left_at: AtomicU64,
    pub(in crate::feed) filtered: AtomicU64,
    pub(in crate::feed) blocked: AtomicU64,
    pub(in crate::feed) sampled: AtomicU64,
    /// The counts by interface, for a source with several.
    pub(in crate::feed) by_interface: Option<Tally>,
}

impl Default for BranchCounts {
    fn default() -> Self {
        let (joined_at, left_at) = (AtomicU64::new(NOT_YET), AtomicU64::new(NOT_YET));
        let [filtered, blocked, sampled] = [0; 3].map(AtomicU64::new);
        BranchCounts { joined_at, left_at, filtered, blocked, sampled, by_interface: None }
    }
}

impl BranchCounts {
    /// Creates counts for a source with several interfaces.
    pub(in crate::feed) fn by_interface() -> BranchCounts {
        BranchCounts { by_interface: Some(Tally::new()), ..BranchCounts::default() }
    }

    /// Returns the number of frames that the fan-out had seen when the branch joined; `None` if it has not joined yet.
    pub(in crate::feed) fn joined_at(&self) -> Option<u64> {
        Some(self.joined_at.load(Ordering::Acquire)).filter(|&at| at != NOT_YET)
    }

    /// Returns the number of frames that the fan-out had seen when the branch left; `None` if it has not left yet.
    pub(in crate::feed) fn left_at(&self) -> Option<u64> {
        Some(self.left_at.load(Ordering::Acquire)).filter(|&at| at != NOT_YET)
    }
}

/// One feed's ring and selection, for one fan-out.
pub(crate) struct Branch {
    pub(super) slot: FeedSlot,
    writer: Writer<Mapping>,
    /// Number of published frames.
    published: u64,
    caplen_max: usize,
    direction: Direction,
    link_type: u16,
    shard: Shard,
    sampler: Sampler,
    pub(super) goes_by_flow: bool,
    /// Whether it takes every frame that passes its filter and its block list.
    pub(super) takes_all: bool,
    /// The block list: frames to exclude.
    pub(super) blocked: Arc<BlockList>,
    filtered: u64,
    pub(super) blocked_frames: u64,
    sampled: u64,
    pub(super) counts: Arc<BranchCounts>,
    pub(super) wakers: Wakers,
    gate: Option<Gate>,
}

impl Branch {
    /// Creates a branch for this feed. `feed.direction` may be `Both` if no frames of another direction come.
    pub(in crate::feed) fn new(
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
            link_type: feed.interface.link_type,
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

    /// Makes [`Fanout::is_open`](super::Fanout::is_open) false while a burst could overtake one of these
    /// readers.
    pub(in crate::feed) fn that_waits_for(mut self, pace: Option<&Pace>) -> Branch {
        self.gate = pace.map(|pace| Gate::new(pace.clone(), self.writer.ring().clone()));
        self
    }

    /// Closes its ring, and wakes its readers.
    pub(in crate::feed) fn close(&mut self) {
        self.publish();
        self.writer.close();
        self.wakers.wake_all();
    }

    /// Returns the number of frames that were written.
    pub(super) fn frames(&self) -> u64 {
        self.writer.frames()
    }

    /// As [`Fanout::is_open`](super::Fanout::is_open), for this ring.
    #[inline]
    pub(super) fn is_open(&mut self) -> bool {
        self.gate.as_mut().is_none_or(|gate| gate.is_open(self.writer.frames()))
    }

    /// Writes a frame of a source with one interface, which has number 0.
    #[inline]
    pub(super) fn write(&mut self, meta: &Meta, frame: &[u8]) {
        self.writer.push(meta, kept_of(frame, self.caplen_max));
    }

    /// Writes frames of a source with one interface, whatever interface number they have.
    #[inline]
    pub(super) fn write_burst<'a>(&mut self, frames: impl Iterator<Item = (Meta, &'a [u8])>) {
        let caplen_max = self.caplen_max;
        let kept = |(meta, frame)| (Meta { interface_id: 0, ..meta }, kept_of(frame, caplen_max));
        self.writer.push_burst(frames.map(kept));
    }

    /// Writes a selected frame.
    fn take(&mut self, meta: &Meta, frame: &[u8]) {
        let Some(tally) = &self.counts.by_interface else {
            // A source with one interface: the number in `meta` may be that of another source.
            return self.write(&Meta { interface_id: 0, ..*meta }, frame);
        };
        let kept = kept_of(frame, self.caplen_max);
        self.writer.push(meta, kept);
        let caplen = kept.len().min(CAPLEN_MAX as usize) as u64;
        tally.add(meta.interface_id, Column::Captured, 1);
        tally.add(meta.interface_id, Column::KeptBytes, caplen);
        tally.add(meta.interface_id, Column::WireBytes, meta.wire_len.into());
        if meta.flags.is_some_and(|flags| flags.has(Flags::SUPER_FRAME)) {
            tally.add(meta.interface_id, Column::SuperFrames, 1);
        }
    }

    /// Counts a rejected frame by interface.
    #[inline]
    fn leave_out(&self, meta: &Meta, why: Column) {
        if let Some(tally) = &self.counts.by_interface {
            tally.add(meta.interface_id, why, 1);
        }
    }

    #[inline]
    pub(super) fn offer(
        &mut self,
        meta: &Meta,
        frame: &[u8],
        passes_filter: bool,
        flow_hash: u64,
        key: Option<&FlowKey>,
    ) {
        let is_chosen = passes_filter
            && self.direction.takes_frame(meta.flags, self.link_type, frame)
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

    /// Adds a waker. `line` is its line for this ring.
    pub(super) fn add_waker(&mut self, number: WakerSlot, waker: Waker, line: usize) {
        self.wakers.add(number, waker, line);
        // Frames may have come since the reader last polled.
        self.wakers.published(0, self.published);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.writer.publish();
        self.published = self.writer.frames();
        self.counts.filtered.store(self.filtered, Ordering::Release);
        self.counts.blocked.store(self.blocked_frames, Ordering::Release);
        self.counts.sampled.store(self.sampled, Ordering::Release);
        self.wakers.published(0, self.published);
    }
}

#[inline]
fn kept_of(frame: &[u8], caplen_max: usize) -> &[u8] {
    &frame[..frame.len().min(caplen_max)]
}
