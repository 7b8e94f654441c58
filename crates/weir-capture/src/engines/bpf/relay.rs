//! Derived feeds: feeds whose rings the programs at the hook do not write. For all derived feeds together, the programs
//! write one base feed. A thread reads its rings and forwards the frames to the derived feeds.
//!
//! This costs one more copy, and the thread can be lapped: the frames that it misses are counted as the drop `relay` of
//! every derived feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_frame::pcapng::Interface;
use weir_ring::idle::SLEEP_MAX;
use weir_ring::wake::{Interrupter, Sleeper, Waker};
use weir_ring::{Batch, Clock, Ledger, Mapping, Poll, Reader, Ring, RingError, Start};

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedSlot;
use crate::feed::fanout::Fanout;
use crate::feed::feeds::Feeds;
use crate::feed::location::FilterLocation;
use crate::setup::{Setup, refuse_queue};

/// Without frames, the relay's thread pauses this many times before it sleeps. Each pause is twice as long as the one
/// before; together they take 1.6 ms. Consumers pause in the same way (`weir_ring::idle`), so the delays of a frame add
/// up.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSES: u32 = 5;

/// Forwards frames to the derived feeds.
pub(super) struct Relay {
    feeds: Feeds,
    fanouts: Vec<Fanout>,
    readers: Vec<Reader<Mapping>>,
    lapped: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    thread: Option<(JoinHandle<Result<(), CaptureError>>, Interrupter)>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        // For a source that was not started, or not stopped.
        let _ = self.finish();
    }
}

/// Returns the base feed, which the programs at the hook write for the derived feeds: it has all frames that any of
/// them, including those that join later, could select.
pub(super) fn base(setup: &Setup) -> Feed {
    Feed {
        name: "relay".into(),
        interface: Interface {
            filter: None,
            description: None,
            ..setup.feeds[0].interface.clone()
        },
        snaplen: setup.bytes_needed(),
        direction: setup.direction(),
        ..Feed::default()
    }
}

impl Relay {
    /// Creates the rings of the derived feeds, `setup.feeds`. `base`: the rings of the base feed. `slots`: the slots of
    /// the derived feeds.
    pub(super) fn new(
        setup: &Setup,
        base: &[Ring<Mapping>],
        slots: &[FeedSlot],
    ) -> Result<Relay, CaptureError> {
        let offered = setup.direction();
        let admit = move |feed: &mut Feed| {
            Setup::admit_direction(offered, feed)?;
            refuse_queue(feed, "the relay")
        };
        let (feeds, fanouts) =
            Feeds::create_as(slots, setup, base.len(), Clock::Realtime, Box::new(admit))?;
        let readers = base.iter().map(|ring| Reader::new(ring, Start::Oldest));
        Ok(Relay {
            feeds,
            fanouts,
            readers: readers.collect::<Result<_, _>>()?,
            lapped: Arc::default(),
            ending: Arc::default(),
            thread: None,
        })
    }

    /// Returns the derived feeds, for threads that change them.
    pub(super) fn control(&self) -> Feeds {
        self.feeds.clone()
    }

    /// Returns the rings of a derived feed.
    pub(super) fn rings(&self, feed: FeedSlot) -> Vec<Ring<Mapping>> {
        let handles = self.feeds.handles().into_iter();
        handles.filter(|own| own.slot == feed).flat_map(|own| own.rings).collect()
    }

    /// Returns the places where the filters of the derived feeds run.
    pub(super) fn locations(&self) -> Vec<FilterLocation> {
        self.feeds.locations()
    }

    /// Starts the thread. Returns the waker with which the source wakes it when the base rings have frames.
    pub(super) fn start(&mut self) -> Result<Waker, CaptureError> {
        let sleeper = Sleeper::new(self.readers.len())?;
        let waker = sleeper.waker()?;
        let interrupter = sleeper.interrupter()?;
        let mut work = Work {
            fanouts: std::mem::take(&mut self.fanouts),
            readers: std::mem::take(&mut self.readers),
            batch: Batch::new(),
            lapped: Arc::clone(&self.lapped),
            ending: Arc::clone(&self.ending),
        };
        let thread = thread::Builder::new().name("weir-relay".into()).spawn(move || {
            let result = work.run(&sleeper);
            work.fanouts.iter_mut().for_each(Fanout::close);
            result.map_err(CaptureError::from)
        });
        let thread = thread.map_err(CaptureError::os("starting the relay"))?;
        self.thread = Some((thread, interrupter));
        Ok(waker)
    }

    /// Returns true if the thread has ended by itself; [`finish`](Relay::finish) returns its error.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_some_and(|(thread, _)| thread.is_finished())
    }

    /// Ends the thread after it has forwarded all frames of the base rings. No program may write these rings any more.
    pub(super) fn finish(&mut self) -> Result<(), CaptureError> {
        self.ending.store(true, Ordering::Release);
        // If the source was never started, the fan-outs are still here.
        self.fanouts.iter_mut().for_each(Fanout::close);
        let Some((thread, interrupter)) = self.thread.take() else { return Ok(()) };
        interrupter.interrupt();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Sets the counts of the programs at the hook, for all derived feeds.
    pub(super) fn count(&self, base: &Ledger) {
        let mut all = base.clone();
        // The fan-outs count these fields for each feed.
        (all.captured, all.kept_bytes, all.wire_bytes, all.super_frames) = (0, 0, 0, 0);
        all.drops.insert("relay", self.lapped.load(Ordering::Acquire));
        self.feeds.count(all);
    }
}

struct Work {
    fanouts: Vec<Fanout>,
    readers: Vec<Reader<Mapping>>,
    batch: Batch,
    lapped: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
}

