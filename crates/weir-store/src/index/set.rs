//! A set of the header fields that may occur in a piece.
//!
//! It is a blocked Bloom filter with blocks ("lines") of 64 bytes. A key sets four bits of one line, one bit in each
//! quarter, so that a look-up costs at most one cache miss. A set is built at its largest size, which stays in a CPU's
//! first-level cache. It is then folded: its halves are OR-ed as long as the result is sparse enough.
//!
//! Source: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.

use std::array::from_fn;
use std::net::IpAddr;

use weir_filter::possible::{Facts, Kind};

use crate::limits::{SET_BYTES_MAX, SET_RECENT};

/// Words of a line. A set has 0, 1, 2, 4.. lines.
const LINE_WORDS: usize = 8;
const LINES_MAX: usize = SET_BYTES_MAX / 8 / LINE_WORDS;
/// Words of a bitmap of all ports.
const PORT_WORDS: usize = (1 << 16) / 64;
/// A set is folded as long as at most one in this many absent keys is a false positive.
const KEYS_FOR_ONE_FOUND: u64 = 64;
/// A key that represents values which the scan could not read (see [`Set::may_have_flow`]).
pub(super) const UNSEEN: u32 = u32::MAX;

/// The header fields that may occur in some frames. [`may_have`](Facts::may_have) has false positives, but no false
/// negatives.
///
/// The default is the empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// No words, or a power of two of lines.
    words: Vec<u64>,
}

impl Set {
    /// Returns the set that contains everything.
    #[must_use]
    pub fn everything() -> Set {
        Set { words: vec![u64::MAX; LINE_WORDS] }
    }

    /// Returns the set with these [`words`](Self::words); `None` if no set has this number of words.
    #[must_use]
    pub fn from_words(words: Vec<u64>) -> Option<Set> {
        let lines = words.len() / LINE_WORDS;
        let whole = words.len().is_multiple_of(LINE_WORDS) && lines <= LINES_MAX;
        (words.is_empty() || whole && lines.is_power_of_two()).then_some(Set { words })
    }

    /// Returns the words of the set: none, or 8, 16, 32 and so on, up to 16 KiB.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns whether there may be frames between these two hosts, in either direction. `ports`, in any order, are
    /// those of TCP, UDP or SCTP.
    ///
    /// Unlike a filter program, a flow table reads the protocol after extension headers, and counts later fragments
    /// in the flow of the first fragment. Here such frames match any protocol and any ports.
    #[must_use]
    pub fn may_have_flow(&self, hosts: [IpAddr; 2], protocol: u8, ports: Option<[u16; 2]>) -> bool {
        let may = |kind, value| self.may_have(kind, value);
        let protocol = may(Kind::Protocol, protocol.into()) || may(Kind::Protocol, UNSEEN);
        let port = |port: u16| may(Kind::Port, port.into());
        let ports =
            ports.is_none_or(|ports| ports.into_iter().all(port) || may(Kind::Port, UNSEEN));
        protocol && ports && hosts.into_iter().all(|host| self.may_have_address(host))
    }

    /// Returns whether this address may be the source or destination of any of the frames.
    #[must_use]
    pub fn may_have_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.may_have(Kind::V4Address, address.to_bits()),
            IpAddr::V6(address) => (0..4).all(|position: u8| {
                let word = (address.to_bits() >> (96 - 32 * position)) as u32;
                self.may_have(Kind::V6Word(position), word)
            }),
        }
    }
}

impl Facts for Set {
    fn may_have(&self, kind: Kind, value: u32) -> bool {
        let lines = self.words.len() / LINE_WORDS;
        if lines == 0 {
            return false;
        }
        let (line, bits) = place(key(kind, value));
        let line = &self.words[LINE_WORDS * (line & (lines - 1))..][..LINE_WORDS];
        bits.iter().all(|&(word, bit)| line[word] & bit != 0)
    }
}

