//! The thread of an export, and what waits for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::export::{Batch, Counts, Export, ExportError};
use crate::limits::BATCHES_MAX;

/// How often an export is called where nothing comes.
pub const TICK: Duration = Duration::from_millis(500);

/// What becomes of a batch that there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is waited for: nothing is lost by that.
    Wait,
    /// Its records are dropped, and counted.
    Drop,
}

/// An export at work. Dropping it waits for the export to finish.
pub struct Queue {
    name: String,
    when_full: WhenFull,
    shared: Arc<Shared>,
    sender: Option<SyncSender<Arc<Batch>>>,
    thread: Option<JoinHandle<Option<ExportError>>>,
}

/// What an export came to.
#[derive(Debug)]
pub struct Finished {
    /// As [`Export::name`].
    pub name: String,
    /// Every record that was handed over is in one of them.
    pub counts: Counts,
    /// Why it could not go on.
    pub failure: Option<ExportError>,
}

/// Of both threads.
#[derive(Default)]
struct Shared {
    /// Dropped here.
    dropped: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
}

impl Queue {
    /// Starts the thread of an export.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(export: impl Export + 'static, when_full: WhenFull) -> io::Result<Queue> {
        let (sender, batches) = sync_channel(BATCHES_MAX);
        let (name, shared) = (export.name(), Arc::new(Shared::default()));
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("weir-export".into())
            .spawn(move || run(export, &batches, &of_thread))?;
        Ok(Queue { name, when_full, shared, sender: Some(sender), thread: Some(thread) })
    }

    /// As [`Export::name`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hands a batch over.
    pub fn push(&mut self, batch: &Arc<Batch>) {
        let Some(sender) = &self.sender else { return };
        let is_taken = match self.when_full {
            WhenFull::Wait => sender.send(Arc::clone(batch)).is_ok(),
            // Full, or its thread has ended: finish() says why.
            WhenFull::Drop => !matches!(
                sender.try_send(Arc::clone(batch)),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            ),
        };
        if !is_taken {
            self.shared.dropped.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
        }
    }

    /// Whether it takes no more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Records so far; those that wait are in neither count.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Shared { dropped, sent, unsent } = &*self.shared;
        let unsent = dropped.load(Ordering::Relaxed) + unsent.load(Ordering::Relaxed);
        Counts { sent: sent.load(Ordering::Relaxed), unsent }
    }

    /// Waits until everything that was handed over is sent, or cannot be.
    pub fn finish(&mut self) -> Finished {
        self.sender = None;
        let joined = self.thread.take().map(JoinHandle::join);
        let failure = joined
            .and_then(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Finished { name: self.name.clone(), counts: self.counts(), failure }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was told where it happened.
            let _ = thread.join();
        }
    }
}

/// Feeds the export until nobody hands batches over any more; gives why it could not go on.
fn run(
    mut export: impl Export,
    batches: &Receiver<Arc<Batch>>,
    shared: &Shared,
) -> Option<ExportError> {
    let mut result = Ok(());
    let mut ticked = Instant::now();
    while result.is_ok() {
        match batches.recv_timeout(TICK.saturating_sub(ticked.elapsed())) {
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
    // A failed export leaves batches behind, and whoever waits for room gets an answer.
    let left: usize = batches.try_iter().map(|batch| batch.records.len()).sum();
    shared.dropped.fetch_add(left as u64, Ordering::Relaxed);
    result.err()
}

impl Shared {
    fn tell(&self, counts: Counts) {
        self.sent.store(counts.sent, Ordering::Relaxed);
        self.unsent.store(counts.unsent, Ordering::Relaxed);
    }
}
