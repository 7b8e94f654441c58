//! Block lists in the kernel: the maps of `bpf/block.h`, and their only writer.
//!
//! All feeds of a source share one set of maps. For each feed, a bitmap, the front, tells which frames need a lookup in
//! the maps. Programs may read while a list changes, so the order of stores matters: an entry is added to its map
//! before its bits are set in the front, and its bits are cleared in the front before it is removed from its map. Other
//! entries are not affected: each bit has a use count, and is cleared with the last entry that needs it.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use weir_filter::block::{BlockList, ENTRIES_MAX, Entry, FRONT_WORDS, Flow, Full, touched_words};
use weir_frame::headers::Addresses;
use weir_ring::memory::Access;
use weir_ring::{Mapping, Words};

use crate::engines::bpf::memory::refused;
use crate::error::CaptureError;
use crate::kernel::map_options;
pub use crate::limits::ENTRIES_OF_A_KIND_MAX;

/// Most lists: a feed has 16 bits in the keys.
const LISTS_MAX: usize = 1 << 16;

/// Bytes of the key structs of `bpf/block.h`.
const ADDRESS_BYTES: usize = 24;
const FLOW_BYTES: usize = 40;
const PREFIX_BYTES: usize = 24;

/// The reason why a list was not changed.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The feed's own list is full.
    #[error(transparent)]
    Full(#[from] Full),
    /// The maps, which all feeds' lists share, are full.
    #[error(
        "the block lists of this source have room for {max} {kind}; take some out of any of them"
    )]
    SourceFull {
        /// The kind of entries.
        kind: &'static str,
        /// The number of entries that fit.
        max: usize,
    },
    /// The kernel refused to add or to remove an entry.
    #[error("a change of a block list was refused by the kernel")]
    Kernel(#[source] libbpf_rs::Error),
}

/// The kind of an entry, which determines its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Addresses,
    Flows,
    Prefixes,
}

impl Kind {
    const fn of(entry: &Entry) -> Kind {
        match entry {
            Entry::Address(_) => Kind::Addresses,
            Entry::Flow(_) => Kind::Flows,
            Entry::Prefix(_) => Kind::Prefixes,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Kind::Addresses => "addresses",
            Kind::Flows => "flows",
            Kind::Prefixes => "prefixes",
        }
    }
}

/// The block lists of a source's feeds, in the maps of its programs.
pub struct Blocks {
    /// The list of each feed; its entries are also in the maps.
    lists: Vec<BlockList>,
    /// Number of entries in each map, indexed by [`Kind`].
    held: [usize; 3],
    maps: [MapHandle; 3],
    front: MapHandle,
    /// The mapped fronts of all feeds, one after the other.
    words: Mapping,
    /// Most entries of each kind.
    room: usize,
}

/// The maps. The programs of a source use them in place of those that they declare.
#[derive(Clone, Copy, Debug)]
pub struct Maps<'a> {
    /// The map `block_front`.
    pub front: BorrowedFd<'a>,
    /// The map `block_addresses`.
    pub addresses: BorrowedFd<'a>,
    /// The map `block_flows`.
    pub flows: BorrowedFd<'a>,
    /// The map `block_prefixes`.
    pub prefixes: BorrowedFd<'a>,
}

impl Blocks {
    /// Creates the maps for this many feeds, with empty lists. They take 384 KiB for each feed, and 2 MiB more for each
    /// of the first four feeds.
    ///
    /// # Errors
    /// [`CaptureError`]: missing privileges, no memory, or the kernel refuses the maps.
    pub fn new(feeds: usize) -> Result<Blocks, CaptureError> {
        Blocks::with_room(feeds, (feeds * ENTRIES_MAX).min(ENTRIES_OF_A_KIND_MAX))
    }

    /// Creates the maps like [`new`](Blocks::new), but with space for this many entries of each kind.
    fn with_room(feeds: usize, room: usize) -> Result<Blocks, CaptureError> {
        assert!((1..=LISTS_MAX).contains(&feeds), "{feeds} feeds");
        let front_bytes = (FRONT_WORDS * 8) as u32;
        let flag = libbpf_sys::BPF_F_MMAPABLE;
        let front = create(MapType::Array, "block_front", [4, front_bytes], feeds, flag)?;
        let keyed = |ty, name, key_bytes: usize| {
            create(ty, name, [key_bytes as u32, 1], room, libbpf_sys::BPF_F_NO_PREALLOC)
        };
        let maps = [
            keyed(MapType::Hash, "block_addresses", ADDRESS_BYTES)?,
            keyed(MapType::Hash, "block_flows", FLOW_BYTES)?,
            keyed(MapType::LpmTrie, "block_prefixes", PREFIX_BYTES)?,
        ];
        let fd = front.as_fd().try_clone_to_owned();
        let fd = fd.map_err(CaptureError::os("duplicating a map"))?;
        let bytes = (feeds * FRONT_WORDS * 8).next_multiple_of(4096);
        // SAFETY: a BPF array cannot shrink, and the mapping consists of whole pages of it; its words are accessed
        // through `self.words` only, as `AtomicU64`.
        let words = unsafe { Mapping::map(fd, bytes as u64, Access::Write) }?;
        let lists = vec![BlockList::default(); feeds];
        Ok(Blocks { lists, held: [0; 3], maps, front, words, room })
    }

