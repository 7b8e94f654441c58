use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_region::words::threshold_at;
use weir_ring::memory::Pages;
use weir_ring::wake::Waker;
use weir_ring::{Batch, Clock, Poll, Reader, RingSpec, Start, Writer, WriterKind, memory};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn within_limit(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A guest's memory, and how often its bell was rung.
struct Guest {
    memory: Arc<GuestMemory>,
    bells: Arc<AtomicU64>,
}

impl Guest {
    fn new() -> Guest {
        let memory = GuestMemory::create(32, Pages::Now).unwrap();
        Guest { memory: Arc::new(memory), bells: Arc::default() }
    }

    fn bell(&self) -> Bell {
        let bells = Arc::clone(&self.bells);
        let ring = Arc::new(move || _ = bells.fetch_add(1, Ordering::Relaxed));
        Bell { memory: Arc::clone(&self.memory), ring }
    }

    fn bells(&self) -> u64 {
        self.bells.load(Ordering::Relaxed)
    }

    fn set_threshold(&self, relay: &Relay, threshold: u64) {
        let words = File::from(self.memory.words_fd().try_clone_to_owned().unwrap());
        words.write_all_at(&threshold.to_le_bytes(), threshold_at(relay.place().slot)).unwrap();
    }
}

/// Behaviour of a relay's source when changes are requested.
enum Fault {
    /// It waits until the other end of the channel is dropped.
    Hangs(Receiver<()>),
    Panics,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<FeedChange>,
    fault: Option<Fault>,
}

/// A source whose feeds join when the test requests it.
struct Fed {
    sleeper: Sleeper,
    queue: Arc<Mutex<Queue>>,
    is_complete: Arc<AtomicBool>,
    /// Dropped with the relay's thread.
    _lives: Sender<()>,
}

impl FrameSource for Fed {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, fault) = (queue.changes.drain(..).collect(), queue.fault.take());
        drop(queue);
        match fault {
            Some(Fault::Hangs(until)) => _ = until.recv(),
            Some(Fault::Panics) => panic!("as the test wants"),
            None => {}
        }
        changes
    }

    fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }
}

/// The test's end of [`Fed`].
struct Feeder {
    queue: Arc<Mutex<Queue>>,
    waker: Waker,
    lines: usize,
    thread: Receiver<()>,
}

fn interface(name: &str) -> Interface {
    Interface { name: name.into(), link_type: 1, ..Interface::default() }
}

