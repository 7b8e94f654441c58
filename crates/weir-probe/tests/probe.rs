//! The probe with generated frames: sources, feeds and consumers come and go while frames flow.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::PlainEngine;
use weir_capture::generator::{GenSpec, MemGen, Rate};
use weir_capture::{CaptureError, Feed, FeedControl, Info, Pumped, Setup, Source};
use weir_frame::record::Meta;
use weir_probe::core::Event;
use weir_probe::limits::PAST_LIVES_MAX;
use weir_probe::{
    Consumer, FeedId, Joined, LinkName, Opener, Probe, ProbeError, ProbeEvent, SourceSpec, Update,
    Wants,
};
use weir_ring::{Batch, Ledger, Mapping, Poll, Reader, Start};

use common::{LIMIT, wait_for};

/// Nanoseconds between the timestamps of two frames.
const STEP_NS: u64 = 50_000;

/// Lets only one of the tests that read frames run at a time: a reader that is not scheduled for a second loses
/// frames.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A generator that ends with this error as soon as there is one.
struct Flaky {
    source: MemGen,
    error: Arc<Mutex<Option<CaptureError>>>,
}

impl Source for Flaky {
    fn info(&self) -> &Info {
        self.source.info()
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.source.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.source.start()
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        match self.error.lock().unwrap().take() {
            Some(error) => Err(error),
            None => self.source.pump(limit.min(Duration::from_millis(5))),
        }
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.source.stop()
    }
}

fn generator(feeds: Vec<Feed>) -> Result<MemGen, CaptureError> {
    let setup = Setup {
        feeds,
        ring_bytes: 8 << 20,
        promiscuous: false,
        may_change: true,
        ..Setup::default()
    };
    let rate = Rate::Pps(1e9 / STEP_NS as f64);
    MemGen::open(GenSpec { rate, step_ns: Some(STEP_NS), ..GenSpec::default() }, setup, false)
}

fn spec(open: Opener, follows: bool) -> SourceSpec {
    SourceSpec { name: "gen:".into(), open, link: None, follows, cpus: None }
}

fn steady() -> SourceSpec {
    spec(Arc::new(|feeds| Ok(Box::new(generator(feeds)?))), false)
}

/// A source, and the place where a test puts the error with which the source ends.
fn flaky(follows: bool) -> (SourceSpec, Arc<Mutex<Option<CaptureError>>>) {
    let error = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&error);
    let open: Opener = Arc::new(move |feeds| {
        Ok(Box::new(Flaky { source: generator(feeds)?, error: Arc::clone(&theirs) }))
    });
    (spec(open, follows), error)
}

fn snaplen(snaplen: u32) -> Wants {
    Feed { snaplen, ..Feed::default() }.into()
}

fn joined(consumer: &Consumer) -> Joined {
    match consumer.wait_for_update(LIMIT) {
        Some(Update::Joined(joined)) => joined,
        Some(Update::Left(feed, _)) => panic!("left {feed:?}"),
        None => panic!("it did not join"),
    }
}

fn readers(joined: &Joined) -> Vec<Reader<Mapping>> {
    joined.rings.iter().map(|ring| Reader::new(ring, Start::Oldest).unwrap()).collect()
}

/// Reads until `enough`. Returns the numbers of the frames, which follow from their timestamps.
fn read(reader: &mut Reader<Mapping>, enough: impl Fn(&[u64]) -> bool) -> Vec<u64> {
    let (begin, mut batch, mut numbers) = (Instant::now(), Batch::new(), Vec::new());
    while !enough(&numbers) {
        assert!(begin.elapsed() < LIMIT, "{} frames, and no more", numbers.len());
        match reader.poll(&mut batch).unwrap() {
            Poll::Frames(_) => {
                numbers.extend(batch.records().map(|record| record.meta.ts_ns / STEP_NS));
            }
            Poll::Lapped(frames) => panic!("{frames} lapped"),
            Poll::Empty => std::thread::sleep(Duration::from_millis(1)),
            Poll::Closed => break,
        }
    }
    numbers
}