    /// Returns the maps.
    #[must_use]
    pub fn maps(&self) -> Maps<'_> {
        let [addresses, flows, prefixes] = self.maps.each_ref().map(AsFd::as_fd);
        Maps { front: self.front.as_fd(), addresses, flows, prefixes }
    }

    /// Returns a feed's list.
    #[must_use]
    pub fn list(&self, feed: usize) -> &BlockList {
        &self.lists[feed]
    }

    /// Adds an entry to a feed's list; returns false if the entry was in the list already. The entry applies to frames
    /// that come to the hook from now on.
    ///
    /// # Errors
    /// [`BlockError`]; the list is unchanged then.
    pub fn add(&mut self, feed: usize, entry: Entry) -> Result<bool, BlockError> {
        let kind = Kind::of(&entry);
        if self.lists[feed].has(&entry) {
            return Ok(false);
        }
        if self.held[kind as usize] >= self.room {
            return Err(BlockError::SourceFull { kind: kind.text(), max: self.room });
        }
        self.lists[feed].add(entry)?;
        let updated = self.maps[kind as usize].update(&key(feed, &entry), &[1], MapFlags::ANY);
        if let Err(error) = updated {
            self.lists[feed].remove(&entry);
            return Err(BlockError::Kernel(error));
        }
        self.held[kind as usize] += 1;
        self.show(feed, &entry);
        Ok(true)
    }

    /// Removes an entry from a feed's list; returns false if the entry was not in the list.
    ///
    /// # Errors
    /// [`BlockError::Kernel`]; the list is unchanged then.
    pub fn remove(&mut self, feed: usize, entry: &Entry) -> Result<bool, BlockError> {
        let kind = Kind::of(entry);
        if !self.lists[feed].remove(entry) {
            return Ok(false);
        }
        self.show(feed, entry);
        if let Err(error) = self.maps[kind as usize].delete(&key(feed, entry)) {
            self.lists[feed].add(*entry).expect("there was room for it");
            self.show(feed, entry);
            return Err(BlockError::Kernel(error));
        }
        self.held[kind as usize] -= 1;
        Ok(true)
    }

    /// Changes a feed's list to `wanted`. Entries that are in both lists block without interruption. A frame that an
    /// old and a new entry block stays blocked, too, if there is space for both lists at once.
    ///
    /// # Errors
    /// [`BlockError`]; the list is partly changed then: it contains all entries that are in both lists, and may contain
    /// entries that are in only one of them.
    pub fn set(&mut self, feed: usize, wanted: &BlockList) -> Result<(), BlockError> {
        let has = |list: &BlockList, entry: &&Entry| list.has(entry);
        let list = &self.lists[feed];
        let old: Vec<Entry> = list.iter().filter(|entry| !has(wanted, entry)).copied().collect();
        let new: Vec<Entry> = wanted.iter().filter(|entry| !has(list, entry)).copied().collect();
        let mut old = old.iter();
        for entry in new {
            if self.lists[feed].len() == ENTRIES_MAX {
                let leaves = old.next().expect("the wanted list is not larger than a list can be");
                self.remove(feed, leaves)?;
            }
            self.add(feed, entry)?;
        }
        for entry in old {
            self.remove(feed, entry)?;
        }
        Ok(())
    }

    /// Copies the bits of the entry from the list's front to the kernel's front.
    fn show(&self, feed: usize, entry: &Entry) {
        let (words, from) = (self.words.words(), self.lists[feed].front_words());
        for word in touched_words(entry) {
            // In `add`, programs must see this store after the change of the map. They do: the system call that changes
            // the map comes first, and programs load the word before they look up the map.
            words[feed * FRONT_WORDS + word].store(from[word], Ordering::Release);
        }
    }
}

fn create(
    ty: MapType,
    name: &str,
    [key_bytes, value_bytes]: [u32; 2],
    entries: usize,
    flags: u32,
) -> Result<MapHandle, CaptureError> {
    let options = map_options(flags);
    let map = MapHandle::create(ty, Some(name), key_bytes, value_bytes, entries as u32, &options);
    map.map_err(refused("the maps of the block lists"))
}

