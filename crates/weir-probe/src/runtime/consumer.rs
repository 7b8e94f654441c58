//! A consumer's own end, and what it is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_capture::CaptureError;
use weir_ring::wake::{Sleeper, Waker};

use super::updates::{Joined, LetGo, Update, Updates};
use super::{Probe, Shared, State};
use crate::core::{Command, ConsumerId, Event, FeedId, Reply};
use crate::error::ProbeError;

/// A consumer's own end. It sleeps on its own [`Sleeper`], for as many frames or as long as it likes; dropping it
/// ends it.
pub struct Consumer {
    /// Its name in the probe's commands.
    pub id: ConsumerId,
    /// What it sleeps on; line `first_line + i` is ring `i` of a feed that it has [`Joined`].
    pub sleeper: Arc<Sleeper>,
    updates: Arc<Updates>,
    shared: Arc<Shared>,
}

impl Probe {
    /// Adds a consumer that can read `lines` rings at a time.
    ///
    /// # Errors
    /// No descriptors are left, or the probe has been stopped.
    pub fn add_consumer(&self, lines: usize) -> Result<Consumer, ProbeError> {
        let sleeper = Arc::new(Sleeper::new(lines).map_err(CaptureError::from)?);
        let waker = sleeper.waker().map_err(CaptureError::from)?;
        let Reply::Added(id) = self.shared.ask(Command::AddConsumer, None)? else {
            unreachable!("the answer to AddConsumer")
        };
        Ok(self.add_member(id, sleeper, waker))
    }

    /// A consumer that the core has added.
    fn add_member(&self, id: ConsumerId, sleeper: Arc<Sleeper>, waker: Waker) -> Consumer {
        let updates = Arc::new(Updates::default());
        let mut state = self.shared.lock();
        if state.is_stopped {
            // It was stopped since the core added the consumer, and has told the others so.
            updates.end();
        }
        let own = Arc::clone(&updates);
        state.registry.add_member(id, Arc::clone(&sleeper), waker, own);
        drop(state);
        Consumer { id, sleeper, updates, shared: Arc::clone(&self.shared) }
    }
}

impl Consumer {
    /// The updates that have come since this was asked last. While there are none this costs one atomic load: it may be
    /// asked in every turn.
    #[must_use]
    pub fn take_updates(&self) -> Vec<Update> {
        self.updates.take()
    }

    /// The next update, once it is there; `None` after `limit`, and when the probe has been stopped and told all.
    #[must_use]
    pub fn wait_for_update(&self, limit: Duration) -> Option<Update> {
        self.updates.wait(limit)
    }

    /// Waits until it joins a feed, at most `limit`. For a consumer that reads one feed: if that is of a source that is
    /// open, the consumer has joined it when [`Probe::attach`] returns. That it has left others is passed over.
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        let begin = Instant::now();
        loop {
            match self.wait_for_update(limit.saturating_sub(begin.elapsed()))? {
                Update::Joined(joined) => return Some(joined),
                Update::Left(..) => {}
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have been withdrawn, or the probe stopped.
        let _ = self.shared.ask(Command::RemoveConsumer(self.id), None);
        self.shared.lock().registry.remove_member(self.id);
    }
}

impl State {
    /// The probe was stopped: tells consumers that nothing more comes, those of later included.
    pub(super) fn end_members(&mut self) {
        self.is_stopped = true;
        self.registry.end_members();
    }

    pub(super) fn joined(&mut self, consumer: ConsumerId, feed: FeedId) {
        let gone = self.registry.joined(consumer, feed);
        self.let_go(consumer, gone);
    }

    pub(super) fn left(&mut self, consumer: ConsumerId, feed: FeedId) {
        let gone = self.registry.left(consumer, feed);
        self.let_go(consumer, gone);
    }

    fn let_go(&mut self, consumer: ConsumerId, gone: Vec<LetGo>) {
        for LetGo { source, feed, frames } in gone {
            (self.listener)(Event::LetGo(source, consumer, feed, frames));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_is_added_while_the_probe_stops_is_told_at_once() {
        let (probe, _events) = Probe::new().unwrap();
        let Reply::Added(id) = probe.shared.ask(Command::AddConsumer, None).unwrap() else {
            panic!("the answer to AddConsumer")
        };
        probe.stop();
        let sleeper = Arc::new(Sleeper::new(1).unwrap());
        let waker = sleeper.waker().unwrap();
        let consumer = probe.add_member(id, sleeper, waker);
        let begin = Instant::now();
        assert!(consumer.wait_for_update(Duration::from_secs(60)).is_none());
        assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its whole limit");
    }
}
