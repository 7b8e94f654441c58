//! The end of a feed: its source or the daemon has ended, or the daemon has closed it.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock::lock;

/// The reason why a feed has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The source has ended: a file was read to its end, or a number of frames was reached.
    SourceEnded,
    /// The daemon closed the feed for the given reason: an interface vanished, a right was withdrawn.
    Failed(String),
    /// The daemon has closed the feed's rings, because a user lost the right to read them. If the feed is opened again
    /// within 10 seconds, it continues with the first frame that is not in the old rings.
    Moved,
    /// The daemon has ended, or has closed the connection.
    DaemonEnded,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::SourceEnded => f.write_str("its source has ended"),
            EndReason::Failed(reason) => f.write_str(reason),
            EndReason::Moved => f.write_str("it goes on in other rings"),
            EndReason::DaemonEnded => f.write_str("the daemon has ended"),
        }
    }
}

/// The end of one feed.
#[derive(Default)]
pub struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reason: Option<EndReason>,
    /// Called once the feed has ended.
    listener: Option<Box<dyn Fn() + Send>>,
}

impl Ending {
    /// Returns the reason of the end; `None` if the feed has not ended.
    #[must_use]
    pub fn reason(&self) -> Option<EndReason> {
        lock(&self.state).reason.clone()
    }

    /// Waits until the feed has ended, `limit` is over, or `is_over` returns true after a [`wake`](Ending::wake).
    /// Returns the reason of the end, if the feed has ended.
    #[must_use]
    pub fn wait(&self, limit: Duration, is_over: impl Fn() -> bool) -> Option<EndReason> {
        let runs = |state: &mut State| state.reason.is_none() && !is_over();
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, runs);
        waited.unwrap_or_else(PoisonError::into_inner).0.reason.clone()
    }

    /// Makes waiting threads call their `is_over` again.
    pub fn wake(&self) {
        // Taking the lock waits for a thread between its check and its sleep: else this wake-up would be lost.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Calls `listener` once the feed has ended, on the thread that learns of the end; at once if the feed has ended
    /// already.
    pub(crate) fn listen(&self, listener: impl Fn() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.reason.is_some() {
            listener();
        }
        state.listener = Some(Box::new(listener));
    }

    pub(crate) fn end(&self, reason: EndReason) {
        let mut state = lock(&self.state);
        state.reason.get_or_insert(reason);
        if let Some(listener) = &state.listener {
            listener();
        }
        drop(state);
        self.changed.notify_all();
    }
}
