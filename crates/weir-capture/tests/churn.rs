//! Feeds and wakers are added and removed while a source runs: every ledger balances, the feed that stays loses
//! nothing, and no descriptors are leaked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::af_packet::AfPacket;
use weir_capture::af_xdp::{AfXdp, AfXdpOptions};
use weir_capture::bpf::{Bpf, BpfOptions, Hook};
use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{CaptureError, Feed, FeedControl, FeedSlot, Setup, Source};
use weir_filter::insn::RET_K;
use weir_filter::{Insn, Program};
use weir_lab::generator::{self, GenEngine, GenOptions};
use weir_lab::testbed::{Testbed, require_root, volume};
use weir_ring::Ledger;
use weir_ring::wake::Sleeper;

/// Number of rounds. In each, a feed is added and removed.
const ROUNDS: u64 = 200;
const TURN: Duration = Duration::from_millis(5);
/// Deadline for steps that should take seconds.
const LIMIT: Duration = Duration::from_secs(60);

fn setup(ring_mib: u64) -> Setup {
    Setup {
        feeds: vec![Feed::default()],
        ring_bytes: ring_mib << 20,
        promiscuous: true,
        may_change: true,
        ..Setup::default()
    }
}

/// Makes the tests run one at a time: they count the descriptors of this process, which all of them share.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("this process has descriptors").count()
}

/// A feed that takes all frames; in every third round, one that takes none.
fn feed(round: usize) -> Feed {
    let filter = (round.is_multiple_of(3)).then(|| {
        let program = Program::new(vec![Insn::new(RET_K, 0)]).expect("one instruction");
        Arc::new(weir_capture::Filter { text: "none".into(), link_type: 1, program })
    });
    Feed { filter, snaplen: 64, ..Feed::default() }
}

/// Adds and removes feeds, each with a waker, and moves every fourth to other rings. Returns the number of frames
/// that these feeds were offered.
fn churn(control: &dyn FeedControl, rounds: usize) -> u64 {
    let (mut offered, begin) = (0, Instant::now());
    for round in 0..rounds {
        assert!(begin.elapsed() < LIMIT, "round {round} of {rounds} after {LIMIT:?}");
        let added = control.add(feed(round)).expect("room for one more");
        let sleeper = Sleeper::new(added.rings.len()).expect("a sleeper");
        let waker = control.attach(added.slot, sleeper.waker().unwrap(), 0).expect("it is wide");
        if added.rings.len() > 1 {
            let narrow = Sleeper::new(1).unwrap().waker().unwrap();
            let error = control.attach(added.slot, narrow, 0).unwrap_err();
            assert!(matches!(error, CaptureError::NarrowWaker { .. }), "{error}");
        }
        std::thread::sleep(Duration::from_millis(1));
        control.detach(added.slot, waker);
        let slot = match round % 4 {
            0 => {
                let (twin, ledger) = control.replace_rings(added.slot).expect("the same again");
                assert!(ledger.closes(), "round {round}: {ledger}");
                assert!(added.rings.iter().all(|ring| ring.is_closed()));
                offered += ledger.offered;
                twin.slot
            }
            _ => added.slot,
        };
        let ledger = control.remove(slot).expect("it is there");
        assert!(ledger.closes(), "round {round}: {ledger}");
        assert!(round % 3 > 0 || ledger.captured == 0, "round {round}: {ledger}");
        assert!(matches!(control.remove(slot), Err(CaptureError::NoFeed)));
        offered += ledger.offered;
    }
    offered
}

/// Pumps while another thread adds and removes feeds. Returns the first feed's ledger, and the number of frames
/// that the other feeds were offered.
fn run(source: &mut dyn Source, rounds: u64) -> (Ledger, u64) {
    let rounds = volume(rounds) as usize;
    source.start().expect("it starts");
    let (control, is_over) = (source.control(), AtomicBool::new(false));
    // Two rounds come before descriptors are counted: they open those that the source opens once and keeps.
    let offered = std::thread::scope(|scope| {
        let churning = scope.spawn(|| {
            let _over = OnDrop(&is_over);
            // The sender opens its descriptors before it sends, so wait for a frame before they are counted.
            let begin = Instant::now();
            while control.ledger(FeedSlot::first()).expect("it is there").offered == 0 {
                assert!(begin.elapsed() < LIMIT, "no frames");
                std::thread::sleep(Duration::from_millis(1));
            }
            let first = churn(&*control, 2);
            // The source's thread releases a waker shortly after it was detached.
            let look = |_| {
                std::thread::sleep(Duration::from_millis(10));
                descriptors()
            };
            let before = (0..20).map(look).min().expect("some looks");
            let offered = first + churn(&*control, rounds - 2);
            let begin = Instant::now();
            while descriptors() != before {
                assert!(begin.elapsed() < LIMIT, "{} descriptors, {before} before", descriptors());
                std::thread::sleep(Duration::from_millis(1));
            }
            offered
        });
        while !is_over.load(Ordering::Acquire) {
            source.pump(TURN).expect("it goes on");
        }
        churning.join().expect("every ledger closes")
    });
    source.stop().expect("it stops");
    (control.ledger(FeedSlot::first()).expect("it stayed"), offered)
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn feeds_come_and_go_at_the_generators_full_rate() {
    let _alone = alone();
    let spec: GenSpec = "size=64".parse().expect("a spec");
    let mut source = MemGen::open(spec, setup(4), false).expect("it opens");
    let (first, offered) = run(&mut source, ROUNDS);
    assert!(first.closes(), "{first}");
    assert_eq!(first.captured, first.offered, "the others took nothing from it");
    assert!(offered > 0 && offered < first.offered, "{offered} of {}", first.offered);
}

/// While feeds are added and removed under load, every frame that the first feed was offered is in its
/// rings or counted as dropped.
fn under_load(open: impl FnOnce(&str) -> Box<dyn Source> + Send, rounds: u64) {
    let _alone = alone();
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    let stop = AtomicBool::new(false);
    let (first, offered) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| generate(&bed, &stop));
        let result = bed.rx.run(|| {
            let _stop = OnDrop(&stop);
            let mut source = open(&bed.rx.iface);
            run(source.as_mut(), rounds)
        });
        sending.join().expect("it sends");
        result.expect("the namespace is there")
    });
    assert!(first.closes(), "{first}");
    assert_eq!(first.filtered, 0, "the first feed takes all: {first}");
    assert_eq!(first.captured + first.dropped(), first.offered, "{first}");
    assert!(offered > 0 && offered <= first.offered, "{offered} of {}", first.offered);
}

