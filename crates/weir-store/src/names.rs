//! Names of addresses, which files say in name resolution blocks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::AddressName;

use crate::limits::NAMES_MAX;

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

    /// Those behind the first `known`.
    pub(crate) fn since(&self, known: usize) -> Vec<AddressName> {
        self.lock().in_order.get(known..).unwrap_or_default().to_vec()
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
        assert_eq!((names.count(), names.since(0)), (3, vec![name(2), name(1), name(3)]));
        assert_eq!(names.since(2), [name(3)]);
        assert_eq!(names.since(9), []);
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let names = Names::default();
        names.learn((0..NAMES_MAX as u32 + 10).map(name));
        assert_eq!(names.count(), NAMES_MAX);
    }
}
