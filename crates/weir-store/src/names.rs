//! Names of addresses, which are written to files in name resolution blocks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::{AddressName, write};

use crate::limits::{NAMES_MAX, NAMES_SHARE};

/// Bytes of a name resolution block without names.
const BLOCK_BYTES: u64 = 16;
/// Most bytes of a name besides its text: its header, an IPv6 address, the NUL and the padding, and a share of a
/// further block.
const NAME_BYTES: u64 = 4 + 16 + 4 + 1;

/// Names of addresses, in the order in which they become known. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicUsize,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    in_order: Vec<AddressName>,
    known: BTreeSet<AddressName>,
}

impl Names {
    /// Adds names. Known names, and names beyond [`NAMES_MAX`], are ignored.
    pub fn learn(&self, names: impl IntoIterator<Item = AddressName>) {
        let mut all = self.lock();
        for name in names {
            if all.in_order.len() < NAMES_MAX && all.known.insert(name.clone()) {
                all.in_order.push(name);
            }
        }
        self.0.count.store(all.in_order.len(), Ordering::Release);
    }

    /// Returns the number of names, which has grown if there are new names to write.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Returns the names after the first `known`, as many as take at most `bytes_max` bytes in a file.
    pub(crate) fn since(&self, known: usize, bytes_max: u64) -> Vec<AddressName> {
        let all = self.lock();
        let new = all.in_order.get(known..).unwrap_or_default();
        let mut bytes = BLOCK_BYTES;
        let fits = |name: &&AddressName| {
            bytes += NAME_BYTES + name.name.len() as u64;
            bytes <= bytes_max
        };
        new.iter().take_while(fits).cloned().collect()
    }

    /// Locks the data, which is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of names that a file has, and the bytes that further names may take in it.
#[derive(Debug)]
pub(crate) struct WrittenNames {
    names: usize,
    bytes_left: u64,
    /// The length of each write is a multiple of this.
    unit: u64,
}

impl WrittenNames {
    /// Returns the state of a file without names. The file may have `bytes_max` bytes, of which names may take 1 /
    /// [`NAMES_SHARE`].
    pub fn nothing(bytes_max: u64, unit: u64) -> WrittenNames {
        let bytes_left = if bytes_max == u64::MAX { u64::MAX } else { bytes_max / NAMES_SHARE };
        WrittenNames { names: 0, bytes_left, unit }
    }

    /// Returns whether there are names that the file does not have, and space for names.
    #[inline]
    pub fn is_behind(&self, names: &Names) -> bool {
        names.count() > self.names && self.bytes_left > 0
    }

    /// Appends blocks with the new names, at most `room` bytes. Returns whether all new names were appended.
    pub fn append_new(&mut self, names: &Names, room: u64, blocks: &mut Vec<u8>) -> bool {
        let known = names.count();
        let new = names.since(self.names, room.min(self.bytes_left));
        self.names += new.len();
        let before = blocks.len();
        write::names(blocks, &new);
        let taken = (blocks.len() - before) as u64;
        self.bytes_left = self.bytes_left.saturating_sub(taken.next_multiple_of(self.unit));
        self.names >= known
    }

    /// Ends the names of this file: no more names are written to it.
    pub fn end(&mut self) {
        self.bytes_left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> AddressName {
        AddressName { address: std::net::Ipv4Addr::from_bits(number).into(), name: "web".into() }
    }

    #[test]
    fn each_name_is_told_once_and_in_order() {
        let names = Names::default();
        names.learn([name(2), name(1), name(2)]);
        names.clone().learn([name(1), name(3)]);
        assert_eq!((names.count(), names.since(0, u64::MAX)), (3, vec![name(2), name(1), name(3)]));
        assert_eq!(names.since(2, u64::MAX), [name(3)]);
        assert_eq!(names.since(9, u64::MAX), []);
    }

    #[test]
    fn as_many_are_given_as_there_is_room_for() {
        let names = Names::default();
        let v6 = |number: u32| AddressName {
            address: std::net::Ipv6Addr::from_bits(number.into()).into(),
            name: "n".repeat(number as usize % 7),
        };
        names.learn((0..500).map(v6));
        for bytes_max in [0, 16, 41, 42, 43, 100, 5_000, 12_000, u64::MAX] {
            let mut block = Vec::new();
            let given = names.since(0, bytes_max);
            weir_frame::pcapng::write::names(&mut block, &given);
            assert!(block.len() as u64 <= bytes_max, "{}, {bytes_max}", block.len());
            assert_eq!(given.is_empty(), bytes_max < 41, "{bytes_max}");
        }
    }

    #[test]
    fn names_get_a_quarter_of_a_file_in_whole_pages_and_what_has_no_room_may_come_later() {
        let names = Names::default();
        names.learn((0..NAMES_MAX as u32).map(name));
        for (bytes_max, unit) in [(1 << 20, 1), (1 << 20, 4096), (u64::MAX, 4096)] {
            let (mut told, mut blocks, mut pages) =
                (WrittenNames::nothing(bytes_max, unit), Vec::new(), 0);
            assert!(!told.append_new(&names, 10, &mut blocks));
            assert!(blocks.is_empty() && told.is_behind(&names));
            for _ in 0..1000 {
                let before = blocks.len();
                told.append_new(&names, 2000, &mut blocks);
                let taken = (blocks.len() - before) as u64;
                assert!(taken <= 2000, "{taken}");
                pages += taken.next_multiple_of(unit);
            }
            assert!(pages <= (bytes_max / NAMES_SHARE).next_multiple_of(unit), "{pages}");
            assert_eq!(told.names == NAMES_MAX, bytes_max == u64::MAX || unit == 1);
            told.end();
            assert!(!told.is_behind(&names));
        }
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let names = Names::default();
        names.learn((0..NAMES_MAX as u32 + 10).map(name));
        assert_eq!(names.count(), NAMES_MAX);
    }
}
