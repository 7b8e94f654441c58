use std::sync::atomic::fence;
use std::time::Duration;

use weir_ring::doorbell::AWAKE;
use weir_ring::wake::{Sleeper, UNCONFIRMED_LIMIT, Woken};
use weir_ring::{Batch, Poll, Reader, Start, Writer};

use super::*;
use crate::devices::Devices;
use crate::testing::{Host, MIB, push};

const LONG: Duration = Duration::from_secs(20);
/// The most frames that a sleeper waits for, in tests that vary their number.
const FRAMES_MAX: u64 = 3;

/// The host's writer of one ring. It sends bells as a real host does.
struct Wire<'a> {
    host: &'a Host,
    bells: &'a Bells,
    slot: u32,
    writer: Writer<Mapping>,
    rung: u64,
}

impl<'a> Wire<'a> {
    /// Also returns the ring as the guest maps it.
    fn new(
        host: &'a Host,
        devices: &Devices,
        bells: &'a Bells,
        slot: u32,
    ) -> (Wire<'a>, Ring<Mapping>) {
        let (place, writer) = host.writer(slot, (1 + 5 * u64::from(slot)) * MIB);
        (Wire { host, bells, slot, writer, rung: AWAKE }, devices.ring(&place).unwrap())
    }

    /// Publishes frames, and sends a bell if a new threshold is reached.
    fn push(&mut self, frames: u64) {
        let ordinal = push(&mut self.writer, frames);
        fence(Ordering::SeqCst); // H
        let threshold = self.host.threshold(self.slot);
        if ordinal >= threshold && threshold != self.rung {
            self.rung = threshold;
            self.bells.ring();
        }
    }

    fn close(mut self) {
        self.writer.close();
        self.bells.ring();
    }
}

/// An application: one reader, one sleeper.
struct App {
    sleeper: Sleeper,
    reader: Reader<Mapping>,
    batch: Batch,
    id: BellId,
}

impl App {
    fn new(bells: &Bells, slot: u32, ring: &Ring<Mapping>) -> App {
        let sleeper = Sleeper::new(1).unwrap();
        let id = bells.add(slot, ring.clone(), sleeper.waker().unwrap(), 0).unwrap();
        let reader = Reader::new(ring, Start::Oldest).unwrap();
        App { sleeper, reader, batch: Batch::new(), id }
    }

    fn sleep(&self, frames: u64, limit: Duration) -> Woken {
        sleep(&self.sleeper, std::slice::from_ref(&self.reader), frames, limit)
    }

    fn poll(&mut self) -> Poll {
        self.reader.poll(&mut self.batch).unwrap()
    }
}

/// Sleeps. If the limit is [`LONG`], the sleep must end much earlier: at its limit it would find the frames even if
/// their wake-up was lost.
fn sleep(sleeper: &Sleeper, readers: &[Reader<Mapping>], frames: u64, limit: Duration) -> Woken {
    let begin = Instant::now();
    let woken = sleeper.sleep(readers, frames, limit).unwrap();
    let took = begin.elapsed();
    assert!(limit != LONG || took < LONG / 2, "slept past a wake-up: {woken:?} after {took:?}");
    woken
}

fn devices_and_bells(host: &Host) -> (Devices, Bells) {
    let devices = host.find();
    let bells = Bells::start(devices.words().unwrap()).unwrap();
    (devices, bells)
}

