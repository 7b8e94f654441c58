//! From a connection to the consumer of a feed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_consumer::FeedChange;
use weir_ring::wake::{Interrupter, Sleeper};

use crate::error::ClientError;

/// From a connection to the consumer of one feed.
pub(crate) struct Channel {
    pub(crate) sleeper: Arc<Sleeper>,
    interrupter: Interrupter,
    pub(crate) changes: Mutex<Vec<FeedChange>>,
    pub(crate) is_complete: AtomicBool,
    pub(crate) reason: Mutex<Option<String>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    pub(crate) fn new(sleeper: Arc<Sleeper>) -> Result<Channel, ClientError> {
        let interrupter = sleeper.interrupter()?;
        let (changes, is_complete) = (Mutex::default(), AtomicBool::new(false));
        Ok(Channel { sleeper, interrupter, changes, is_complete, reason: Mutex::default() })
    }

    pub(crate) fn push(&self, change: FeedChange) {
        lock(&self.changes).push(change);
        self.interrupter.interrupt();
    }

    /// Nothing joins any more: the consumer reads what there is, and ends.
    pub(crate) fn end(&self, reason: &str) {
        lock(&self.reason).get_or_insert_with(|| reason.to_owned());
        self.is_complete.store(true, Ordering::Release);
        self.interrupter.interrupt();
    }
}
