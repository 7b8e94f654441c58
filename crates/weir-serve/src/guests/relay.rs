//! The relay: merges the rings of a feed into the one ring that a guest reads.
//!
//! It is a consumer of the probe like any other, and its output is a ring in the guest's region. Frames that do not
//! reach this ring are counted as the drop `relay` of the guest's feed: frames that were overwritten because the relay
//! was too slow, and all remaining frames when the relay fails.

mod account;
mod completion;
mod output;
mod owed;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use weir_client::protocol::Ledger;
use weir_consumer::thread::{self, Plan, Running};
use weir_consumer::{
    Begin, ConsumerError, Delivered, FeedChange, FrameSource, JoinedFeed, Ordered, Static,
};
use weir_probe::{Consumer, Joined, Probe, ProbeError, SubscriptionId, Update};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring};
use weir_vm::{GuestMemory, TakenRing};

use crate::limits::{RELAY_END_TIME_MAX, RELAY_SLACK, RELAY_SLEEP_MAX};
use crate::reader::{Lag, Reads};
use account::{CopiedCounts, ReportedLedger};
use completion::{Completion, CompletionGuard, Outcome};
pub(crate) use output::Bell;
use output::{Output, ToRegion};
use owed::{Owed, Recorded};

/// Number of rings that a relay can read at a time: the rings of a feed, and those to which it moves.
const LINES: usize = weir_ring::wake::RINGS_MAX;

/// A guest's copy of a feed.
pub(crate) struct Relay {
    running: Running<Ordered<ToRegion>>,
    completion: Arc<Completion>,
    output: Arc<Output>,
    ring: Ring<Mapping>,
    taken: Arc<TakenRing>,
    memory: Arc<GuestMemory>,
    is_complete: Arc<AtomicBool>,
    reported: ReportedLedger,
}

impl Relay {
    /// Begins to copy the rings of this subscription, from the beginning of the feed. Follows the subscription to other
    /// rings, whose frames are all copied.
    pub(crate) fn start(
        probe: &Probe,
        subscription: SubscriptionId,
        reads: &Reads,
        data_blocks: u64,
        bell: Bell,
    ) -> Result<Relay, RelayError> {
        let consumer = probe.add_consumer(LINES)?;
        let is_complete = Arc::new(AtomicBool::new(false));
        let source: Box<dyn FrameSource> = match probe.attach(consumer.id, subscription) {
            Ok(()) => {
                let (from, is_complete) = (Some(reads.from.clone()), Arc::clone(&is_complete));
                Box::new(SubscriptionSource { consumer, from, is_complete })
            }
            // The source has ended since the feed was opened. The rings are closed, and contain all frames.
            Err(ProbeError::Ended | ProbeError::Unknown) if !reads.rings.is_empty() => {
                let sleeper = Sleeper::new(LINES).map_err(ConsumerError::from)?;
                let feed = JoinedFeed {
                    key: reads.feed.number(),
                    begin: Begin::At(reads.from.clone()),
                    ..JoinedFeed::in_order(vec![reads.rings.clone()]).remove(0)
                };
                Box::new(Static::new(sleeper, vec![feed]))
            }
            Err(error) => return Err(error.into()),
        };
        Relay::copying(source, is_complete, data_blocks, bell)
    }

    /// Copies the frames of a source until `is_complete` is set and all frames were copied.
    fn copying(
        source: Box<dyn FrameSource>,
        is_complete: Arc<AtomicBool>,
        data_blocks: u64,
        bell: Bell,
    ) -> Result<Relay, RelayError> {
        let memory = Arc::clone(&bell.memory);
        let owed = Arc::<Owed>::default();
        let mut source = Box::new(Recorded::new(source, Arc::clone(&owed)));
        let mut ordered = Box::new(Ordered::new(RELAY_SLACK, ToRegion::new(data_blocks, bell)));
        // Describes the feed's interface, which creates the ring.
        thread::take_changes(source.as_mut(), ordered.as_mut())?;
        let output = ordered.sink().output().ok_or(ProbeError::Ended)?;
        let taken = output.hand_over_place().ok_or(ProbeError::Ended)?;
        let completion = Arc::<Completion>::default();
        let guard = CompletionGuard::new(Arc::clone(&completion), Arc::clone(&output));
        let plan = Plan {
            slack: RELAY_SLACK,
            sleep_max: RELAY_SLEEP_MAX,
            ended: Box::new(move |finished| guard.complete(Outcome::of(finished, &owed))),
            ..Plan::new(source).map_err(ConsumerError::from)?
        };
        let running = thread::spawn(ordered, plan).map_err(RelayError::Thread)?;
        let (ring, taken) = (taken.ring().clone(), Arc::new(taken));
        let reported = ReportedLedger::default();
        Ok(Relay { running, completion, output, ring, taken, memory, is_complete, reported })
    }