/// Waits until a condition holds, which another thread should soon make true.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        // Shorter than the limit of a sleep, which hides a lost wake-up.
        assert!(begin.elapsed() < LONG / 2, "not in time: {what}");
        thread::sleep(Duration::from_micros(20));
    }
}

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn who_sleeps_for_n_frames_gets_every_frame_and_never_sleeps_past_one() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let apps: Vec<App> = (0..3).map(|_| App::new(&bells, 0, &ring)).collect();
    let read: Vec<AtomicU64> = apps.iter().map(|_| AtomicU64::new(0)).collect();
    let frames = 600;
    thread::scope(|scope| {
        for ((number, mut app), read) in apps.into_iter().enumerate().zip(&read) {
            scope.spawn(move || {
                let mut numbers = Numbers(number as u64);
                let (mut wakes, mut empty) = (0, 0);
                while !app.reader.has_ended() {
                    assert_eq!(app.sleep(1 + numbers.below(FRAMES_MAX), LONG), Woken::Frames);
                    wakes += 1;
                    empty += u64::from(app.poll() == Poll::Empty);
                    while matches!(app.poll(), Poll::Frames(_)) {}
                    read.store(app.reader.ordinal(), Ordering::Relaxed);
                }
                assert_eq!((app.reader.delivered(), app.reader.lapped()), (frames, 0));
                // Such a wake-up was sent just as the last sleep ended because the sleeper itself had found the
                // frames.
                assert!(empty * 4 <= wakes, "{empty} of {wakes} wake-ups were for nothing");
                eprintln!("application {number}: {wakes} wake-ups, {empty} for nothing");
            });
        }
        let mut numbers = Numbers(77);
        for ordinal in 1..=frames {
            // The next frame comes at once, while sleepers go to sleep, or when a confirmation is on its way.
            match numbers.below(4) {
                0 => {}
                1 => thread::sleep(Duration::from_micros(numbers.below(300))),
                2 => thread::sleep(UNCONFIRMED_LIMIT + Duration::from_micros(numbers.below(2000))),
                _ => (0..numbers.below(20_000)).for_each(|_| std::hint::spin_loop()),
            }
            wire.push(1);
            // Without this wait, later frames would hide that a sleeper has missed this one.
            if numbers.below(2) == 0 {
                let has_read =
                    |read: &AtomicU64| ordinal - read.load(Ordering::Relaxed) < FRAMES_MAX;
                wait_until("whoever waits for these frames wakes", || read.iter().all(has_read));
            }
        }
        wire.close();
    });
}

#[test]
fn nobody_is_woken_for_nothing() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let mut app = App::new(&bells, 0, &ring);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ringing = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                bells.ring();
                thread::sleep(Duration::from_micros(200));
            }
        });
        wire.push(4);
        assert_eq!(app.sleep(5, Duration::from_millis(100)), Woken::Limit);
        wire.push(1);
        assert_eq!(app.sleep(5, LONG), Woken::Frames);
        // The wake-up may come after the sleeper has found the frames itself. It must not be left over for the next
        // sleep.
        thread::sleep(Duration::from_millis(20));
        assert_eq!(app.poll(), Poll::Frames(5));
        app.sleep(5, Duration::from_millis(100));
        assert_eq!(app.sleep(5, Duration::from_millis(100)), Woken::Limit);
        is_over.store(true, Ordering::Relaxed);
        ringing.join().unwrap();
    });
}

#[test]
fn nothing_runs_while_nothing_happens() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let mut app = App::new(&bells, 0, &ring);
    let turns = || bells.shared.turns.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| (app.sleep(2, LONG), app.poll()));
        wait_until("a threshold", || host.threshold(0) == 2);
        // By then the threshold is confirmed.
        thread::sleep(10 * UNCONFIRMED_LIMIT);
        let before = turns();
        // This frame does not reach the threshold.
        wire.push(1);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(turns(), before);
        wire.push(1);
        assert_eq!(sleeping.join().unwrap(), (Woken::Frames, Poll::Frames(2)));
    });
}

#[test]
fn the_host_sees_the_lowest_threshold_that_is_not_reached_and_the_slowest_position() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    assert_eq!((host.threshold(0), host.position(0)), (AWAKE, 0));
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let (first, second) = (App::new(&bells, 0, &ring), App::new(&bells, 0, &ring));
    thread::scope(|scope| {
        let second_sleeps = scope.spawn(|| second.sleep(9, LONG));
        wait_until("the threshold of the second", || host.threshold(0) == 9);
        let first_sleeps = scope.spawn(|| first.sleep(5, LONG));
        wait_until("the threshold of the first", || host.threshold(0) == 5);
        wire.push(5);
        assert_eq!(first_sleeps.join().unwrap(), Woken::Frames);
        wait_until("the threshold of the second again", || host.threshold(0) == 9);
        // The position of a sleeper is what it reports, or one less than its threshold, if that is higher.
        first.sleeper.note_position(0, 5);
        second.sleeper.note_position(0, 3);
        bells.ring();
        wait_until("the position of the first", || host.position(0) == 5);
        wire.push(4);
        assert_eq!(second_sleeps.join().unwrap(), Woken::Frames);
        wait_until("nobody sleeps", || host.threshold(0) == AWAKE);
        bells.ring();
        wait_until("the position of the second", || host.position(0) == 3);
    });
    // The sleeper is dropped before its bell is removed.
    let id = second.id;
    drop(second);
    wait_until("the position of the first", || host.position(0) == 5);
    bells.remove(id);
    let id = first.id;
    bells.remove(id);
    assert_eq!((host.threshold(0), host.position(0)), (AWAKE, 0));
    assert_eq!(first.sleep(9, LONG), Woken::WriterGone(0));
    bells.remove(id);
}

