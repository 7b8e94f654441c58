//! The front of a block list, a kind of counting Bloom filter: for nearly every frame, a few bits show that no entry
//! can match.
//!
//! `struct weir_blocklist_front` of `bpf/block.h` has the same words, numbers and hashes. A bit is
//! set while an entry needs it. A count for each bit shows when the last such entry is removed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_frame::flow::FlowKey;

use super::{Entry, Prefix, ends};

/// Words before the bits: counts, one cache line.
pub const HEADER_WORDS: usize = 8;
/// Number of words of a front.
pub const FRONT_WORDS: usize = HEADER_WORDS + (BITS as usize) / 64;

/// Number of hash bits. They are for addresses and ends of flows, side by side; for flows; and for
/// the upper 32 bits of IPv6 prefixes. With 2^20 bits and 10,000 entries, a lookup finds the bit of
/// another entry in 1 or 2 % of cases, and the 128 KiB stay in the second-level cache of a core.
const HASHES: u32 = 1 << 20;
/// Number of cells after the hash bits, one for each value of the upper 20 bits of an IPv4 address.
/// The first bit of a cell: a prefix covers the cell or a part of it. The second bit: a prefix
/// covers all of it, so that the kernel need not look the prefix up.
const CELLS: u32 = 1 << CELL_LENGTH;
const CELL_LENGTH: u8 = 20;
const BITS: u32 = HASHES + 2 * CELLS;

/// IPv6 prefixes shorter than this would need more than 256 bits. They are only counted, and while
/// there is one, every IPv6 frame is a possible match. (Registries give out /32 to /19, and few of
/// the shorter ones.)
const NARROW_V6: u8 = 24;

/// Indexes of the header's words.
const ENTRIES: usize = 0;
const PREFIXES_V4: usize = 1;
const PREFIXES_V6: usize = 2;
const WIDE_V6: usize = 3;

/// Odd numbers with as many ones as zeros: wyhash's constants, as in `weir_frame::flow`.
const MULTIPLIERS: [u64; 3] = [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3];

#[derive(Clone, Debug, Default)]
pub(super) struct Front {
    /// [`FRONT_WORDS`] words, or none before the first entry.
    words: Vec<u64>,
    counts: Counts,
}

/// For each bit, the number of entries that need it.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Contains no zeros. An address needs one bit, a flow up to three, an IPv6 prefix up to 256.
    hashes: HashMap<u32, u32>,
    /// Two counts for each of [`CELLS`]; empty before the first IPv4 prefix. One prefix such as
    /// `10.0.0.0/8` is in 4,096 cells. At most 8,211 different prefixes touch a cell.
    cells: Vec<u16>,
}

impl Counts {
    /// Counts an entry that needs the bit. Returns true for the first such entry.
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

    /// Removes an entry that needs the bit. Returns true for the last such entry.
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

    /// Adds an entry that is not in the list.
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

    /// Removes an entry that is in the list.
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

    /// Returns whether an entry may match. The list must not be empty.
    #[inline]
    pub(super) fn suspects(&self, key: &FlowKey) -> bool {
        let (src, dst) = ends(key.addresses);
        let counts: &[u64; HEADER_WORDS] = self.words.first_chunk().expect("not empty");
        let bits = |bit: u32| self.words[word_of(bit)] >> (bit % 64);
        let set = |bit: u32| bits(bit) & 1 != 0;
        // One load answers both questions: bit 1 is for the address, bit 2 for the end of a flow.
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

/// Returns the words of a front that change when this entry is added or removed.
pub fn touched_words(entry: &Entry) -> impl Iterator<Item = usize> {
    // The bits of a prefix are adjacent, or in few words.
    let mut last = usize::MAX;
    let bits = bits(entry).map(word_of).filter(move |&word| {
        let another = word != last;
        last = word;
        another
    });
    bits.chain(header_words(entry))
}

/// Returns the indexes of the counts that include the entry. The count of all entries is last.
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

/// Returns the bits that an entry needs. A bit occurs twice if both ends of a flow have it.
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

/// Returns the bits of all addresses in the prefix; none if there are too many.
fn prefix_bits(prefix: &Prefix) -> impl Iterator<Item = u32> + use<> {
    let (cells, hashed) = match prefix.base() {
        IpAddr::V4(base) => {
            let first = cell_bit(base);
            // Both bits of all cells that the prefix covers, or the first bit of the cell that it is a part of.
            let bits = CELL_LENGTH.checked_sub(prefix.bits()).map_or(1, |more| 2 << more);
            (first..first + bits, 0..0)
        }
        IpAddr::V6(base) => {
            // The numbers have 64 bits, because the end of the highest prefixes is 2^32.
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

/// Returns the address as a number of 64 bits. IPv4 addresses are taken as IPv4-mapped, as in the kernel's keys.
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

/// Returns the bit of an address. It is even; [`end_bit`] is the next one.
#[inline]
fn address_bit(address: IpAddr) -> u32 {
    (number(address).wrapping_mul(MULTIPLIERS[0]) >> 44) as u32 & !1
}

/// Returns the bit of an address at the end of a flow. It is next to [`address_bit`], so in the same word.
fn end_bit(address: IpAddr) -> u32 {
    address_bit(address) | 1
}

/// Returns the bit of a flow, the same for both directions.
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

/// Returns the first bit of the address's cell: a prefix covers the cell or a part of it. The next bit: a prefix covers
/// all of it.
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
