//! The interfaces of a source by pattern: their numbers, and their shares of what the hook did.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_ring::{Ledger, Mapping, Ring, Words, header};

use super::super::control::Came;
use super::super::program::{MemberMaps, Programs};
use super::super::shared::{Served, Shared, State};
use super::counts::{Counts, Share};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::interfaces::{InterfaceLedger, Interfaces, Known};

/// What a source has for its interfaces.
pub(in crate::engines::bpf) struct Several {
    pub(in crate::engines::bpf) interfaces: Interfaces,
    pub(in crate::engines::bpf) counts: Counts,
    /// Numbers, by the kernel's index.
    members: MapHandle,
    /// What the interfaces themselves say they lost, by number.
    missed: Mutex<Vec<Option<u64>>>,
}

impl Several {
    pub(in crate::engines::bpf) fn new(
        pattern: String,
        maps: MemberMaps,
        cpus: usize,
        places: usize,
    ) -> Result<Several, CaptureError> {
        Ok(Several {
            interfaces: Interfaces::new(pattern),
            counts: Counts::map(&maps, cpus, places)?,
            members: maps.members,
            missed: Mutex::default(),
        })
    }

    /// Gives an interface that joins its number, in all rings, which describe it when this returns.
    ///
    /// # Errors
    /// There have been too many, or a ring has no room for one more description.
    pub(super) fn number(
        &self,
        shared: &Shared,
        state: &State,
        name: &str,
    ) -> Result<u32, CaptureError> {
        let served = shared.served();
        let taken = || {
            let places = state.places.iter().zip(&served.places).enumerate();
            places.filter_map(|(at, (feed, place))| Some((at, feed.as_ref()?, &place.rings)))
        };
        self.interfaces.join(name, || {
            // First whether all have room: the number must be the same in each.
            for (_, feed, rings) in taken() {
                let described = self.interfaces.describe(&feed.interface, name);
                header::append(rings[0].memory().words(), &described)?;
            }
            for (place, feed, rings) in taken() {
                let described = self.interfaces.describe(&feed.interface, name);
                state.programs.append_interface(place * shared.cpus, rings, &described)?;
            }
            Ok(())
        })
    }

    /// Has the rings of a feed that joins describe the interfaces so far. None joins meanwhile: the caller has the lock
    /// of the state.
    pub(in crate::engines::bpf) fn describe_all(
        &self,
        programs: &Programs,
        first: usize,
        rings: &[Ring<Mapping>],
        feed: &Feed,
    ) -> Result<(), CaptureError> {
        for known in self.interfaces.known() {
            let described = self.interfaces.describe(&feed.interface, &known.name);
            programs.append_interface(first, rings, &described)?;
        }
        Ok(())
    }

    /// From here on the programs take frames of this interface, under this number.
    pub(super) fn insert(&self, ifindex: u32, number: u32) -> Result<(), CaptureError> {
        let (key, value) = (ifindex.to_ne_bytes(), number.to_ne_bytes());
        self.members.update(&key, &value, MapFlags::ANY).map_err(refused)
    }

    /// From here on, no more. Programs that run may write a frame yet.
    pub(super) fn remove(&self, ifindex: u32) {
        // It is there, or was never put there.
        let _ = self.members.delete(&ifindex.to_ne_bytes());
    }

    /// Takes over what an interface says that it lost; gives what all of them do, `None` if nobody can tell.
    pub(super) fn set_missed(&self, of: impl Iterator<Item = (u32, Option<u64>)>) -> Option<u64> {
        let mut missed = self.missed();
        for (number, frames) in of {
            let at = number as usize;
            if missed.len() <= at {
                missed.resize(at + 1, None);
            }
            missed[at] = frames;
        }
        missed.iter().flatten().copied().reduce(|a, b| a + b)
    }

    /// The shares of the interfaces in the ledger of the feed in this place.
    pub(in crate::engines::bpf) fn ledgers(
        &self,
        shared: &Shared,
        served: &Served,
        place: usize,
    ) -> Vec<InterfaceLedger> {
        let of = &served.places[place].interface;
        let missed = self.missed().clone();
        let one = |(id, Known { name, is_member }): (u32, Known)| {
            let number = id as usize;
            // Read before the counts of what became of these frames.
            let Came { judged, reentry } = served.generations.came(place, number, shared);
            let share = |share| self.counts.share(place, number, share);
            let drops = [("reentry", reentry), ("unreadable", share(Share::Unreadable))];
            let ledger = Ledger {
                offered: judged + reentry,
                filtered: judged.saturating_sub(share(Share::Chosen)),
                blocked: share(Share::Blocked),
                sampled: share(Share::Sampled),
                captured: share(Share::Captured),
                kept_bytes: share(Share::KeptBytes),
                wire_bytes: share(Share::WireBytes),
                super_frames: share(Share::SuperFrames),
                missed_before: missed.get(number).copied().flatten(),
                drops: drops.into(),
                ..Ledger::default()
            };
            InterfaceLedger {
                id,
                name: self.interfaces.describe(of, &name).name,
                is_member,
                ledger,
            }
        };
        (1..).zip(self.interfaces.known()).map(one).collect()
    }

    /// Plain numbers: whole whoever panicked while holding it.
    fn missed(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(source: libbpf_rs::Error) -> CaptureError {
    CaptureError::Bpf { what: "adding an interface".into(), source }
}
