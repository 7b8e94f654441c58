use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Meta, Record};
use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::wake::Sleeper;

use super::*;
use crate::counted::Count;
use crate::null::Null;
use crate::ordered::Ordered;
use crate::sink::Sink;
use crate::source::{FeedChange, Static};
use crate::testing::{Collect, feed, push, writer};

/// Deadline for steps that take milliseconds.
const LONG: Duration = Duration::from_secs(30);

/// A source whose changes of feeds come from the test. No more feeds join once the test sets `is_complete`.
struct Sent {
    sleeper: Sleeper,
    changes: Receiver<FeedChange>,
    is_complete: Arc<AtomicBool>,
}

impl FrameSource for Sent {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        self.changes.try_iter().collect()
    }

    fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }
}

fn plan<C: 'static>(source: impl FrameSource + 'static) -> Plan<C> {
    Plan::new(Box::new(source)).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn feeds_join_and_leave_a_consumer_that_sleeps() {
    let sleeper = Sleeper::new(2).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let (changes, received) = channel();
    let is_complete = Arc::new(AtomicBool::new(false));
    let source = Sent { sleeper, changes: received, is_complete: Arc::clone(&is_complete) };
    let running = spawn(Box::new(Null::new()), plan(source)).unwrap();
    let joins = |key, line, ring: &weir_ring::Ring<_>| {
        let feed = crate::source::JoinedFeed { first_line: line, ..feed(key, ring) };
        changes.send(FeedChange::Joined(feed)).unwrap();
    };
    let mut writers = [writer(), writer(), writer()];
    for (key, line) in [(0, 0), (1, 1)] {
        joins(key, line, writers[key].ring());
        waker.wake();
        // The consumer's thread sets a threshold in the feed's line before it sleeps.
        wait_until("a threshold", || waker.wake_threshold(line) == 1);
        push(&mut writers[key], 1);
        waker.wake_if_due(line, 1);
        wait_until("a frame", || running.delivered().frames == key as u64 + 1);
    }
    // The second feed leaves: frames after its first one are not read. A third feed then uses its line.
    changes.send(FeedChange::Left { key: 1, until: vec![1] }).unwrap();
    push(&mut writers[1], 2);
    joins(2, 1, writers[2].ring());
    waker.wake();
    wait_until("a threshold", || waker.wake_threshold(1) == 1);
    push(&mut writers[2], 3);
    waker.wake_if_due(1, 1);
    wait_until("a frame", || running.delivered().frames == 3);
    // All rings end, but another feed might join.
    writers[0].close();
    writers[2].close();
    waker.wake();
    thread::sleep(Duration::from_millis(50));
    assert!(!running.has_ended());
    is_complete.store(true, Ordering::Release);
    waker.wake();
    wait_until("its end", || running.has_ended());
    let Finished { consumer, failure, .. } = running.finish();
    assert!(failure.is_none());
    assert_eq!((consumer.delivered().frames, consumer.rings().unread()), (3, 0));
}

#[test]
fn a_consumer_without_rings_ends_at_once_if_none_can_come_and_else_when_it_is_told() {
    let source = Static::new(Sleeper::new(1).unwrap(), Vec::new());
    let running = spawn(Box::new(Null::new()), plan(source)).unwrap();
    wait_until("its end", || running.has_ended());
    assert!(running.finish().failure.is_none());

    let (_changes, changes) = channel();
    let is_complete = Arc::new(AtomicBool::new(false));
    let source = Sent { sleeper: Sleeper::new(1).unwrap(), changes, is_complete };
    let running = spawn(Box::new(Null::new()), plan(source)).unwrap();
    assert!(!running.has_ended());
    assert!(running.finish().failure.is_none());
}

#[test]
fn a_feed_that_joins_when_its_writer_has_gone_already_ends_with_that() {
    let sleeper = Sleeper::new(1).unwrap();
    let waker = sleeper.waker().unwrap();
    drop(sleeper.waker().unwrap());
    let (changes, received) = channel();
    let is_complete = Arc::new(AtomicBool::new(false));
    let source = Sent { sleeper, changes: received, is_complete: Arc::clone(&is_complete) };
    let running = spawn(Box::new(Null::new()), plan(source)).unwrap();
    // Give the thread time to notice that channel 1 has hung up, before a feed of this channel joins.
    thread::sleep(Duration::from_millis(50));
    let mut writer = writer();
    (1..=3).for_each(|ts| push(&mut writer, ts));
    let feed = crate::source::JoinedFeed { channel: Some(1), ..feed(0, writer.ring()) };
    changes.send(FeedChange::Joined(feed)).unwrap();
    is_complete.store(true, Ordering::Release);
    waker.wake();
    wait_until("its end", || running.has_ended());
    let Finished { consumer, failure, .. } = running.finish();
    let gone = Some(ConsumerError::Ring(RingError::WriterGone { frames: 3 }));
    assert_eq!(format!("{failure:?}"), format!("{gone:?}"));
    assert_eq!(consumer.delivered().frames, 3);
}

#[test]
fn a_ring_that_fails_leaves_what_was_taken_in_the_output() {
    let mut writer = writer();
    (1..=7).for_each(|ts| push(&mut writer, ts));
    let output = Collect::default();
    let mut ordered: Ordered<_> = Ordered::new(Duration::ZERO, output.clone());
    ordered.join(feed(0, writer.ring())).unwrap();
    let source = Static::new(Sleeper::new(1).unwrap(), Vec::new());
    let (tell, told) = channel();
    let progress = move |consumer: &Ordered<Collect>| {
        let _ = tell.send(consumer.delivered().frames);
    };
    let plan = Plan { progress: Box::new(progress), ..plan(source) };
    let running = spawn(Box::new(ordered), plan).unwrap();
    while told.recv_timeout(LONG).unwrap() < 7 {}
    // Overwrite the next record with an invalid one before it is published.
    writer.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]);
    let next = (BLOCK_BYTES as usize + 7 * 92) / 8;
    let ring = writer.ring();
    for word in &weir_ring::Words::words(ring.memory().as_ref())[next..][..8] {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    writer.publish();
    wait_until("its end", || running.has_ended());
    let end = running.observer().end().cloned().expect("it has ended");
    assert!(matches!(end.failure.as_deref(), Some(ConsumerError::Ring(_))), "{end:?}");
    assert_eq!((end.kept.frames, end.limited), (7, false));
    let Finished { consumer, failure, .. } = running.finish();
    assert!(matches!(failure.as_deref(), Some(ConsumerError::Ring(_))), "{failure:?}");
    assert_eq!((consumer.kept().frames, consumer.delivered().frames), (7, 7));
    assert_eq!(consumer.rings().unread(), 1);
}

/// An output that refuses every interface.
struct Refuses;

impl Sink for Refuses {
    fn describe(&mut self, _: u32, _: &Interface, _: &str) -> Result<(), ConsumerError> {
        Err(ConsumerError::Output("no more interfaces".into()))
    }

    fn take(&mut self, _: &Record<'_>) -> Result<(), ConsumerError> {
        unreachable!("it has no interface")
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn kept(&self) -> Count {
        Count::default()
    }
}

#[test]
fn frames_of_feeds_behind_one_that_an_output_refuses_are_in_the_account() {
    let mut writers = [writer(), writer()];
    writers.iter_mut().for_each(|writer| push(writer, 1));
    let feeds = [0, 1].map(|key| feed(key, writers[key].ring()));
    let mut source = Static::new(Sleeper::new(2).unwrap(), feeds.to_vec());
    let mut ordered: Ordered<_> = Ordered::new(Duration::ZERO, Refuses);
    let refused = take_changes(&mut source, &mut ordered);
    assert!(matches!(refused, Err(ConsumerError::Output(_))), "{refused:?}");
    assert_eq!(ordered.rings().unread(), 2);
}