    /// Returns the place of the ring in the region.
    pub(crate) fn place(&self) -> weir_region::Place {
        self.taken.place()
    }

    /// Returns the ring's place, for an owner that keeps it longer than this relay.
    pub(crate) fn taken(&self) -> &Arc<TakenRing> {
        &self.taken
    }

    /// Returns the lag of the slowest reader in the guest, by its last reported position.
    pub(crate) fn lag(&self) -> Option<Lag> {
        let position = self.memory.position(self.taken.place().slot)?;
        Some(Lag::of(&self.ring, position))
    }

    /// Calls `listener` with the reason once the relay has failed: on the relay's thread, or at
    /// once if it has failed already.
    pub(crate) fn listen(&self, listener: impl FnOnce(&str) + Send + 'static) {
        self.completion.listen(Box::new(listener));
    }

    /// Records that no more rings join: the relay ends once it has copied all frames. Does not wait.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
        self.running.drain();
    }

    /// Makes the relay copy the remaining frames of the rings, close the guest's ring, and end. Does not wait.
    pub(crate) fn stop(&self) {
        self.is_complete.store(true, Ordering::Release);
        self.running.stop();
    }

    /// Stops the relay as [`stop`](Relay::stop), and waits for its end. A relay that has not ended at `deadline` has
    /// failed.
    pub(crate) fn finish_by(&self, deadline: Instant) {
        self.stop();
        if self.completion.wait_until(deadline).is_none() {
            let reason = "copying to the guest: its thread did not end in time".to_owned();
            let failed = Outcome::failed(self.running.delivered(), reason);
            self.completion.complete(&self.output, failed);
        }
    }

    /// Returns the ledger of the feed, as far as its frames have reached the guest's ring. `host` returns the ledger of
    /// the host's rings. Frames that are being copied are not counted as offered yet. No count ever decreases.
    pub(crate) fn account(&self, host: impl FnOnce() -> Ledger) -> Ledger {
        let (copied, delivered, outcome) = self.counts();
        // The host's counts are read after the others, so they include all frames that the others include.
        self.reported.raise(copied.account(delivered, outcome.as_ref(), host()))
    }

    /// Returns the ledger for a relay that has ended, if all rings that it read are closed and `host` counts exactly
    /// their frames: each frame has reached the guest's ring, or is a drop.
    pub(crate) fn account_of_closed(&self, host: impl FnOnce() -> Ledger) -> Ledger {
        let (copied, delivered, outcome) = self.counts();
        let host = host();
        let captured = host.captured;
        let mut own = copied.account(delivered, outcome.as_ref(), host);
        account::count_missing(&mut own, captured);
        self.reported.raise(own)
    }

    fn counts(&self) -> (CopiedCounts, Delivered, Option<Outcome>) {
        let outcome = self.completion.outcome();
        let copied = CopiedCounts {
            frames: self.ring.frames_written(),
            kept_bytes: self.ring.writer_word(WriterWord::KeptBytes),
            wire_bytes: self.ring.writer_word(WriterWord::WireBytes),
            super_frames: self.ring.writer_word(WriterWord::SuperFrames),
        };
        let delivered = outcome.as_ref().map(|outcome| outcome.delivered);
        (copied, delivered.unwrap_or_else(|| self.running.delivered()), outcome)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.finish_by(Instant::now() + RELAY_END_TIME_MAX);
    }
}

/// The reason why a guest has no copy of a feed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    #[error("no thread for copying frames to the guest")]
    Thread(#[source] std::io::Error),
}

/// The frames of a subscription, which may move to other rings.
struct SubscriptionSource {
    consumer: Consumer,
    /// The ordinals at which the first feed begins. Later feeds begin with the first frames of their rings.
    from: Option<Vec<u64>>,
    is_complete: Arc<AtomicBool>,
}

impl FrameSource for SubscriptionSource {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        let SubscriptionSource { consumer, from, .. } = self;
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
