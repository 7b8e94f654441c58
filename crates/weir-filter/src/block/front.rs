//! The front of a block list: says of nearly every frame, from a few bits, that no entry can match.
//!
//! `struct weir_blocklist_front` of `bpf/block.h` has the same words, numbers and hashes. A bit is set while some
//! entry needs it; counts by bit say when the last one is gone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_frame::flow::FlowKey;

use super::{Entry, Prefix, ends};

/// Words before the bits: counts, a cache line of them.
pub const HEADER_WORDS: usize = 8;
/// All words of a front.
pub const FRONT_WORDS: usize = HEADER_WORDS + (BITS as usize) / 64;

/// Bits for hashes: of addresses and of the ends of flows, side by side; of flows; and of the upper 32 bits of IPv6
/// prefixes. 2^20: with 10,000 entries, each look of a frame finds somebody else's bit in 1 or 2 % of cases; and 128
/// KiB stay in the second cache of a core.
const HASHES: u32 = 1 << 20;
/// Cells behind them, of two bits, by the upper 20 bits of IPv4 prefixes: a prefix has a part of the cell; one has all
/// of it, so that the kernel need not look for it.
const CELLS: u32 = 1 << CELL_LENGTH;
const CELL_LENGTH: u8 = 20;
const BITS: u32 = HASHES + 2 * CELLS;

/// Prefixes of IPv6 shorter than this would need more than 256 bits: they are counted, and all frames of IPv6
/// suspected. (Registries give out /32 to /19, and few of those short ones.)
const NARROW_V6: u8 = 24;

/// Words of the header.
const ENTRIES: usize = 0;
const PREFIXES_V4: usize = 1;
const PREFIXES_V6: usize = 2;
const WIDE_V6: usize = 3;

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
    /// Two for each of [`CELLS`], or none before the first prefix of IPv4: one such as `10.0.0.0/8` is in 4,096.
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
            self.cells = vec![0; 2 * CELLS as usize];
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
        let bits = |bit: u32| self.words[word_of(bit)] >> (bit % 64);
        let set = |bit: u32| bits(bit) & 1 != 0;
        // One look for both: 1, the address; 2, the end of a flow.
        let (src_bits, dst_bits) = (bits(address_bit(src)), bits(address_bit(dst)));
        if (src_bits | dst_bits) & 1 != 0 {
            return true;
        }
        if src_bits & dst_bits & 2 != 0 && set(flow_bit(key)) {
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
    let prefixes = match entry {
        Entry::Address(_) | Entry::Flow(_) => [None; 2],
        Entry::Prefix(prefix) => match prefix.base() {
            IpAddr::V4(_) => [None, Some(PREFIXES_V4)],
            IpAddr::V6(_) => [(prefix.bits() < NARROW_V6).then_some(WIDE_V6), Some(PREFIXES_V6)],
        },
    };
    prefixes.into_iter().flatten().chain([ENTRIES])
}

/// The bits that an entry needs; one of them twice, if both ends of a flow have it.
fn bits(entry: &Entry) -> impl Iterator<Item = u32> {
    let (few, prefix) = match entry {
        Entry::Address(address) => ([Some(address_bit(*address)), None, None], None),
        Entry::Flow(flow) => {
            let key = flow.key();
            let (src, dst) = ends(key.addresses);
            ([Some(flow_bit(&key)), Some(end_bit(src)), Some(end_bit(dst))], None)
        }
        Entry::Prefix(prefix) => ([None; 3], Some(prefix_bits(prefix))),
    };
    few.into_iter().flatten().chain(prefix.into_iter().flatten())
}

/// The bits of all addresses under the prefix: none if those are too many.
fn prefix_bits(prefix: &Prefix) -> impl Iterator<Item = u32> + use<> {
    let (cells, hashed) = match prefix.base() {
        IpAddr::V4(base) => {
            let first = cell_bit(base);
            // Both bits of all cells that it covers, or the first of one that it has a part of.
            let bits = CELL_LENGTH.checked_sub(prefix.bits()).map_or(1, |more| 2 << more);
            (first..first + bits, 0..0)
        }
        IpAddr::V6(base) => {
            // In 64 bits: the end of the highest prefixes is 2^32.
            let upper = u64::from(v6_upper(base));
            let values = match prefix.bits() {
                NARROW_V6.. => 1 << 32u8.saturating_sub(prefix.bits()),
                _ => 0,
            };
            (0..0, upper..upper + values)
        }
    };
    cells.chain(hashed.map(|upper| v6_bit(upper as u32)))
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

/// Even.
#[inline]
fn address_bit(address: IpAddr) -> u32 {
    (number(address).wrapping_mul(MULTIPLIERS[0]) >> 44) as u32 & !1
}

/// Some flow has the address at one end: the bit beside [`address_bit`], so in the same word.
fn end_bit(address: IpAddr) -> u32 {
    address_bit(address) | 1
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
        IpAddr::V4(address) => cell_bit(address),
        IpAddr::V6(address) => v6_bit(v6_upper(address)),
    }
}

/// A prefix has a part of the address's cell. The bit behind it: one has all of it.
#[inline]
fn cell_bit(address: Ipv4Addr) -> u32 {
    HASHES + 2 * (address.to_bits() >> (32 - CELL_LENGTH))
}

#[inline]
fn v6_upper(address: Ipv6Addr) -> u32 {
    (address.to_bits() >> 96) as u32
}

#[inline]
fn v6_bit(upper: u32) -> u32 {
    (u64::from(upper).wrapping_mul(MULTIPLIERS[2]) >> 44) as u32
}
