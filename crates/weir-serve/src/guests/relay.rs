//! What a feed's rings have, merged into the one ring that a guest reads.
//!
//! A consumer of the probe like any other, whose output is a ring in the guest's region. What does not come there is
//! the drop `relay` of the guest's feed: what the relay was too slow for, and all that is left when it fails.

mod account;
mod ending;
mod output;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_client::protocol::Ledger;
use weir_consumer::thread::{self, Plan, Running};
use weir_consumer::{Begin, ConsumerError, FeedChange, FrameSource, JoinedFeed, Ordered};
use weir_probe::{Consumer, Joined, Probe, ProbeError, SubscriptionId, Update};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring};
use weir_vm::{GuestMemory, TakenRing};

use crate::limits::{RELAY_END_TIME_MAX, RELAY_SLACK, RELAY_SLEEP_MAX};
use account::{Copied, Shown};
use ending::{End, Ending, EndingGuard};
pub(crate) use output::Bell;
use output::{Output, ToRegion};

/// Rings that a relay can read at a time: those of a feed, and of what it moves to.
const LINES: usize = weir_ring::wake::RINGS_MAX;

/// A guest's copy of a feed.
pub(crate) struct Relay {
    running: Running<Ordered<ToRegion>>,
    ending: Arc<Ending>,
    output: Arc<Output>,
    ring: Ring<Mapping>,
    taken: Arc<TakenRing>,
    memory: Arc<GuestMemory>,
    is_complete: Arc<AtomicBool>,
    shown: Shown,
}

impl Relay {
    /// Begins to copy what this subscription, which has so many rings, reads from the ordinals `from` on. It follows
    /// the subscription to other rings, of which it copies everything.
    pub(crate) fn start(
        probe: &Probe,
        subscription: SubscriptionId,
        from: Vec<u64>,
        data_blocks: u64,
        bell: Bell,
    ) -> Result<Relay, RelayError> {
        let consumer = probe.add_consumer(LINES)?;
        probe.attach(consumer.id, subscription)?;
        let is_complete = Arc::new(AtomicBool::new(false));
        let source = Reading { consumer, from: Some(from), is_complete: Arc::clone(&is_complete) };
        Relay::copying(Box::new(source), is_complete, data_blocks, bell)
    }

    /// Copies what a source has, until `is_complete`.
    fn copying(
        mut source: Box<dyn FrameSource>,
        is_complete: Arc<AtomicBool>,
        data_blocks: u64,
        bell: Bell,
    ) -> Result<Relay, RelayError> {
        let memory = Arc::clone(&bell.memory);
        let mut ordered = Box::new(Ordered::new(RELAY_SLACK, ToRegion::new(data_blocks, bell)));
        // Describes the feed's interface, and with it makes the ring.
        thread::take_changes(source.as_mut(), ordered.as_mut())?;
        let output = ordered.sink().output().ok_or(ProbeError::Ended)?;
        let (taken, ending) = (output.hand_over_place().ok_or(ProbeError::Ended)?, Arc::default());
        let guard = EndingGuard::new(Arc::clone(&ending), Arc::clone(&output));
        let plan = Plan {
            slack: RELAY_SLACK,
            sleep_max: RELAY_SLEEP_MAX,
            ended: Box::new(move |finished| guard.end(End::of(finished))),
            ..Plan::new(source).map_err(ConsumerError::from)?
        };
        let running = thread::spawn(ordered, plan).map_err(RelayError::Thread)?;
        let (ring, taken) = (taken.ring().clone(), Arc::new(taken));
        let shown = Shown::default();
        Ok(Relay { running, ending, output, ring, taken, memory, is_complete, shown })
    }

    /// Where the ring is.
    pub(crate) fn place(&self) -> weir_region::Place {
        self.taken.place()
    }

    /// The ring's place, for who is to keep it longer than this.
    pub(crate) fn taken(&self) -> &Arc<TakenRing> {
        &self.taken
    }

    /// Frames that lie before the slowest reader in the guest, as far as that has said how far it is.
    pub(crate) fn lag(&self) -> Option<u64> {
        let position = self.memory.position(self.taken.place().slot)?;
        Some(self.ring.frames_written().saturating_sub(position))
    }

    /// Has this called with the reason once the relay has failed, on the relay's thread; at once if it has.
    pub(crate) fn listen(&self, listener: impl FnOnce(&str) + Send + 'static) {
        self.ending.listen(Box::new(listener));
    }

    /// Nothing joins any more: once everything was passed on, it ends. Waits for nothing.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
        self.running.drain();
    }

    /// Passes on what the rings have, closes the guest's, and ends. A relay that hangs is waited for
    /// [`RELAY_END_TIME_MAX`] at most: it has failed then.
    pub(crate) fn finish(&self) {
        self.finish_within(RELAY_END_TIME_MAX);
    }

    fn finish_within(&self, limit: Duration) {
        self.is_complete.store(true, Ordering::Release);
        self.running.stop();
        if self.ending.wait(limit).is_none() {
            let reason = format!("copying to the guest did not end within {limit:?}");
            self.ending.end(&self.output, End::failed(self.running.delivered(), reason));
        }
    }

    /// The ledger of the feed, of which `host` is that of the host's rings, as far as its frames have come to the
    /// guest's ring: those that are still on their way are not offered yet. No count of it ever shrinks.
    pub(crate) fn account(&self, host: impl FnOnce() -> Ledger) -> Ledger {
        // The host's counts are the later ones: whatever is counted here is in them.
        let end = self.ending.get();
        let copied = Copied {
            frames: self.ring.frames_written(),
            kept_bytes: self.ring.writer_word(WriterWord::KeptBytes),
            wire_bytes: self.ring.writer_word(WriterWord::WireBytes),
            super_frames: self.ring.writer_word(WriterWord::SuperFrames),
        };
        let delivered = end.as_ref().map_or_else(|| self.running.delivered(), |end| end.delivered);
        self.shown.raise(copied.account(delivered, end.as_ref(), host()))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Why a guest has no copy of a feed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    #[error("no thread for copying frames to the guest")]
    Thread(#[source] std::io::Error),
}

/// What it reads.
struct Reading {
    consumer: Consumer,
    /// Where the first feed begins; those that it moves to begin with their first frames.
    from: Option<Vec<u64>>,
    is_complete: Arc<AtomicBool>,
}

impl FrameSource for Reading {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        let Reading { consumer, from, .. } = self;
        let change = |update| match update {
            Update::Joined(Joined { feed, rings, first_line, .. }) => {
                let begin = from.take().map_or(Begin::First, Begin::At);
                let (key, label) = (feed.number(), String::new());
                FeedChange::Joined(JoinedFeed {
                    key,
                    output: 0,
                    label,
                    rings,
                    first_line,
                    channel: None,
                    begin,
                })
            }
            Update::Left(feed, until) => FeedChange::Left { key: feed.number(), until },
        };
        consumer.take_updates().into_iter().map(change).collect()
    }

    fn sleeper(&self) -> &Sleeper {
        &self.consumer.sleeper
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }
}
