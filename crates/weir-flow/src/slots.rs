//! The memory of a table: lines of tags and ages, and counts of each slot.
//!
//! | memory | size for each slot | words |
//! |---|---|---|
//! | `index` | 4 bytes of a line of 16 | 0-3 tags, 16 bits, 0: free; 4-5 tick of the last frame; 6-7 of the first |
//! | `counts` | a line | 0-3 addresses, 4 ports and the rest of the key; 5 latest time; 6 packets; 7 bytes, flags |
//! | `others` | 3 words | earliest time; packets of the other direction; its bytes, flags |
//!
//! These are 92 bytes for each slot. IPv4 addresses fit in one word, so for an IPv4 flow words 1-3 of `counts` hold
//! the contents of `others`: each frame of an IPv4 flow, its beginning and its end touch one line of `index` and one
//! of `counts`. For an IPv6 flow, this is true only of a frame of a known flow in its first direction.

use crate::key::{KeyWords, rest_is_v6};
use crate::lines::{Line, Lines, NoMemory, prefetch};
use crate::record::{EndReason, FlowRecord, Totals};

/// Slots of a line of the index.
pub const LINE_SLOTS: usize = 16;
/// Bytes of memory for each slot.
pub const SLOT_BYTES: usize = 64 / LINE_SLOTS + 64 + 24;

/// A flag in the word of packets: the key is stored in the opposite direction of the first frame.
const SWAPPED: u64 = 1 << 47;
const PACKETS: u64 = SWAPPED - 1;
const HAS_ICMP: u64 = SWAPPED;
const UPPER_SHIFT: u32 = 48;
const FLAGS_SHIFT: u32 = 56;
const BYTES: u64 = (1 << FLAGS_SHIFT) - 1;

/// The properties of a frame that are counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub key: KeyWords,
    pub ts_ns: u64,
    pub bytes: u32,
    pub interface: u16,
    /// 0: not ICMP. Otherwise 1, type and code, a byte each, in one number, so that no read has to wait for the
    /// writes of its parts.
    pub icmp: u32,
    pub tcp_flags: u8,
    /// `key` is in the opposite direction of the frame.
    pub swapped: bool,
}

pub struct Slots {
    pub index: Lines,
    counts: Lines,
    others: Lines,
}

impl Slots {
    pub fn new(lines: usize) -> Result<Slots, NoMemory> {
        let slots = lines * LINE_SLOTS;
        let (index, counts) = (Lines::zeroed(lines)?, Lines::zeroed(slots)?);
        Ok(Slots { index, counts, others: Lines::zeroed((slots * 3).div_ceil(8))? })
    }

    #[inline(always)]
    pub fn prefetch(&self, slot: usize) {
        prefetch(&self.counts, slot);
    }

    /// Prefetches the memory that a new flow with this key needs.
    #[inline(always)]
    pub fn prefetch_all(&self, slot: usize, key: &KeyWords) {
        prefetch(&self.counts, slot);
        if key.is_v6() {
            prefetch(&self.others, slot * 3 / 8);
            prefetch(&self.others, (slot * 3 + 2) / 8);
        }
    }

    #[inline(always)]
    pub fn tag(&self, line: usize, at: usize) -> u16 {
        (self.index[line].0[at / 4 % 4] >> (at % 4 * 16)) as u16
    }

    /// Returns whether the slot contains the flow of this frame.
    #[inline(always)]
    pub fn is(&self, slot: usize, frame: &Counted, interface_counts: bool) -> bool {
        let [a, b, c, d, rest, _, packets, _] = self.counts[slot].0;
        let [e, f, g, h] = frame.key.addresses;
        let mut differs = (a ^ e) | (rest ^ frame.key.rest);
        if frame.key.is_v6() {
            differs |= (b ^ f) | (c ^ g) | (d ^ h);
        }
        differs == 0 && (!interface_counts || (packets >> UPPER_SHIFT) as u16 == frame.interface)
    }