/// Returns the key of a field: its kind and its value. No key is 0.
///
/// This function and [`place`] are part of the file format: a change needs a new version in the header of an index.
#[inline]
fn key(kind: Kind, value: u32) -> u64 {
    let kind: u64 = match kind {
        Kind::EtherType => 1,
        Kind::Vlan => 2,
        Kind::V4Address => 3,
        Kind::Port => 4,
        Kind::Protocol => 5,
        Kind::V6Word(position) => 8 + u64::from(position),
    };
    kind << 32 | u64::from(value)
}

/// Returns the line of a key in a set of the largest size, and the key's four bits as pairs of word and mask.
#[inline]
fn place(key: u64) -> (usize, [(usize, u64); 4]) {
    // The finalizer of MurmurHash3.
    let mut hash = key;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    let bit = |quarter: usize| {
        let bit = (hash >> (7 * quarter)) as usize & 127;
        (2 * quarter + bit / 64, 1 << (bit % 64))
    };
    ((hash >> 32) as usize & (LINES_MAX - 1), [bit(0), bit(1), bit(2), bit(3)])
}

/// A set at its largest size, into which keys are inserted.
///
/// The fields of a frame are mostly those of a recent frame. A key that is among the recent ones is not inserted
/// again, and ports are first collected in a bitmap, because a key costs several times as much as either.
pub(super) struct SetBuilder {
    words: Box<[u64; LINES_MAX * LINE_WORDS]>,
    /// Keys that are in `words`, each at the place that [`recent_at`] gives. 0 is not a key.
    recent: Box<[u64; SET_RECENT]>,
    /// One bit for each port that was inserted.
    ports: Box<[u64; PORT_WORDS]>,
    is_empty: bool,
}

impl SetBuilder {
    pub(super) fn new() -> SetBuilder {
        SetBuilder {
            words: Box::new([0; LINES_MAX * LINE_WORDS]),
            recent: Box::new([0; SET_RECENT]),
            ports: Box::new([0; PORT_WORDS]),
            is_empty: true,
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, kind: Kind, value: u32) {
        self.is_empty = false;
        let key = key(kind, value);
        let recent = &mut self.recent[recent_at(key)];
        if *recent != key {
            *recent = key;
            self.insert_new(key);
        }
    }

    /// Does the same as [`insert`](Self::insert) with [`Kind::Port`].
    #[inline]
    pub(super) fn insert_port(&mut self, port: u16) {
        self.is_empty = false;
        self.ports[usize::from(port / 64)] |= 1 << (port % 64);
    }

    #[inline]
    fn insert_new(&mut self, key: u64) {
        let (line, bits) = place(key);
        let at = LINE_WORDS * line;
        if let Some(line) = self.words[at..].first_chunk_mut::<LINE_WORDS>() {
            bits.iter().for_each(|&(word, bit)| line[word] |= bit);
        }
    }

    /// Returns the folded set of all keys that were inserted since the last call.
    pub(super) fn finish(&mut self) -> Set {
        if self.is_empty {
            return Set::default();
        }
        self.insert_ports();
        let mut words = self.words.len();
        while words > LINE_WORDS && may_fold(&self.words[..words]) {
            words /= 2;
            let (lower, upper) = self.words[..2 * words].split_at_mut(words);
            lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower |= *upper);
        }
        let set = Set { words: self.words[..words].to_vec() };
        self.words.fill(0);
        self.recent.fill(0);
        self.is_empty = true;
        set
    }

    /// Moves the ports from their bitmap to the set.
    fn insert_ports(&mut self) {
        for at in 0..PORT_WORDS {
            let mut ports = std::mem::take(&mut self.ports[at]);
            while ports != 0 {
                let port = 64 * at as u32 + ports.trailing_zeros();
                self.insert_new(key(Kind::Port, port));
                ports &= ports - 1;
            }
        }
    }
}

/// Returns where a key is remembered. The multiplication spreads keys that differ only in their last bits, such as the
/// addresses of one network.
#[inline]
fn recent_at(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SET_RECENT
}

