//! Feeds that join and leave the hook of `bpf` while it runs: every frame is counted once, in one place.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_capture::bpf::{Bpf, BpfOptions, Hook};
use weir_capture::{Change, Feed, FeedControl, FeedHandle, FilterLocation, Setup, Source};
use weir_filter::block::{ENTRIES_MAX, Entry};
use weir_lab::generator::{self, GenEngine, GenOptions};
use weir_lab::testbed::{Testbed, require_root, volume};
use weir_ring::Ledger;

const TURN: Duration = Duration::from_millis(5);
/// Deadline for steps that should take seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Changes of feeds that are made while frames come at full rate.
type Steps<'a> = dyn Fn(&dyn FeedControl, &[FeedHandle]) + Sync + 'a;

fn short() -> Feed {
    Feed { snaplen: 64, ..Feed::default() }
}

/// Captures with these feeds while a generator sends, and runs `steps` on another thread. Runs `after` when the source
/// has stopped.
fn under_load(
    hook: Hook,
    feeds: Vec<Feed>,
    steps: &Steps<'_>,
    after: impl Fn(&dyn FeedControl) + Sync,
) {
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let options = GenOptions { engine: GenEngine::LiveFrames, ..GenOptions::default() };
            bed.tx.run(|| generator::run(&bed.tx.iface, &options, &stop))
        });
        let result = bed.rx.run(|| {
            let _stop = OnDrop(&stop);
            let options = BpfOptions { hook, ..BpfOptions::default() };
            let ring_bytes = weir_capture::bpf::least_ring_bytes();
            let setup = Setup {
                feeds: feeds.clone(),
                ring_bytes,
                promiscuous: true,
                may_change: true,
                ..Setup::default()
            };
            let mut source = Bpf::open(&bed.rx.iface, setup, options).expect("it opens");
            source.start().expect("it starts");
            let (control, handles) = (source.control(), source.control().feeds());
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let stepping = scope.spawn(|| {
                    let _over = OnDrop(&is_over);
                    steps(&*control, &handles);
                });
                while !is_over.load(Ordering::Acquire) {
                    source.pump(TURN).expect("it goes on");
                }
                stepping.join().expect("each step is right");
            });
            source.stop().expect("it stops");
            after(&*control);
        });
        let sent = sending.join().expect("it sends");
        result.expect("the namespace is there");
        assert!(sent.expect("the namespace is there").expect("it sends").sent > 0);
    });
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits until a feed has captured at least 100 frames.
fn has_frames(control: &dyn FeedControl, handle: &FeedHandle) {
    let begin = Instant::now();
    while control.ledger(handle.slot).expect("it is there").captured < 100 {
        assert!(begin.elapsed() < LIMIT, "no frames");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks the ledger of a feed without a filter: each offered frame was captured or dropped.
fn holds_all(ledger: &Ledger) {
    assert!(ledger.closes(), "{ledger}");
    assert_eq!(ledger.filtered, 0, "it takes all: {ledger}");
    assert_eq!(ledger.captured + ledger.dropped(), ledger.offered, "{ledger}");
}

/// One feed stays, and another is repeatedly moved to other rings while others join and leave. The first must
/// have been offered as many frames as the second was in all its rings together.
fn every_frame_is_in_one_ring(hook: Hook) {
    let (moved, before) = (std::sync::Mutex::new(None), std::sync::Mutex::new(Ledger::default()));
    let steps = |control: &dyn FeedControl, handles: &[FeedHandle]| {
        let mut slot = handles[1].slot;
        for round in 0..volume(12) {
            let (twin, ledger) = control.replace_rings(slot).expect("the same again");
            holds_all(&ledger);
            before.lock().unwrap().add(&ledger);
            slot = twin.slot;
            assert_eq!(twin.location, FilterLocation::Hook);
            let joined = control.add(short()).expect("a place");
            has_frames(control, &joined);
            has_frames(control, &twin);
            let ledger = control.remove(joined.slot).expect("it is there");
            holds_all(&ledger);
            assert!(ledger.captured >= 100 && !ledger.drops.contains_key("relay"), "round {round}");
            assert!(joined.rings.iter().all(|ring| ring.is_closed()));
            let held: u64 = joined.rings.iter().map(|ring| ring.frames_written()).sum();
            assert_eq!(held, ledger.captured);
        }
        *moved.lock().unwrap() = Some((handles[0].slot, slot));
    };
    under_load(hook, vec![Feed::default(), short()], &steps, |control| {
        let (stays, last) = moved.lock().unwrap().take().expect("the steps are taken");
        let first = control.ledger(stays).expect("it stayed");
        let mut all = before.lock().unwrap().clone();
        all.add(&control.ledger(last).expect("it is there"));
        holds_all(&first);
        holds_all(&all);
        assert_eq!(all.offered, first.offered, "{all} and {first}");
        assert_eq!(all.captured + all.dropped(), first.captured + first.dropped());
    });
}

#[test]
fn root_a_feed_is_moved_at_tc_and_every_frame_is_in_one_ring() {
    if require_root("root_a_feed_is_moved_at_tc_and_every_frame_is_in_one_ring") {
        every_frame_is_in_one_ring(Hook::Tc);
    }
}

#[test]
fn root_a_feed_is_moved_at_xdp_and_every_frame_is_in_one_ring() {
    if require_root("root_a_feed_is_moved_at_xdp_and_every_frame_is_in_one_ring") {
        every_frame_is_in_one_ring(Hook::Xdp);
    }
}

#[test]
fn root_places_at_the_hook_are_taken_freed_and_taken_again() {
    if !require_root("root_places_at_the_hook_are_taken_freed_and_taken_again") {
        return;
    }
    let steps = |control: &dyn FeedControl, _: &[FeedHandle]| {
        let is_relayed = |handle: &FeedHandle| {
            control.ledger(handle.slot).expect("it is there").drops.contains_key("relay")
        };
        let mut joined: Vec<FeedHandle> = Vec::new();
        // With the first feed there are then 15. One of the 16 places at the hook stays free for moves.
        for _ in 0..14 {
            joined.push(control.add(short()).expect("a place"));
        }
        assert!(joined.iter().all(|handle| !is_relayed(handle)));
        let beyond = control.add(short()).expect("the relay takes it");
        assert!(is_relayed(&beyond));
        let (twin, ledger) = control.replace_rings(joined[3].slot).expect("one is always free");
        holds_all(&ledger);
        joined[3] = twin;
        let gone = joined.swap_remove(7);
        holds_all(&control.remove(gone.slot).expect("it is there"));
        let again = control.add(short()).expect("its place");
        assert!(!is_relayed(&again));
        joined.extend([again, beyond]);
        joined.iter().for_each(|handle| has_frames(control, handle));
        for handle in joined {
            let ledger = control.remove(handle.slot).expect("it is there");
            assert!(ledger.closes() && ledger.captured >= 100, "{ledger}");
        }
    };
    under_load(Hook::Tc, vec![Feed::default()], &steps, |_| ());
}

#[test]
fn root_a_feed_of_a_queue_joins_at_xdp() {
    if !require_root("root_a_feed_of_a_queue_joins_at_xdp") {
        return;
    }
    let steps = |control: &dyn FeedControl, _: &[FeedHandle]| {
        let of = |queue| Feed { queue: Some(queue), ..short() };
        // The veth has only queue 0, so the feed of queue 7 gets no frames.
        let [first, none] = [0, 7].map(|queue| control.add(of(queue)).expect("a place"));
        has_frames(control, &first);
        holds_all(&control.remove(first.slot).expect("it is there"));
        let ledger = control.remove(none.slot).expect("it is there");
        assert!(ledger.closes() && ledger.captured == 0 && ledger.filtered > 0, "{ledger}");
    };
    under_load(Hook::Xdp, vec![Feed::default()], &steps, |_| ());
}

fn block(add: Vec<Entry>) -> Change {
    Change::Block { remove: Vec::new(), add }
}

/// If a thread waits to change a feed while that feed is removed, the change must not apply to the feed that gets its
/// place at the hook.
#[test]
fn root_a_change_of_a_feed_that_has_left_is_no_change_of_the_next_one() {
    if !require_root("root_a_change_of_a_feed_that_has_left_is_no_change_of_the_next_one") {
        return;
    }
    let steps = |control: &dyn FeedControl, _: &[FeedHandle]| {
        let all: Vec<Entry> = ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]
            .map(|prefix| prefix.parse().expect("a prefix"))
            .to_vec();
        for _ in 0..8 {
            let leaves = control.add(short()).expect("a place");
            std::thread::scope(|scope| {
                let removing = scope.spawn(|| control.remove(leaves.slot));
                while !removing.is_finished() {
                    let _ = control.change(leaves.slot, block(all.clone()));
                }
                removing.join().expect("no panic").expect("it is there");
            });
            let next = control.add(short()).expect("its place");
            std::thread::sleep(TURN);
            let ledger = control.remove(next.slot).expect("it is there");
            assert_eq!(ledger.blocked, 0, "{ledger}");
        }
    };
    under_load(Hook::Tc, vec![Feed::default()], &steps, |_| ());
}

/// A block list moves with its feed, and the move needs no additional space in the maps.
#[test]
fn root_a_feed_moves_with_its_block_list() {
    if !require_root("root_a_feed_moves_with_its_block_list") {
        return;
    }
    let addresses = |feed: usize, numbers: std::ops::Range<usize>| {
        let address = |number| Ipv4Addr::from((feed << 24 | number) as u32);
        block(numbers.map(|number| Entry::Address(IpAddr::V4(address(number)))).collect())
    };
    let all = || {
        ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]
            .map(|prefix| prefix.parse().expect("a prefix"))
            .to_vec()
    };
    let steps = |control: &dyn FeedControl, handles: &[FeedHandle]| {
        // Four such lists leave no space for a second copy of one in the maps of a source.
        for (feed, handle) in handles.iter().enumerate() {
            control.change(handle.slot, addresses(feed + 1, 0..ENTRIES_MAX - 4)).expect("room");
        }
        control.change(handles[3].slot, block(all())).expect("room");
        let (moved, _) = control.replace_rings(handles[3].slot).expect("a place");
        // Another feed gets the former place. Its list must be empty.
        let joined = control.add(short()).expect("a place");
        has_frames(control, &joined);
        let ledger = control.remove(joined.slot).expect("it is there");
        assert_eq!(ledger.blocked, 0, "{ledger}");
        let ledger = control.ledger(moved.slot).expect("it is there");
        assert!(ledger.blocked > 0 && ledger.captured == 0, "{ledger}");
        // Changes apply to the moved list.
        control.change(moved.slot, Change::Block { remove: all(), add: Vec::new() }).expect("less");
        has_frames(control, &moved);
    };
    under_load(Hook::Tc, vec![short(); 4], &steps, |_| ());
}
