//! The feeds of a source with several interfaces: their rings describe all of them, in the same order.

use weir_frame::pcapng::Interface;
use weir_ring::{Clock, Ledger, Words, header};

use super::super::fanout::{BranchCounts, Fanout};
use super::{Admit, Entry, Feeds, Shared};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedSlot;
use crate::feed::interfaces::{Column, InterfaceLedger, Interfaces, Known};
use crate::limits::PATTERN_INTERFACES_MAX;
use crate::setup::Setup;

impl Feeds {
    /// [`create_one`](Feeds::create_one) for a source of several interfaces, of which none is there yet.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_of(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
        interfaces: Interfaces,
    ) -> Result<(Feeds, Fanout), CaptureError> {
        let slots: Vec<FeedSlot> = FeedSlot::all().take(setup.feeds.len()).collect();
        let with = (admit, Some(interfaces));
        let (feeds, mut fanouts) = Feeds::create_with(&slots, setup, 1, clock, with, false)?;
        Ok((feeds, fanouts.pop().expect("one was asked for")))
    }

    /// An interface joins: gives its number in all rings, which describe it when this returns. One that was there
    /// before has its old number.
    ///
    /// # Errors
    /// There have been too many, or a ring has no room for one more description; then no ring has it.
    pub(crate) fn add_interface(&self, name: &str) -> Result<u32, CaptureError> {
        let interfaces = self.shared.several();
        let entries = self.shared.entries();
        let mut known = interfaces.lock();
        if let Some(at) = known.iter().position(|known| known.name == name) {
            known[at].is_member = true;
            return Ok(at as u32 + 1);
        }
        if known.len() >= PATTERN_INTERFACES_MAX as usize {
            return Err(CaptureError::Options(format!(
                "a source has named {PATTERN_INTERFACES_MAX} interfaces at most; begin another capture for more"
            )));
        }
        let described = |entry: &Entry| interfaces.describe(&entry.feed.interface, name);
        let rings = || entries.iter().flat_map(|entry| entry.rings.iter().map(move |r| (entry, r)));
        // First whether all have room: the number must be the same in each.
        for (entry, ring) in rings() {
            header::append(ring.memory().words(), &described(entry))?;
        }
        for (entry, ring) in rings() {
            ring.append_interface(&described(entry))?;
        }
        known.push(Known { name: name.to_owned(), is_member: true });
        Ok(known.len() as u32)
    }

    /// An interface has left; its number stays its own.
    pub(crate) fn remove_interface(&self, number: u32) {
        let mut known = self.shared.several().lock();
        if let Some(known) = known.get_mut(number as usize - 1) {
            known.is_member = false;
        }
    }
}

impl Shared {
    fn several(&self) -> &Interfaces {
        self.interfaces.as_ref().expect("a source that was made for several interfaces")
    }

    pub(super) fn new_counts(&self) -> BranchCounts {
        match self.interfaces {
            Some(_) => BranchCounts::by_interface(),
            None => BranchCounts::default(),
        }
    }

    /// By number, that of the source included: what did not come to a fan-out because no feed wanted it.
    pub(super) fn unwanted_by_interface(&self) -> Result<Vec<u64>, CaptureError> {
        let Some(interfaces) = &self.interfaces else { return Ok(Vec::new()) };
        let numbers = 1..=interfaces.lock().len() as u32;
        let unwanted = numbers.map(|number| Ok(interfaces.counts.of(number)?.unwanted));
        std::iter::once(Ok(0)).chain(unwanted).collect()
    }

    /// The interfaces so far, as the rings of a feed describe them.
    pub(super) fn described(&self, feed: &Feed) -> Vec<Interface> {
        let Some(interfaces) = &self.interfaces else { return Vec::new() };
        let known = interfaces.lock();
        known.iter().map(|known| interfaces.describe(&feed.interface, &known.name)).collect()
    }

    /// Has the rings of a feed that joins describe the interfaces that have joined since they were made. No other joins
    /// meanwhile: the caller has the lock of the entries.
    pub(super) fn describe_interfaces(&self, entry: &Entry) -> Result<(), CaptureError> {
        let described = self.described(&entry.feed);
        for ring in &entry.rings {
            // The first one is the source itself.
            for interface in described.iter().skip(ring.interfaces().saturating_sub(1) as usize) {
                ring.append_interface(interface)?;
            }
        }
        Ok(())
    }

    pub(super) fn interface_ledgers(
        &self,
        feed: FeedSlot,
    ) -> Result<Vec<InterfaceLedger>, CaptureError> {
        let entry = self.entries().iter().find(|entry| entry.slot == feed).cloned();
        let entry = entry.ok_or(CaptureError::NoFeed)?;
        let Some(interfaces) = &self.interfaces else { return Ok(Vec::new()) };
        let known = interfaces.lock().clone();
        let one = |(number, known): (u32, &Known)| {
            let count = interfaces.counts.of(number)?;
            let unwanted_before = entry.unwanted_before.get(number as usize).copied().unwrap_or(0);
            let unwanted = count.unwanted.saturating_sub(unwanted_before);
            let sum = |column| {
                let tallies = entry.counts.iter().filter_map(|own| own.by_interface.as_ref());
                tallies.map(|tally| tally.get(number, column)).sum::<u64>()
            };
            let before = sum(Column::Seen) + unwanted_before;
            let ledger = Ledger {
                offered: count.offered.saturating_sub(before),
                filtered: unwanted + sum(Column::Filtered),
                blocked: sum(Column::Blocked),
                sampled: sum(Column::Sampled),
                captured: sum(Column::Captured),
                kept_bytes: sum(Column::KeptBytes),
                wire_bytes: sum(Column::WireBytes),
                super_frames: sum(Column::SuperFrames),
                missed_before: count.missed_before,
                ..Ledger::default()
            };
            let name = interfaces.describe(&entry.feed.interface, &known.name).name;
            Ok(InterfaceLedger { id: number, name, is_member: known.is_member, ledger })
        };
        (1..).zip(&known).map(one).collect()
    }
}
