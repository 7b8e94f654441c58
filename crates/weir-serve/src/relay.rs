//! What a feed's rings have, merged into the one ring that a guest reads.
//!
//! A consumer of the probe like any other, whose output is a ring in the guest's region. What it is too slow for is the
//! drop `relay` of the guest's feed.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_client::protocol::Ledger;
use weir_consumer::thread::{self, Finished, Plan, Running};
use weir_consumer::{
    Begin, ConsumerError, Count, Delivered, FeedChange, FrameSource, JoinedFeed, Ordered, Run, Sink,
};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_probe::{Consumer, Joined, Probe, ProbeError, SubscriptionId, Update};
use weir_region::words::AWAKE;
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Sleeper;
use weir_ring::{Clock, Mapping, Ring, RingSpec, Writer, WriterKind};
use weir_vm::{GuestMemory, TakenRing, VmError};

use crate::limits::{RELAY_RUN_FRAMES, RELAY_SLACK};

/// Rings that a relay can read at a time: those of a feed, and of what it moves to.
const LINES: usize = weir_ring::wake::RINGS_MAX;

/// Has a guest wake the readers of a feed.
pub(crate) struct Bell {
    /// Has the guest's words.
    pub memory: Arc<GuestMemory>,
    /// Rings.
    pub ring: Arc<dyn Fn() + Send + Sync>,
}

/// A guest's copy of a feed.
pub(crate) struct Relay {
    work: Mutex<Work>,
    ring: Ring<Mapping>,
    taken: Arc<TakenRing>,
    memory: Arc<GuestMemory>,
    is_complete: Arc<AtomicBool>,
}

enum Work {
    Runs(Running<Ordered<ToRegion>>),
    Ended(Delivered),
}

impl Relay {
    /// Begins to copy what this subscription, which has so many rings, reads from the ordinals `from` on.
    pub(crate) fn start(
        probe: &Probe,
        subscription: SubscriptionId,
        from: Vec<u64>,
        data_blocks: u64,
        bell: Bell,
    ) -> Result<Relay, RelayError> {
        let consumer = probe.add_consumer(LINES)?;
        probe.attach(consumer.id, subscription)?;
        let (memory, is_complete) = (Arc::clone(&bell.memory), Arc::new(AtomicBool::new(false)));
        let mut source =
            Reading { consumer, from: Some(from), is_complete: Arc::clone(&is_complete) };
        let sink =
            ToRegion { data_blocks, bell, open: None, woken_for: AWAKE, kept: Count::default() };
        let mut ordered = Box::new(Ordered::new(RELAY_SLACK, sink));
        // Describes the feed's interface, and with it makes the ring.
        thread::take_changes(&mut source, ordered.as_mut())?;
        let open = ordered.sink().open.as_ref().ok_or(ProbeError::Ended)?;
        let (ring, taken) = (open.taken.ring().clone(), Arc::clone(&open.taken));
        let plan = Plan {
            slack: RELAY_SLACK,
            ..Plan::new(Box::new(source)).map_err(ConsumerError::from)?
        };
        let running = thread::spawn(ordered, plan).map_err(RelayError::Thread)?;
        Ok(Relay { work: Mutex::new(Work::Runs(running)), ring, taken, memory, is_complete })
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

    /// Nothing joins any more: once everything was passed on, it ends.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
        if let Work::Runs(running) = &*self.work() {
            running.drain();
        }
    }

    /// Passes on what the rings have, closes the guest's, and ends.
    pub(crate) fn finish(&self) {
        self.is_complete.store(true, Ordering::Release);
        let mut work = self.work();
        if let Work::Runs(_) = &*work {
            let Work::Runs(running) =
                std::mem::replace(&mut *work, Work::Ended(Delivered::default()))
            else {
                return;
            };
            let Finished { consumer, .. } = running.finish();
            *work = Work::Ended(weir_consumer::Consumer::delivered(consumer.as_ref()));
        }
    }

    /// The ledger of the feed, as far as its frames have come to the guest's ring: those that are still on their way
    /// are not offered yet.
    pub(crate) fn account(&self, host: Ledger) -> Ledger {
        let delivered = match &*self.work() {
            Work::Runs(running) => running.delivered(),
            Work::Ended(delivered) => *delivered,
        };
        let captured = self.ring.frames_written();
        let accounted = captured.saturating_add(delivered.lapped);
        let under_way = host.captured.saturating_sub(accounted);
        let mut own = Ledger {
            offered: host.offered.saturating_sub(under_way),
            captured,
            kept_bytes: self.ring.writer_word(WriterWord::KeptBytes),
            wire_bytes: self.ring.writer_word(WriterWord::WireBytes),
            super_frames: self.ring.writer_word(WriterWord::SuperFrames),
            ..host
        };
        *own.drops.entry("relay".to_owned()).or_default() += delivered.lapped;
        own
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The ring in the guest's region.
struct ToRegion {
    data_blocks: u64,
    bell: Bell,
    open: Option<Open>,
    /// The threshold that the guest was last told of.
    woken_for: u64,
    kept: Count,
}

struct Open {
    writer: Option<Writer<Mapping>>,
    taken: Arc<TakenRing>,
}

impl ToRegion {
    fn publish(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(writer) = &mut open.writer else { return };
        writer.publish();
        // H of weir_ring::doorbell: pairs with the fence between the guest's threshold and its look at the ring.
        fence(Ordering::SeqCst);
        let threshold = self.bell.memory.threshold(open.taken.place().slot);
        if threshold != AWAKE && threshold != self.woken_for && writer.frames() >= threshold {
            self.woken_for = threshold;
            (self.bell.ring)();
        }
    }
}

impl Sink for ToRegion {
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        _: &str,
    ) -> Result<(), ConsumerError> {
        let failed = |error: VmError| ConsumerError::Output(error.into());
        match &self.open {
            Some(open) if number > 0 => _ = open.taken.ring().append_interface(interface)?,
            _ => {
                let spec = RingSpec {
                    data_blocks: self.data_blocks,
                    interfaces: vec![interface.clone()],
                    cpu: None,
                    clock: Clock::Realtime,
                    // The guest's broker arms for its readers, as the owner of programs does.
                    writer: WriterKind::Bpf,
                };
                let taken = self.bell.memory.take_ring(&spec).map_err(failed)?;
                let writer = Some(Writer::new(taken.ring().clone()));
                self.open = Some(Open { writer, taken: Arc::new(taken) });
            }
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        if let Some(writer) = self.open.as_mut().and_then(|open| open.writer.as_mut()) {
            writer.push(&record.meta, record.frame);
            self.kept += Count::one(record.meta.wire_len);
        }
        Ok(())
    }

    fn run_frames_max(&self) -> u64 {
        RELAY_RUN_FRAMES
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        if let Some(writer) = self.open.as_mut().and_then(|open| open.writer.as_mut()) {
            writer.push_burst(run.records().map(|record| (record.meta, record.frame)));
            self.kept += run.count;
        }
        self.publish();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.publish();
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.flush()
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

impl Drop for ToRegion {
    fn drop(&mut self) {
        // The ring's end, of which sleepers hear by a bell, too.
        if let Some(open) = &mut self.open {
            drop(open.writer.take());
            (self.bell.ring)();
        }
    }
}
