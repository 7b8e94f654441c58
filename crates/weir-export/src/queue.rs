//! A queue of batches, and the thread that passes them to an export.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::export::{Batch, Counts, Export, ExportError};
use crate::limits::{BATCHES_MAX, FINISH_TIME_MAX, HANG_TIME_MAX};
use crate::patience::Patience;

/// Interval at which the export's `tick` is called.
pub const TICK: Duration = Duration::from_millis(500);
/// Interval at which a waiting thread checks for room in the queue, or for the end of the export.
const LOOK: Duration = Duration::from_millis(2);

/// The way to treat a batch when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait for room: no records are lost.
    Wait,
    /// Drop its records and count them. After [`Queue::end_by`], wait for room instead.
    Drop,
}

/// The queue of a running export. Dropping it waits for the export to finish.
pub struct Queue {
    name: String,
    when_full: WhenFull,
    shared: Arc<Shared>,
    sender: Option<SyncSender<Arc<Batch>>>,
    thread: Option<JoinHandle<Option<ExportError>>>,
    /// Number of records that were pushed.
    pushed: u64,
}

/// Result of an export.
#[derive(Debug)]
pub struct Finished {
    /// As [`Export::name`].
    pub name: String,
    /// Counts of the records. Every record that was pushed is in one of the two counts.
    pub counts: Counts,
    /// How often the export found its disk full.
    pub full: u64,
    /// The error that ended the export, if there was one.
    pub failure: Option<ExportError>,
}

/// State that the export's thread and the owner of the queue share.
#[derive(Default)]
struct Shared {
    /// Records that the queue dropped.
    dropped: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
    /// Whether the export takes no more records.
    has_ended: AtomicBool,
    patience: Arc<Patience>,
}

impl Queue {
    /// Starts the thread of an export.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(export: impl Export + 'static, when_full: WhenFull) -> io::Result<Queue> {
        Queue::start_with(export, when_full, Patience::default())
    }

    /// Starts the thread as [`start`](Queue::start) does, with these time limits.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start_with(
        mut export: impl Export + 'static,
        when_full: WhenFull,
        patience: Patience,
    ) -> io::Result<Queue> {
        let (sender, batches) = sync_channel(BATCHES_MAX);
        let patience = Arc::new(patience);
        export.set_patience(Arc::clone(&patience));
        let (name, shared) = (export.name(), Arc::new(Shared { patience, ..Shared::default() }));
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("weir-export".into())
            .spawn(move || run(export, &batches, &of_thread))?;
        let (sender, thread) = (Some(sender), Some(thread));
        Ok(Queue { name, when_full, shared, sender, thread, pushed: 0 })
    }

    /// Returns the name, as [`Export::name`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a batch to the queue. If there is no room, or the export has ended, its records are counted as unsent.
    pub fn push(&mut self, batch: &Arc<Batch>) {
        self.pushed += batch.records.len() as u64;
        let waits = self.when_full == WhenFull::Wait || self.shared.patience.finish_by().is_some();
        let is_taken = self.sender.as_ref().is_some_and(|sender| match waits {
            true => send_in_time(sender, batch, &self.shared.patience),
            false => sender.try_send(Arc::clone(batch)).is_ok(),
        });
        if !is_taken {
            self.shared.drop_records(batch);
        }
    }

    /// Returns whether the export takes no more records.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // A thread that has panicked has not set the flag, but is finished.
        self.shared.has_ended.load(Ordering::Acquire)
            || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the counts so far. Records that wait are not counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Shared { dropped, sent, unsent, .. } = &*self.shared;
        let unsent = dropped.load(Ordering::Relaxed) + unsent.load(Ordering::Relaxed);
        Counts { sent: sent.load(Ordering::Relaxed), unsent }
    }

    /// Returns how often the export found its disk full.
    #[must_use]
    pub fn full(&self) -> u64 {
        self.shared.patience.full()
    }

    /// Sets the time at which the export has to end. Until then `push` waits for room, and waiting batches are still
    /// sent; those that still wait then are dropped. Only the first call has an effect.
    pub fn end_by(&mut self, end: Instant) {
        self.shared.patience.end_by(end);
    }

    /// Declares that no more batches come. With [`WhenFull::Drop`], this also starts the time limit of the end. Close
    /// several queues before the first is [finished](Queue::finish), so that their time limits run in parallel.
    pub fn close(&mut self) {
        self.sender = None;
        if self.when_full == WhenFull::Drop {
            self.end_by(Instant::now() + FINISH_TIME_MAX);
        }
    }

    /// Waits until every pushed record is sent or counted as unsent. An export that still blocks [`HANG_TIME_MAX`]
    /// after its time limit, or `AT_ONCE_TIME_MAX` after the request to end at once, is abandoned; all records that
    /// it has not sent by then count as unsent.
    pub fn finish(&mut self) -> Finished {
        self.close();
        let Some(thread) = self.thread.take() else {
            return self.finished(self.counts(), None);
        };
        let patience = &self.shared.patience;
        while !thread.is_finished() {
            if patience.at_once().is_over() {
                return self.left(
                    "it was left in the middle of something, as all was to end at once; let it have its time",
                    io::ErrorKind::Interrupted,
                );
            }
            if patience.finish_by().is_some_and(|end| end.elapsed() > HANG_TIME_MAX) {
                return self.left(
                    "it takes nothing any more; is its disk or its reader there?",
                    io::ErrorKind::TimedOut,
                );
            }
            thread::sleep(LOOK);
        }
        let joined = thread.join();
        let failure = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.finished(self.counts(), failure)
    }

    fn finished(&self, counts: Counts, failure: Option<ExportError>) -> Finished {
        Finished { name: self.name.clone(), counts, full: self.full(), failure }
    }

    /// Creates the result of an abandoned export.
    fn left(&self, why: &str, kind: io::ErrorKind) -> Finished {
        let sent = self.shared.sent.load(Ordering::Relaxed);
        let counts = Counts { sent, unsent: self.pushed.saturating_sub(sent) };
        let what = format!("{}: {why}", self.name);
        let failure = Some(ExportError { what, source: kind.into() });
        self.finished(counts, failure)
    }
}