#[test]
fn the_end_of_a_ring_wakes_everybody_once() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let mut apps = [App::new(&bells, 0, &ring), App::new(&bells, 0, &ring)];
    thread::scope(|scope| {
        for app in &mut apps {
            scope.spawn(|| {
                assert_eq!(app.sleep(100, LONG), Woken::Frames);
                assert_eq!((app.poll(), app.poll()), (Poll::Frames(3), Poll::Closed));
            });
        }
        wait_until("a threshold", || host.threshold(0) == 100);
        // By then the thresholds are confirmed.
        thread::sleep(10 * UNCONFIRMED_LIMIT);
        wire.push(3);
        wire.close();
    });
    bells.ring();
    for app in &apps {
        // One wake-up may be left over: that for the end of the ring, which the reader has found without it.
        app.sleep(1, Duration::from_millis(20));
        assert_eq!(app.sleep(1, Duration::from_millis(50)), Woken::Limit);
    }
}

#[test]
fn a_slot_that_is_forgotten_hangs_its_sleepers_up_and_can_be_used_again() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let app = App::new(&bells, 0, &ring);
    let (mut other_wire, other_ring) = Wire::new(&host, &devices, &bells, 1);
    let other = App::new(&bells, 1, &other_ring);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| app.sleep(7, LONG));
        let other_sleeping = scope.spawn(|| other.sleep(2, LONG));
        wait_until("both thresholds", || host.threshold(0) == 7 && host.threshold(1) == 2);
        bells.forget_slot(0);
        assert_eq!((host.threshold(0), host.position(0)), (AWAKE, 0));
        assert_eq!(sleeping.join().unwrap(), Woken::WriterGone(0));
        other_wire.push(2);
        assert_eq!(other_sleeping.join().unwrap(), Woken::Frames);
    });
    drop((app, wire));
    assert_eq!(Arc::strong_count(ring.memory()), 1, "nobody has the ring any more");
    let (mut wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let app = App::new(&bells, 0, &ring);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| app.sleep(1, LONG));
        wait_until("a threshold", || host.threshold(0) == 1);
        wire.push(1);
        assert_eq!(sleeping.join().unwrap(), Woken::Frames);
    });
}

#[test]
fn one_sleeper_may_have_bells_of_several_slots() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let sleeper = Sleeper::new(2).unwrap();
    let waker = sleeper.waker().unwrap();
    let (mut wires, mut readers) = (Vec::new(), Vec::new());
    for slot in 0..2 {
        let (wire, ring) = Wire::new(&host, &devices, &bells, slot);
        bells.add(slot, ring.clone(), waker.try_clone().unwrap(), slot as usize).unwrap();
        readers.push(Reader::new(&ring, Start::Oldest).unwrap());
        wires.push(wire);
    }
    drop(waker);
    for wire in &mut wires {
        let mut batch = Batch::new();
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| sleep(&sleeper, &readers, 1, LONG));
            thread::sleep(5 * UNCONFIRMED_LIMIT);
            wire.push(1);
            assert_eq!(sleeping.join().unwrap(), Woken::Frames);
        });
        readers.iter_mut().for_each(|reader| _ = reader.poll(&mut batch).unwrap());
    }
    drop(bells_of(wires));
    drop(bells);
    assert_eq!(sleep(&sleeper, &readers, 1, LONG), Woken::WriterGone(0));
}

/// Drops the borrows of the bells, and keeps the writers.
fn bells_of(wires: Vec<Wire<'_>>) -> Vec<Writer<Mapping>> {
    wires.into_iter().map(|wire| wire.writer).collect()
}

#[test]
fn what_is_not_there_is_refused() {
    let host = Host::new();
    let (devices, bells) = devices_and_bells(&host);
    let (_wire, ring) = Wire::new(&host, &devices, &bells, 0);
    let sleeper = Sleeper::new(2).unwrap();
    let add = |slot, line| bells.add(slot, ring.clone(), sleeper.waker().unwrap(), line);
    assert!(matches!(add(SLOTS_MAX, 0), Err(GuestError::Slot { slot: SLOTS_MAX })));
    assert!(matches!(add(0, 2), Err(GuestError::Line { line: 2, lines: 2 })));
    add(0, 1).unwrap();
    bells.forget_slot(SLOTS_MAX);
}