fn ledger_of(events: &Receiver<ProbeEvent>, feed: FeedId) -> Ledger {
    wait_for(events, |event| match event {
        Event::FeedClosed(_, closed, ledger) if closed == feed => ledger,
        _ => None,
    })
}

#[test]
fn feeds_come_and_go_while_frames_flow_and_every_ledger_closes() {
    let _alone = alone();
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(steady(), vec![snaplen(64)]).unwrap();
    let consumer = probe.add_consumer(4).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    let first = joined(&consumer);
    let mut first_reader = readers(&first).remove(0);
    let mut numbers = read(&mut first_reader, |frames| frames.len() > 100);

    let more = probe.subscribe(source, snaplen(32)).unwrap();
    let equal = probe.subscribe(source, snaplen(32)).unwrap();
    assert_eq!(probe.feed_of(more).unwrap().0, probe.feed_of(equal).unwrap().0);
    probe.unsubscribe(equal).unwrap();
    probe.attach(consumer.id, more).unwrap();
    let second = joined(&consumer);
    assert_ne!(second.first_line, first.first_line);
    let mut second_reader = readers(&second).remove(0);
    let mut seconds = read(&mut second_reader, |frames| frames.len() > 100);
    assert_eq!(probe.ledgers().unwrap().len(), 2);
    probe.unsubscribe(more).unwrap();
    let ledger = ledger_of(&events, second.feed);
    seconds.extend(read(&mut second_reader, |_| false));
    assert!(ledger.closes() && ledger.captured == seconds.len() as u64, "{ledger:?}");
    assert!(seconds.windows(2).all(|two| two[1] == two[0] + 1), "a gap");
    assert!(
        matches!(consumer.wait_for_update(LIMIT), Some(Update::Left(feed, _)) if feed == second.feed)
    );

    probe.stop();
    let ledger = ledger_of(&events, first.feed);
    numbers.extend(read(&mut first_reader, |_| false));
    assert!(ledger.closes() && ledger.captured == numbers.len() as u64, "{ledger:?}");
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "the other feed lost a frame");
    assert!(matches!(probe.start(source), Err(ProbeError::Stopped)));
}

#[test]
fn a_consumer_waits_for_the_next_feed_and_passes_over_the_one_that_it_left() {
    let (probe, _events) = Probe::new().unwrap();
    let consumer = probe.add_consumer(4).unwrap();
    assert!(consumer.wait_for_feed(Duration::from_millis(1)).is_none());
    let (_, own) = probe.open(steady(), vec![snaplen(64), snaplen(32)]).unwrap();
    let mut feeds = Vec::new();
    for subscription in own {
        probe.attach(consumer.id, subscription).unwrap();
        feeds.push(consumer.wait_for_feed(Duration::ZERO).expect("it has joined").feed);
        probe.detach(consumer.id, subscription).unwrap();
    }
    assert_ne!(feeds[0], feeds[1]);
}