/// Adds a batch, and waits for room until the export has to end. Returns whether the batch was added.
fn send_in_time(sender: &SyncSender<Arc<Batch>>, batch: &Arc<Batch>, patience: &Patience) -> bool {
    loop {
        match sender.try_send(Arc::clone(batch)) {
            Ok(()) => return true,
            Err(TrySendError::Full(_)) if !patience.is_over() => thread::sleep(LOOK),
            Err(_) => return false,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end_by(Instant::now() + FINISH_TIME_MAX);
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            // The panic was already reported by the panic hook.
            let _ = thread.join();
        } else if self.thread.is_some() {
            self.finish();
        }
    }
}

/// Passes batches to the export until the queue is closed or the export fails. Returns the error.
fn run(
    mut export: impl Export,
    batches: &Receiver<Arc<Batch>>,
    shared: &Shared,
) -> Option<ExportError> {
    let mut result = Ok(());
    let mut ticked = Instant::now();
    while result.is_ok() {
        match batches.recv_timeout(TICK.saturating_sub(ticked.elapsed())) {
            Ok(batch) if shared.patience.is_over() => shared.drop_records(&batch),
            Ok(batch) => result = export.take(&batch),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if result.is_ok() && ticked.elapsed() >= TICK {
            result = export.tick();
            ticked = Instant::now();
        }
        shared.tell(export.counts());
    }
    let result = result.and_then(|()| export.finish());
    shared.tell(export.counts());
    drop(export);
    shared.has_ended.store(true, Ordering::Release);
    // After a failure batches are still in the channel, and more may come until the queue is finished. Take all of them
    // out: otherwise their records would be in no count, and a thread that waits for room would wait forever.
    for batch in batches {
        shared.drop_records(&batch);
    }
    result.err()
}

impl Shared {
    fn drop_records(&self, batch: &Batch) {
        self.dropped.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
    }

    fn tell(&self, counts: Counts) {
        self.sent.store(counts.sent, Ordering::Relaxed);
        self.unsent.store(counts.unsent, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Sender, channel};

    use crate::patience::EndAtOnce;
    use weir_flow::{EndReason, FlowRecord, Totals};
    use weir_frame::flow::FlowKey;
    use weir_frame::headers::Addresses;

    const RECORDS: u64 = 10;
    /// Longer than anything here takes on a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Counts the records that it takes, a batch for each word that it is sent, until it fails.
    struct Gated {
        gate: Receiver<()>,
        fails_at: Option<u64>,
        counts: Counts,
    }

    impl Gated {
        /// An export, and what lets it go on. Without the latter, it does not wait.
        fn new(fails_at: Option<u64>) -> (Gated, Sender<()>) {
            let (opener, gate) = channel();
            (Gated { gate, fails_at, counts: Counts::default() }, opener)
        }
    }

    impl Export for Gated {
        fn name(&self) -> String {
            "gated".into()
        }

        fn take(&mut self, batch: &Batch) -> Result<(), ExportError> {
            // An error: the process that opened it is gone, so it stays open.
            let _ = self.gate.recv();
            let records = batch.records.len() as u64;
            if self.fails_at.is_some_and(|at| self.counts.sent >= at) {
                self.counts.unsent += records;
                let what = "gated: it is full; empty it".into();
                return Err(ExportError { what, source: io::ErrorKind::StorageFull.into() });
            }
            self.counts.sent += records;
            Ok(())
        }

        fn counts(&self) -> Counts {
            self.counts
        }
    }

    fn batch() -> Arc<Batch> {
        let (src, dst) = (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        let key = FlowKey {
            addresses: Addresses::V4 { src, dst },
            src_port: 1,
            dst_port: 2,
            protocol: 17,
        };
        let record = FlowRecord {
            key,
            vlan: None,
            interface: 0,
            first_ns: 0,
            last_ns: 0,
            forward: Totals::default(),
            reverse: Totals::default(),
            icmp: None,
            reason: EndReason::Idle,
        };
        Arc::new(Batch { records: vec![record; RECORDS as usize], origins: Arc::default() })
    }

    #[test]
    fn a_slow_export_costs_records_that_are_counted_and_holds_nobody() {
        let (export, opener) = Gated::new(None);
        let mut queue = Queue::start(export, WhenFull::Drop).unwrap();
        let batch = batch();
        // The gate is shut: a push that waited would wait for ever.
        let pushed = BATCHES_MAX as u64 + 100;
        (0..pushed).for_each(|_| queue.push(&batch));
        let Counts { sent, unsent } = queue.counts();
        // One may be in its hands.
        assert!(sent == 0 && (unsent == 100 * RECORDS || unsent == 99 * RECORDS), "{unsent}");
        drop(opener);
        let finished = queue.finish();
        let want = Counts { sent: pushed * RECORDS - unsent, unsent };
        assert_eq!((finished.counts, finished.name.as_str()), (want, "gated"));
        assert!(finished.failure.is_none());
    }

    #[test]
    fn nothing_is_lost_where_it_is_waited_for() {
        let (export, opener) = Gated::new(None);
        let mut queue = Queue::start(export, WhenFull::Wait).unwrap();
        let (batch, pushed) = (batch(), BATCHES_MAX as u64 * 3);
        let opening = thread::spawn(move || (0..pushed).for_each(|_| opener.send(()).unwrap()));
        (0..pushed).for_each(|_| queue.push(&batch));
        let finished = queue.finish();
        opening.join().unwrap();
        assert_eq!(finished.counts, Counts { sent: pushed * RECORDS, unsent: 0 });
    }

    #[test]
    fn a_failed_export_says_why_and_every_record_is_counted() {
        for when_full in [WhenFull::Wait, WhenFull::Drop] {
            for _ in 0..500 {
                let (export, opener) = Gated::new(Some(2 * RECORDS));
                drop(opener);
                let mut queue = Queue::start(export, when_full).unwrap();
                let (batch, mut pushed) = (batch(), 0_u64);
                // Pushed before, while and after it fails.
                let start = Instant::now();
                while !queue.has_ended() {
                    assert!(start.elapsed() < PATIENCE, "it takes more, though it has failed");
                    queue.push(&batch);
                    pushed += 1;
                }
                (0..20).for_each(|_| queue.push(&batch));
                pushed += 20;
                let finished = queue.finish();
                let Counts { sent, unsent } = finished.counts;
                assert_eq!((sent, sent + unsent), (2 * RECORDS, pushed * RECORDS));
                assert_eq!(finished.failure.unwrap().to_string(), "gated: it is full; empty it");
            }
        }
    }

    #[test]
    fn an_export_that_is_too_slow_ends_in_time() {
        let (export, opener) = Gated::new(None);
        // Records that wait at the end would take 13 s.
        let opening = thread::spawn(move || {
            while opener.send(()).is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        });
        let mut queue = Queue::start(export, WhenFull::Drop).unwrap();
        let (batch, pushed) = (batch(), BATCHES_MAX as u64);
        (0..pushed).for_each(|_| queue.push(&batch));
        let start = Instant::now();
        let Counts { sent, unsent } = queue.finish().counts;
        let took = start.elapsed();
        assert!(took < FINISH_TIME_MAX * 2, "{took:?}");
        assert!(sent > 0 && unsent > 0 && sent + unsent == pushed * RECORDS, "{sent}, {unsent}");
        opening.join().unwrap();
    }

    #[test]
    fn an_export_that_is_waited_for_ends_at_once_if_asked() {
        // The gate is shut, so the export hangs in its first batch.
        let (export, opener) = Gated::new(None);
        let at_once = EndAtOnce::default();
        let patience = Patience::new(at_once.clone(), || ());
        let mut queue = Queue::start_with(export, WhenFull::Wait, patience).unwrap();
        let (batch, pushed) = (batch(), BATCHES_MAX as u64 * 3);
        let asking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            at_once.ask();
        });
        // Without that it would wait for ever.
        (0..pushed).for_each(|_| queue.push(&batch));
        asking.join().unwrap();
        let finished = queue.finish();
        assert_eq!(finished.counts, Counts { sent: 0, unsent: pushed * RECORDS });
        let failure = finished.failure.unwrap();
        assert!(failure.to_string().contains("end at once"), "{failure}");
        drop(opener);
    }

    #[test]
    fn it_is_known_that_an_export_has_failed_before_it_is_finished() {
        let (export, opener) = Gated::new(Some(0));
        drop(opener);
        let mut queue = Queue::start(export, WhenFull::Wait).unwrap();
        assert!(!queue.has_ended());
        queue.push(&batch());
        let start = Instant::now();
        while !queue.has_ended() {
            assert!(start.elapsed() < PATIENCE, "nobody says that it has failed");
            thread::yield_now();
        }
        queue.push(&batch());
        assert_eq!(queue.finish().counts, Counts { sent: 0, unsent: 2 * RECORDS });
        queue.push(&batch());
        assert_eq!(queue.counts(), Counts { sent: 0, unsent: 3 * RECORDS });
    }
}
