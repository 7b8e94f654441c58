//! Consumers: which rings they read, and what wakes them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_capture::CaptureError;
use weir_capture::WakerSlot;
use weir_capture::pace::ReaderProgress;
use weir_ring::Ring;
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

/// A consumer as the probe knows it.
pub(super) struct Member {
    sleeper: Arc<Sleeper>,
    /// What the probe itself wakes it with.
    waker: Waker,
    /// Which lines of its sleeper are taken.
    lines: Vec<bool>,
    updates: Arc<Updates>,
}

/// A feed that wakes a consumer.
pub(super) struct Attached {
    pub(super) slot: WakerSlot,
    pub(super) first_line: usize,
    pub(super) count: usize,
    /// Until the consumer is told of the feed: its writer waits for it from the start.
    pub(super) progress: Option<ReaderProgress>,
}

impl Member {
    /// A waker for a feed of so many rings, and its first line. `notify`: an eventfd of the feed's owner.
    pub(super) fn take_lines(
        &mut self,
        count: usize,
        notify: Option<OwnedFd>,
    ) -> Result<(Waker, usize), CaptureError> {
        let is_free = |first: &usize| self.lines[*first..*first + count].iter().all(|taken| !taken);
        let first = (0..(self.lines.len() + 1).saturating_sub(count)).find(is_free);
        let Some(first) = first else {
            return Err(CaptureError::Options(format!(
                "a consumer of {} rings has no room for {count} more; add it with more lines",
                self.lines.len()
            )));
        };
        let waker = self.sleeper.waker_with(notify)?;
        self.lines[first..first + count].fill(true);
        Ok((waker, first))
    }

    fn tell(&self, update: Update) -> Vec<LetGo> {
        let gone = self.updates.push(update);
        self.waker.wake();
        gone
    }

    /// Nothing more is told.
    fn end(&self) {
        self.updates.end();
    }

    pub(super) fn free_lines(&mut self, first: usize, count: usize) {
        self.lines[first..first + count].fill(false);
    }
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
        let lines = vec![false; waker.lines()];
        let updates = Arc::new(Updates::default());
        let own = Arc::clone(&updates);
        let member = Member { sleeper: Arc::clone(&sleeper), waker, lines, updates: own };
        let mut state = self.shared.lock();
        if state.is_stopped {
            // It was stopped since the core added the consumer, and has told the others so.
            member.end();
        }
        state.members.insert(id, member);
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
        self.shared.lock().members.remove(&self.id);
    }
}

impl State {
    /// The probe was stopped: tells consumers that nothing more comes, those of later included.
    pub(super) fn end_members(&mut self) {
        self.is_stopped = true;
        self.members.values().for_each(Member::end);
    }

    pub(super) fn joined(&mut self, consumer: ConsumerId, id: FeedId) {
        let (Some(feed), Some(attached)) =
            (self.feeds.get(&id), self.attached.get_mut(&(consumer, id)))
        else {
            return;
        };
        let joined = Joined {
            feed: id,
            source: feed.source,
            life: feed.life,
            rings: feed.rings.clone(),
            first_line: attached.first_line,
            progress: attached.progress.take(),
        };
        self.tell(consumer, Update::Joined(joined));
    }

    pub(super) fn left(&mut self, consumer: ConsumerId, id: FeedId) {
        // A feed that is gone has closed its rings: they say where they end.
        let rings = self.feeds.get(&id).map(|feed| feed.rings.as_slice()).unwrap_or_default();
        let until = rings.iter().map(Ring::frames_written).collect();
        self.tell(consumer, Update::Left(id, until));
    }

    fn tell(&mut self, consumer: ConsumerId, update: Update) {
        let Some(member) = self.members.get(&consumer) else { return };
        for LetGo { source, feed, frames } in member.tell(update) {
            (self.listener)(Event::LetGo(source, consumer, feed, frames));
        }
    }

    /// A feed is gone: what woke its readers is free.
    pub(super) fn forget_feed(&mut self, id: FeedId) {
        self.feeds.remove(&id);
        let gone: Vec<ConsumerId> = self
            .attached
            .keys()
            .filter(|(_, feed)| *feed == id)
            .map(|(reader, _)| *reader)
            .collect();
        gone.into_iter().for_each(|reader| self.forget_waker(reader, id));
    }

    pub(super) fn forget_waker(&mut self, consumer: ConsumerId, feed: FeedId) {
        let Some(Attached { first_line, count, .. }) = self.attached.remove(&(consumer, feed))
        else {
            return;
        };
        if let Some(member) = self.members.get_mut(&consumer) {
            member.free_lines(first_line, count);
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
