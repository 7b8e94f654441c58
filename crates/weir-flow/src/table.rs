//! The table: frames in, records of flows that have ended out.
//!
//! A key has two lines of 16 slots, one in each half of the table; a flow begins in the emptier one. Where all 32 are
//! taken, the flow that was seen least recently ends early and is counted. The hash has a secret (`keyed_hash`), so who
//! sends frames cannot choose keys that share lines. `passes` has the way of a frame. Source: Vöcking, "How asymmetry
//! helps load balancing", 1999 (two choices, the left of equals).
//!
//! Time-outs: a slot has the ticks of its first and last frame, 64 ticks a time-out, and a hand goes round all lines
//! once in eight ticks. So membership belongs to the slot, a frame moves nothing, and a flow ends at most an eighth of
//! the time-out late; if a frame comes first, that frame begins the next flow.

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
        let work = size_of::<Work>() as u64;
        self.capacity() * SLOT_BYTES as u64 + self.fragments.bytes() as u64 + work
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
