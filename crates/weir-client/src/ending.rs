//! The end of a feed: that of its source, or of the daemon.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock::lock;

/// Why nothing more comes of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its source came to an end: a file was read, a count reached.
    SourceEnded,
    /// The daemon closed it, and says why: an interface vanished, a right was withdrawn.
    Failed(String),
    /// The daemon has closed its rings, because somebody may not read them any more. Opened again within 10 seconds,
    /// the feed goes on with the first frame that is not in these.
    Moved,
    /// The daemon is gone, or has ended the connection.
    DaemonEnded,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::SourceEnded => f.write_str("its source has ended"),
            EndReason::Failed(reason) => f.write_str(reason),
            EndReason::Moved => f.write_str("it goes on in other rings; open it again"),
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
    /// Is called once it has ended.
    listener: Option<Box<dyn Fn() + Send>>,
}

impl Ending {
    /// Why nothing more comes, once that is so.
    #[must_use]
    pub fn reason(&self) -> Option<EndReason> {
        lock(&self.state).reason.clone()
    }

    /// The same, once that is so, after `limit`, or when `is_over` says so behind a [`wake`](Ending::wake).
    #[must_use]
    pub fn wait(&self, limit: Duration, is_over: impl Fn() -> bool) -> Option<EndReason> {
        let runs = |state: &mut State| state.reason.is_none() && !is_over();
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, runs);
        waited.unwrap_or_else(PoisonError::into_inner).0.reason.clone()
    }

    /// Makes waiting threads check again whether that is over.
    pub fn wake(&self) {
        // Held: a thread that is about to wait sees earlier messages.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Calls this once it has ended, on the thread that learns of that; at once if it has.
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
