//! The control of a source, with bugs that may be planted in it. Without a planted bug, every call is passed on
//! unchanged.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_capture::{
    CaptureError, Change, Feed, FeedControl, FeedHandle, FeedSlot, FilterLocation, WakerSlot,
};
use weir_ring::Ledger;
use weir_ring::wake::Waker;

use crate::planted::Planted;

/// The control of a source.
pub struct PlantedControl {
    inner: Arc<dyn FeedControl>,
    planted: Option<Planted>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Changes of filters that take effect after the next frame.
    late: Vec<(FeedSlot, Change)>,
    wakers: BTreeSet<(FeedSlot, WakerSlot)>,
    /// The offered frames in the ledgers after the previous turn.
    before: Vec<(FeedSlot, u64)>,
}

impl PlantedControl {
    /// Creates a control that passes calls to `inner`, with this bug.
    #[must_use]
    pub fn new(inner: Arc<dyn FeedControl>, planted: Option<Planted>) -> PlantedControl {
        PlantedControl { inner, planted, state: Mutex::default() }
    }

    /// Records that a frame was pushed.
    pub fn frame_passed(&self) {
        if self.planted == Some(Planted::FilterLate) {
            let late = std::mem::take(&mut self.lock().late);
            late.into_iter().for_each(|(feed, change)| _ = self.inner.change(feed, change));
        }
    }

    /// Records the end of a turn, before its counts are published.
    pub fn turn_ends(&self) {
        if self.planted == Some(Planted::LedgerOfBefore) {
            let feeds = self.inner.feeds().into_iter().map(|feed| feed.slot);
            let count = |slot| Some((slot, self.inner.ledger(slot).ok()?.offered));
            self.lock().before = feeds.filter_map(count).collect();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FeedControl for PlantedControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.inner.feeds()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        let mut handle = self.inner.add(feed)?;
        if self.planted == Some(Planted::NumberReused) {
            handle.slot = self.inner.feeds()[0].slot;
        }
        Ok(handle)
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let mut ledger = self.inner.remove(feed)?;
        if self.planted == Some(Planted::LeavingShareDropped) {
            ledger.offered -= std::mem::take(&mut ledger.captured);
        }
        Ok(ledger)
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        if self.planted == Some(Planted::WithdrawnReads) {
            let old = self.inner.feeds().into_iter().find(|one| one.slot == feed);
            let ledger = self.inner.ledger(feed)?;
            return Ok((old.ok_or(CaptureError::NoFeed)?, ledger));
        }
        self.inner.replace_rings(feed)
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        match (self.planted, &change) {
            (Some(Planted::FilterLate), Change::Filter(_)) => {
                self.lock().late.push((feed, change));
                Ok(FilterLocation::Interpreted)
            }
            (Some(Planted::FilterForgotten), Change::Filter(_)) => Ok(FilterLocation::Interpreted),
            _ => self.inner.change(feed, change),
        }
    }

    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        let slot = self.inner.attach(feed, waker, first_line)?;
        self.lock().wakers.insert((feed, slot));
        if self.planted == Some(Planted::AttachForgotten) {
            self.inner.detach(feed, slot);
        }
        Ok(slot)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        self.inner.detach(feed, waker);
        if self.planted == Some(Planted::DetachLosesWakeUp) {
            let state = self.lock();
            let others = state.wakers.iter().filter(|(of, _)| *of == feed);
            others.for_each(|(feed, other)| self.inner.detach(*feed, *other));
        }
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let mut ledger = self.inner.ledger(feed)?;
        let before = self.lock().before.iter().find(|(slot, _)| *slot == feed).map(|one| one.1);
        ledger.offered = before.unwrap_or(ledger.offered);
        Ok(ledger)
    }
}
