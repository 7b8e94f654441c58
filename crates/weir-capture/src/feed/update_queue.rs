//! Configuration updates for the fan-out threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::UserFilterSet;
use weir_filter::block::BlockList;

/// A change to a running fan-out. The sender prepares it, because frames wait while the fan-out takes it over.
pub(super) enum Update {
    Filters(UserFilterSet),
    /// The block list of this branch.
    Block(usize, Arc<BlockList>),
}

impl Update {
    /// Whether `other` has no effect once this is applied.
    fn replaces(&self, other: &Update) -> bool {
        match (self, other) {
            (Update::Filters(_), Update::Filters(_)) => true,
            (Update::Block(own, _), Update::Block(branch, _)) => own == branch,
            _ => false,
        }
    }
}

/// Updates that one fan-out has not taken over yet.
#[derive(Default)]
pub(super) struct UpdateQueue {
    is_fresh: AtomicBool,
    updates: Mutex<Vec<Update>>,
}

impl UpdateQueue {
    pub(super) fn post(&self, update: Update) {
        let mut waiting = self.lock();
        // A fan-out without frames takes nothing: its queue keeps the last update of each kind only.
        let old: Vec<Update> = waiting.extract_if(.., |old| update.replaces(old)).collect();
        waiting.push(update);
        self.is_fresh.store(true, Ordering::Release);
        drop(waiting);
        // Freed only after the lock is, because a fan-out may wait for that.
        drop(old);
    }

    /// The updates since the last call.
    #[inline]
    pub(super) fn take(&self) -> Vec<Update> {
        if !self.is_fresh.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut updates = self.lock();
        self.is_fresh.store(false, Ordering::Relaxed);
        std::mem::take(&mut *updates)
    }

    /// Whole whoever panicked while holding it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Update>> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