/// Returns whether the OR of the two halves is sparse enough.
fn may_fold(words: &[u64]) -> bool {
    let (lower, upper) = words.split_at(words.len() / 2);
    // A line has 128^4 possible keys. The number of keys that would be found is the product of the numbers of set
    // bits in its quarters.
    let (lower, upper) = (lower.as_chunks::<LINE_WORDS>().0, upper.as_chunks::<LINE_WORDS>().0);
    let lines = lower.iter().zip(upper);
    let found: u64 = lines
        .map(|(lower, upper)| {
            let ones: [u32; LINE_WORDS] = from_fn(|word| (lower[word] | upper[word]).count_ones());
            let quarters: [u32; 4] = from_fn(|quarter| ones[2 * quarter] + ones[2 * quarter + 1]);
            u64::from(quarters.iter().product::<u32>())
        })
        .sum();
    let keys = lower.len() as u64 * 128u64.pow(4);
    found * KEYS_FOR_ONE_FOUND <= keys
}

impl std::fmt::Debug for SetBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetBuilder").field("is_empty", &self.is_empty).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = Kind> {
        use Kind::*;
        proptest::sample::select(vec![
            EtherType,
            Vlan,
            V4Address,
            Port,
            Protocol,
            V6Word(0),
            V6Word(3),
        ])
    }

    fn set(keys: &[(Kind, u32)]) -> Set {
        let mut builder = SetBuilder::new();
        keys.iter().for_each(|&(kind, value)| builder.insert(kind, value));
        builder.finish()
    }

    proptest! {
        #[test]
        fn keys_that_come_again_and_ports_change_nothing(
            keys in proptest::collection::vec((kind(), 0..3000_u32), 0..5000)
        ) {
            let mut builder = SetBuilder::new();
            for _ in 0..2 {
                for &(kind, value) in &keys {
                    match kind {
                        Kind::Port => builder.insert_port(value as u16),
                        _ => builder.insert(kind, value),
                    }
                }
            }
            let mut plain = SetBuilder::new();
            plain.is_empty = keys.is_empty();
            keys.iter().for_each(|&(kind, value)| plain.insert_new(key(kind, value)));
            let first = builder.finish();
            prop_assert_eq!(&first, &plain.finish());
            // Nothing is remembered in the next set.
            for &(kind, value) in &keys {
                builder.insert(kind, value);
            }
            prop_assert_eq!(builder.finish(), first);
        }

        #[test]
        fn what_was_put_in_is_found(keys in proptest::collection::vec((kind(), any::<u32>()), 0..5000)) {
            let set = set(&keys);
            prop_assert!(keys.iter().all(|&(kind, value)| set.may_have(kind, value)));
            prop_assert_eq!(Set::from_words(set.words().to_vec()), Some(set));
        }
    }

    #[test]
    fn one_absent_key_in_fifty_is_found_at_most() {
        // 14,000 keys are about the most for which the largest size is sparse enough.
        for keys in [1, 10, 30, 100, 500, 1000, 3000, 5000, 10_000, 14_000] {
            let here: Vec<_> = (0..keys).map(|n| (Kind::V4Address, 0x0a00_0000 + n)).collect();
            let set = set(&here);
            let absent = (0..100_000).map(|n| 0x0b00_0000 + n);
            let found = absent.filter(|&value| set.may_have(Kind::V4Address, value)).count();
            assert!(found <= 2_000, "{found} of 100000 are found among {keys} keys");
            let bits = 64 * set.words().len() as u32;
            assert!(bits <= 512 || bits < 22 * keys, "{bits} bits for {keys} keys");
        }
    }

    #[test]
    fn kinds_are_kept_apart_and_the_builder_begins_again() {
        let mut builder = SetBuilder::new();
        builder.insert(Kind::Port, 80);
        let first = builder.finish();
        assert!(first.may_have(Kind::Port, 80) && !first.may_have(Kind::Protocol, 80));
        assert_eq!(first.words().len(), LINE_WORDS);
        assert_eq!(builder.finish(), Set::default());
        assert!(!Set::default().may_have(Kind::Port, 80));
        assert!(Set::everything().may_have(Kind::V6Word(2), 1));
    }

    #[test]
    fn words_that_are_no_set_are_refused() {
        for words in [1, 7, 9, 24, 2 * SET_BYTES_MAX / 8] {
            assert_eq!(Set::from_words(vec![0; words]), None, "{words} words");
        }
    }
}
