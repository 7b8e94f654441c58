//! The feeds of a source with several interfaces. Their rings describe all interfaces, in the same order.

use weir_frame::pcapng::Interface;
use weir_ring::{Clock, Ledger, Words, header};

use super::super::fanout::{BranchCounts, Fanout};
use super::{Admit, Entry, Feeds, RingUse, Shared};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedSlot;
use crate::feed::interfaces::{
    Column, EngineCount, EngineCounts, InterfaceLedger, Interfaces, Known, missed_since,
};
use crate::kernel::netns::Owner;
use crate::setup::Setup;

/// The interfaces of a source that has several, and the engine's counts of each.
pub(super) struct Several {
    interfaces: Interfaces,
    counts: Box<dyn EngineCounts>,
}

impl Feeds {
    /// Does the same as [`create_one`](Feeds::create_one) for a source with several interfaces, none of which has
    /// joined yet.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_of(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
        (interfaces, counts): (Interfaces, Box<dyn EngineCounts>),
    ) -> Result<(Feeds, Fanout), CaptureError> {
        let slots: Vec<FeedSlot> = FeedSlot::all().take(setup.feeds.len()).collect();
        let with = (admit, Some(Several { interfaces, counts }));
        let (feeds, mut fanouts) =
            Feeds::create_with(&slots, setup, 1, clock, with, RingUse::default())?;
        Ok((feeds, fanouts.pop().expect("one was asked for")))
    }

    /// Adds an interface to all rings, and returns its number, which is the same in all of them. An
    /// interface that was there before gets its old number.
    ///
    /// # Errors
    /// Too many interfaces, or a ring has no space for another description. No ring has changed then.
    pub(crate) fn add_interface(
        &self,
        name: &str,
        owner: Option<&Owner>,
    ) -> Result<u32, CaptureError> {
        let interfaces = &self.shared.several().interfaces;
        let entries = self.shared.entries();
        let rings = || entries.iter().flat_map(|entry| entry.rings.iter().map(move |r| (entry, r)));
        interfaces.join(name, owner, |owner| {
            let described = |entry: &Entry| interfaces.describe(&entry.feed.interface, name, owner);
            // First check that all rings have space, since the number must be the same in each.
            for (entry, ring) in rings() {
                header::append(ring.memory().words(), &described(entry))?;
            }
            for (entry, ring) in rings() {
                ring.append_interface(&described(entry))?;
            }
            Ok(())
        })
    }

    /// Returns whether an interface may get another number when its owner is found.
    pub(crate) fn may_continue(&self) -> bool {
        self.shared.several().interfaces.may_continue()
    }

    /// Gives the frames of an interface another number from now on.
    pub(crate) fn continue_as(&self, old: u32, new: u32) {
        self.shared.several().interfaces.continue_as(old, new);
    }

    /// Marks an interface as removed. Its number is not reused.
    pub(crate) fn remove_interface(&self, number: u32) {
        self.shared.several().interfaces.leave(number);
    }
}

impl Shared {
    fn several(&self) -> &Several {
        self.interfaces.as_ref().expect("a source that was made for several interfaces")
    }

    pub(super) fn new_counts(&self) -> BranchCounts {
        match self.interfaces {
            Some(_) => BranchCounts::by_interface(),
            None => BranchCounts::default(),
        }
    }

    /// Returns the engine's counts, indexed by interface number. Number 0 is the source itself.
    pub(super) fn counts_by_interface(&self) -> Result<Vec<EngineCount>, CaptureError> {
        let Some(several) = &self.interfaces else { return Ok(Vec::new()) };
        let numbers = 1..=several.interfaces.count() as u32;
        let counts = numbers.map(|number| several.counts.of(number));
        std::iter::once(Ok(EngineCount::default())).chain(counts).collect()
    }

    /// Returns the descriptions of all interfaces so far, for the rings of a feed.
    pub(super) fn described(&self, feed: &Feed) -> Vec<Interface> {
        let Some(Several { interfaces, .. }) = &self.interfaces else { return Vec::new() };
        let known = interfaces.known();
        let of = |Known { name, owner, .. }: &Known| {
            interfaces.describe(&feed.interface, name, owner.as_ref())
        };
        known.iter().map(of).collect()
    }

