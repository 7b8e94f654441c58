//! The names of addresses in all files, each only once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::AddressName;

use crate::limits::NAMES_MAX;

/// The number of a file, and of a name in the file.
type Place = (usize, usize);

/// Names that were found, each with its last place, because Wireshark shows the last name of an address that it reads.
/// The last [`NAMES_MAX`] are kept.
#[derive(Debug, Default)]
pub(super) struct FoundNames(Mutex<BTreeMap<AddressName, Place>>);

impl FoundNames {
    /// Adds the names of a file, in their order. If there are too many names, the first ones are removed.
    pub fn add(&self, file: usize, names: Vec<AddressName>) {
        let mut all = self.lock();
        for (number, name) in names.into_iter().enumerate() {
            let place = all.entry(name).or_default();
            *place = (file, number).max(*place);
            if all.len() >= 2 * NAMES_MAX {
                forget_first(&mut all);
            }
        }
    }

    /// Returns all names, in the order of files and of their places in the files.
    pub fn in_order(&self) -> Vec<AddressName> {
        let mut all = self.lock();
        forget_first(&mut all);
        let mut in_order: Vec<(Place, AddressName)> =
            all.iter().map(|(name, place)| (*place, name.clone())).collect();
        in_order.sort();
        in_order.into_iter().map(|(_, name)| name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AddressName, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes all but the last [`NAMES_MAX`] names. The order in which files are read does not matter: a removed name that
/// is found again at a later place gets that place, as if it had not been removed.
fn forget_first(all: &mut BTreeMap<AddressName, Place>) {
    let Some(too_many) = all.len().checked_sub(NAMES_MAX + 1) else { return };
    let mut places: Vec<Place> = all.values().copied().collect();
    let (_, last, _) = places.select_nth_unstable(too_many);
    let last = *last;
    all.retain(|_, place| *place > last);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32, name: &str) -> AddressName {
        AddressName { address: std::net::Ipv4Addr::from_bits(number).into(), name: name.into() }
    }

    #[test]
    fn each_name_stands_once_where_it_was_last() {
        let names = FoundNames::default();
        names.add(2, vec![name(1, "new"), name(2, "db")]);
        names.add(0, vec![name(1, "old"), name(3, "web"), name(2, "db"), name(3, "web")]);
        names.add(1, vec![name(3, "web")]);
        let wanted = [name(1, "old"), name(3, "web"), name(1, "new"), name(2, "db")];
        assert_eq!(names.in_order(), wanted);
    }

    #[test]
    fn the_last_ones_are_kept_in_whatever_order_files_are_read() {
        let files = 5;
        let of = |file: usize| {
            let first = file as u32 * 10_000;
            (first..first + 20_000).map(|number| name(number, "n")).collect::<Vec<_>>()
        };
        let by = |order: &[usize]| {
            let names = FoundNames::default();
            order.iter().for_each(|file| names.add(*file, of(*file)));
            names.in_order()
        };
        let wanted: Vec<AddressName> = of(files - 1).split_off(20_000 - NAMES_MAX);
        assert_eq!(by(&[0, 1, 2, 3, 4]), wanted);
        assert_eq!(by(&[4, 2, 0, 3, 1]), wanted);
    }
}