#[test]
fn a_source_that_waits_loses_nothing_to_a_slow_consumer_and_is_known_after_its_end() {
    const FRAMES: u64 = 200_000; // 18 MiB of records through a ring of 4 MiB
    let _alone = alone();
    let open: Opener = Arc::new(|feeds| {
        let setup = Setup {
            feeds,
            ring_bytes: 4 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let spec = GenSpec { frames: Some(FRAMES), step_ns: Some(STEP_NS), ..GenSpec::default() };
        Ok(Box::new(MemGen::open(spec, setup, true)?))
    });
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(spec(open, false), vec![snaplen(64)]).unwrap();
    let consumer = probe.add_consumer(1).unwrap();
    assert!(consumer.take_updates().is_empty());
    probe.attach(consumer.id, own[0]).unwrap();
    let Some(Update::Joined(joined)) = consumer.take_updates().pop() else { panic!("nothing") };
    assert!(consumer.take_updates().is_empty());
    probe.start(source).unwrap();
    let progress = joined.progress.as_ref().expect("it waits");
    let (mut reader, mut batch) = (readers(&joined).remove(0), Batch::new());
    let (begin, mut frames) = (Instant::now(), 0);
    loop {
        assert!(begin.elapsed() < LIMIT, "{frames} frames, and no more");
        match reader.poll(&mut batch).unwrap() {
            Poll::Frames(count) => frames += u64::from(count),
            Poll::Lapped(lapped) => panic!("{lapped} lapped"),
            Poll::Empty => std::thread::yield_now(),
            Poll::Closed => break,
        }
        progress.reached(reader.ordinal());
    }
    assert_eq!(frames, FRAMES);
    assert_eq!(ledger_of(&events, joined.feed).captured, FRAMES);
    probe.stop();
    assert_eq!(probe.info_of(source).expect("it was open").engine, "gen");
}

#[test]
fn a_source_fails_alone() {
    let _alone = alone();
    let (probe, events) = Probe::new().unwrap();
    let (failing, error) = flaky(false);
    let (fails, own) = probe.open(failing, vec![snaplen(64)]).unwrap();
    let (stays, others) = probe.open(steady(), vec![snaplen(64)]).unwrap();
    let consumer = probe.add_consumer(4).unwrap();
    for subscription in [own[0], others[0]] {
        probe.attach(consumer.id, subscription).unwrap();
    }
    let (gone, other) = (joined(&consumer), joined(&consumer));
    probe.start(fails).unwrap();
    probe.start(stays).unwrap();
    *error.lock().unwrap() = Some(CaptureError::Options("the driver is gone".into()));
    let said = wait_for(&events, |event| match event {
        Event::Failed(source, error) if source == fails => Some(error.to_string()),
        _ => None,
    });
    assert_eq!(said, "the driver is gone");
    assert!(ledger_of(&events, gone.feed).closes());
    // Its rings are closed, and can be read to their end.
    read(&mut readers(&gone)[0], |_| false);
    wait_for(&events, |event| {
        matches!(event, Event::Closed(source) if source == fails).then_some(())
    });
    assert!(matches!(probe.close(fails), Err(ProbeError::Unknown)));
    read(&mut readers(&other)[0], |frames| frames.len() > 500);
    probe.close(stays).unwrap();
    assert!(ledger_of(&events, other.feed).closes());
}

#[test]
fn a_withdrawn_right_acts_at_once_and_the_others_lose_nothing() {
    let _alone = alone();
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(steady(), vec![snaplen(64)]).unwrap();
    let (stays, goes) = (probe.add_consumer(4).unwrap(), probe.add_consumer(4).unwrap());
    probe.attach(stays.id, own[0]).unwrap();
    probe.attach(goes.id, own[0]).unwrap();
    probe.start(source).unwrap();
    let old = joined(&stays);
    let mut reader = readers(&old).remove(0);
    let mut numbers = read(&mut reader, |frames| frames.len() > 100);
    probe.withdraw(goes.id).unwrap();
    // The memory that the withdrawn consumer may still have mapped gets no more frames.
    let written = old.rings[0].frames_written();
    let new = joined(&stays);
    let mut news = readers(&new).remove(0);
    let after = read(&mut news, |frames| frames.len() > 100);
    assert_eq!(old.rings[0].frames_written(), written);
    numbers.extend(read(&mut reader, |_| false));
    assert_eq!(ledger_of(&events, old.feed).captured, numbers.len() as u64);
    numbers.extend(after);
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "lost or doubled");
    assert!(matches!(probe.attach(goes.id, own[0]), Err(ProbeError::Unknown)));
}

