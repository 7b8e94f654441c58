//! The memory that the programs write, with the layout of bpf/flow_table.h, and consistent reads of its slots.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};

use weir_flow::{EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

use crate::limits::READ_TRIES_MAX;

/// Slots of a bucket.
pub const BUCKET_SLOTS: usize = 8;
/// Words of a bucket: `struct weir_flow_bucket`.
pub const BUCKET_WORDS: usize = 96;
/// Words of a record: `struct weir_flow_record`.
pub const RECORD_WORDS: usize = 12;
/// Words of a CPU's counts: `struct weir_flow_counts`.
pub const COUNTS_WORDS: usize = 24;
/// Words of a CPU's tail: `struct weir_flow_tail`.
pub const TAIL_WORDS: usize = 16;

const LAST: usize = 2;
const CHANGES: usize = 6;
const SLOTS: usize = 8;
const SLOT_WORDS: usize = 8;
const PACKETS: usize = 6;
const ORIGINS: usize = SLOTS + BUCKET_SLOTS * SLOT_WORDS;
const ORIGIN_WORDS: usize = 3;

const BUSY: u64 = 1 << 63;
const FLAGS_SHIFT: u32 = 56;
const REASON_SHIFT: u32 = 56;
const HAS_ICMP: u64 = 1 << 32;

const PROTOCOL_SHIFT: u32 = 32;
const VLAN_SHIFT: u32 = 40;
const TAGGED: u64 = 1 << 52;
const V6: u64 = 1 << 53;

/// Indexes of the words of a CPU's counts, [`COUNTS_WORDS`] in all.
pub mod counts {
    pub const FRAMES: usize = 0;
    pub const NOT_FLOWS: usize = 1;
    pub const BEGAN: usize = 6;
    pub const EVICTED: usize = 7;
    pub const LOST_RECORDS: usize = 8;
    pub const LOST_PACKETS: usize = 9;
    pub const LOST_BYTES: usize = 10;
    pub const FRAGMENTS_ATTRIBUTED: usize = 11;
    pub const FRAGMENTS_UNATTRIBUTED: usize = 12;
    pub const HEAD: usize = 13;
}

/// A copy of the flow in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    key: [u64; 5],
    /// Time of the last frame, by the programs' clock.
    pub last_ns: u64,
    pub packets: u64,
    bytes_and_flags: u64,
    first_ns: u64,
    id: u64,
    /// Number of the flow among all flows of its CPU, from 1 on.
    pub serial: u64,
}

impl Slot {
    fn of(slot: [u64; SLOT_WORDS], origin: [u64; ORIGIN_WORDS]) -> Slot {
        let [a, b, c, d, e, last_ns, packets, bytes_and_flags] = slot;
        let [first_ns, id, serial] = origin;
        let packets = packets & !BUSY;
        Slot { key: [a, b, c, d, e], last_ns, packets, bytes_and_flags, first_ns, id, serial }
    }

    #[cfg(test)]
    pub fn test(serial: u64, packets: u64, bytes: u64) -> Slot {
        Slot::of([0, 0, 0, 0, 0, 0, packets, bytes], [0, 0, serial])
    }

    /// Returns the bytes of all packets of the flow.
    pub fn bytes(&self) -> u64 {
        self.bytes_and_flags & ((1 << FLAGS_SHIFT) - 1)
    }

    /// Returns the record of the flow. `to_epoch_ns` is added to the programs' times.
    pub fn record(&self, reason: EndReason, to_epoch_ns: u64) -> FlowRecord {
        let [a, b, c, d, rest] = self.key;
        let addresses = if rest & V6 == 0 {
            let [src, dst] =
                [a as u32, (a >> 32) as u32].map(|end| Ipv4Addr::from(end.to_ne_bytes()));
            Addresses::V4 { src, dst }
        } else {
            let [src, dst] = [[a, b], [c, d]].map(|[first, second]| {
                let first = u64::from_be_bytes(first.to_ne_bytes());
                let second = u64::from_be_bytes(second.to_ne_bytes());
                Ipv6Addr::from_bits(u128::from(first) << 64 | u128::from(second))
            });
            Addresses::V6 { src, dst }
        };
        let [a, b, c, d] = (rest as u32).to_ne_bytes();
        let key = FlowKey {
            addresses,
            src_port: u16::from_be_bytes([a, b]),
            dst_port: u16::from_be_bytes([c, d]),
            protocol: (rest >> PROTOCOL_SHIFT) as u8,
        };
        FlowRecord {
            key,
            vlan: (rest & TAGGED != 0).then_some((rest >> VLAN_SHIFT) as u16 & 0xfff),
            interface: self.id as u32 & 0xffff,
            first_ns: self.first_ns.wrapping_add(to_epoch_ns),
            last_ns: self.last_ns.wrapping_add(to_epoch_ns),
            forward: Totals {
                packets: self.packets,
                bytes: self.bytes(),
                tcp_flags: (self.bytes_and_flags >> FLAGS_SHIFT) as u8,
            },
            reverse: Totals::default(),
            icmp: (self.id & HAS_ICMP != 0)
                .then_some(((self.id >> 24) as u8, (self.id >> 16) as u8)),
            reason,
        }
    }
}

