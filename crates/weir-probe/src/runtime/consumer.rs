//! A consumer's end of the probe, and its updates.

use std::sync::Arc;
use std::time::Duration;

use weir_capture::CaptureError;
use weir_ring::wake::Sleeper;

use super::channels::Channels;
use super::updates::{Joined, LetGo, Update, Updates};
use super::{Probe, Shared, State};
use crate::core::{Command, ConsumerId, Event, FeedId, Reply};
use crate::error::ProbeError;

/// A consumer's end of the probe. The consumer sleeps on its own [`Sleeper`], until as many frames or as much time as
/// it chooses. Dropping this value ends the consumer.
pub struct Consumer {
    /// The consumer's id in commands to the probe.
    pub id: ConsumerId,
    /// The consumer sleeps on this; line `first_line + i` belongs to ring `i` of a feed that it has [`Joined`].
    pub sleeper: Arc<Sleeper>,
    membership: Membership,
}

/// The part of a consumer that is the same for consumers in this process and in other processes. Dropping it ends the
/// consumer.
pub(super) struct Membership {
    pub(super) id: ConsumerId,
    pub(super) updates: Arc<Updates>,
    pub(super) shared: Arc<Shared>,
}

impl Probe {
    /// Adds a consumer that can read `lines` rings at a time.
    ///
    /// # Errors
    /// No descriptors are left, or the probe has been stopped.
    pub fn add_consumer(&self, lines: usize) -> Result<Consumer, ProbeError> {
        let sleeper = Arc::new(Sleeper::new(lines).map_err(CaptureError::from)?);
        let membership = self.add(Channels::made(Arc::clone(&sleeper))?)?;
        Ok(Consumer { id: membership.id, sleeper, membership })
    }

    pub(super) fn add(&self, channels: Channels) -> Result<Membership, ProbeError> {
        let Reply::Added(id) = self.shared.ask(Command::AddConsumer, None)? else {
            unreachable!("the answer to AddConsumer")
        };
        Ok(self.add_member(id, channels))
    }

    /// Registers a consumer that the core has added.
    fn add_member(&self, id: ConsumerId, channels: Channels) -> Membership {
        let updates = Arc::new(Updates::default());
        let mut state = self.shared.lock();
        if state.is_stopped {
            // The probe was stopped after the core had added the consumer: other consumers were told already.
            updates.end();
        }
        state.registry.add_member(id, channels, Arc::clone(&updates));
        drop(state);
        Membership { id, updates, shared: Arc::clone(&self.shared) }
    }
}

impl Consumer {
    /// Returns the updates that have come since the last call. If there are none, this costs one atomic load, so it may
    /// be called in every turn of a loop.
    #[must_use]
    pub fn take_updates(&self) -> Vec<Update> {
        self.membership.updates.take()
    }

    /// Waits for the next update, and returns it; `None` after `limit`, or if the probe was stopped and all updates
    /// were returned.
    #[must_use]
    pub fn wait_for_update(&self, limit: Duration) -> Option<Update> {
        self.membership.updates.wait(limit)
    }

    /// Waits for at most `limit` until the consumer joins a feed. For a consumer that reads one feed: if the feed's
    /// source is open, the consumer has joined the feed when [`Probe::attach`] returns. Updates that it has left other
    /// feeds are skipped.
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        self.membership.updates.wait_for_feed(limit)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // An error means that the consumer was withdrawn, or that the probe was stopped.
        let _ = self.shared.ask(Command::RemoveConsumer(self.id), None);
        self.shared.lock().registry.remove_member(self.id);
    }
}

impl State {
    /// Tells all consumers, including those that are added later, that the probe was stopped.
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

    pub(super) fn let_go(&mut self, consumer: ConsumerId, gone: Vec<LetGo>) {
        for LetGo { source, feed, frames } in gone {
            (self.listener)(Event::LetGo(source, consumer, feed, frames));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_consumer_that_is_added_while_the_probe_stops_is_told_at_once() {
        let (probe, _events) = Probe::new().unwrap();
        let Reply::Added(id) = probe.shared.ask(Command::AddConsumer, None).unwrap() else {
            panic!("the answer to AddConsumer")
        };
        probe.stop();
        let consumer = probe.add_member(id, Channels::given(0..1));
        let begin = Instant::now();
        assert!(consumer.updates.wait(Duration::from_secs(60)).is_none());
        assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its whole limit");
    }
}
