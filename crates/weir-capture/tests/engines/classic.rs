//! `af_packet` without eBPF: the socket's filter is classic BPF.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use weir_capture::af_packet::AfPacket;
use weir_capture::{Change, Direction, Feed, FeedSlot, Filter, FilterLocation, Setup, Source};
use weir_filter::insn::{ALU, AND, JEQ, JMP, LD_B_ABS, LD_H_ABS, RET_K};
use weir_filter::{Insn, Program};
use weir_lab::testbed::{Testbed, require_root};

use super::af_packet::{Sender, frame, keep_only, long_filter, tagged};
use super::common::{TURN, locations, pump_until, read_closed, reader_of, setup};

const CAP_NET_RAW: u32 = 1 << 13;
/// Offset of the byte in untagged frames that [`of_kind`] sets and [`kinds`] compares.
const KIND_AT: usize = 20;

fn filter(insns: &[Insn]) -> Arc<Filter> {
    let program = Program::new(insns).expect("valid");
    Arc::new(Filter { text: "by hand".into(), link_type: 1, program })
}

/// A filter for frames of `vlan 5` (802.1Q) whose first byte after the tag and the EtherType is `byte`.
fn vlan_5_and(byte: u32) -> Arc<Filter> {
    filter(&[
        Insn::new(LD_H_ABS, 12),
        Insn::jump(JMP | JEQ, 0x8100, 0, 6),
        Insn::new(LD_H_ABS, 14),
        Insn::new(ALU | AND, 0xfff),
        Insn::jump(JMP | JEQ, 5, 0, 3),
        Insn::new(LD_B_ABS, 18),
        Insn::jump(JMP | JEQ, byte, 0, 1),
        Insn::new(RET_K, 262_144),
        Insn::new(RET_K, 0),
    ])
}

/// A filter for frames with one of these two bytes at [`KIND_AT`].
fn kinds(one: u32, other: u32) -> Arc<Filter> {
    filter(&[
        Insn::new(LD_B_ABS, KIND_AT as u32),
        Insn::jump(JMP | JEQ, one, 1, 0),
        Insn::jump(JMP | JEQ, other, 0, 1),
        Insn::new(RET_K, 262_144),
        Insn::new(RET_K, 0),
    ])
}

fn of_kind(number: u32, kind: u8) -> Vec<u8> {
    let mut frame = frame(number, 60);
    frame[KIND_AT] = kind;
    frame
}

/// Numbered frames without a tag, and with tags that the filter [`vlan_5_and`] must tell apart.
fn assortment(first: u32) -> Vec<Vec<u8>> {
    let (five, six) = ([0x81, 0, 0xa0, 5], [0x81, 0, 0xa0, 6]);
    let outer = [0x88, 0xa8, 0, 5];
    let tags = [&[][..], &[five], &[six], &[outer, five], &[five, six], &[outer]];
    let number = |n: u32| (n / 6 % 3) << 24 | (first + n);
    (0..90).map(|n| tagged(number(n), 60, tags[n as usize % tags.len()])).collect()
}

fn is_wanted(frame: &&Vec<u8>) -> bool {
    frame[12..14] == [0x81, 0] && frame[15] == 5 && frame[18] == 1
}

#[test]
fn root_without_ebpf_the_sockets_own_filter_chooses() {
    if !require_root("root_without_ebpf_the_sockets_own_filter_chooses") {
        return;
    }
    let bed = Testbed::builder().gro(true).build().unwrap();
    // The kernel removes the outer tag from received frames, but not from frames that a raw socket sends.
    let (incoming, outgoing) = (assortment(0), assortment(1000));
    for direction in [Direction::In, Direction::Out, Direction::Both] {
        let mut wanted: Vec<Vec<u8>> = Vec::new();
        if direction.takes_in() {
            wanted.extend(incoming.iter().filter(is_wanted).cloned());
        }
        if direction.takes_out() {
            wanted.extend(outgoing.iter().filter(is_wanted).cloned());
        }
        wanted.sort();
        let outwards = bed.rx.run(|| Sender::new(&bed.rx.iface)).unwrap();
        without_ebpf(&bed, |sender| {
            let mut setup = setup(16);
            setup.feeds[0] =
                Feed { direction, snaplen: 50, filter: Some(vlan_5_and(1)), ..Feed::default() };
            let mut source = AfPacket::open(&bed.rx.iface, setup).unwrap();
            assert_eq!(locations(&source), [FilterLocation::Classic]);
            let notes = &source.info().notes;
            assert!(notes.iter().any(|note| note.contains("nobody counts")), "{notes:?}");
            let mut reader = reader_of(&source);
            source.start().unwrap();
            incoming.iter().for_each(|frame| sender.send(frame));
            outgoing.iter().for_each(|frame| outwards.send(frame));
            pump_until(&mut source, wanted.len() as u64).unwrap();
            let ledger = source.finish().unwrap();
            // The kernel has rejected the other frames without a count: they are neither offered nor filtered.
            assert!(ledger.closes() && ledger.filtered_uncounted, "{ledger}");
            let counts = (ledger.offered as usize, ledger.filtered);
            assert_eq!(counts, (wanted.len(), 0), "{direction:?}");
            let seen = read_closed(&mut reader);
            assert!(seen.iter().all(|seen| seen.meta.wire_len >= 64));
            let mut seen: Vec<_> = seen.into_iter().map(|seen| seen.frame).collect();
            seen.sort();
            wanted.iter_mut().for_each(|frame| frame.truncate(50));
            assert_eq!(seen, wanted, "{direction:?}");
        });
    }
}

