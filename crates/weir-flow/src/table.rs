//! The table: frames in, records of flows that have ended out.
//!
//! A key has two lines of 16 slots, one in each half of the table; a flow begins in the emptier one. Where all 32 are
//! taken, the flow that was seen least recently ends early and is counted. The hash has a secret (`keyed_hash`), so who
//! sends frames cannot choose keys that share lines. Frames are taken 32 at a time, in four passes: parse, hash, look at
//! tags, count; each of the last three needs memory that the one before it fetched. Source: Vöcking, "How asymmetry helps load
//! balancing", 1999 (two choices, the left of equals).
//!
//! Time-outs: a slot has the ticks of its first and last frame, 64 ticks a time-out, and a hand goes round all lines
//! once in eight ticks. So membership belongs to the slot, a frame moves nothing, and a flow ends at most an eighth of
//! the time-out late; if a frame comes first, that frame begins the next flow.

use std::ops::Range;

use weir_frame::record::{Meta, Record};

use self::headers::Headers;
pub use self::link::LinkLayer;
use crate::config::{FlowConfig, FlowError, Octets};
use crate::counters::Counters;
use crate::fragments::Fragments;
use crate::keyed_hash::{BATCH, Block, HashKey, hash};
use crate::limits::{FLOWS_MAX, FLOWS_MIN, INTERFACE_MAX, TIMEOUT_MAX, TIMEOUT_MIN};
use crate::lines::{Line, equal_tags, oldest_ages, prefetch};
use crate::record::{EndReason, FlowRecord};
use crate::slots::{
    Counted, FIRST, LAST, LINE_SLOTS, SLOT_BYTES, Slots, set_tag, set_tick, tick, used,
};
use crate::ticks::{OVER_TICKS, TableTime, Ticks};

mod headers;
mod link;
mod sweep;

/// A frame as a table takes it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The kept bytes, from the link layer's header on, without FCS.
    pub frame: &'a [u8],
    /// Their link layer.
    pub link: LinkLayer,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// The interface, as the feed numbers it. Above [`INTERFACE_MAX`] it is that.
    pub interface: u32,
}

/// An Ethernet frame.
impl<'a> From<Record<'a>> for Seen<'a> {
    fn from(record: Record<'a>) -> Seen<'a> {
        let Meta { wire_len, ts_ns, interface_id, .. } = record.meta;
        let link = LinkLayer::Ethernet;
        Seen { frame: record.frame, link, wire_len, ts_ns, interface: interface_id }
    }
}

/// A frame between the passes.
#[derive(Clone, Copy, Default)]
struct Staged {
    counted: Counted,
    lines: [u32; 2],
    /// The first slot with this tag; without one, where the flow may begin.
    slot: u32,
    tag: u16,
    /// Tag and last tick of `slot`, when it was looked at.
    was: (u16, u8),
}

/// What the passes work on.
#[derive(Default)]
struct Work {
    staged: [Staged; BATCH],
    blocks: [Block; BATCH],
}

/// Flows of the frames of one ring.
pub struct FlowTable {
    config: FlowConfig,
    secret: HashKey,
    /// Absent while `add` works on it.
    work: Option<Box<Work>>,
    slots: Slots,
    half: u64,
    fragments: Fragments,
    time: TableTime,
    idle: Ticks,
    active: Ticks,
    sweep: Ticks,
    /// When the first of their ticks passes.
    tick_at_ns: u64,
    hand: usize,
    counters: Counters,
}

impl FlowTable {
    /// An empty table. It takes no more memory later.
    ///
    /// # Errors
    /// [`FlowError`] for a configuration outside the limits, or without memory for it.
    pub fn new(config: FlowConfig) -> Result<FlowTable, FlowError> {
        FlowTable::with_secret(config, HashKey::random())
    }

