//! For a source that captures by pattern: adds an interface to all rings, and returns a feed's ledgers by interface.

use weir_ring::{Ledger, Words, header};

use super::{HookPlace, Served, Shared, State};
use crate::engines::bpf::control::Came;
use crate::engines::bpf::members::{Members, Share};
use crate::error::CaptureError;
use crate::feed::interfaces::{InterfaceLedger, Known, missed_since};
use crate::kernel::netns::Owner;

impl Shared {
    /// Returns the interfaces of a source that captures by pattern.
    ///
    /// # Panics
    /// If the source was opened for one interface.
    pub(in crate::engines::bpf) fn members(&self) -> &Members {
        self.members.as_ref().expect("opened for several interfaces")
    }

    /// Adds an interface to all rings, and returns its number, which is the same in all of them.
    ///
    /// # Errors
    /// Too many interfaces, or a ring has no space for another description.
    pub(in crate::engines::bpf) fn join_interface(
        &self,
        state: &State,
        name: &str,
        owner: Option<&Owner>,
    ) -> Result<u32, CaptureError> {
        let interfaces = &self.members().interfaces;
        // The caller holds the lock of the state, so that no other interface joins meanwhile.
        let number = interfaces.count() as u32 + 1;
        let served = self.served();
        let taken = || {
            let places = state.places.iter().zip(&served.places).enumerate();
            places.filter_map(|(at, (feed, place))| Some((at, feed.as_ref()?, &place.rings)))
        };
        interfaces.join(name, owner, |owner| {
            // First check that all rings have space for the description: the number must be the same in each ring.
            for (_, feed, rings) in taken() {
                let described = interfaces.describe(&feed.interface, name, owner);
                if header::append(rings[0].memory().words(), &described)?.id != number {
                    return Err(CaptureError::Options(format!(
                        "the rings number their interfaces differently since one could not join; start the capture \
                         again to have {name} in it"
                    )));
                }
            }
            for (place, feed, rings) in taken() {
                let described = interfaces.describe(&feed.interface, name, owner);
                state.programs.append_interface(place * self.cpus, rings, &described)?;
            }
            Ok(())
        })
    }

    /// Returns the ledgers of the feed in this place, by interface. Empty if the source was opened for one interface.
    pub(in crate::engines::bpf) fn interface_ledgers(
        &self,
        served: &Served,
        place: usize,
    ) -> Vec<InterfaceLedger> {
        let Some(members) = &self.members else { return Vec::new() };
        let HookPlace { interface: of, missed_by_interface, .. } = &served.places[place];
        let missed = members.missed().clone();
        let one = |(id, Known { name, owner, is_member, .. }): (u32, Known)| {
            let number = id as usize;
            let of_number = |all: &[Option<u64>]| all.get(number).copied().flatten();
            // Read before the counts of the frames that were filtered, blocked, sampled and captured.
            let Came { judged, reentry } = served.generations.came(place, number, self);
            let share = |share| members.counts.share(place, number, share);
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
                missed_before: missed_since(of_number(&missed), of_number(missed_by_interface)),
                drops: drops.into(),
                ..Ledger::default()
            };
            InterfaceLedger {
                id,
                name: members.interfaces.describe(of, &name, None).name,
                owner,
                is_member,
                ledger,
            }
        };
        let all = (1..).zip(members.interfaces.known()).map(one).collect();
        members.interfaces.join_ledgers(all)
    }
}
