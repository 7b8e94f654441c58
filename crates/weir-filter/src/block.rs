//! Block lists: addresses, prefixes and flows whose frames a feed leaves out.
//!
//! A block list affects captures, never traffic. The kernel uses the same lists (`bpf/block.h`, whose maps the crate
//! `weir-capture` keeps) as user space does ([`BlockList::contains`]).
//!
//! An address or prefix blocks the frames from it and to it; a flow blocks both of its directions.
//! IPv4 and IPv6 are separate: `::/0` blocks no IPv4, and `10.0.0.1` is not `::ffff:10.0.0.1`. A
//! later fragment has no ports, so no flow with ports blocks it.

mod entry;
mod front;
mod text;

use std::collections::HashSet;
use std::net::IpAddr;

use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

pub use entry::{Entry, Flow, Prefix};
pub use front::{FRONT_WORDS, HEADER_WORDS, touched_words};
pub use text::EntryError;

use front::Front;

pub use crate::limits::ENTRIES_MAX;

/// The list is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a block list has room for {ENTRIES_MAX} entries; take some out, or put neighbours together in a prefix \
     (10.0.0.0/24)"
)]
pub struct Full;

/// Addresses and flows that a feed excludes.
#[derive(Clone, Debug, Default)]
pub struct BlockList {
    entries: HashSet<Entry>,
    lengths: Lengths,
    front: Front,
}

impl BlockList {
    /// Returns whether nothing is blocked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns whether exactly this entry is in the list. The entry `10.0.0.0/8` does not count as the entry
    /// `10.0.0.1`.
    #[must_use]
    pub fn has(&self, entry: &Entry) -> bool {
        self.entries.contains(entry)
    }

    /// Adds an entry; returns false if it was already in the list.
    ///
    /// # Errors
    /// [`Full`] above [`ENTRIES_MAX`].
    pub fn add(&mut self, entry: Entry) -> Result<bool, Full> {
        if self.entries.contains(&entry) {
            return Ok(false);
        }
        if self.entries.len() >= ENTRIES_MAX {
            return Err(Full);
        }
        self.entries.insert(entry);
        self.lengths.add(&entry);
        self.front.add(&entry);
        Ok(true)
    }

    /// Removes an entry; returns false if it was not in the list.
    pub fn remove(&mut self, entry: &Entry) -> bool {
        let was_there = self.entries.remove(entry);
        if was_there {
            self.lengths.remove(entry);
            self.front.remove(entry);
        }
        was_there
    }

    /// Returns whether frames with this key are blocked. This is called for every frame: for most frames that are not
    /// blocked, it costs a few loads from 384 KiB.
    #[must_use]
    #[inline]
    pub fn contains(&self, key: &FlowKey) -> bool {
        !self.entries.is_empty() && self.front.suspects(key) && self.has_key(key)
    }

    /// Returns the front as the kernel reads it (`struct weir_blocklist_front`): [`FRONT_WORDS`] words. Empty before
    /// the first entry, when all words are 0.
    #[must_use]
    pub fn front_words(&self) -> &[u64] {
        self.front.words()
    }

    #[inline(never)]
    fn has_key(&self, key: &FlowKey) -> bool {
        let (src, dst) = ends(key.addresses);
        let has = |entry| self.entries.contains(&entry);
        has(Entry::Address(src))
            || has(Entry::Address(dst))
            || has(Entry::Flow(Flow::new(*key)))
            || self.lengths.of(src).any(|bits| {
                has(Entry::Prefix(Prefix::around(src, bits)))
                    || has(Entry::Prefix(Prefix::around(dst, bits)))
            })
    }
}

fn ends(addresses: Addresses) -> (IpAddr, IpAddr) {
    match addresses {
        Addresses::V4 { src, dst } => (src.into(), dst.into()),
        Addresses::V6 { src, dst } => (src.into(), dst.into()),
    }
}

/// Number of prefixes of each length. Only lengths that occur are looked up.
#[derive(Clone, Debug)]
struct Lengths {
    v4: [u32; 32],
    v6: [u32; 128],
}

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths { v4: [0; 32], v6: [0; 128] }
    }
}

impl Lengths {
    fn add(&mut self, entry: &Entry) {
        if let Entry::Prefix(prefix) = entry {
            *self.count(prefix) += 1;
        }
    }

    fn remove(&mut self, entry: &Entry) {
        if let Entry::Prefix(prefix) = entry {
            *self.count(prefix) -= 1;
        }
    }

    fn count(&mut self, prefix: &Prefix) -> &mut u32 {
        let bits = usize::from(prefix.bits());
        match prefix.base() {
            IpAddr::V4(_) => &mut self.v4[bits],
            IpAddr::V6(_) => &mut self.v6[bits],
        }
    }

    /// Returns the lengths of prefixes that occur for the IP version of this address.
    fn of(&self, address: IpAddr) -> impl Iterator<Item = u8> {
        let counts: &[u32] = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        (0u8..).zip(counts).filter(|&(_, &count)| count > 0).map(|(bits, _)| bits)
    }
}

#[cfg(test)]
mod tests;
