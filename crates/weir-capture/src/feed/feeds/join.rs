//! Adds a feed to a running source, as a new one or in place of another.

use std::sync::Arc;

use weir_filter::{Program, UserFilterSet};
use weir_ring::{Ledger, WriterKind, memory};

use super::{Entry, FEEDS_MAX, Feeds, Shared, State};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::{FeedHandle, FeedSlot};
use crate::feed::direction::Direction;
use crate::feed::fanout::{Branch, BranchCounts, Update};
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;

impl Feeds {
    /// Adds a feed with this slot.
    ///
    /// # Errors
    /// See [`FeedControl::add`](crate::FeedControl::add).
    pub(crate) fn insert(
        &self,
        slot: FeedSlot,
        mut feed: Feed,
    ) -> Result<FeedHandle, CaptureError> {
        self.shared.check(&mut feed)?;
        let mut state = self.lock();
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        let mut wanted = self.shared.feeds();
        if wanted.len() >= FEEDS_MAX {
            return Err(CaptureError::Options(format!(
                "a source has {FEEDS_MAX} feeds at most in user space; remove one first"
            )));
        }
        // The filter in the kernel is changed first, because the old one may reject frames that the new feed wants.
        wanted.push(feed.clone());
        let chosen = state.choose(&wanted)?;
        let joined = self.join(slot, feed, None);
        if joined.is_err() {
            wanted.pop();
            let _ = state.choose(&wanted);
        }
        let at = joined?;
        let mut entries = self.shared.entries();
        if let Some(location) = chosen {
            entries[at].location = location;
        }
        Ok(entries[at].handle())
    }

    /// Makes the feed's rings, and adds it to every fan-out. `replaces`: a feed that leaves between the
    /// same two frames. Returns its index among the entries.
    pub(super) fn join(
        &self,
        slot: FeedSlot,
        feed: Feed,
        replaces: Option<usize>,
    ) -> Result<usize, CaptureError> {
        let Shared { setup, clock, fanouts, offered, ring_use, .. } = &*self.shared;
        let pace = ring_use.waits.then(Pace::new);
        let mut branch_feed = feed.clone();
        if feed.direction == *offered {
            // Frames of the other direction do not come, so the check is not needed.
            branch_feed.direction = Direction::Both;
        }
        let (mut rings, mut counts) = (Vec::new(), Vec::<Arc<BranchCounts>>::new());
        for _ in fanouts {
            let each = fanouts.len() as u64;
            let mut spec = setup.ring_spec_of(&feed, each, None, *clock, WriterKind::User)?;
            spec.interfaces.extend(self.shared.described(&feed));
            rings.push(memory::create_memfd_with("weir-ring", &spec, setup.placement())?);
            counts.push(Arc::new(self.shared.new_counts()));
        }
        let branches: Vec<Branch> = (rings.iter().zip(&counts))
            .map(|(ring, counts)| {
                let branch = Branch::new(slot, &branch_feed, ring, Arc::clone(counts));
                branch.that_waits_for(pace.as_ref())
            })
            .collect();
        let mut feeds = self.shared.feeds();
        match replaces {
            Some(at) => feeds[at] = feed.clone(),
            None => feeds.push(feed.clone()),
        }
        let sets = self.shared.filters(&feeds);
        let location = self.shared.location(&feeds, &sets[0]);
        let mut before = self.shared.engine();
        let interfaces_before = self.shared.counts_by_interface()?;
        if self.shared.interfaces.is_some() {
            before.filtered = interfaces_before.iter().map(|count| count.unwanted).sum();
        }
        before.offered = before.filtered + before.dropped();
        let blocked = Arc::default();
        let mut entry =
            Entry { slot, feed, rings, counts, before, interfaces_before, location, blocked, pace };
        let (at, leaves, blocked) = {
            let mut entries = self.shared.entries();
            self.shared.describe_interfaces(&entry)?;
            match replaces {
                Some(at) => {
                    entry.blocked = Arc::clone(&entries[at].blocked);
                    let blocked = Arc::clone(&entry.blocked);
                    let gone = std::mem::replace(&mut entries[at], entry);
                    (at, Some(gone.slot), blocked)
                }
                None => {
                    entries.push(entry);
                    (entries.len() - 1, None, Arc::default())
                }
            }
        };
        for ((queue, branch), filters) in fanouts.iter().zip(branches).zip(sets) {
            queue.post([
                Update::Exchange { leaves, joins: Some(Box::new(branch)) },
                Update::Filters(filters.filter(|_| has_filters(&feeds))),
                Update::Block(slot, Arc::clone(&blocked)),
            ]);
        }
        Ok(at)
    }

    pub(super) fn replace_as(
        &self,
        state: &State,
        feed: FeedSlot,
        slot: FeedSlot,
    ) -> Result<(FeedHandle, Ledger), CaptureError> {
        let at = self.shared.find(feed)?;
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        let gone = self.shared.entries()[at].clone();
        let at = self.join(slot, gone.feed.clone(), Some(at))?;
        let handle = {
            let mut entries = self.shared.entries();
            entries[at].location = gone.location;
            entries[at].handle()
        };
        Ok((handle, self.finish(&gone)))
    }

    /// Does the same as [`FeedControl::replace_rings`](crate::FeedControl::replace_rings), for a source that numbers
    /// the slots of its feeds itself.
    ///
    /// # Errors
    /// As [`FeedControl::replace_rings`](crate::FeedControl::replace_rings).
    pub(crate) fn replace(
        &self,
        feed: FeedSlot,
        slot: FeedSlot,
    ) -> Result<(FeedHandle, Ledger), CaptureError> {
        let state = self.lock();
        self.replace_as(&state, feed, slot)
    }
}

impl Shared {
    /// Returns the feeds' filters, once for each fan-out.
    pub(super) fn filters(&self, feeds: &[Feed]) -> Vec<Option<UserFilterSet>> {
        let program = |feed: &'_ Feed| feed.filter.as_ref().map(|filter| filter.program.clone());
        let programs: Vec<Option<Program>> = feeds.iter().map(program).collect();
        let programs: Vec<Option<&Program>> = programs.iter().map(Option::as_ref).collect();
        self.fanouts.iter().map(|_| Some(UserFilterSet::new(&programs))).collect()
    }

    /// Returns the place where the filters of these feeds run.
    pub(super) fn location(
        &self,
        feeds: &[Feed],
        filters: &Option<UserFilterSet>,
    ) -> FilterLocation {
        let chooses =
            self.setup.may_change || feeds.len() > 1 || feeds.iter().any(|feed| !feed.takes_all());
        match filters {
            Some(filters) if chooses && filters.is_compiled() => FilterLocation::Compiled,
            Some(_) if chooses => FilterLocation::Interpreted,
            _ => FilterLocation::Nowhere,
        }
    }
}

pub(super) fn has_filters(feeds: &[Feed]) -> bool {
    feeds.iter().any(|feed| feed.filter.is_some())
}
