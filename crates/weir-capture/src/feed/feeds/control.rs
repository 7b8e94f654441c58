//! Implements [`FeedControl`] for feeds behind fan-outs.

use std::sync::Arc;

use weir_filter::block::{BlockList, Entry as BlockEntry};
use weir_ring::Ledger;
use weir_ring::wake::Waker;

use super::join::has_filters;
use super::{Entry, Feeds, check_lines};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::change::{Change, change_list};
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::fanout::{Retired, Update};
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;

impl FeedControl for Feeds {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.handles()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        let slot = self.lock().next_slot();
        self.insert(slot, feed)
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let mut state = self.lock();
        let at = self.shared.find(feed)?;
        let mut wanted = self.shared.feeds();
        wanted.remove(at);
        let sets = self.shared.filters(&wanted);
        let gone = self.shared.entries().remove(at);
        for (queue, filters) in self.shared.fanouts.iter().zip(sets) {
            queue.post([
                Update::Exchange { leaves: Some(feed), joins: None },
                Update::Filters(filters.filter(|_| has_filters(&wanted))),
            ]);
        }
        let ledger = self.finish(&gone);
        // If the old prefilter stays, it passes more frames than needed, and user space rejects those.
        let _ = state.choose(&wanted);
        Ok(ledger)
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        let mut state = self.lock();
        let slot = state.next_slot();
        self.replace_as(&state, feed, slot)
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        let mut state = self.lock();
        let at = self.shared.find(feed)?;
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        self.shared.setup.check_changes()?;
        match change {
            Change::Filter(filter) => {
                let mut wanted = self.shared.feeds();
                wanted[at].filter = filter;
                self.shared.setup.admit(&mut wanted[at])?;
                // The filter in the kernel is changed first, because that may fail. The later steps cannot fail.
                let chosen = state.choose(&wanted)?;
                let sets = self.shared.filters(&wanted);
                let location = chosen.unwrap_or(self.shared.location(&wanted, &sets[0]));
                for (queue, filters) in self.shared.fanouts.iter().zip(sets) {
                    queue.post([Update::Filters(filters.filter(|_| has_filters(&wanted)))]);
                }
                let mut entries = self.shared.entries();
                entries[at].feed = wanted.swap_remove(at);
                entries[at].location = location;
                Ok(location)
            }
            Change::Block { remove, add } => {
                self.block(at, &remove, &add)?;
                Ok(self.shared.entries()[at].location)
            }
        }
    }

    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        let mut state = self.lock();
        let slot = WakerSlot::new(state.wakers_ever);
        self.attach_as(feed, slot, &waker, first_line)?;
        state.wakers_ever += 1;
        Ok(slot)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        let _state = self.lock();
        for queue in &self.shared.fanouts {
            queue.post([Update::Detach(feed, waker)]);
        }
        for queue in &self.shared.fanouts {
            close_retired(queue.settle());
        }
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let entries = self.shared.entries();
        let entry = entries.iter().find(|entry| entry.slot == feed);
        Ok(self.shared.ledger(entry.ok_or(CaptureError::NoFeed)?))
    }

    fn interfaces(&self, feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        self.shared.interface_ledgers(feed)
    }
}

impl Feeds {
    /// Does the same as [`FeedControl::attach`] for a source that assigns the slots of its wakers itself.
    ///
    /// # Errors
    /// As [`FeedControl::attach`].
    pub(crate) fn attach_as(
        &self,
        feed: FeedSlot,
        slot: WakerSlot,
        waker: &Waker,
        first_line: usize,
    ) -> Result<(), CaptureError> {
        self.shared.find(feed)?;
        check_lines(waker, first_line, self.shared.fanouts.len())?;
        let clones: Result<Vec<Waker>, _> =
            self.shared.fanouts.iter().map(|_| waker.try_clone()).collect();
        for (number, (queue, waker)) in self.shared.fanouts.iter().zip(clones?).enumerate() {
            queue.post([Update::Attach(feed, slot, waker, first_line + number)]);
        }
        Ok(())
    }

    /// Changes a block list. The new list is made on this thread while the old one is in use: with 65,536
    /// entries that takes milliseconds.
    fn block(
        &self,
        at: usize,
        remove: &[BlockEntry],
        add: &[BlockEntry],
    ) -> Result<(), CaptureError> {
        let (slot, old) = {
            let entry = &self.shared.entries()[at];
            (entry.slot, Arc::clone(&entry.blocked))
        };
        let mut list = BlockList::clone(&old);
        change_list(&mut list, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        // An emptied list would keep its lookup table (`Front`); a default list has none.
        let new = Arc::new(if list.is_empty() { BlockList::default() } else { list });
        for queue in &self.shared.fanouts {
            queue.post([Update::Block(slot, Arc::clone(&new))]);
        }
        self.shared.entries()[at].blocked = new;
        Ok(())
    }

    /// Waits until a removed feed has left every fan-out, closes its rings, and returns its final ledger.
    pub(super) fn finish(&self, gone: &Entry) -> Ledger {
        for queue in &self.shared.fanouts {
            for retired in queue.settle() {
                if let Retired::Branch(mut branch) = retired {
                    branch.close();
                }
            }
        }
        self.shared.ledger(gone)
    }
}

/// Frees the objects that updates have replaced. If a branch is among them, another thread is waiting in
/// `finish` for it to leave: its counts are final, and its rings are closed here instead of there.
fn close_retired(retired: Vec<Retired>) {
    for one in retired {
        if let Retired::Branch(mut branch) = one {
            branch.close();
        }
    }
}