fn generate(bed: &Testbed, stop: &AtomicBool) {
    let options = GenOptions { engine: GenEngine::LiveFrames, ..GenOptions::default() };
    let sent = bed.tx.run(|| generator::run(&bed.tx.iface, &options, stop).map(|run| run.sent));
    assert!(sent.expect("the namespace is there").expect("it sends") > 0);
}

#[test]
fn root_feeds_come_and_go_at_a_packet_socket() {
    if require_root("root_feeds_come_and_go_at_a_packet_socket") {
        let open = |iface: &str| {
            Box::new(AfPacket::open(iface, setup(16)).expect("it opens")) as Box<dyn Source>
        };
        under_load(open, ROUNDS / 4);
    }
}

#[test]
fn root_feeds_come_and_go_behind_copiers() {
    if require_root("root_feeds_come_and_go_behind_copiers") {
        let open = |iface: &str| {
            let options = AfXdpOptions { copiers: 2, ..AfXdpOptions::default() };
            Box::new(AfXdp::open(iface, setup(16), options).expect("it opens")) as Box<dyn Source>
        };
        under_load(open, ROUNDS / 4);
    }
}

fn bpf(hook: Hook) -> impl FnOnce(&str) -> Box<dyn Source> + Send {
    move |iface| {
        let options = BpfOptions { hook, ..BpfOptions::default() };
        let setup = Setup { ring_bytes: weir_capture::bpf::least_ring_bytes(), ..setup(0) };
        Box::new(Bpf::open(iface, setup, options).expect("it opens"))
    }
}

#[test]
fn root_feeds_come_and_go_at_tc() {
    if require_root("root_feeds_come_and_go_at_tc") {
        under_load(bpf(Hook::Tc), ROUNDS / 4);
    }
}

#[test]
fn root_feeds_come_and_go_at_xdp() {
    if require_root("root_feeds_come_and_go_at_xdp") {
        under_load(bpf(Hook::Xdp), ROUNDS / 4);
    }
}

#[test]
fn root_a_feed_that_leaves_the_hook_has_a_ledger_that_closes() {
    if !require_root("root_a_feed_that_leaves_the_hook_has_a_ledger_that_closes") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| generate(&bed, &stop));
        let done = bed.rx.run(|| {
            let _stop = OnDrop(&stop);
            let feeds = vec![Feed::default(), Feed { snaplen: 64, ..Feed::default() }];
            let ring_bytes = weir_capture::bpf::least_ring_bytes();
            let setup = Setup { feeds, ring_bytes, ..setup(0) };
            let mut source = Bpf::open(&bed.rx.iface, setup, BpfOptions::default()).unwrap();
            source.start().unwrap();
            let control = source.control();
            let handles = control.feeds();
            let begin = Instant::now();
            while control.ledger(handles[1].slot).unwrap().captured < 1000 {
                source.pump(TURN).unwrap();
                assert!(begin.elapsed() < LIMIT);
            }
            let gone = control.remove(handles[1].slot).unwrap();
            assert!(gone.closes() && gone.captured >= 1000, "{gone}");
            assert!(handles[1].rings.iter().all(|ring| ring.is_closed()));
            let before = control.ledger(handles[0].slot).unwrap().captured;
            while control.ledger(handles[0].slot).unwrap().captured < before + 1000 {
                source.pump(TURN).unwrap();
                assert!(begin.elapsed() < LIMIT);
            }
            source.stop().unwrap();
            let first = control.ledger(handles[0].slot).unwrap();
            assert!(first.closes() && first.filtered == 0, "{first}");
            assert_eq!(first.captured + first.dropped(), first.offered);
        });
        sending.join().expect("it sends");
        done.expect("the namespace is there");
    });
}
