//! The front of a block list: says of nearly every frame, from a few bits, that no entry can match.
//!
//! `struct weir_blocklist_front` of `bpf/block.h` has the same words, numbers and hashes. A bit is set while some
//! entry needs it; counts by bit say when the last one is gone.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_frame::flow::FlowKey;

use super::{Entry, Prefix, ends};

/// Words before the bits: counts, a cache line of them.
pub const HEADER_WORDS: usize = 8;
/// All words of a front.
pub const FRONT_WORDS: usize = HEADER_WORDS + (BITS as usize) / 64;

/// Bits for hashes: of addresses, of flows, and of the upper 32 bits of IPv6 prefixes. 2^20: with 10,000
/// entries, each look of a frame finds somebody else's bit in 1 % of cases; and 128 KiB stay in the second
/// cache of a core.
const HASHES: u32 = 1 << 20;
/// Cells behind them, by the upper 20 bits of IPv4 prefixes: as many for the same reasons.
const CELLS: u32 = 1 << 20;
const BITS: u32 = HASHES + CELLS;

/// Prefixes of IPv6 shorter than this would need more than 256 bits: they are counted, and all frames of IPv6
/// suspected. (Registries give out /32 to /19, and few of those short ones.)
const NARROW_V6: u8 = 24;

/// Words of the header.
const ENTRIES: usize = 0;
const ADDRESSES: usize = 1;
const FLOWS: usize = 2;
const PREFIXES_V4: usize = 3;
const PREFIXES_V6: usize = 4;
const WIDE_V6: usize = 5;

/// Odd, with as many ones as zeros: wyhash's constants, as in `weir_frame::flow`.
const MULTIPLIERS: [u64; 3] = [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3];

#[derive(Clone, Debug, Default)]
pub(super) struct Front {
    /// [`FRONT_WORDS`] of them, or none before the first entry.
    words: Vec<u64>,
    counts: Counts,
}

/// By bit: how many entries need it.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Without zeros: there are no more than entries, but for prefixes of IPv6.
    hashes: HashMap<u32, u32>,
    /// [`CELLS`] of them, or none before the first prefix of IPv4: one such as `10.0.0.0/8` is in 4,096.
    /// No more than 8,211 different prefixes touch a cell.
    cells: Vec<u16>,
}

impl Counts {
    /// True for the first entry that needs the bit.
    fn add(&mut self, bit: u32) -> bool {
        if bit < HASHES {
            let count = self.hashes.entry(bit).or_insert(0);
            *count += 1;
            return *count == 1;
        }
        if self.cells.is_empty() {
            self.cells = vec![0; CELLS as usize];
        }
        let count = &mut self.cells[(bit - HASHES) as usize];
        *count += 1;
        *count == 1
    }

    /// True for the last one.
    fn remove(&mut self, bit: u32) -> bool {
        if bit < HASHES {
            let count = self.hashes.get_mut(&bit).expect("counted when its entry came");
            *count -= 1;
            let last = *count == 0;
            if last {
                self.hashes.remove(&bit);
            }
            return last;
        }
        let count = &mut self.cells[(bit - HASHES) as usize];
        *count -= 1;
        *count == 0
    }
}

impl Front {
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Counts an entry that was not there.
    pub(super) fn add(&mut self, entry: &Entry) {
        if self.words.is_empty() {
            self.words = vec![0; FRONT_WORDS];
        }
        for word in header_words(entry) {
            self.words[word] += 1;
        }
        for bit in bits(entry) {
            if self.counts.add(bit) {
                self.words[word_of(bit)] |= 1 << (bit % 64);
            }
        }
    }

    /// Takes out an entry that was there.
    pub(super) fn remove(&mut self, entry: &Entry) {
        for word in header_words(entry) {
            self.words[word] -= 1;
        }
        for bit in bits(entry) {
            if self.counts.remove(bit) {
                self.words[word_of(bit)] &= !(1 << (bit % 64));
            }
        }
    }

    /// Whether some entry may match; of a list that is not empty.
    #[inline]
    pub(super) fn suspects(&self, key: &FlowKey) -> bool {
        let (src, dst) = ends(key.addresses);
        let counts: &[u64; HEADER_WORDS] = self.words.first_chunk().expect("not empty");
        let set = |bit: u32| self.words[word_of(bit)] >> (bit % 64) & 1 != 0;
        if counts[ADDRESSES] > 0 && (set(address_bit(src)) || set(address_bit(dst))) {
            return true;
        }
        if counts[FLOWS] > 0 && set(flow_bit(key)) {
            return true;
        }
        let prefixes = match src {
            IpAddr::V4(_) => counts[PREFIXES_V4],
            IpAddr::V6(_) if counts[WIDE_V6] > 0 => return true,
            IpAddr::V6(_) => counts[PREFIXES_V6],
        };
        prefixes > 0 && (set(prefix_bit(src)) || set(prefix_bit(dst)))
    }
}

