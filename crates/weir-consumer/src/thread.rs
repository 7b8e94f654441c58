//! Runs a consumer on its own thread: it takes frames until all rings are read, a limit is reached, or an error occurs.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_ring::RingError;
use weir_ring::idle::SLEEP_MAX;
use weir_ring::wake::{Waker, Woken};

use crate::account::Delivered;
use crate::consumer::{Consumer, ConsumerError, Step};
use crate::counted::Count;
use crate::source::FrameSource;
use crate::upkeep::{self, Upkeep};
use crate::waiting::Waiting;

/// Name of the consumers' threads, by which tools find them.
pub const THREAD_NAME: &str = "weir-consumer";
/// Length of pauses while the sources stop: their last frames come within milliseconds.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait for frames of a ring that stays open after its source has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sources are running.
const RUNNING: u8 = 0;
/// The sources are stopping: their last frames are read.
const DRAINING: u8 = 1;
/// The sources have stopped: rings that are still open get no more frames.
const STOPPED: u8 = 2;

/// Parameters of a consumer's thread.
pub struct Plan<C: ?Sized> {
    /// The consumer's source.
    pub source: Box<dyn FrameSource>,
    /// Ends the consumer's sleep when the sources stop.
    pub waker: Waker,
    /// Number of frames after which the consumer ends.
    pub frames_max: Option<u64>,
    /// How long frames may be held ([`Merge`](crate::Merge)).
    pub slack: Duration,
    /// Called after each step; dropped when the consumer has ended.
    pub progress: Box<dyn FnMut(&C) + Send>,
    /// Longest sleep of the consumer, if nothing wakes it.
    pub sleep_max: Duration,
    /// Called once, on the consumer's thread, with the final counters, before other threads see that the consumer has
    /// ended.
    pub last: Box<dyn FnOnce(&C) + Send>,
    /// Called once, on the consumer's thread, when the consumer has ended. Not called if the thread panics.
    pub ended: Ended<C>,
}

/// Called when a consumer has ended.
pub type Ended<C> = Box<dyn FnOnce(&Finished<C>) + Send>;

impl<C: ?Sized> Plan<C> {
    /// Creates parameters for a consumer that takes all frames of `source`, with no slack and no callbacks.
    ///
    /// # Errors
    /// [`RingError::Os`] if no descriptors are left.
    pub fn new(source: Box<dyn FrameSource>) -> Result<Plan<C>, RingError> {
        let waker = source.sleeper().waker()?;
        let (progress, last) = (Box::new(|_: &C| ()), Box::new(|_: &C| ()));
        let ended = Box::new(|_: &Finished<C>| ());
        let (frames_max, slack, sleep_max) = (None, Duration::ZERO, SLEEP_MAX);
        Ok(Plan { source, waker, frames_max, slack, progress, sleep_max, last, ended })
    }
}

/// A running consumer.
pub struct Running<C: ?Sized> {
    shared: Arc<Shared>,
    waker: Waker,
    thread: JoinHandle<Finished<C>>,
}

/// Reads the progress of a running consumer, from any thread. Clones observe the same consumer.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

impl Observer {
    /// Returns the same as [`Running::delivered`].
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        *self.0.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the consumer has ended. If its thread panicked, only [`Running::has_ended`] returns true.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// Returns how the consumer ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<&Ending> {
        self.0.end.get()
    }
}

/// How a consumer ended, as observers see it.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The same as [`Finished::failure`].
    pub failure: Option<Arc<ConsumerError>>,
    /// The same as [`Finished::limited`].
    pub limited: bool,
    /// Frames that the output had kept at that time. Collected frames may be added when the output is finished.
    pub kept: Count,
}

/// A consumer that has ended.
pub struct Finished<C: ?Sized> {
    /// The consumer. Its rings still have the number of frames that were not read.
    pub consumer: Box<C>,
    /// The error that ended the consumer.
    pub failure: Option<Arc<ConsumerError>>,
    /// When the consumer took the last frame, if that was after the sources were told to stop.
    pub last: Option<Instant>,
    /// Whether the consumer has reached its limit of frames.
    pub limited: bool,
}

struct Shared {
    phase: AtomicU8,
    end: OnceLock<Ending>,
    delivered: Mutex<Delivered>,
}

/// Starts a consumer on its own thread.
///
/// # Errors
/// The kernel's error, if it cannot create a thread.
pub fn spawn<C: Consumer + Send + ?Sized + 'static>(
    consumer: Box<C>,
    plan: Plan<C>,
) -> io::Result<Running<C>> {
    let Plan { source, waker, frames_max, slack, progress, sleep_max, last: report, ended } = plan;
    let shared = Arc::new(Shared {
        phase: AtomicU8::new(RUNNING),
        end: OnceLock::new(),
        delivered: Mutex::default(),
    });
    let theirs = Arc::clone(&shared);
    let thread = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
        let mut work = Work {
            consumer,
            source,
            waiting: Waiting::new(),
            sleep_max,
            shared: theirs,
            frames_max,
            patience: slack + PATIENCE,
            progress,
            last: None,
            upkeep: Upkeep::new(),
        };
        let failure = work.run().err().map(Arc::new);
        let limited = work.left() == 0;
        let Work { consumer, shared, last, progress, .. } = work;
        // Dropping `progress` ends the wait of threads that wait for this consumer's progress.
        drop(progress);
        let (delivered, kept) = (consumer.delivered(), consumer.kept());
        *shared.delivered.lock().unwrap_or_else(PoisonError::into_inner) = delivered;
        report(&consumer);
        let _ = shared.end.set(Ending { failure: failure.clone(), limited, kept });
        let finished = Finished { consumer, failure, last, limited };
        ended(&finished);
        finished
    })?;
    Ok(Running { shared, waker, thread })
}

