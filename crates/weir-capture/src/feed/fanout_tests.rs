//! Block lists, bursts and ledgers in a fan-out.

use std::net::Ipv4Addr;
use std::time::Duration;

use weir_filter::block::{ENTRIES_MAX, Entry};
use weir_frame::pcapng::{Interface, LINKTYPE_LINUX_SLL};
use weir_ring::wake::Sleeper;
use weir_ring::{Batch, Clock, Ledger, Reader, Start};

use super::*;
use crate::error::CaptureError;
use crate::feed::change::Change;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::feed::feeds::Feeds;
use crate::setup::Setup;

/// A frame with a UDP packet from 10.0.0.`host` to 192.0.2.1.
fn frame(host: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[16..18].copy_from_slice(&46u16.to_be_bytes());
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 0, 0, host]);
    frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    frame
}

fn entry(host: usize) -> Entry {
    format!("10.0.{}.{}", host >> 8, host & 0xff).parse().unwrap()
}

/// One feed with this many fan-outs.
fn feeds(fanouts: usize) -> (Feeds, Vec<Fanout>) {
    let setup = Setup {
        feeds: vec![Feed::default()],
        ring_bytes: fanouts as u64 * (4 << 20),
        promiscuous: false,
        may_change: true,
        ..Setup::default()
    };
    Feeds::create(&setup, fanouts, Clock::Realtime, Box::new(|_| Ok(()))).unwrap()
}

#[test]
fn no_ring_knows_of_another_feed() {
    let feed = |number: u32| Feed {
        name: format!("feed-name-{number}"),
        interface: Interface {
            name: format!("interface-name-{number}"),
            description: Some(format!("feed-text-{number}")),
            filter: Some(format!("filter-text-{number}")),
            link_type: 1,
            ..Interface::default()
        },
        ..Feed::default()
    };
    let setup =
        Setup { feeds: (0..3).map(feed).collect(), ring_bytes: 4 << 20, ..Setup::default() };
    let (feeds, mut fanouts) =
        Feeds::create(&setup, 1, Clock::Realtime, Box::new(|_| Ok(()))).unwrap();
    let meta = Meta { ts_ns: 1, wire_len: 60, ..Meta::default() };
    fanouts[0].push(&meta, &frame(1));
    fanouts[0].close();
    for (own, ring) in rings(&feeds).iter().enumerate() {
        use weir_ring::Words;
        let words = ring.memory().words().iter();
        let bytes: Vec<u8> = words
            .flat_map(|word| word.load(std::sync::atomic::Ordering::Relaxed).to_le_bytes())
            .collect();
        for other in 0..3 {
            let texts = ["interface-name", "feed-text", "filter-text"];
            let is_there = texts.map(|text| {
                let text = format!("{text}-{other}").into_bytes();
                bytes.windows(text.len()).any(|bytes| bytes == text)
            });
            assert_eq!(is_there, [other == own; 3], "ring {own}, feed {other}");
        }
        assert_eq!(ring.interfaces(), 1);
    }
}

#[test]
fn feeds_of_both_directions_share_out_cooked_frames_without_flags() {
    let feed = |direction| Feed {
        direction,
        interface: Interface { link_type: LINKTYPE_LINUX_SLL, ..Interface::default() },
        ..Feed::default()
    };
    let setup = Setup {
        feeds: vec![feed(Direction::In), feed(Direction::Out)],
        ring_bytes: 4 << 20,
        ..Setup::default()
    };
    let (feeds, mut fanouts) =
        Feeds::create(&setup, 1, Clock::Foreign, Box::new(|_| Ok(()))).unwrap();
    let meta = Meta { ts_ns: 1, wire_len: 60, ..Meta::default() };
    // To this machine, to all, by this machine.
    for packet_type in [0, 1, 4] {
        let mut cooked = frame(1);
        cooked[..2].copy_from_slice(&[0, packet_type]);
        fanouts[0].push(&meta, &cooked);
    }
    fanouts[0].close();
    let written: Vec<u64> = rings(&feeds).iter().map(|ring| ring.frames_written()).collect();
    assert_eq!(written, [2, 1]);
}

fn rings(feeds: &Feeds) -> Vec<Ring<Mapping>> {
    feeds.handles().into_iter().flat_map(|feed| feed.rings).collect()
}

fn change(feeds: &Feeds, remove: &[Entry], add: &[Entry]) {
    let change = Change::Block { remove: remove.to_vec(), add: add.to_vec() };
    feeds.change(FeedSlot::first(), change).unwrap();
}