    /// Counts a frame of the flow in this slot.
    #[inline(always)]
    pub fn count(&mut self, slot: usize, frame: &Counted) {
        let counts = &mut self.counts[slot].0;
        if frame.ts_ns < counts[5] {
            let first_ns = self.other_mut(slot, 0);
            *first_ns = frame.ts_ns.min(*first_ns);
        } else {
            counts[5] = frame.ts_ns;
        }
        let counts = &mut self.counts[slot].0;
        let flags = u64::from(frame.tcp_flags) << FLAGS_SHIFT;
        if (counts[6] & SWAPPED != 0) == frame.swapped {
            counts[6] += 1;
            counts[7] = (counts[7] + u64::from(frame.bytes)) | flags;
        } else {
            *self.other_mut(slot, 1) += 1;
            let bytes = self.other_mut(slot, 2);
            *bytes = (*bytes + u64::from(frame.bytes)) | flags;
        }
    }

    /// Begins a flow in this slot, with its first frame.
    #[inline(always)]
    pub fn begin(&mut self, slot: usize, frame: &Counted) {
        let swapped = if frame.swapped { SWAPPED } else { 0 };
        let packets = u64::from(frame.interface) << UPPER_SHIFT | swapped | 1;
        let bytes = u64::from(frame.tcp_flags) << FLAGS_SHIFT | u64::from(frame.bytes);
        let icmp = match frame.icmp {
            0 => 0,
            icmp => u64::from(icmp as u16) << UPPER_SHIFT | HAS_ICMP,
        };
        let [a, b, c, d] = frame.key.addresses;
        self.counts[slot] = Line([a, b, c, d, frame.key.rest, frame.ts_ns, packets, bytes]);
        for (word, value) in [frame.ts_ns, icmp, 0].into_iter().enumerate() {
            *self.other_mut(slot, word) = value;
        }
    }

    /// Returns the record of the flow in this slot.
    #[inline(never)]
    pub fn record(&self, slot: usize, reason: EndReason) -> FlowRecord {
        let [a, b, c, d, rest, last_ns, packets, bytes] = self.counts[slot].0;
        let mut words = KeyWords { addresses: [a, b, c, d], rest };
        let [first_ns, other_packets, other_bytes] = if words.is_v6() {
            [0, 1, 2].map(|word| self.others[(slot * 3 + word) / 8].0[(slot * 3 + word) % 8])
        } else {
            words.addresses = [a, 0, 0, 0];
            [b, c, d]
        };
        let (key, vlan) = if packets & SWAPPED == 0 { words } else { words.reversed() }.parts();
        let [kind, code] = ((other_packets >> UPPER_SHIFT) as u16).to_be_bytes();
        FlowRecord {
            key,
            vlan,
            interface: (packets >> UPPER_SHIFT) as u32,
            first_ns,
            last_ns,
            forward: totals(packets, bytes),
            reverse: totals(other_packets, other_bytes),
            icmp: (other_packets & HAS_ICMP != 0).then_some((kind, code)),
            reason,
        }
    }

    /// Returns a word of the flow in this slot: 0 the earliest timestamp, 1 packets and 2 bytes of the other
    /// direction.
    #[inline(always)]
    fn other_mut(&mut self, slot: usize, word: usize) -> &mut u64 {
        let counts = &mut self.counts[slot].0;
        if rest_is_v6(counts[4]) {
            let at = slot * 3 + word;
            &mut self.others[at / 8].0[at % 8]
        } else {
            &mut counts[1 + word]
        }
    }
}

fn totals(packets: u64, bytes: u64) -> Totals {
    Totals {
        packets: packets & PACKETS,
        bytes: bytes & BYTES,
        tcp_flags: (bytes >> FLAGS_SHIFT) as u8,
    }
}

/// Returns a mask of the slots of a line that are in use.
#[inline(always)]
pub fn used(line: &Line) -> u32 {
    !crate::lines::equal_tags(line, 0) & 0xffff
}

#[inline(always)]
pub fn set_tag(line: &mut Line, at: usize, tag: u16) {
    let shift = at % 4 * 16;
    let word = &mut line.0[at / 4];
    *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
}

/// First word of the ticks of last frames.
pub const LAST: usize = 4;
/// First word of the ticks of first frames.
pub const FIRST: usize = 6;

#[inline(always)]
pub fn tick(line: &Line, which: usize, at: usize) -> u8 {
    (line.0[which + at / 8] >> (at % 8 * 8)) as u8
}

#[inline(always)]
pub fn set_tick(line: &mut Line, which: usize, at: usize, tick: u8) {
    let shift = at % 8 * 8;
    let word = &mut line.0[which + at / 8];
    *word = *word & !(0xff << shift) | u64::from(tick) << shift;
}