    fn with_secret(config: FlowConfig, secret: HashKey) -> Result<FlowTable, FlowError> {
        if !(FLOWS_MIN..=FLOWS_MAX).contains(&config.flows_max) {
            return Err(FlowError::Flows(config.flows_max));
        }
        for timeout in [config.idle_timeout, config.active_timeout].into_iter().flatten() {
            if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
                return Err(FlowError::Timeout(timeout));
            }
        }
        let half = config.flows_max.div_ceil(2 * LINE_SLOTS as u64);
        // Without a time-out these ticks only tell which flow was seen least recently.
        let idle = Ticks::of(config.idle_timeout.or(Some(TIMEOUT_MAX)));
        let active = Ticks::of(config.active_timeout);
        let shorter = [config.idle_timeout, config.active_timeout].into_iter().flatten().min();
        Ok(FlowTable {
            slots: Slots::new(2 * half as usize)?,
            half,
            fragments: Fragments::new(secret.clone()),
            time: TableTime::default(),
            sweep: Ticks::of(shorter),
            idle,
            active,
            tick_at_ns: 0,
            hand: 0,
            counters: Counters::default(),
            secret,
            work: None,
            config,
        })
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// Counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Flows that fit, `flows_max` rounded up to whole lines.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        2 * self.half * LINE_SLOTS as u64
    }

    /// Bytes of memory, all included.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.capacity() * SLOT_BYTES as u64 + self.fragments.bytes() as u64
    }

    /// Counts these frames, and hands over the flows that end meanwhile.
    pub fn add<'a>(
        &mut self,
        frames: impl IntoIterator<Item = Seen<'a>>,
        ended: &mut impl FnMut(FlowRecord),
    ) {
        let mut frames = frames.into_iter();
        let mut work = self.work.take().unwrap_or_default();
        let Work { staged, blocks } = &mut *work;
        loop {
            let (mut count, mut taken, mut quiet_ns) = (0, 0, None);
            while taken < BATCH {
                let Some(seen) = frames.next() else { break };
                taken += 1;
                if self.stage(&mut staged[count], &mut blocks[count], &seen) {
                    count += 1;
                } else {
                    quiet_ns = Some(seen.ts_ns);
                }
            }
            self.counters.frames += taken as u64;
            self.locate(&mut staged[..count], &mut blocks[..count]);
            self.look(&mut staged[..count]);
            for frame in &staged[..count] {
                self.count(frame, ended);
            }
            if let Some(ts_ns) = quiet_ns {
                self.go_to(ts_ns, ended);
            }
            if taken < BATCH {
                self.work = Some(work);
                return;
            }
        }
    }

    /// Ends flows that have been idle until `now_ns`, on a link from which nothing comes: call it only when every frame
    /// up to then was added, every few ticks (a 64th of the shorter time-out) or when it suits.
    pub fn advance(&mut self, now_ns: u64, ended: &mut impl FnMut(FlowRecord)) {
        self.go_to(now_ns, ended);
    }

    /// Ends all flows. The table can be used again.
    pub fn finish(&mut self, ended: &mut impl FnMut(FlowRecord)) {
        self.end_all(EndReason::Forced, ended);
    }

    /// The flows in the table, as they would be if it were finished now.
    pub fn live(&self) -> impl Iterator<Item = FlowRecord> {
        self.live_part(0..self.slots.index.len())
    }

    /// A part of them, for readers while frames come: those of these lines, of which there are
    /// [`lines`](FlowTable::lines). Flows stay in their line, so in a round through all lines each flow that is there
    /// throughout is seen once.
    pub fn live_part(&self, lines: Range<usize>) -> impl Iterator<Item = FlowRecord> {
        let first = lines.start;
        self.slots.index[lines].iter().enumerate().flat_map(move |(number, line)| {
            let used = used(line);
            (0..LINE_SLOTS).filter(move |at| used & 1 << at != 0).map(move |at| {
                self.slots.record((first + number) * LINE_SLOTS + at, EndReason::Forced)
            })
        })
    }

    /// Lines of 16 flows.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.slots.index.len()
    }

    /// First pass: the key, and what of it is hashed first. Whether the frame has a flow.
    #[inline(always)]
    fn stage(&mut self, frame: &mut Staged, block: &mut Block, seen: &Seen<'_>) -> bool {
        let Some(headers) = self.headers(seen) else { return false };
        let Headers { mut key, ip_bytes, tcp_flags, icmp } = headers;
        let mut swapped = false;
        if self.config.biflow {
            (key, swapped) = key.ordered();
        }
        let interface = seen.interface.min(INTERFACE_MAX) as u16;
        *block = key.first_block(self.config.by_interface.then_some(interface));
        let bytes = if self.config.octets == Octets::Ip { ip_bytes } else { seen.wire_len };
        frame.counted =
            Counted { key, ts_ns: seen.ts_ns, bytes, interface, icmp, tcp_flags, swapped };
        true
    }

    /// Second pass: the hashes, and the lines that they tell, which are fetched.
    #[inline(always)]
    fn locate(&self, staged: &mut [Staged], blocks: &mut [Block]) {
        let by_interface = self.config.by_interface;
        self.secret.hash_all(blocks, || {
            staged.iter().map(|Staged { counted, .. }| {
                counted.key.other_blocks(by_interface.then_some(counted.interface))
            })
        });
        for (frame, block) in staged.iter_mut().zip(blocks) {
            let hash = hash(block);
            let left = (((hash & 0xffff_ffff) * self.half) >> 32) as u32;
            let right = (((hash >> 32) * self.half) >> 32) as u32 + self.half as u32;
            prefetch(&self.slots.index, left as usize);
            prefetch(&self.slots.index, right as usize);
            frame.lines = [left, right];
            // Of each half of the hash the bits that its line depends on least. 0 is for free slots.
            frame.tag = ((hash & 0xff | hash >> 24 & 0xff00) as u16).max(1);
        }
    }

    /// Third pass: fetches the slots that may be those of these flows, or one that is free.
    #[inline(always)]
    fn look(&self, staged: &mut [Staged]) {
        for frame in staged {
            let lines = frame.lines.map(|line| line as usize);
            let [left, right] = lines.map(|line| equal_tags(&self.slots.index[line], frame.tag));
            let both = left | right << LINE_SLOTS;
            if both != 0 {
                let bit = both.trailing_zeros() as usize;
                let slot = lines[bit / LINE_SLOTS] * LINE_SLOTS + bit % LINE_SLOTS;
                (frame.slot, frame.was.0) = (slot as u32, frame.tag);
                self.slots.prefetch(slot);
            } else {
                let (line, at) = self.place(lines, frame.tag);
                let slot = line * LINE_SLOTS + at;
                (frame.slot, frame.was) = (slot as u32, self.state(line, at));
                self.slots.prefetch_all(slot, &frame.counted.key);
            }
        }
    }

    /// Last pass.
    #[inline(always)]
    fn count(&mut self, frame: &Staged, ended: &mut impl FnMut(FlowRecord)) {
        self.go_to(frame.counted.ts_ns, ended);
        if frame.was.0 == frame.tag {
            let (slot, by_interface) = (frame.slot as usize, self.config.by_interface);
            let (line, at) = (slot / LINE_SLOTS, slot % LINE_SLOTS);
            // The flow that was there may have ended since.
            let is_there = self.slots.tag(line, at) == frame.tag;
            if is_there && self.slots.is(slot, &frame.counted, by_interface) {
                return self.count_known(line, at, frame, ended);
            }
        }
        self.count_elsewhere(frame, ended);
    }

    /// A frame whose flow is not in the slot that was looked at: behind another with the same tag, or new.
    #[inline(always)]
    fn count_elsewhere(&mut self, frame: &Staged, ended: &mut impl FnMut(FlowRecord)) {
        let lines = frame.lines.map(|line| line as usize);
        for line in lines {
            let mut mask = equal_tags(&self.slots.index[line], frame.tag);
            while mask != 0 {
                let at = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                if self.slots.is(line * LINE_SLOTS + at, &frame.counted, self.config.by_interface) {
                    return self.count_known(line, at, frame, ended);
                }
            }
        }
        // The slot that the third pass chose, unless a frame since then changed it.
        let slot = frame.slot as usize;
        let mut place = (slot / LINE_SLOTS, slot % LINE_SLOTS);
        if frame.was.0 == frame.tag || self.state(place.0, place.1) != frame.was {
            place = self.place(lines, frame.tag);
        }
        let (line, at) = place;
        if self.slots.tag(line, at) != 0 {
            self.counters.evicted += 1;
            self.end(line, at, EndReason::LackOfResources, ended);
        }
        self.begin(line, at, frame);
    }

    #[inline(always)]
    fn count_known(
        &mut self,
        line: usize,
        at: usize,
        frame: &Staged,
        ended: &mut impl FnMut(FlowRecord),
    ) {
        let now = self.idle.byte();
        if let Some(reason) = self.over(&self.slots.index[line], at) {
            self.end(line, at, reason, ended);
            return self.begin(line, at, frame);
        }
        self.slots.count(line * LINE_SLOTS + at, &frame.counted);
        let line = &mut self.slots.index[line];
        if tick(line, LAST, at) != now {
            set_tick(line, LAST, at, now);
        }
    }

    /// Why the flow in this slot has ended, if it has.
    #[inline(always)]
    fn over(&self, line: &Line, at: usize) -> Option<EndReason> {
        if self.config.idle_timeout.is_some()
            && self.idle.byte().wrapping_sub(tick(line, LAST, at)) >= OVER_TICKS
        {
            return Some(EndReason::Idle);
        }
        let age = self.active.byte().wrapping_sub(tick(line, FIRST, at));
        (age >= OVER_TICKS).then_some(EndReason::Active)
    }

    /// Where a flow may begin: a free slot of the emptier line, or the slot that was used least recently. Of several,
    /// the tag chooses.
    #[inline(always)]
    fn place(&self, lines: [usize; 2], tag: u16) -> (usize, usize) {
        let [left, right] = lines.map(|line| !used(&self.slots.index[line]) & 0xffff);
        if left | right != 0 {
            let (line, free) = if left.count_ones() >= right.count_ones() {
                (lines[0], left)
            } else {
                (lines[1], right)
            };
            return (line, free.trailing_zeros() as usize);
        }
        let now = self.idle.byte();
        let [left, right] = lines.map(|line| oldest_ages(&self.slots.index[line], now));
        let first_is_left = left.0 > right.0 || left.0 == right.0 && tag & 16 == 0;
        let (line, oldest) = if first_is_left { (lines[0], left.1) } else { (lines[1], right.1) };
        let turn = u32::from(tag) % LINE_SLOTS as u32;
        let turned = (oldest | oldest << LINE_SLOTS) >> turn;
        (line, (turned.trailing_zeros() + turn) as usize % LINE_SLOTS)
    }

    /// Tag and last tick of a slot.
    #[inline(always)]
    fn state(&self, line: usize, at: usize) -> (u16, u8) {
        (self.slots.tag(line, at), tick(&self.slots.index[line], LAST, at))
    }

    #[inline(always)]
    fn begin(&mut self, line: usize, at: usize, frame: &Staged) {
        self.slots.begin(line * LINE_SLOTS + at, &frame.counted);
        let (idle, active) = (self.idle.byte(), self.active.byte());
        let line = &mut self.slots.index[line];
        set_tag(line, at, frame.tag);
        set_tick(line, LAST, at, idle);
        set_tick(line, FIRST, at, active);
        self.counters.began += 1;
        self.counters.flows += 1;
    }

    #[inline(always)]
    fn end(
        &mut self,
        line: usize,
        at: usize,
        reason: EndReason,
        ended: &mut impl FnMut(FlowRecord),
    ) {
        ended(self.slots.record(line * LINE_SLOTS + at, reason));
        set_tag(&mut self.slots.index[line], at, 0);
        self.counters.flows -= 1;
    }
}