impl Work {
    fn run(&mut self, sleeper: &Sleeper) -> Result<(), RingError> {
        let mut pauses = 0;
        loop {
            // Read before the rings, so that all frames before the end are forwarded. Also ends the loop if a ring
            // could not be closed.
            let ending = self.ending.load(Ordering::Acquire);
            let Turn { moved, closed } = self.turn()?;
            if moved {
                pauses = 0;
            } else if ending || closed == self.readers.len() {
                return Ok(());
            } else if pauses < PAUSES {
                thread::sleep(PAUSE_FIRST * (1 << pauses));
                pauses += 1;
            } else {
                // A frame or the end wakes this thread. While it sleeps, the fan-outs are parked, so that other threads
                // can change the feeds.
                sleeper.sleep(&self.readers, 1, SLEEP_MAX)?;
            }
        }
    }

    /// Forwards the available frames of each ring, at most one batch.
    fn turn(&mut self) -> Result<Turn, RingError> {
        let mut turn = Turn::default();
        for (reader, fanout) in self.readers.iter_mut().zip(&mut self.fanouts) {
            match reader.poll(&mut self.batch)? {
                Poll::Frames(_) => {
                    self.batch.records().for_each(|record| fanout.push(&record.meta, record.frame));
                    fanout.publish();
                    turn.moved = true;
                }
                Poll::Lapped(missed) => {
                    self.lapped.fetch_add(missed, Ordering::Release);
                    turn.moved = true;
                }
                // Park the fan-out, so that a thread that changes the feeds need not wait for the next frame of this
                // ring.
                Poll::Empty => fanout.leave(),
                Poll::Closed => {
                    fanout.leave();
                    turn.closed += 1;
                }
            }
        }
        Ok(turn)
    }
}

/// Result of `Work::turn`.
#[derive(Default)]
struct Turn {
    moved: bool,
    /// Number of rings that are closed and completely read.
    closed: usize,
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use weir_frame::record::Meta;
    use weir_ring::{RingSpec, Writer, WriterKind, memory};

    use super::*;
    use crate::feed::control::FeedControl;

    fn base_ring(setup: &Setup) -> Ring<Mapping> {
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: vec![setup.feeds[0].interface.clone()],
            cpu: None,
            clock: Clock::Realtime,
            writer: WriterKind::User,
        };
        memory::create_memfd("base", &spec).expect("memory")
    }

    #[test]
    fn a_silent_relay_sleeps_until_it_is_to_end() {
        let setup = Setup {
            feeds: vec![Feed::default()],
            ring_bytes: 16 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let base = [base_ring(&setup)];
        let mut relay = Relay::new(&setup, &base, &[FeedSlot::first()]).expect("a relay");
        let sleeper = Sleeper::new(1).expect("a wake page");
        let waker = sleeper.waker().expect("a channel");
        let interrupter = sleeper.interrupter().expect("a descriptor");
        let mut work = Work {
            fanouts: std::mem::take(&mut relay.fanouts),
            readers: std::mem::take(&mut relay.readers),
            batch: Batch::new(),
            lapped: Arc::default(),
            ending: Arc::default(),
        };
        let ending = Arc::clone(&work.ending);
        let (switches, took) = thread::scope(|scope| {
            let relaying = scope.spawn(|| {
                work.run(&sleeper).expect("sound rings");
                switches_of_this_thread()
            });
            let begin = Instant::now();
            while waker.wake_threshold(0) != 1 {
                assert!(begin.elapsed() < Duration::from_secs(10), "it does not sleep");
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(250));
            let begin = Instant::now();
            ending.store(true, Ordering::Release);
            interrupter.interrupt();
            (relaying.join().expect("no panic"), begin.elapsed())
        });
        assert!(switches < 20, "{switches} times off its CPU in a silence of 250 ms");
        // Without the interruption it would sleep for 750 ms more.
        assert!(took < Duration::from_millis(650), "{took:?}");
    }

    /// Number of voluntary context switches of this thread.
    fn switches_of_this_thread() -> i64 {
        // SAFETY: `usage` is plain data, zeroed, and the kernel fills it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_nvcsw
        }
    }

    /// One CPU has frames continuously, and another has none.
    #[test]
    fn a_feed_leaves_though_one_ring_is_silent_and_the_other_never() {
        let setup = Setup {
            feeds: vec![Feed::default()],
            ring_bytes: 16 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let base = [base_ring(&setup), base_ring(&setup)];
        let mut writers = base.clone().map(Writer::new);
        let mut relay = Relay::new(&setup, &base, &[FeedSlot::first()]).expect("a relay");
        let mut work = Work {
            fanouts: std::mem::take(&mut relay.fanouts),
            readers: std::mem::take(&mut relay.readers),
            batch: Batch::new(),
            lapped: Arc::default(),
            ending: Arc::default(),
        };
        let mut write = |cpu: usize| {
            let meta = Meta { interface_id: 0, ts_ns: 1, wire_len: 60, flags: None, queue: None };
            writers[cpu].push(&meta, &[0; 60]);
            writers[cpu].publish();
        };
        write(1);
        assert!(work.turn().expect("sound rings").moved);
        let feeds = relay.control();
        let begin = Instant::now();
        let ledger = thread::scope(|scope| {
            let leaves = scope.spawn(|| feeds.remove(FeedSlot::first()).expect("it is there"));
            while !leaves.is_finished() && begin.elapsed() < Duration::from_secs(10) {
                write(0);
                assert!(work.turn().expect("sound rings").moved);
            }
            let has_left = leaves.is_finished();
            work.fanouts.iter_mut().for_each(Fanout::leave);
            assert!(has_left, "the silent ring holds it up");
            leaves.join().expect("no panic")
        });
        assert!(ledger.closes() && ledger.captured >= 1, "{ledger}");
    }
}
