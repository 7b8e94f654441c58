//! Names of addresses, which files say in name resolution blocks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::AddressName;

use crate::limits::NAMES_MAX;

/// Bytes of a name resolution block without names.
const BLOCK_BYTES: u64 = 16;
/// Bytes of a name beside its text at most: its head, an IPv6 address, the NUL and the padding, and its share of a
/// further block.
const NAME_BYTES: u64 = 4 + 16 + 4 + 1;

/// Names of addresses as they become known. Clones share them.
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
    /// Learns names; those that are known, and those beyond [`NAMES_MAX`], change nothing.
    pub fn learn(&self, names: impl IntoIterator<Item = AddressName>) {
        let mut all = self.lock();
        for name in names {
            if all.in_order.len() < NAMES_MAX && all.known.insert(name.clone()) {
                all.in_order.push(name);
            }
        }
        self.0.count.store(all.in_order.len(), Ordering::Release);
    }

    /// How many there are: more than before if there is something to write.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Those behind the first `known`, as far as they take so many bytes of a file at most.
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

    /// Whole whoever panicked while holding it.
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn so_many_are_kept_and_no_more() {
        let names = Names::default();
        names.learn((0..NAMES_MAX as u32 + 10).map(name));
        assert_eq!(names.count(), NAMES_MAX);
    }
}