impl<C: ?Sized> Running<C> {
    /// Returns the counts of frames up to the last step.
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        *self.shared.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an observer for other threads.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.shared))
    }

    /// Whether the consumer has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.end.get().is_some() || self.thread.is_finished()
    }

    /// Makes the consumer read without long pauses. To be called when the sources are told to stop.
    pub fn drain(&self) {
        self.shared.phase.store(DRAINING, Ordering::Release);
        self.waker.wake();
    }

    /// Makes the consumer read the remaining frames and end, and waits until it has ended. To be called when the
    /// sources have stopped.
    ///
    /// # Panics
    /// If the thread panicked: a bug in this program, passed on.
    #[must_use]
    pub fn finish(self) -> Finished<C> {
        self.stop();
        self.wait()
    }

    /// Does the same as [`finish`](Running::finish) without waiting: [`Plan::ended`] is called at the end.
    pub fn stop(&self) {
        self.shared.phase.store(STOPPED, Ordering::Release);
        self.waker.wake();
    }

    /// Waits until the consumer ends by itself, because all rings are closed and read, or because it has failed.
    ///
    /// # Panics
    /// If the thread panicked: a bug in this program, passed on.
    #[must_use]
    pub fn wait(self) -> Finished<C> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Applies the changes of feeds to a consumer. The consumer's thread does this before each turn. If it is also called
/// before the thread is started, it finds outputs that do not support the feeds before the run begins. If one feed
/// fails, the others still join, so that their frames are in the consumer's counts.
///
/// # Errors
/// [`ConsumerError`] if a ring is inconsistent, or if an output does not support its interfaces.
pub fn take_changes<C: Consumer + ?Sized>(
    source: &mut dyn FrameSource,
    consumer: &mut C,
) -> Result<(), ConsumerError> {
    upkeep::take_changes(source, consumer).map(drop)
}

/// State of the thread.
struct Work<C: ?Sized> {
    consumer: Box<C>,
    source: Box<dyn FrameSource>,
    waiting: Waiting,
    sleep_max: Duration,
    shared: Arc<Shared>,
    frames_max: Option<u64>,
    patience: Duration,
    progress: Box<dyn FnMut(&C) + Send>,
    last: Option<Instant>,
    upkeep: Upkeep,
}

impl<C: Consumer + ?Sized> Work<C> {
    fn run(&mut self) -> Result<(), ConsumerError> {
        let taken = self.take_all();
        // Write out the frames that were taken before a ring failed.
        if let Ok(()) | Err(ConsumerError::Ring(_)) = &taken {
            let flushed = self.consumer.flush();
            self.last = self.last.map(|_| Instant::now());
            taken.and(flushed)?;
        } else {
            taken?;
        }
        self.upkeep.take_gone().map_or(Ok(()), |gone| Err(gone.into()))
    }

    fn left(&self) -> u64 {
        let taken = self.consumer.delivered().frames;
        self.frames_max.map_or(u64::MAX, |limit| limit.saturating_sub(taken))
    }

    fn take_all(&mut self) -> Result<(), ConsumerError> {
        let mut quiet_since = Instant::now();
        while self.left() > 0 {
            let phase = self.shared.phase.load(Ordering::Acquire);
            // Read before the changes are taken: if it is true, no changes come after those.
            let is_complete = self.source.is_complete() || phase == STOPPED;
            self.upkeep.before_turn(self.source.as_mut(), self.consumer.as_mut())?;
            let step = self.consumer.step(self.left());
            (self.progress)(&self.consumer);
            *self.shared.delivered.lock().unwrap_or_else(PoisonError::into_inner) =
                self.consumer.delivered();
            match step? {
                Step::Ended if is_complete => break,
                Step::Busy => self.last = (phase != RUNNING).then(Instant::now),
                step if phase == RUNNING => self.wait(step)?,
                // The output is slow but will become free, so the remaining frames are not given up.
                Step::Writing => thread::sleep(DRAIN_PAUSE),
                // A source whose stop failed may leave a ring open.
                _ if phase == STOPPED && quiet_since.elapsed() > self.patience => break,
                _ => {
                    thread::sleep(DRAIN_PAUSE);
                    continue;
                }
            }
            quiet_since = Instant::now();
        }
        Ok(())
    }

    /// Waits after a step without frames.
    fn wait(&mut self, step: Step) -> Result<(), ConsumerError> {
        if !self.consumer.rests() {
            return Ok(());
        }
        let (consumer, sleeper) = (self.consumer.as_mut(), self.source.sleeper());
        let woken = self.waiting.wait(consumer, sleeper, step, self.sleep_max)?;
        if let Some(Woken::WriterGone(channel)) = woken {
            self.upkeep.writer_gone(self.consumer.rings_mut(), channel);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