/// Pushes one frame from each host, and returns how many of them were blocked.
fn blocked(fanout: &mut Fanout, hosts: std::ops::Range<u8>) -> u64 {
    let before = fanout.branches().list[0].blocked_frames;
    let meta = Meta { interface_id: 0, ts_ns: 0, wire_len: 60, flags: None, queue: None };
    hosts.for_each(|host| fanout.push(&meta, &frame(host)));
    fanout.branches().list[0].blocked_frames - before
}

#[test]
fn fanouts_share_a_list_and_do_not_free_it() {
    let (feeds, mut fanouts) = feeds(2);
    change(&feeds, &[], &[entry(1), entry(2)]);
    for fanout in &mut fanouts {
        assert_eq!(blocked(fanout, 0..4), 2);
    }
    let old = Arc::clone(&fanouts[0].branches().list[0].blocked);
    assert!(Arc::ptr_eq(&old, &fanouts[1].branches().list[0].blocked));
    change(&feeds, &[entry(1)], &[]);
    assert_eq!(fanouts.iter_mut().map(|fanout| blocked(fanout, 0..4)).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(Arc::strong_count(&old), 3, "both queues keep it for whoever asks next");
    change(&feeds, &[entry(2)], &[]);
    assert_eq!(Arc::strong_count(&old), 1);
    for fanout in &mut fanouts {
        assert_eq!(blocked(fanout, 0..4), 0);
        let branches = fanout.branches();
        assert!(!branches.has_blocks && branches.list[0].blocked.front_words().is_empty());
    }
}

#[test]
fn a_list_without_room_changes_nothing() {
    let (feeds, mut fanouts) = feeds(1);
    change(&feeds, &[], &[entry(1)]);
    let add = (0..ENTRIES_MAX as u32).map(|n| Entry::Address(Ipv4Addr::from_bits(n).into()));
    let too_many = Change::Block { remove: Vec::new(), add: add.collect() };
    let error = feeds.change(FeedSlot::first(), too_many).unwrap_err();
    assert!(error.to_string().contains("65536 entries"), "{error}");
    assert_eq!(blocked(&mut fanouts[0], 0..4), 1);
}

/// Pushes this many frames from one host, and publishes them.
fn push(fanout: &mut Fanout, frames: usize) {
    let meta = Meta { wire_len: 60, ..Meta::default() };
    (0..frames).for_each(|_| fanout.push(&meta, &frame(1)));
    fanout.publish();
}

#[test]
fn a_burst_is_kept_as_its_frames_would_be_one_by_one() {
    let kept = |blocks: &[Entry], at_once: bool| {
        let (feeds, mut fanouts) = feeds(1);
        change(&feeds, &[], blocks);
        let frames = [1, 2, 3, 4].map(frame);
        // The ring has only one interface, with number 0, whatever interface numbers the frames have here.
        let burst = (0..4u32).map(|number| {
            let ts_ns = 10 + u64::from(number);
            let meta = Meta { interface_id: number, ts_ns, wire_len: 60, ..Meta::default() };
            (meta, &frames[number as usize][..])
        });
        let branches = fanouts[0].branches();
        match at_once {
            true => branches.push_burst(burst),
            false => burst.for_each(|(meta, frame)| branches.push(&meta, frame)),
        }
        fanouts[0].publish();
        let (mut reader, mut batch) =
            (Reader::new(&rings(&feeds)[0], Start::Oldest).unwrap(), Batch::new());
        reader.poll(&mut batch).unwrap();
        let records = batch.records().map(|record| (record.meta, record.frame.to_vec()));
        (fanouts[0].branches().seen, records.collect::<Vec<_>>())
    };
    for (blocks, count) in [(&[][..], 4), (&[entry(2)][..], 3)] {
        let (seen, records) = kept(blocks, true);
        assert_eq!((seen, records.len()), (4, count));
        assert!(records.iter().all(|(meta, _)| meta.interface_id == 0));
        assert_eq!((seen, records), kept(blocks, false));
    }
}

#[test]
fn a_feed_counts_from_the_frame_on_at_which_it_joins() {
    let (feeds, mut fanouts) = feeds(1);
    // The engine's ledger counts the frames that came to the fan-out, and 7 that did not: 4 that the engine's
    // filter rejected, and 3 that the kernel dropped.
    let count = |came: u64| {
        let mut engine = Ledger { offered: came + 7, filtered: 4, ..Ledger::default() };
        engine.drops.insert("kernel", 3);
        feeds.count(engine);
    };
    push(&mut fanouts[0], 10);
    count(10);
    let added = feeds.add(Feed::default()).unwrap();
    push(&mut fanouts[0], 5);
    count(15);
    let ledger = feeds.ledger(added.slot).unwrap();
    assert_eq!((ledger.offered, ledger.captured, ledger.filtered), (5, 5, 0), "{ledger}");
    assert!(ledger.closes());
    fanouts[0].leave();
    let removed = feeds.remove(added.slot).unwrap();
    assert_eq!((removed.offered, removed.captured), (5, 5));
    assert!(removed.closes() && added.rings[0].is_closed());
    assert!(matches!(feeds.ledger(added.slot), Err(CaptureError::NoFeed)));
    push(&mut fanouts[0], 2);
    count(17);
    let first = feeds.ledger(FeedSlot::first()).unwrap();
    assert_eq!((first.offered, first.captured, first.filtered), (24, 17, 4), "{first}");
    assert!(first.closes());
}

#[test]
fn while_frames_come_no_more_are_captured_than_offered() {
    let (feeds, mut fanouts) = feeds(1);
    let slot = feeds.handles().remove(0).slot;
    push(&mut fanouts[0], 3);
    // The engine counts at the end of its turn.
    let ledger = feeds.ledger(slot).unwrap();
    assert_eq!((ledger.offered, ledger.captured), (3, 3));
    // At the end nothing may hide that frames were not offered.
    feeds.end();
    let ledger = feeds.ledger(slot).unwrap();
    assert_eq!((ledger.offered, ledger.captured), (0, 3));
}

#[test]
fn frames_go_to_exactly_one_of_a_feed_and_its_successor() {
    let (feeds, mut fanouts) = feeds(1);
    let old = feeds.handles().remove(0);
    push(&mut fanouts[0], 3);
    fanouts[0].leave();
    let (new, ledger) = feeds.replace_rings(old.slot).unwrap();
    assert!(new.slot != old.slot && old.rings[0].is_closed());
    push(&mut fanouts[0], 4);
    feeds.count(Ledger { offered: 7, ..Ledger::default() });
    assert_eq!((ledger.offered, ledger.captured), (3, 3));
    let ledger = feeds.ledger(new.slot).unwrap();
    assert_eq!((ledger.offered, ledger.captured), (4, 4));
    assert_eq!(old.rings[0].frames_written() + new.rings[0].frames_written(), 7);
}

#[test]
fn a_waker_without_a_line_for_each_ring_is_refused() {
    let (feeds, _fanouts) = feeds(3);
    let sleeper = Sleeper::new(3).unwrap();
    for (first_line, is_wide) in [(0, true), (1, false), (usize::MAX, false)] {
        let attached = feeds.attach(FeedSlot::first(), sleeper.waker().unwrap(), first_line);
        assert_eq!(attached.is_ok(), is_wide, "{first_line}");
    }
}

#[test]
fn a_waker_is_told_of_what_came_before_it_and_forgotten() {
    let (feeds, mut fanouts) = feeds(1);
    let ring = rings(&feeds).remove(0);
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    let sleeper = Sleeper::new(1).unwrap();
    let slot = feeds.attach(FeedSlot::first(), sleeper.waker().unwrap(), 0).unwrap();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| sleeper.sleep(&readers, 5, Duration::from_secs(20)).unwrap());
        push(&mut fanouts[0], 5);
        assert_eq!(asleep.join().unwrap(), weir_ring::wake::Woken::Frames);
    });
    fanouts[0].leave();
    feeds.detach(FeedSlot::first(), slot);
    assert!(fanouts[0].branches().list[0].wakers.remove(slot).is_none());
}

#[test]
fn a_block_list_is_changed_without_the_thread_that_moves_frames() {
    let (feeds, mut fanouts) = feeds(1);
    let mut fanout = fanouts.remove(0);
    let meta = Meta { wire_len: 60, ..Meta::default() };
    // The thread that moves frames pauses between two frames while the block list is changed.
    fanout.push(&meta, &frame(1));
    let (tell, told) = std::sync::mpsc::channel();
    let asks = std::thread::spawn({
        let control = feeds.control();
        move || {
            let add = vec!["10.0.0.1".parse().unwrap()];
            let change = Change::Block { remove: Vec::new(), add };
            let _ = tell.send(control.change(FeedSlot::first(), change).map(drop));
        }
    });
    let changed = told.recv_timeout(Duration::from_secs(10));
    assert!(matches!(changed, Ok(Ok(()))), "{changed:?}");
    asks.join().unwrap();
    fanout.push(&meta, &frame(1));
    fanout.publish();
    feeds.end();
    fanout.close();
    feeds.count(Ledger { offered: 2, ..Ledger::default() });
    let ledger = feeds.control().ledger(FeedSlot::first()).unwrap();
    assert_eq!((ledger.captured, ledger.blocked), (1, 1), "{ledger:?}");
}
