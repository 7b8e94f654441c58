//! Processing of frames, 32 at a time, in four passes: parse, hash, compare tags, count. Each of the last three
//! passes needs memory that the pass before it has prefetched.

use super::headers::Headers;
use super::{FlowTable, Seen};
use crate::config::Octets;
use crate::keyed_hash::{BATCH, Block, hash};
use crate::limits::INTERFACE_MAX;
use crate::lines::{Line, equal_tags, oldest_ages, prefetch};
use crate::record::{EndReason, FlowRecord};
use crate::slots::{Counted, FIRST, LAST, LINE_SLOTS, set_tag, set_tick, tick, used};
use crate::ticks::OVER_TICKS;

/// A frame between the passes.
#[derive(Clone, Copy, Default)]
struct Staged {
    counted: Counted,
    lines: [u32; 2],
    /// The first slot with this tag; if no slot has it, a slot in which the flow may begin.
    slot: u32,
    tag: u16,
    /// Tag and last tick of `slot` at the time of the third pass.
    was: (u16, u8),
}

/// Buffers of the passes.
#[derive(Default)]
pub(super) struct Work {
    staged: [Staged; BATCH],
    blocks: [Block; BATCH],
}

impl FlowTable {
    /// Counts these frames, and calls `ended` with each flow that ends meanwhile.
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

    /// First pass: extracts the key and the block of it that is hashed first. Returns whether the frame belongs to a
    /// flow.
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

    /// Second pass: computes the hashes, and prefetches the lines that they select.
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
            // The tag takes those bits of each half of the hash that affect the choice of the line least. Tag 0 marks
            // free slots.
            frame.tag = ((hash & 0xff | hash >> 24 & 0xff00) as u16).max(1);
        }
    }

    /// Third pass: prefetches the slot that may contain the flow of each frame, or a slot in which the flow may
    /// begin.
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

    /// Last pass: counts a frame.
    #[inline(always)]
    fn count(&mut self, frame: &Staged, ended: &mut impl FnMut(FlowRecord)) {
        self.go_to(frame.counted.ts_ns, ended);
        if frame.was.0 == frame.tag {
            let (slot, by_interface) = (frame.slot as usize, self.config.by_interface);
            let (line, at) = (slot / LINE_SLOTS, slot % LINE_SLOTS);
            // The flow that was in the slot may have ended since the third pass.
            let is_there = self.slots.tag(line, at) == frame.tag;
            if is_there && self.slots.is(slot, &frame.counted, by_interface) {
                return self.count_known(line, at, frame, ended);
            }
        }
        self.count_elsewhere(frame, ended);
    }

    /// Counts a frame whose flow is not in the slot that was prefetched: it is in another slot with the same tag, or
    /// is new.
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
        // Use the slot that the third pass chose, unless an earlier frame of the batch has changed it.
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

    /// Returns the reason if the flow in this slot has ended.
    #[inline(always)]
    pub(super) fn over(&self, line: &Line, at: usize) -> Option<EndReason> {
        if self.config.idle_timeout.is_some()
            && self.idle.byte().wrapping_sub(tick(line, LAST, at)) >= OVER_TICKS
        {
            return Some(EndReason::Idle);
        }
        let age = self.active.byte().wrapping_sub(tick(line, FIRST, at));
        (age >= OVER_TICKS).then_some(EndReason::Active)
    }

    /// Returns a slot in which a flow may begin: a free slot of the line that has more of them, or the slot that was
    /// used least recently. If several slots are equally old, the tag selects one of them.
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

    /// Returns tag and last tick of a slot.
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
}
