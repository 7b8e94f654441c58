//! The table: it takes frames, and gives records of flows that have ended.
//!
//! A key has two lines of 16 slots, one in each half of the table; a flow begins in the line that has more free
//! slots. If all 32 slots are in use, the flow that was seen least recently ends early and is counted. The hash has a
//! secret (`keyed_hash`), so a sender of frames cannot choose keys that share lines. `passes` processes the frames.
//! Source: Vöcking, "How asymmetry helps load balancing", 1999 (two choices; of equal ones, the left).
//!
//! Time-outs: a slot has the ticks of the first and last frame of its flow. A time-out has 64 ticks, and a sweep
//! visits all lines once in eight ticks. So no list has to be kept in order, a frame moves nothing in memory, and a
//! flow ends at most an eighth of the time-out late; a frame that comes before the sweep begins the next flow.

use std::ops::Range;

use weir_frame::record::{Meta, Record};

pub use self::link::LinkLayer;
use self::passes::Work;
use crate::config::{FlowConfig, FlowError};
use crate::counters::Counters;
use crate::fragments::Fragments;
use crate::keyed_hash::HashKey;
use crate::limits::{FLOWS_MAX, FLOWS_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use crate::record::{EndReason, FlowRecord};
use crate::slots::{LINE_SLOTS, SLOT_BYTES, Slots, set_tag, used};
use crate::ticks::{TableTime, Ticks};

mod headers;
mod link;
mod passes;
mod sweep;

/// A frame as input of a table.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The captured bytes, from the link-layer header on, without FCS.
    pub frame: &'a [u8],
    /// The link layer of the frame.
    pub link: LinkLayer,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// The interface, as the feed numbers it. Numbers above `INTERFACE_MAX` are counted as `INTERFACE_MAX`.
    pub interface: u32,
}

/// Converts a record of an Ethernet frame.
impl<'a> From<Record<'a>> for Seen<'a> {
    fn from(record: Record<'a>) -> Seen<'a> {
        let Meta { wire_len, ts_ns, interface_id, .. } = record.meta;
        let link = LinkLayer::Ethernet;
        Seen { frame: record.frame, link, wire_len, ts_ns, interface: interface_id }
    }
}

/// Flows of the frames of one ring.
pub struct FlowTable {
    config: FlowConfig,
    secret: HashKey,
    /// `None` while `add` uses it.
    work: Option<Box<Work>>,
    slots: Slots,
    half: u64,
    fragments: Fragments,
    time: TableTime,
    idle: Ticks,
    active: Ticks,
    sweep: Ticks,
    /// Time at which the next tick of `idle`, `active` or `sweep` passes.
    tick_at_ns: u64,
    hand: usize,
    counters: Counters,
}

impl FlowTable {
    /// Creates an empty table. It allocates all its memory at once.
    ///
    /// # Errors
    /// [`FlowError`] for a configuration outside the limits, or if its memory cannot be allocated.
    pub fn new(config: FlowConfig) -> Result<FlowTable, FlowError> {
        if !(FLOWS_MIN..=FLOWS_MAX).contains(&config.flows_max) {
            return Err(FlowError::Flows(config.flows_max));
        }
        for timeout in [config.idle_timeout, config.active_timeout].into_iter().flatten() {
            if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
                return Err(FlowError::Timeout(timeout));
            }
        }
        let half = config.flows_max.div_ceil(2 * LINE_SLOTS as u64);
        // Without a time-out, these ticks only serve to find the flow that was seen least recently.
        let idle = Ticks::of(config.idle_timeout.or(Some(TIMEOUT_MAX)));
        let active = Ticks::of(config.active_timeout);
        let shorter = [config.idle_timeout, config.active_timeout].into_iter().flatten().min();
        Ok(FlowTable {
            slots: Slots::new(2 * half as usize)?,
            half,
            fragments: Fragments::new(HashKey::random()),
            time: TableTime::default(),
            sweep: Ticks::of(shorter),
            idle,
            active,
            tick_at_ns: 0,
            hand: 0,
            counters: Counters::default(),
            secret: HashKey::random(),
            work: Some(Box::default()),
            config,
        })
    }

    /// Returns the configuration of the table.
    #[must_use]
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of flows that fit: `flows_max` rounded up to whole lines.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        2 * self.half * LINE_SLOTS as u64
    }

    /// Returns the memory of the table in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let work = size_of::<Work>() as u64;
        self.capacity() * SLOT_BYTES as u64 + self.fragments.bytes() as u64 + work
    }

    /// Ends flows that are idle at `now_ns`, for a link on which no frames arrive. Call this function only when every
    /// frame up to `now_ns` was added; once in a few ticks (a tick is a 64th of the shorter time-out) is enough.
    pub fn advance(&mut self, now_ns: u64, ended: &mut impl FnMut(FlowRecord)) {
        self.go_to(now_ns, ended);
    }

    /// Ends all flows. The table can be used again.
    pub fn finish(&mut self, ended: &mut impl FnMut(FlowRecord)) {
        self.end_all(EndReason::Forced, ended);
    }

    /// Returns the flows in the table, as records that would be written if the table were finished now.
    pub fn live(&self) -> impl Iterator<Item = FlowRecord> {
        self.live_part(0..self.slots.index.len())
    }

    /// Returns the flows in a range of the table's [`lines`](FlowTable::lines), for readers that alternate with
    /// `add`. Flows stay in their line, so a pass over all lines visits each flow once that is in the table during
    /// the whole pass.
    pub fn live_part(&self, lines: Range<usize>) -> impl Iterator<Item = FlowRecord> {
        let first = lines.start;
        self.slots.index[lines].iter().enumerate().flat_map(move |(number, line)| {
            let used = used(line);
            (0..LINE_SLOTS).filter(move |at| used & 1 << at != 0).map(move |at| {
                self.slots.record((first + number) * LINE_SLOTS + at, EndReason::Forced)
            })
        })
    }

    /// Returns the number of lines, each of 16 slots.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.slots.index.len()
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