/// Returns the entry's key in its map.
fn key(feed: usize, entry: &Entry) -> Vec<u8> {
    match entry {
        Entry::Address(address) => address_key(feed, *address),
        Entry::Flow(flow) => flow_key(feed, flow),
        Entry::Prefix(prefix) => {
            // An address has 16 bytes in the key; an IPv4 address is in the last 4.
            let before = 32 + if prefix.base().is_ipv4() { 96 } else { 0 };
            let mut key = (before + u32::from(prefix.bits())).to_ne_bytes().to_vec();
            key.extend((feed as u16).to_ne_bytes());
            key.extend(version(prefix.base()).to_ne_bytes());
            key.extend(mapped(prefix.base()));
            key
        }
    }
}

/// Returns a `struct weir_blocklist_address`.
fn address_key(feed: usize, address: IpAddr) -> Vec<u8> {
    let mut key = mapped(address).to_vec();
    key.extend((feed as u32).to_ne_bytes());
    key.extend(u32::from(version(address)).to_ne_bytes());
    key
}

/// Returns a `struct weir_blocklist_flow`.
fn flow_key(feed: usize, flow: &Flow) -> Vec<u8> {
    let flow = flow.key();
    let (low, high): (IpAddr, IpAddr) = match flow.addresses {
        Addresses::V4 { src, dst } => (src.into(), dst.into()),
        Addresses::V6 { src, dst } => (src.into(), dst.into()),
    };
    let mut key = [mapped(low), mapped(high)].concat();
    key.extend(flow.src_port.to_ne_bytes());
    key.extend(flow.dst_port.to_ne_bytes());
    key.extend([flow.protocol, version(low) as u8]);
    key.extend((feed as u16).to_ne_bytes());
    key
}

const fn version(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 6,
    }
}

/// Returns the address as in the kernel's keys: IPv4 as `::ffff:a.b.c.d`.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the list numbers of the places of a new source: the numbers of the places. A feed that moves to another
/// place keeps its list number.
pub(super) fn first_lists(places: usize) -> Vec<u32> {
    (0..places as u32).collect()
}

#[cfg(test)]
mod tests {
    use weir_lab::testbed::require_root;

    use super::*;

    const ROOM: usize = 4;

    fn entry(text: &str) -> Entry {
        text.parse().expect("an entry")
    }

    /// Two feeds. The list of the first has as many addresses as the map can hold.
    fn full() -> (Blocks, Entry) {
        let mut blocks = Blocks::with_room(2, ROOM).expect("maps");
        for n in 0..ROOM {
            assert!(blocks.add(0, entry(&format!("10.0.0.{n}"))).expect("room"));
        }
        (blocks, entry("10.0.0.99"))
    }

    /// The words of a feed's front, as the programs read them.
    fn seen(blocks: &Blocks, feed: usize) -> Vec<u64> {
        let words = &blocks.words.words()[feed * FRONT_WORDS..][..FRONT_WORDS];
        words.iter().map(|word| word.load(Ordering::Acquire)).collect()
    }

    #[test]
    fn root_lists_of_all_feeds_share_their_room_kind_by_kind() {
        if !require_root("root_lists_of_all_feeds_share_their_room_kind_by_kind") {
            return;
        }
        let (mut blocks, one_more) = full();
        let error = blocks.add(1, one_more).expect_err("no room");
        assert!(matches!(error, BlockError::SourceFull { max: ROOM, .. }), "{error:?}");
        assert!(error.to_string().contains("4 addresses"), "{error}");
        assert!(blocks.list(1).is_empty() && seen(&blocks, 1).iter().all(|word| *word == 0));
        // The maps of other kinds are not full. An entry that is in the list already needs no space, and
        // removing an entry frees its space.
        assert!(blocks.add(1, entry("10.0.0.0/24")).expect("a prefix"));
        assert!(!blocks.add(0, entry("10.0.0.1")).expect("it is there"));
        assert!(blocks.remove(0, &entry("10.0.0.1")).expect("it goes"));
        assert!(blocks.add(1, one_more).expect("its room"));
    }

    #[test]
    fn root_what_the_kernel_refuses_changes_nothing() {
        if !require_root("root_what_the_kernel_refuses_changes_nothing") {
            return;
        }
        let (mut blocks, one_more) = full();
        let before = seen(&blocks, 0);
        // The map itself is limited to the size with which it was made.
        blocks.room += 1;
        let error = blocks.add(0, one_more).expect_err("the kernel has no room");
        assert!(matches!(error, BlockError::Kernel(_)), "{error:?}");
        assert_eq!((blocks.list(0).len(), seen(&blocks, 0)), (ROOM, before.clone()));
        // An entry that is missing in the map cannot be removed, and stays on the list.
        let gone = entry("10.0.0.2");
        blocks.maps[Kind::Addresses as usize].delete(&key(0, &gone)).expect("it was there");
        let error = blocks.remove(0, &gone).expect_err("it is not there");
        assert!(matches!(error, BlockError::Kernel(_)), "{error:?}");
        assert!(blocks.list(0).has(&gone));
        assert_eq!(seen(&blocks, 0), before);
    }
}