/// Runs `capture` at the receiving end of the testbed, in a thread without the capabilities for eBPF. `capture` gets
/// a sender for the other end.
fn without_ebpf<T: Send>(bed: &Testbed, capture: impl FnOnce(&Sender) -> T + Send) -> T {
    let sender = bed.tx.run(|| Sender::new(&bed.tx.iface)).unwrap();
    let work = || {
        keep_only(CAP_NET_RAW);
        capture(&sender)
    };
    bed.rx.run(work).unwrap()
}

fn changing(filter: Option<Arc<Filter>>) -> Setup {
    let mut setup = setup(16);
    setup.may_change = true;
    setup.feeds[0].filter = filter;
    setup
}

#[test]
fn root_a_classic_filter_is_changed_and_given_up_and_taken_again() {
    if !require_root("root_a_classic_filter_is_changed_and_given_up_and_taken_again") {
        return;
    }
    let bed = Testbed::new().unwrap();
    without_ebpf(&bed, |sender| {
        let round = || (0..9).for_each(|n| sender.send(&of_kind(n, n as u8 % 3)));
        let mut source = AfPacket::open(&bed.rx.iface, changing(None)).unwrap();
        assert!(!locations(&source).contains(&FilterLocation::Classic));
        source.start().unwrap();
        let (mut captured, mut filtered) = (0, 0);
        let mut pass = |source: &mut AfPacket, taken, turned_away| {
            round();
            captured += taken;
            filtered += turned_away;
            pump_until(source, captured).unwrap();
            let ledger = source.ledger().unwrap();
            assert_eq!((ledger.captured, ledger.filtered), (captured, filtered));
            ledger.filtered_uncounted
        };
        assert!(!pass(&mut source, 9, 0), "there is no filter yet");
        // A classic filter in the kernel rejects frames without a count. A filter that is too long for the
        // kernel runs in user space.
        let long = |loads| Some(Arc::new(long_filter(loads)));
        for (filter, location, taken, turned_away) in [
            (Some(kinds(1, 1)), FilterLocation::Classic, 3, 0),
            (Some(kinds(0, 1)), FilterLocation::Classic, 6, 0),
            (long(3000), FilterLocation::Compiled, 9, 0),
            (None, FilterLocation::Compiled, 9, 0),
            (Some(kinds(2, 2)), FilterLocation::Classic, 3, 0),
        ] {
            let change = Change::Filter(filter);
            assert_eq!(source.control().change(FeedSlot::first(), change).unwrap(), location);
            assert!(pass(&mut source, taken, turned_away), "some were left out");
        }
        assert!(source.finish().unwrap().closes());
    });
}

#[test]
fn root_classic_filters_change_where_the_socket_has_room_for_one_only() {
    let name = "root_classic_filters_change_where_the_socket_has_room_for_one_only";
    if !require_root(name) {
        return;
    }
    let optmem = std::fs::read_to_string("/proc/sys/net/core/optmem_max").unwrap();
    // Enough loads that the filter takes more than half of that memory: two do not fit.
    let loads = (optmem.trim().parse::<usize>().unwrap() / 262).min(1500);
    let bed = Testbed::new().unwrap();
    without_ebpf(&bed, |sender| {
        let round = || (0..9).for_each(|n| sender.send(&of_kind(n, 0)));
        let long = |loads| Some(Arc::new(long_filter(loads)));
        let mut source = AfPacket::open(&bed.rx.iface, changing(long(loads))).unwrap();
        source.start().unwrap();
        for times in 1..4 {
            round();
            pump_until(&mut source, 9 * times).unwrap();
            let change = Change::Filter(long(loads + times as usize));
            let location = source.control().change(FeedSlot::first(), change).unwrap();
            assert_eq!(location, FilterLocation::Classic);
        }
        assert!(source.finish().unwrap().closes());
    });
}

