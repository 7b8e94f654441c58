//! The memory of a table: lines of tags and ages, and counts of each slot.
//!
//! | memory | a slot | words |
//! |---|---|---|
//! | `index` | 4 bytes of a line of 16 | 0-3 tags, 16 bits, 0: free; 4-5 tick of the last frame; 6-7 of the first |
//! | `counts` | a line | 0-3 addresses, 4 ports and the rest of the key; 5 last stamp; 6 packets; 7 bytes, flags |
//! | `others` | 3 words | first stamp; packets of the other direction; its bytes, flags |
//!
//! 92 bytes. IPv4 addresses fit in one word, so words 1-3 of `counts` hold what `others` holds of an IPv6 flow: any
//! frame of an IPv4 flow touches one line of `index` and one of `counts`, and so does its beginning and its end. Of an
//! IPv6 flow, only a frame of a known flow in its first direction does.

use crate::key::{KeyWords, rest_is_v6};
use crate::lines::{Line, Lines, NoMemory, prefetch};
use crate::record::{EndReason, FlowRecord, Totals};

/// Slots of a line of the index.
pub const LINE_SLOTS: usize = 16;
/// Bytes of memory for a slot.
pub const SLOT_BYTES: usize = 64 / LINE_SLOTS + 64 + 24;

/// Of a word with packets: the key is stored in the other direction than that of the first frame.
const SWAPPED: u64 = 1 << 47;
const PACKETS: u64 = SWAPPED - 1;
const HAS_ICMP: u64 = SWAPPED;
const UPPER_SHIFT: u32 = 48;
const FLAGS_SHIFT: u32 = 56;
const BYTES: u64 = (1 << FLAGS_SHIFT) - 1;

/// A frame as it is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub key: KeyWords,
    pub ts_ns: u64,
    pub bytes: u32,
    pub interface: u16,
    /// Nothing, or 1, type and code, a byte each: one number, so that it is not read while its parts are written.
    pub icmp: u32,
    pub tcp_flags: u8,
    /// `key` is in the other direction than the frame.
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

    /// For a flow of this key that begins.
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

    /// Whether the slot is of this frame's flow.
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

    /// A flow begins in this slot, with this frame.
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

    /// The flow in this slot.
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

    /// Of the flow in this slot: 0 the first stamp, 1 packets and 2 bytes of the other direction.
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

/// Which slots of a line are in use: a bit each.
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

/// Tick of the last frame.
pub const LAST: usize = 4;
/// Tick of the first frame.
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