#[test]
fn a_source_that_is_followed_is_waited_for_and_comes_back_with_a_ledger_of_its_own() {
    let _alone = alone();
    let (probe, events) = Probe::new().unwrap();
    let tries = Arc::new(AtomicU32::new(0));
    let (there, error) = flaky(true);
    let open: Opener = Arc::new({
        let tries = Arc::clone(&tries);
        // The interface is missing at first, and again right after it vanished.
        move |feeds| match tries.fetch_add(1, Ordering::Relaxed) {
            1 | 3 => (there.open)(feeds),
            _ => Err(CaptureError::NoInterface { iface: "eth9".into() }),
        }
    });
    let (source, own) = probe.open(spec(open, true), vec![snaplen(64)]).unwrap();
    wait_for(&events, |event| matches!(event, Event::Missing(..)).then_some(()));
    let consumer = probe.add_consumer(4).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    assert_eq!(probe.feed_of(own[0]), None);
    let mut feeds = Vec::new();
    for _ in 0..2 {
        probe.look_again(source);
        wait_for(&events, |event| matches!(event, Event::CameBack(_)).then_some(()));
        let here = joined(&consumer);
        read(&mut readers(&here)[0], |frames| frames.len() > 100);
        *error.lock().unwrap() = Some(CaptureError::Vanished { iface: "eth9".into() });
        wait_for(&events, |event| matches!(event, Event::Vanished(..)).then_some(()));
        assert!(ledger_of(&events, here.feed).closes());
        let left = consumer.wait_for_update(LIMIT);
        assert!(matches!(left, Some(Update::Left(feed, _)) if feed == here.feed));
        // Wait until the probe itself has looked for the interface, before the test asks it to look again.
        let begin = Instant::now();
        let expected = 3 + 2 * feeds.len() as u32;
        while tries.load(Ordering::Relaxed) < expected {
            assert!(begin.elapsed() < LIMIT, "it is not looked for");
            std::thread::sleep(Duration::from_millis(1));
        }
        feeds.push(here.feed);
    }
    assert_ne!(feeds[0], feeds[1]);
}

#[test]
fn a_panic_while_a_source_is_opened_is_passed_on_and_nobody_waits_for_its_answer() {
    for follows in [false, true] {
        let (probe, events) = Probe::new().unwrap();
        let tries = AtomicU32::new(0);
        // A source that is followed is opened again by the housekeeper.
        let open: Opener = Arc::new(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
            0 if follows => Err(CaptureError::NoInterface { iface: "eth9".into() }),
            _ => panic!("a bug of ours"),
        });
        let opened = probe.open(spec(open, follows), vec![snaplen(64)]);
        assert_eq!(opened.is_ok(), follows);
        if let Ok((source, _)) = opened {
            probe.look_again(source);
            wait_for(&events, |event| matches!(event, Event::Failed(..)).then_some(()));
        }
        // Other sources are not affected.
        let (steady, _) = probe.open(steady(), vec![snaplen(64)]).unwrap();
        probe.start(steady).unwrap();
        let stop = std::panic::AssertUnwindSafe(|| probe.stop());
        let panic = std::panic::catch_unwind(stop).expect_err("it is passed on");
        assert_eq!(panic.downcast_ref(), Some(&"a bug of ours"));
    }
}

#[test]
fn whoever_is_followed_and_goes_away_while_it_is_opened_is_waited_for() {
    let (probe, events) = Probe::new().unwrap();
    let no_device = || std::io::Error::from_raw_os_error(19);
    let refused = CaptureError::Os { doing: "attaching".into(), source: no_device() };
    let link = |iface: &str| LinkName { netns: None, iface: Some(iface.into()) };
    // An interface that is missing, with some other error; and one that exists, with the error for a missing one.
    for (iface, error) in [("weir-none", CaptureError::Ended), ("lo", refused)] {
        let error = Mutex::new(Some(error));
        let open: Opener = Arc::new(move |feeds| match error.lock().unwrap().take() {
            Some(error) => Err(error),
            None => Ok(Box::new(generator(feeds)?)),
        });
        let followed = SourceSpec { link: Some(link(iface)), ..spec(open, true) };
        let (source, own) = probe.open(followed, vec![snaplen(64)]).unwrap();
        wait_for(&events, |event| matches!(event, Event::Missing(..)).then_some(()));
        assert_eq!(probe.feed_of(own[0]), None);
        probe.look_again(source);
        wait_for(&events, |event| matches!(event, Event::CameBack(_)).then_some(()));
    }
}

