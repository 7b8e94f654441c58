//! The interleavings of the host's writer and the guest's broker, with up to three preemptions: letters U and S of
//! `arming.rs`. No wake-up is lost.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weir-guest --test loom_bells`
//!
//! The broker runs `arm` itself. The host's writer is modelled here: it publishes, executes a fence, loads the word,
//! and sends one bell for each threshold that it finds reached. A bell is a counter that the host increments with
//! release. This models the serial port: whoever has read its byte sees everything that the host did before.
//!
//! Each step is omitted in one test, and loom must then find a lost wake-up.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use weir_guest::arming::{self, Sleepers};
use weir_ring::doorbell::{self, AWAKE};

/// The step that is omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// H: the host's fence.
    HostFence,
    /// U: the broker's fence.
    BrokerFence,
    /// S: the broker's look after its store.
    LookBehindStore,
    /// T: the sleeper's look after the confirmation.
    LookBehindConfirmation,
}

/// The words that the host and the guest share.
struct Shared {
    /// Frames published.
    ordinal: AtomicU64,
    /// The lowest threshold.
    word: AtomicU64,
    /// Number of bells that the host has sent.
    bells: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let (ordinal, word) = (AtomicU64::new(0), AtomicU64::new(AWAKE));
        Arc::new(Shared { ordinal, word, bells: AtomicU64::new(0) })
    }

    /// The host's writer.
    fn write(&self, frames: u64, without: Without) {
        let mut rung = AWAKE;
        for ordinal in 1..=frames {
            self.ordinal.store(ordinal, Ordering::Release);
            if without != Without::HostFence {
                fence(Ordering::SeqCst);
            }
            let threshold = self.word.load(Ordering::Relaxed);
            if ordinal >= threshold && threshold != rung {
                rung = threshold;
                self.bells.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn published(&self) -> u64 {
        self.ordinal.load(Ordering::Acquire)
    }
}

/// The owner of the sleepers of one slot. Each sleeper has a page with its threshold.
struct Broker<'a> {
    shared: &'a Shared,
    thresholds: &'a [AtomicU64],
    is_woken: Vec<bool>,
    /// Whether a wake-up may be sent: none was sent within the last `RING_GAP`.
    may_wake: bool,
    without: Without,
    /// Result of the latest look of this turn.
    seen: Option<u64>,
}

impl<'a> Broker<'a> {
    fn new(shared: &'a Shared, thresholds: &'a [AtomicU64], without: Without) -> Broker<'a> {
        let is_woken = vec![false; thresholds.len()];
        Broker { shared, thresholds, is_woken, may_wake: true, without, seen: None }
    }

    fn turn(&mut self) {
        self.seen = None;
        if self.without != Without::BrokerFence {
            return arming::arm(&self.shared.word, self);
        }
        let ordinal = self.look();
        self.shared.word.store(self.earliest(ordinal), Ordering::Relaxed);
        self.look();
    }
}

impl Sleepers for Broker<'_> {
    fn look(&mut self) -> u64 {
        let ordinal = match self.seen {
            Some(seen) if self.without == Without::LookBehindStore => seen,
            _ => self.shared.published(),
        };
        self.seen = Some(ordinal);
        for (threshold, is_woken) in self.thresholds.iter().zip(&mut self.is_woken) {
            *is_woken |= self.may_wake && threshold.load(Ordering::Relaxed) <= ordinal;
        }
        ordinal
    }

    fn earliest(&self, ordinal: u64) -> u64 {
        let thresholds = self.thresholds.iter().map(|word| word.load(Ordering::Relaxed));
        thresholds.filter(|&threshold| threshold > ordinal).min().unwrap_or(AWAKE)
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// An application goes to sleep until two frames are there, while these are published.
fn goes_to_sleep(may_wake: bool, without: Without) {
    explore(move || {
        let shared = Shared::new();
        let page = [AtomicU64::new(AWAKE)];
        let host = Arc::clone(&shared);
        let writing = thread::spawn(move || host.write(2, without));
        doorbell::set_threshold(&page[0], 2);
        let is_ready = shared.published() >= 2;
        // The request and the confirmation go over a socket, so what happened before one is sent is seen after it is
        // received.
        let mut broker = Broker::new(&shared, &page, without);
        broker.may_wake = may_wake;
        broker.turn();
        let looks = without != Without::LookBehindConfirmation && shared.published() >= 2; // T
        writing.join().unwrap();
        if shared.bells.load(Ordering::Acquire) > 0 {
            broker.may_wake = true;
            broker.turn();
        }
        assert!(is_ready || looks || broker.is_woken[0], "asleep with two frames in the ring");
    });
}

/// Two applications sleep, one until the first frame and one until the second. The broker reads the bell between the
/// frames, or after both.
fn sleep_on(without: Without) {
    explore(move || {
        let shared = Shared::new();
        let pages = [AtomicU64::new(1), AtomicU64::new(2)];
        let mut broker = Broker::new(&shared, &pages, without);
        broker.turn();
        let host = Arc::clone(&shared);
        let writing = thread::spawn(move || host.write(2, without));
        let heard = shared.bells.load(Ordering::Acquire);
        if heard > 0 {
            broker.turn();
        }
        writing.join().unwrap();
        if shared.bells.load(Ordering::Acquire) > heard {
            broker.turn();
        }
        assert_eq!(broker.is_woken, [true, true], "asleep with two frames in the ring");
    });
}

/// One application sleeps. Another sets a lower threshold while the frames are published. So the broker stores a word
/// that the ring has reached already, and for which the host may have sent a bell.
fn another_goes_to_sleep(without: Without) {
    explore(move || {
        let shared = Shared::new();
        let pages = [AtomicU64::new(2), AtomicU64::new(AWAKE)];
        let mut broker = Broker::new(&shared, &pages, without);
        broker.turn();
        let host = Arc::clone(&shared);
        let writing = thread::spawn(move || host.write(2, without));
        doorbell::set_threshold(&pages[1], 1);
        let is_ready = shared.published() >= 1;
        let heard = shared.bells.load(Ordering::Acquire);
        broker.turn();
        writing.join().unwrap();
        if shared.bells.load(Ordering::Acquire) > heard {
            broker.turn();
        }
        let [first, second] = broker.is_woken[..] else { unreachable!() };
        assert!(first && (second || is_ready), "asleep with two frames in the ring");
    });
}

#[test]
fn who_goes_to_sleep_is_woken() {
    goes_to_sleep(true, Without::Nothing);
}

#[test]
fn who_goes_to_sleep_while_the_broker_is_quiet_looks_by_itself() {
    goes_to_sleep(false, Without::Nothing);
}

#[test]
fn all_who_sleep_are_woken() {
    sleep_on(Without::Nothing);
}

#[test]
fn who_sleeps_is_woken_though_another_goes_to_sleep() {
    another_goes_to_sleep(Without::Nothing);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_hosts_fence_who_goes_to_sleep_sleeps_on() {
    goes_to_sleep(true, Without::HostFence);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_brokers_fence_who_goes_to_sleep_sleeps_on() {
    goes_to_sleep(true, Without::BrokerFence);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_its_last_look_who_goes_to_sleep_is_not_told_by_a_quiet_broker() {
    goes_to_sleep(false, Without::LookBehindConfirmation);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_brokers_fence_who_sleeps_is_not_woken_behind_the_first() {
    sleep_on(Without::BrokerFence);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_look_behind_the_store_who_sleeps_is_not_woken_behind_the_first() {
    sleep_on(Without::LookBehindStore);
}