/// A bucket of the table.
#[derive(Clone, Copy)]
pub struct Bucket<'a>(&'a [AtomicU64; BUCKET_WORDS]);

impl<'a> Bucket<'a> {
    /// Returns the bucket with this number in `table`.
    pub fn of(table: &'a [AtomicU64], number: usize) -> Bucket<'a> {
        let words = &table[number * BUCKET_WORDS..][..BUCKET_WORDS];
        Bucket(words.try_into().expect("as many as there are"))
    }

    /// Returns the slots that have had a flow, as a bit mask.
    pub fn used(self) -> u32 {
        let lane = |at: usize| self.0[at / 4].load(Relaxed) >> (at % 4 * 16) & 0xffff;
        (0..BUCKET_SLOTS).map(|at| u32::from(lane(at) != 0) << at).sum()
    }

    /// Returns the slots of `used` whose last frame came `ticks` or more before `now`. Times are 16 bits of ticks,
    /// and may have wrapped.
    pub fn older_than(self, used: u32, now: u16, ticks: u32) -> u32 {
        let lane = |at: usize| (self.0[LAST + at / 4].load(Relaxed) >> (at % 4 * 16)) as u16;
        let is_older = |at: usize| u32::from(now.wrapping_sub(lane(at))) >= ticks;
        (0..BUCKET_SLOTS).filter(|at| used & 1 << at != 0 && is_older(*at)).map(|at| 1 << at).sum()
    }

    /// Returns a consistent copy of the flow in a slot that has had a flow; `None` if frames kept changing the slot.
    ///
    /// Two seqlocks protect it: `changes` of the bucket while flows begin and end, the top bit of `packets` while
    /// frames are counted. Source: Boehm, "Can seqlocks get along with programming language memory models?", MSPC
    /// 2012.
    pub fn read(self, at: usize) -> Option<Slot> {
        let slot = &self.0[SLOTS + at * SLOT_WORDS..][..SLOT_WORDS];
        let origin = &self.0[ORIGINS + at * ORIGIN_WORDS..][..ORIGIN_WORDS];
        for _ in 0..READ_TRIES_MAX {
            let changes = self.0[CHANGES].load(Acquire); // pairs with weir_store_ordered in weir_begin
            let packets = slot[PACKETS].load(Acquire); // and in weir_add
            if changes & 1 != 0 || packets & BUSY != 0 {
                std::hint::spin_loop();
                continue;
            }
            let slot_words = std::array::from_fn(|word| slot[word].load(Relaxed));
            let origin_words = std::array::from_fn(|word| origin[word].load(Relaxed));
            fence(Acquire);
            if slot[PACKETS].load(Relaxed) == packets && self.0[CHANGES].load(Relaxed) == changes {
                return Some(Slot::of(slot_words, origin_words));
            }
        }
        None
    }
}

/// Returns the flow of a record, the number of its slot, and the reason for its end.
pub fn record_of(words: &[AtomicU64]) -> (Slot, usize, EndReason) {
    let words: [u64; RECORD_WORDS] = std::array::from_fn(|word| words[word].load(Relaxed));
    let [slot @ .., first_ns, id, serial, place] = words;
    let reason = match place >> REASON_SHIFT {
        1 => EndReason::Idle,
        2 => EndReason::Active,
        _ => EndReason::LackOfResources,
    };
    (Slot::of(slot, [first_ns, id, serial]), (place & ((1 << REASON_SHIFT) - 1)) as usize, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> [AtomicU64; BUCKET_WORDS] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn a_slot_that_is_being_written_is_not_read() {
        let words = bucket();
        words[1].store(7 << 48, Relaxed);
        let slot = |word: usize| &words[SLOTS + 7 * SLOT_WORDS + word];
        slot(PACKETS).store(3, Relaxed);
        let bucket = Bucket(&words);
        assert_eq!(bucket.used(), 1 << 7);
        assert_eq!(bucket.read(7).map(|flow| flow.packets), Some(3));
        slot(PACKETS).store(4 | BUSY, Relaxed);
        assert_eq!(bucket.read(7), None);
        slot(PACKETS).store(4, Relaxed);
        words[CHANGES].store(1, Relaxed);
        assert_eq!(bucket.read(7), None);
        words[CHANGES].store(2, Relaxed);
        assert_eq!(bucket.read(7).map(|flow| flow.packets), Some(4));
    }

    #[test]
    fn ages_wrap_as_ticks_do() {
        let words = bucket();
        words[LAST].store(0xfff0 | 5 << 16, Relaxed);
        let bucket = Bucket(&words);
        assert_eq!(bucket.older_than(0b11, 6, 0x16), 0b01);
        assert_eq!(bucket.older_than(0b11, 6, 0x17), 0);
        assert_eq!(bucket.older_than(0b11, 6, 0x1_0000), 0, "no time-out");
    }
}