    /// Adds to the rings of a new feed the interfaces that have joined since the rings were made. The
    /// caller holds the lock of the entries, so that no interface joins meanwhile.
    pub(super) fn describe_interfaces(&self, entry: &Entry) -> Result<(), CaptureError> {
        let described = self.described(&entry.feed);
        for ring in &entry.rings {
            // The first interface of a ring is the source itself.
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
        let Some(Several { interfaces, counts }) = &self.interfaces else { return Ok(Vec::new()) };
        let known = interfaces.known();
        let one = |(number, known): (u32, &Known)| {
            let count = counts.of(number)?;
            let then = entry.interfaces_before.get(number as usize).copied().unwrap_or_default();
            let unwanted = count.unwanted.saturating_sub(then.unwanted);
            let sum = |column| {
                let tallies = entry.counts.iter().filter_map(|own| own.by_interface.as_ref());
                tallies.map(|tally| tally.get(number, column)).sum::<u64>()
            };
            // Until a fan-out has taken over the feed, all frames that came to the fan-out came before the feed joined.
            let fanouts = entry.counts.iter().zip(&self.seen_by_interface);
            let seen_before =
                fanouts.map(|(own, all)| match (own.joined_at(), &own.by_interface) {
                    (Some(_), Some(own)) => own.get(number, Column::Seen),
                    _ => all.get(number, Column::Seen),
                });
            let before = seen_before.sum::<u64>() + then.unwanted;
            let ledger = Ledger {
                offered: count.offered.saturating_sub(before),
                filtered: unwanted + sum(Column::Filtered),
                blocked: sum(Column::Blocked),
                sampled: sum(Column::Sampled),
                captured: sum(Column::Captured),
                kept_bytes: sum(Column::KeptBytes),
                wire_bytes: sum(Column::WireBytes),
                super_frames: sum(Column::SuperFrames),
                missed_before: missed_since(count.missed_before, then.missed_before),
                ..Ledger::default()
            };
            let name = interfaces.describe(&entry.feed.interface, &known.name, None).name;
            let Known { owner, is_member, .. } = known.clone();
            Ok(InterfaceLedger { id: number, name, owner, is_member, ledger })
        };
        let all: Result<Vec<_>, CaptureError> = (1..).zip(&known).map(one).collect();
        Ok(interfaces.join_ledgers(all?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::control::{FeedControl, FeedHandle};
    use crate::limits::PATTERN_INTERFACES_MAX;
    use std::sync::atomic::{AtomicU64, Ordering};
    use weir_frame::record::Meta;

    /// An engine that has offered ten frames of each interface. Of interface number N, it rejected N frames
    /// that no feed wanted. Each reading reports one more missed frame.
    #[derive(Default)]
    struct Ten(AtomicU64);

    impl EngineCounts for Ten {
        fn of(&self, interface: u32) -> Result<EngineCount, CaptureError> {
            let unwanted = interface.into();
            let missed_before = Some(self.0.fetch_add(1, Ordering::Relaxed));
            Ok(EngineCount { offered: 10, unwanted, missed_before })
        }
    }

    fn feed(description: &str) -> Feed {
        let description = Some(description.to_owned());
        let interface = Interface { name: "v*".into(), description, ..Interface::default() };
        Feed { interface, ..Feed::default() }
    }

    fn feeds(of: Vec<Feed>) -> (Feeds, Fanout) {
        let setup = Setup {
            feeds: of,
            ring_bytes: 4 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let several =
            (Interfaces::new("v*".to_owned()), Box::new(Ten::default()) as Box<dyn EngineCounts>);
        Feeds::create_of(&setup, Clock::Realtime, Box::new(|_| Ok(())), several).unwrap()
    }

    fn names(feed: &FeedHandle) -> Vec<Vec<u8>> {
        let identity = feed.rings[0].identity().unwrap();
        identity.interface_blocks().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn every_ring_describes_the_same_interfaces_in_the_same_order() {
        let (feeds, _fanout) = feeds(vec![feed("same"), feed("same")]);
        assert_eq!(["v1", "v2"].map(|name| feeds.add_interface(name, None).unwrap()), [1, 2]);
        feeds.remove_interface(1);
        let late = feeds.add(feed("same")).unwrap();
        // One interface joins again, and another joins.
        assert_eq!(["v1", "v3"].map(|name| feeds.add_interface(name, None).unwrap()), [1, 3]);
        let handles = feeds.handles();
        assert_eq!((handles.len(), names(&late).len()), (3, 4));
        assert!(handles.iter().all(|other| names(other) == names(&late)));
    }

    #[test]
    fn one_that_a_ring_has_no_room_for_joins_none() {
        let (feeds, _fanout) = feeds(vec![feed("short"), feed(&"long".repeat(60))]);
        let counts = || {
            let handles = feeds.handles();
            [0, 1].map(|feed: usize| handles[feed].rings[0].interfaces())
        };
        let full = (1..).find(|n| feeds.add_interface(&format!("v{n}"), None).is_err()).unwrap();
        assert!((100..PATTERN_INTERFACES_MAX).contains(&full), "{full}");
        assert_eq!(counts(), [full, full], "the pattern, and all that joined");
        assert_eq!(feeds.add_interface("v7", None).unwrap(), 7);
    }

    #[test]
    fn a_source_names_so_many_interfaces_and_no_more() {
        let (feeds, _fanout) = feeds(vec![feed("")]);
        let full = (1..).find(|n| feeds.add_interface(&format!("v{n}"), None).is_err()).unwrap();
        assert_eq!(full, PATTERN_INTERFACES_MAX + 1, "a short description has room for all");
        let error = feeds.add_interface("one more", None).unwrap_err().to_string();
        assert!(error.contains("1024"), "{error}");
    }

    #[test]
    fn each_feed_counts_for_itself_from_where_it_joined() {
        let (feeds, mut fanout) = feeds(vec![feed("first")]);
        (1..=2).for_each(|n| _ = feeds.add_interface(&format!("v{n}"), None).unwrap());
        let mut push = |interface_id, frames| {
            let meta = Meta { interface_id, wire_len: 60, ..Meta::default() };
            (0..frames).for_each(|_| fanout.push(&meta, &[0; 60]));
            fanout.leave();
        };
        push(1, 3);
        let late = feeds.add(feed("late")).unwrap();
        push(2, 4);
        push(1, 1);
        let lines = |feed| {
            let lines = feeds.interfaces(feed).unwrap().into_iter();
            let one = |line: InterfaceLedger| {
                let Ledger { offered, filtered, captured, .. } = line.ledger;
                (line.name, offered, filtered, captured)
            };
            lines.map(one).collect::<Vec<_>>()
        };
        let line = |name: &str, of| -> (String, u64, u64, u64) {
            let (offered, filtered, captured) = of;
            (name.to_owned(), offered, filtered, captured)
        };
        let first = [line("v1", (10, 1, 4)), line("v2", (10, 2, 4))];
        assert_eq!(lines(FeedSlot::first()), first);
        // The counts do not include frames that had come or been rejected before the feed joined.
        assert_eq!(lines(late.slot), [line("v1", (6, 0, 1)), line("v2", (8, 0, 4))]);
    }

    #[test]
    fn a_feed_that_no_thread_has_taken_over_yet_has_had_no_frame_of_an_interface() {
        let (feeds, mut fanout) = feeds(vec![feed("first")]);
        feeds.add_interface("v1", None).unwrap();
        let meta = Meta { interface_id: 1, wire_len: 60, ..Meta::default() };
        (0..9).for_each(|_| fanout.push(&meta, &[0; 60]));
        // The thread has taken the fan-out over, and checks for updates at the next frame.
        let late = feeds.add(feed("late")).unwrap();
        let offered = || feeds.interfaces(late.slot).unwrap()[0].ledger.offered;
        assert_eq!(offered(), 0, "nine came, and one no feed wanted");
        fanout.leave();
        assert_eq!(offered(), 0);
    }

    #[test]
    fn an_interface_missed_for_a_feed_what_it_missed_since_the_feed_joined() {
        let (feeds, _fanout) = feeds(vec![feed("first")]);
        feeds.add_interface("v1", None).unwrap();
        let missed = |slot| feeds.interfaces(slot).unwrap()[0].ledger.missed_before;
        assert_eq!((missed(FeedSlot::first()), missed(FeedSlot::first())), (Some(0), Some(1)));
        let late = feeds.add(feed("late")).unwrap();
        assert_eq!((missed(late.slot), missed(FeedSlot::first())), (Some(1), Some(4)));
    }
}