/// The words of a front that an entry has a part in: those to copy when it comes or goes.
pub fn touched_words(entry: &Entry) -> impl Iterator<Item = usize> {
    // Bits of a prefix stand side by side, or in few words.
    let mut last = usize::MAX;
    let bits = bits(entry).map(word_of).filter(move |&word| {
        let another = word != last;
        last = word;
        another
    });
    bits.chain(header_words(entry))
}

/// The counts that an entry is in; that of all entries last.
fn header_words(entry: &Entry) -> impl Iterator<Item = usize> {
    let (kind, wide) = match entry {
        Entry::Address(_) => (ADDRESSES, false),
        Entry::Flow(_) => (FLOWS, false),
        Entry::Prefix(prefix) => match prefix.base() {
            IpAddr::V4(_) => (PREFIXES_V4, false),
            IpAddr::V6(_) => (PREFIXES_V6, prefix.bits() < NARROW_V6),
        },
    };
    wide.then_some(WIDE_V6).into_iter().chain([kind, ENTRIES])
}

/// The bits that an entry needs.
fn bits(entry: &Entry) -> impl Iterator<Item = u32> {
    let (one, several) = match entry {
        Entry::Address(address) => (Some(address_bit(*address)), None),
        Entry::Flow(flow) => (Some(flow_bit(&flow.key())), None),
        Entry::Prefix(prefix) => (None, Some(prefix_bits(prefix))),
    };
    one.into_iter().chain(several.into_iter().flatten())
}

/// The bits of all addresses under the prefix: none if those are too many.
fn prefix_bits(prefix: &Prefix) -> impl Iterator<Item = u32> + use<> {
    let bits = u32::from(prefix.bits());
    // By version: the upper bits of the first address, and how many values they take under the prefix.
    let (upper, values, bit): (u32, u32, fn(u32) -> u32) = match prefix.base() {
        IpAddr::V4(base) => (base.to_bits() >> 12, 1 << (20 - bits.min(20)), v4_bit),
        IpAddr::V6(base) => {
            let narrow = prefix.bits() >= NARROW_V6;
            (
                (base.to_bits() >> 96) as u32,
                if narrow { 1 << (32 - bits.min(32)) } else { 0 },
                v6_bit,
            )
        }
    };
    (0..values).map(move |value| bit(upper + value))
}

#[inline]
fn word_of(bit: u32) -> usize {
    HEADER_WORDS + (bit / 64) as usize
}

/// The address as a number of 64 bits; IPv4 as IPv4-mapped, which is how the kernel's keys have it.
#[inline]
fn number(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => 0xffff_0000_0000 | u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let (high, low) = ((address.to_bits() >> 64) as u64, address.to_bits() as u64);
            low.wrapping_add(high.wrapping_mul(MULTIPLIERS[1]))
        }
    }
}

#[inline]
fn address_bit(address: IpAddr) -> u32 {
    (number(address).wrapping_mul(MULTIPLIERS[0]) >> 44) as u32
}

/// The same for both directions.
#[inline]
fn flow_bit(key: &FlowKey) -> u32 {
    let end = |address, port| {
        let mixed = number(address) ^ u64::from(port).wrapping_mul(MULTIPLIERS[2]);
        let end = mixed.wrapping_mul(MULTIPLIERS[0]);
        end ^ end >> 32
    };
    let (src, dst) = ends(key.addresses);
    let sum = end(src, key.src_port).wrapping_add(end(dst, key.dst_port));
    (sum.wrapping_add(u64::from(key.protocol)).wrapping_mul(MULTIPLIERS[1]) >> 44) as u32
}

#[inline]
fn prefix_bit(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => v4_bit(address.to_bits() >> 12),
        IpAddr::V6(address) => v6_bit((address.to_bits() >> 96) as u32),
    }
}

/// By the upper 20 bits of an address.
#[inline]
fn v4_bit(upper: u32) -> u32 {
    HASHES + upper
}

/// By the upper 32 bits of an address.
#[inline]
fn v6_bit(upper: u32) -> u32 {
    (u64::from(upper).wrapping_mul(MULTIPLIERS[2]) >> 44) as u32
}