#[test]
fn root_feeds_with_one_filter_share_a_classic_one() {
    if !require_root("root_feeds_with_one_filter_share_a_classic_one") {
        return;
    }
    let bed = Testbed::new().unwrap();
    for (second, offered) in [(kinds(1, 1), 3), (kinds(0, 0), 9)] {
        without_ebpf(&bed, |sender| {
            let round = || (0..9).for_each(|n| sender.send(&of_kind(n, n as u8 % 3)));
            let mut setup = setup(16);
            setup.feeds[0].filter = Some(kinds(1, 1));
            setup.feeds.push(Feed {
                interface: setup.feeds[0].interface.clone(),
                filter: Some(Arc::clone(&second)),
                snaplen: 20,
                ..Feed::default()
            });
            let mut source = AfPacket::open(&bed.rx.iface, setup).unwrap();
            // The filter of each feed runs in user space, whether or not the socket has a filter, too.
            assert_eq!(locations(&source), [FilterLocation::Compiled; 2]);
            let says_so = source.info().notes.iter().any(|note| note.contains("nobody counts"));
            assert_eq!(says_so, offered == 3, "{:?}", source.info().notes);
            source.start().unwrap();
            round();
            pump_until(&mut source, 6).unwrap();
            assert!(source.finish().unwrap().closes());
            for ledger in source.ledgers().unwrap() {
                assert_eq!((ledger.offered, ledger.captured), (offered, 3), "{ledger}");
                assert_eq!(ledger.filtered_uncounted, offered == 3);
            }
        });
    }
}

#[test]
fn root_what_two_classic_filters_take_is_not_lost_between_them() {
    if !require_root("root_what_two_classic_filters_take_is_not_lost_between_them") {
        return;
    }
    const CHANGES: u32 = 40;
    let bed = Testbed::new().unwrap();
    let (is_over, ready) = (AtomicBool::new(false), Barrier::new(2));
    let (seen, sent, ledger) = std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            without_ebpf(&bed, |_| {
                let mut source =
                    AfPacket::open(&bed.rx.iface, changing(Some(kinds(0, 2)))).unwrap();
                let mut reader = reader_of(&source);
                source.start().unwrap();
                ready.wait();
                for change in 1..=CHANGES {
                    let filter = kinds(change % 2, 2);
                    source.pump(Duration::from_millis(5)).unwrap();
                    let change = Change::Filter(Some(filter));
                    let location = source.control().change(FeedSlot::first(), change).unwrap();
                    assert_eq!(location, FilterLocation::Classic);
                }
                is_over.store(true, Ordering::Release);
                ready.wait();
                // Wait until the sent frames are received.
                let begin = Instant::now();
                while begin.elapsed() < 5 * TURN {
                    source.pump(TURN).unwrap();
                }
                let ledger = source.finish().unwrap();
                (read_closed(&mut reader), ledger)
            })
        });
        let sending = scope.spawn(|| {
            bed.tx.run(|| {
                let sender = Sender::new(&bed.tx.iface);
                let mut number = 0;
                ready.wait();
                while !is_over.load(Ordering::Acquire) {
                    (number..number + 30).for_each(|n| sender.send(&of_kind(n, n as u8 % 3)));
                    number += 30;
                    std::thread::sleep(Duration::from_micros(500));
                }
                ready.wait();
                number
            })
        });
        let (seen, ledger) = capturing.join().unwrap();
        (seen, sending.join().unwrap().unwrap(), ledger)
    });
    assert!(ledger.closes() && ledger.drops["kernel"] == 0, "{ledger}");
    let of = |kind: u8| seen.iter().filter(move |seen| seen.frame[KIND_AT] == kind);
    let number = |frame: &[u8]| u32::from_be_bytes(*frame[14..].first_chunk().unwrap());
    let wanted: Vec<u32> = (0..sent).filter(|n| *n as u8 % 3 == 2).collect();
    let found: Vec<u32> = of(2).map(|seen| number(&seen.frame)).collect();
    assert!(found == wanted, "{} of {} frames that both take", found.len(), wanted.len());
    // Each of the two filters was in force for a part of the time.
    for kind in [0, 1] {
        assert!((1..wanted.len()).contains(&of(kind).count()), "kind {kind}");
    }
}