#[test]
fn feeds_of_different_groups_are_not_shared_even_after_their_source_came_back() {
    let (probe, events) = Probe::new().unwrap();
    let (flaky, error) = flaky(true);
    let groups = [0, 1, 1].map(|group| Wants { group, ..snaplen(64) });
    let (source, own) = probe.open(flaky, groups.to_vec()).unwrap();
    probe.start(source).unwrap();
    let feeds = || [0, 1, 2].map(|at| probe.feed_of(own[at]).expect("it is open").0);
    let before = feeds();
    assert!(before[0] != before[1] && before[1] == before[2], "{before:?}");
    *error.lock().unwrap() = Some(CaptureError::Vanished { iface: "eth9".into() });
    wait_for(&events, |event| matches!(event, Event::CameBack(_)).then_some(()));
    probe.ledgers().unwrap();
    let after = feeds();
    assert!(after[0] != after[1] && after[1] == after[2], "{after:?}");
    assert!(!after.contains(&before[0]) && !after.contains(&before[1]));
}

#[test]
fn a_consumer_that_stands_still_holds_a_few_lives_of_a_source_and_the_others_are_counted() {
    let lives = PAST_LIVES_MAX as u32 + 5;
    let (probe, events) = Probe::new().unwrap();
    let opened = AtomicU32::new(0);
    let open: Opener = Arc::new(move |feeds| {
        if opened.fetch_add(1, Ordering::Relaxed) >= lives {
            return Err(CaptureError::NoInterface { iface: "eth9".into() });
        }
        let setup = Setup { feeds, ring_bytes: 4 << 20, promiscuous: false, ..Setup::default() };
        let mut is_over = false;
        PlainEngine::ethernet("a test").open(Info::default(), setup, move |input, _| {
            if std::mem::replace(&mut is_over, true) {
                return Err(CaptureError::Vanished { iface: "eth9".into() });
            }
            (0..7).for_each(|_| input.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]));
            Ok(Pumped::More)
        })
    });
    let wants = vec![snaplen(64), snaplen(32)];
    let (source, own) = probe.open(spec(open, true), wants).unwrap();
    let [still, leaves] = [2, 2].map(|lines| probe.add_consumer(lines).unwrap());
    for consumer in [&still, &leaves] {
        own.iter().for_each(|feed| probe.attach(consumer.id, *feed).unwrap());
    }
    drop(leaves);
    probe.start(source).unwrap();
    let (mut vanished, mut let_go) = (0, 0);
    while vanished < lives {
        match events.recv_timeout(LIMIT).expect("an event") {
            Event::Vanished(..) => vanished += 1,
            Event::LetGo(of, consumer, _, frames) => {
                assert_eq!((of, consumer), (source, still.id));
                let_go += frames;
            }
            event => assert!(!matches!(event, Event::NotAttached(..)), "{event:?}"),
        }
    }
    probe.stop();
    for event in events.try_iter() {
        if let Event::LetGo(_, _, _, frames) = event {
            let_go += frames;
        }
    }
    let mut frames = 0;
    let updates = still.take_updates();
    let joined = updates.iter().filter_map(|update| match update {
        Update::Joined(joined) => Some(joined),
        Update::Left(..) => None,
    });
    let joined: Vec<&Joined> = joined.collect();
    assert_eq!(joined.len(), 2 * PAST_LIVES_MAX);
    assert_eq!(updates.len(), 2 * joined.len());
    for joined in joined {
        assert!(joined.life > 5, "{}", joined.life);
        frames += read(&mut readers(joined)[0], |_| false).len();
    }
    assert_eq!((frames, let_go), (7 * 2 * PAST_LIVES_MAX, 7 * 2 * 5));
}

#[test]
fn whoever_waits_for_an_update_does_so_no_longer_than_the_probe_lasts() {
    let (probe, _events) = Probe::new().unwrap();
    let (source, own) = probe.open(steady(), vec![snaplen(64)]).unwrap();
    let consumer = probe.add_consumer(4).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    let waits = std::thread::spawn(move || {
        let mut told = 0;
        while consumer.wait_for_update(10 * LIMIT).is_some() {
            told += 1;
        }
        told
    });
    let begin = Instant::now();
    probe.stop();
    assert_eq!(waits.join().unwrap(), 2, "it joined and left");
    assert!(begin.elapsed() < 5 * LIMIT);
}