fn writer(interface: Interface) -> Writer<Mapping> {
    let spec = RingSpec {
        data_blocks: 4,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    Writer::new(memory::create_memfd("relay-test", &spec).unwrap())
}

impl Feeder {
    /// A relay of a feed whose rings these writers write.
    fn relay(guest: &Guest, writers: &[Writer<Mapping>]) -> (Feeder, Relay) {
        let (sleeper, queue) = (Sleeper::new(8).unwrap(), Arc::default());
        let waker = sleeper.waker().unwrap();
        let (lives, thread) = mpsc::channel();
        let is_complete = Arc::new(AtomicBool::new(false));
        let source = Fed {
            sleeper,
            queue: Arc::clone(&queue),
            is_complete: Arc::clone(&is_complete),
            _lives: lives,
        };
        let mut feeder = Feeder { queue, waker, lines: 0, thread };
        feeder.join(1, writers);
        let relay = Relay::copying(Box::new(source), is_complete, 4, guest.bell()).unwrap();
        (feeder, relay)
    }

    fn join(&mut self, key: u64, writers: &[Writer<Mapping>]) {
        let rings: Vec<_> = writers.iter().map(|writer| writer.ring().clone()).collect();
        let (first_line, begin) = (self.lines, Begin::First);
        self.lines += rings.len();
        let (output, label, channel) = (0, String::new(), None);
        let feed = JoinedFeed { key, output, label, rings, first_line, channel, begin };
        self.change(|queue| queue.changes.push_back(FeedChange::Joined(feed)));
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock().unwrap());
        self.waker.wake();
    }

    /// Writes frames of 60 bytes, and wakes the relay.
    fn push(&mut self, line: usize, writer: &mut Writer<Mapping>, frames: u64) {
        for _ in 0..frames {
            let ts_ns = writer.frames();
            writer.push(&Meta { ts_ns, wire_len: 60, ..Meta::default() }, &[7; 60]);
        }
        writer.publish();
        self.waker.wake_if_due(line, writer.frames());
    }

    fn wait_for_end(&self) {
        assert_eq!(self.thread.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}

/// The host's ledger of a feed whose rings these writers have written.
fn host(writers: &[Writer<Mapping>]) -> Ledger {
    let captured = writers.iter().map(|writer| writer.ring().frames_written()).sum();
    let drops = [("kernel".to_owned(), captured / 3)].into();
    Ledger { offered: captured + captured / 3, captured, drops, ..Ledger::default() }
}

fn closes(ledger: &Ledger) -> bool {
    let Ledger { offered, filtered, blocked, sampled, captured, drops, .. } = ledger;
    *offered == filtered + blocked + sampled + captured + drops.values().sum::<u64>()
}

/// The number of frames that a reader in the guest finds, and whether it finds the ring closed after them.
fn read(relay: &Relay) -> (u64, bool) {
    let (mut frames, mut batch) = (0, Batch::new());
    let mut reader = Reader::new(&relay.ring, Start::Oldest).unwrap();
    loop {
        match reader.poll(&mut batch).unwrap() {
            Poll::Frames(more) => frames += u64::from(more),
            Poll::Lapped(_) => {}
            Poll::Empty => return (frames, false),
            Poll::Closed => return (frames, true),
        }
    }
}

/// A relay whose thread hangs until the returned sender is dropped, and the relay's memory.
pub(crate) fn hanging() -> (Relay, Sender<()>, Arc<GuestMemory>) {
    let (guest, (go_on, hangs)) = (Guest::new(), mpsc::channel());
    let (feeder, relay) = Feeder::relay(&guest, &[writer(interface("a"))]);
    feeder.change(|queue| queue.fault = Some(Fault::Hangs(hangs)));
    within_limit("it hangs", || feeder.queue.lock().unwrap().fault.is_none());
    (relay, go_on, guest.memory)
}

#[test]
fn a_frame_that_only_the_host_has_counted_is_a_drop() {
    let guest = Guest::new();
    let mut writers = [writer(interface("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    feeder.push(0, &mut writers[0], 100);
    writers.iter_mut().for_each(Writer::close);
    relay.finish_by(Instant::now() + LIMIT);
    let ledger = relay.account_of_closed(|| host(&writers));
    assert_eq!((ledger.captured, ledger.drops["relay"], closes(&ledger)), (100, 0, true));
    let more = || {
        let host = host(&writers);
        Ledger { captured: host.captured + 5, ..host }
    };
    let found = std::panic::catch_unwind(AssertUnwindSafe(|| relay.account_of_closed(more)));
    match found {
        Ok(ledger) => assert_eq!(ledger.drops["relay"], 5),
        Err(_) if cfg!(debug_assertions) => {}
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn a_relay_has_to_copy_the_frames_between_the_begin_and_the_end_of_each_feed() {
    let mut writers = [writer(interface("a")), writer(interface("a"))];
    let mut push = |frames: u64| {
        for writer in &mut writers {
            (0..frames).for_each(|_| writer.push(&Meta::default(), &[7; 60]));
            writer.publish();
        }
        writers.iter().map(|writer| writer.ring().clone()).collect::<Vec<_>>()
    };
    let rings = push(10);
    let joined = |key, begin| {
        let (output, label, channel, first_line) = (0, String::new(), None, 0);
        let rings = rings.clone();
        FeedChange::Joined(JoinedFeed { key, output, label, rings, first_line, channel, begin })
    };
    let owed = Owed::default();
    owed.record(&joined(1, Begin::At(vec![4, 6])));
    assert_eq!(owed.frames(), None, "its rings are open");
    push(10);
    owed.record(&FeedChange::Left { key: 1, until: vec![10, 15] });
    owed.record(&joined(2, Begin::First));
    assert_eq!(owed.frames(), None, "the rings of the second feed are open");
    writers.iter_mut().for_each(Writer::close);
    assert_eq!(owed.frames(), Some(6 + 9 + 40));
    let unbounded = Owed::default();
    let open = [writer(interface("a"))];
    let rings = open.iter().map(|writer| writer.ring().clone()).collect();
    unbounded.record(&FeedChange::Joined(JoinedFeed::in_order(vec![rings]).remove(0)));
    unbounded.record(&FeedChange::Left { key: 0, until: Vec::new() });
    assert_eq!(unbounded.frames(), None, "an open ring was left without an end");
}

#[test]
fn every_frame_of_a_feed_that_is_left_within_a_block_is_counted() {
    for is_told_first in [true, false] {
        let guest = Guest::new();
        let (mut shared, mut own) = ([writer(interface("a"))], [writer(interface("a"))]);
        let (mut feeder, relay) = Feeder::relay(&guest, &shared);
        feeder.push(0, &mut shared[0], 1000);
        within_limit("frames", || relay.ring.frames_written() == 1000);
        let left = || FeedChange::Left { key: 1, until: vec![1000] };
        let (go_on, hangs) = mpsc::channel();
        feeder.change(|queue| {
            queue.changes.extend(is_told_first.then(left));
            queue.fault = Some(Fault::Hangs(hangs));
        });
        within_limit("it hangs", || feeder.queue.lock().unwrap().fault.is_none());
        // These frames are in the same block, but belong only to others that read the ring.
        feeder.push(0, &mut shared[0], 700);
        if !is_told_first {
            feeder.change(|queue| queue.changes.push_back(left()));
        }
        feeder.join(2, &own);
        feeder.push(1, &mut own[0], 300);
        own.iter_mut().for_each(Writer::close);
        drop(go_on);
        within_limit("the others", || relay.ring.frames_written() >= 1300);
        relay.finish_by(Instant::now() + LIMIT);
        let outcome = relay.completion.outcome().unwrap();
        assert_eq!((outcome.failure, outcome.missing, outcome.unread), (None, 0, 0));
        // Frames that the relay read before it was told that the feed has left are copied, too.
        let copied = relay.ring.frames_written();
        assert!(copied == 1300 || !is_told_first && copied <= 2000, "{copied}");
        let of_feed = Ledger { offered: copied, captured: copied, ..Ledger::default() };
        let ledger = relay.account_of_closed(|| of_feed);
        assert_eq!((ledger.captured, ledger.drops["relay"], closes(&ledger)), (copied, 0, true));
        assert_eq!(read(&relay), (copied, true));
    }
}

#[test]
fn frames_of_several_rings_come_to_one_and_the_ledger_closes() {
    let guest = Guest::new();
    let mut writers = [writer(interface("a")), writer(interface("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    for (line, writer) in writers.iter_mut().enumerate() {
        feeder.push(line, writer, 1000);
    }
    within_limit("all frames", || relay.ring.frames_written() == 2000);
    let ledger = relay.account(|| host(&writers));
    assert_eq!((ledger.captured, ledger.drops["relay"], ledger.drops["kernel"]), (2000, 0, 666));
    assert!(closes(&ledger), "{ledger:?}");
    writers.iter_mut().for_each(Writer::close);
    relay.complete();
    feeder.wait_for_end();
    assert_eq!(read(&relay), (2000, true));
}

#[test]
fn a_relay_that_fails_half_way_says_why_and_counts_what_is_left() {
    let guest = Guest::new();
    let large = |name: &str| Interface { filter: Some("x".repeat(40_000)), ..interface(name) };
    let mut writers = vec![writer(large("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    feeder.push(0, &mut writers[0], 1000);
    within_limit("frames", || relay.ring.frames_written() == 1000);
    let (told, said) = mpsc::channel();
    relay.listen(move |reason| told.send(reason.to_owned()).unwrap());
    // The guest's ring has no room for the description of a second interface.
    let second = [writer(large("b"))];
    feeder.join(2, &second);
    let reason = said.recv_timeout(LIMIT).unwrap();
    assert!(reason.starts_with("copying to the guest: "), "{reason}");
    writers.extend(second);
    feeder.push(0, &mut writers[0], 500);
    feeder.push(1, &mut writers[1], 70);
    assert_eq!(read(&relay), (1000, true), "readers are not left waiting");
    for _ in 0..2 {
        let ledger = relay.account(|| host(&writers));
        assert_eq!((ledger.captured, ledger.drops["relay"]), (1000, 570));
        assert!(closes(&ledger), "{ledger:?}");
        relay.finish_by(Instant::now() + LIMIT);
    }
    // A later caller gets the same result.
    let (told, said) = mpsc::channel();
    relay.listen(move |reason| told.send(reason.to_owned()).unwrap());
    assert_eq!(said.recv_timeout(LIMIT).unwrap(), reason);
}

#[test]
fn a_relay_whose_thread_panics_has_failed() {
    let guest = Guest::new();
    let mut writers = [writer(interface("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    let (told, said) = mpsc::channel();
    relay.listen(move |reason| told.send(reason.to_owned()).unwrap());
    feeder.change(|queue| queue.fault = Some(Fault::Panics));
    said.recv_timeout(LIMIT).unwrap();
    feeder.push(0, &mut writers[0], 9);
    relay.finish_by(Instant::now() + LIMIT);
    let ledger = relay.account(|| host(&writers));
    assert_eq!((ledger.captured, ledger.drops["relay"], closes(&ledger)), (0, 9, true));
    assert_eq!(read(&relay), (0, true));
}

#[test]
fn a_relay_that_hangs_holds_up_nobody_and_writes_nothing_after_its_end() {
    let guest = Guest::new();
    let mut writers = [writer(interface("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    feeder.push(0, &mut writers[0], 100);
    within_limit("frames", || relay.ring.frames_written() == 100);
    let (go_on, hangs) = mpsc::channel();
    feeder.change(|queue| queue.fault = Some(Fault::Hangs(hangs)));
    within_limit("it hangs", || feeder.queue.lock().unwrap().fault.is_none());
    feeder.push(0, &mut writers[0], 50);
    let begin = Instant::now();
    relay.complete();
    assert!(closes(&relay.account(|| host(&writers))));
    assert!(begin.elapsed() < LIMIT / 2, "{:?}", begin.elapsed());
    std::thread::scope(|scope| {
        // A thread that waits for the relay's end delays no other thread.
        scope.spawn(|| relay.finish_by(Instant::now() + Duration::from_millis(300)));
        assert_eq!(relay.account(|| host(&writers)).captured, 100);
        relay.finish_by(Instant::now() + Duration::from_millis(100));
    });
    let ledger = relay.account(|| host(&writers));
    assert_eq!((ledger.captured, ledger.drops["relay"], closes(&ledger)), (100, 50, true));
    drop(go_on);
    feeder.wait_for_end();
    assert_eq!(relay.account(|| host(&writers)), ledger);
    assert_eq!(read(&relay), (100, true));
}

#[test]
fn a_bell_is_rung_once_and_only_for_a_threshold_that_is_reached() {
    let guest = Guest::new();
    let mut writers = [writer(interface("a"))];
    let (mut feeder, relay) = Feeder::relay(&guest, &writers);
    for burst in 1..=10 {
        feeder.push(0, &mut writers[0], 100);
        within_limit("frames", || relay.ring.frames_written() == 100 * burst);
    }
    assert_eq!(guest.bells(), 0, "nobody sleeps");
    guest.set_threshold(&relay, 1200);
    feeder.push(0, &mut writers[0], 199);
    within_limit("frames", || relay.ring.frames_written() == 1199);
    assert_eq!(guest.bells(), 0, "one frame is missing");
    for frames in [1, 50, 50] {
        feeder.push(0, &mut writers[0], frames);
        within_limit("the bell", || guest.bells() == 1);
    }
    within_limit("frames", || relay.ring.frames_written() == 1300);
    assert_eq!(guest.bells(), 1);
    drop(relay);
    assert_eq!(guest.bells(), 2, "the end");
}

#[test]
fn a_place_is_free_once_its_relay_is_gone() {
    let guest = Guest::new();
    let writers = [writer(interface("a"))];
    for _ in 0..3 {
        let (_feeder, relay) = Feeder::relay(&guest, &writers);
        assert_eq!(guest.memory.rings(), 1);
        drop(relay);
        assert_eq!(guest.memory.rings(), 0);
    }
}

/// A step of the test.
#[derive(Clone, Debug)]
enum Doing {
    Push(usize, u64),
    Read,
    Pause,
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        // A ring has room for some 40,000 frames.
        3 => (0usize..2, prop_oneof![1u64..500, 20_000u64..90_000])
            .prop_map(|(ring, frames)| Doing::Push(ring, frames)),
        4 => Just(Doing::Read),
        1 => Just(Doing::Pause),
    ]
}

/// Counts that may not shrink.
fn counts(ledger: &Ledger) -> [u64; 5] {
    let Ledger { offered, captured, kept_bytes, wire_bytes, drops, .. } = ledger;
    [*offered, *captured, *kept_bytes, *wire_bytes, drops["relay"]]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_ledger_closes_whenever_it_is_read_and_never_shrinks(
        all in prop::collection::vec(doing(), 1..30),
        fails in any::<bool>(),
    ) {
        let guest = Guest::new();
        let mut writers = [writer(interface("a")), writer(interface("a"))];
        let (mut feeder, relay) = Feeder::relay(&guest, &writers);
        let mut before = [0; 5];
        let mut check = |ledger: &Ledger, writers: &[Writer<Mapping>]| {
            prop_assert!(closes(ledger), "{ledger:?}");
            let now = counts(ledger);
            prop_assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "{now:?} {before:?}");
            before = now;
            prop_assert!(ledger.captured + ledger.drops["relay"] <= host(writers).captured, "{ledger:?}");
            Ok(())
        };
        for doing in all {
            match doing {
                Doing::Push(ring, frames) => feeder.push(ring, &mut writers[ring], frames),
                Doing::Read => check(&relay.account(|| host(&writers)), &writers)?,
                Doing::Pause => std::thread::yield_now(),
            }
        }
        if fails {
            feeder.change(|queue| queue.fault = Some(Fault::Panics));
        }
        writers.iter_mut().for_each(Writer::close);
        relay.finish_by(Instant::now() + LIMIT);
        let ledger = relay.account(|| host(&writers));
        check(&ledger, &writers)?;
        prop_assert_eq!(ledger.captured + ledger.drops["relay"], host(&writers).captured);
        prop_assert_eq!(ledger.captured, relay.ring.frames_written());
    }
}
