//! Block lists on their way into a fan-out.

use std::net::Ipv4Addr;

use weir_filter::block::{ENTRIES_MAX, Entry};
use weir_frame::pcapng::Interface;

use super::*;

/// UDP over IPv4 from this host of 10.0.0.0/24.
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

/// One feed, and this many fan-outs.
fn feeds(fanouts: usize) -> (Feeds, Vec<Fanout>) {
    let setup = Setup {
        feeds: vec![Feed::default()],
        ring_bytes: fanouts as u64 * (4 << 20),
        promiscuous: false,
        may_change: true,
    };
    Feeds::create(&setup, fanouts, Clock::Realtime).unwrap()
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
    let setup = Setup {
        feeds: (0..3).map(feed).collect(),
        ring_bytes: 4 << 20,
        promiscuous: false,
        may_change: false,
    };
    let (feeds, mut fanouts) = Feeds::create(&setup, 1, Clock::Realtime).unwrap();
    let meta = Meta { ts_ns: 1, wire_len: 60, ..Meta::default() };
    fanouts[0].push(&meta, &frame(1));
    fanouts[0].close();
    for (own, ring) in feeds.rings().iter().enumerate() {
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

fn change(feeds: &mut Feeds, remove: &[Entry], add: &[Entry]) {
    let change = Change::Block { remove: remove.to_vec(), add: add.to_vec() };
    feeds.change(0, change, &mut FilterLocation::default()).unwrap();
}

/// Pushes one frame of each host, and gives how many of them were blocked.
fn blocked(fanout: &mut Fanout, hosts: std::ops::Range<u8>) -> u64 {
    let before = fanout.branches[0].blocked_frames;
    let meta = Meta { interface_id: 0, ts_ns: 0, wire_len: 60, flags: None, queue: None };
    hosts.for_each(|host| fanout.push(&meta, &frame(host)));
    fanout.branches[0].blocked_frames - before
}

#[test]
fn fans_share_a_list_and_its_owner_takes_it_to_pieces() {
    let (mut feeds, mut fanouts) = feeds(2);
    change(&mut feeds, &[], &[entry(1), entry(2)]);
    for fanout in &mut fanouts {
        assert_eq!(blocked(fanout, 0..4), 2);
        assert!(Arc::ptr_eq(&fanout.branches[0].blocked, &feeds.lists.held().lists[0]));
    }
    change(&mut feeds, &[entry(1)], &[]);
    let counts =
        |feeds: &Feeds| feeds.lists.held().past.iter().map(Arc::strong_count).collect::<Vec<_>>();
    assert_eq!(counts(&feeds), [3], "both fanouts hold it yet, and so does its owner");
    assert_eq!(fanouts.iter_mut().map(|fanout| blocked(fanout, 0..4)).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(counts(&feeds), [1], "only its owner is left to take it to pieces");
    change(&mut feeds, &[entry(2)], &[]);
    assert_eq!(counts(&feeds), [3], "the one before has gone");
    for fanout in &mut fanouts {
        assert_eq!(blocked(fanout, 0..4), 0);
        assert!(!fanout.has_blocks && fanout.branches[0].blocked.front_words().is_empty());
    }
}

#[test]
fn a_quiet_fan_keeps_the_last_list_only() {
    let (mut feeds, mut fanouts) = feeds(1);
    for host in 0..100 {
        change(&mut feeds, &[], &[entry(host)]);
        assert_eq!(feeds.queues[0].lock().len(), 1, "change {host}");
        assert!(feeds.lists.held().past.len() <= 1, "change {host}");
    }
    assert_eq!(blocked(&mut fanouts[0], 0..200), 100);
}

#[test]
fn a_list_without_room_changes_nothing() {
    let (mut feeds, mut fanouts) = feeds(1);
    change(&mut feeds, &[], &[entry(1)]);
    let add = (0..ENTRIES_MAX as u32).map(|n| Entry::Address(Ipv4Addr::from_bits(n).into()));
    let too_many = Change::Block { remove: Vec::new(), add: add.collect() };
    let error = feeds.change(0, too_many, &mut FilterLocation::default()).unwrap_err();
    assert!(error.to_string().contains("65536 entries"), "{error}");
    assert_eq!((blocked(&mut fanouts[0], 0..4), feeds.lists.held().lists[0].len()), (1, 1));
}
