use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_capture::bpf::least_ring_bytes;
use weir_capture::engines::declaration::Target;
use weir_capture::engines::{self, auto::EngineRequest};
use weir_capture::interface::LinkPattern;
use weir_capture::{
    CaptureError, Change, Direction, Feed, FeedSlot, Filter, FilterLocation, InterfaceLedger,
    Sampling, Setup, Source, SourceEvent,
};
use weir_filter::{Insn, Program};
use weir_frame::pcapng::Interface;
use weir_frame::shard::Shard;
use weir_lab::testbed::{End, Testbed, require_root};
use weir_ring::{Reader, Ring, Start};

use super::af_packet::{Sender, frame, keep_only};
use super::common::{LIMIT, TURN, locations, pump_until, read_closed, setup};

/// Longest time until a new interface is captured. The target is 50 ms, but a busy machine may take longer.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// The engines that support patterns of interfaces. Both must pass the same tests.
const ENGINES: [&str; 2] = ["af_packet", "bpf"];

fn open(engine: &str, pattern: &str, setup: Setup) -> Result<Box<dyn Source>, CaptureError> {
    let pattern = LinkPattern::parse(pattern).expect("a pattern");
    let engine = Some(engines::by_name(engine).expect("an engine"));
    let request = EngineRequest { engine, ..EngineRequest::default() };
    request.open(&Target::Pattern { netns: None, pattern }, &setup)
}

/// Runs the test for each engine, in a testbed of its own.
fn with_each_engine(name: &str, test: impl Fn(&str, &Testbed)) {
    if !require_root(name) {
        return;
    }
    for engine in ENGINES {
        println!("{engine}");
        let bed = Testbed::new().unwrap();
        test(engine, &bed);
    }
}

fn setup_of(pattern: &str, may_change: bool) -> Setup {
    let ring_bytes = (16 << 20).max(least_ring_bytes());
    let mut setup = Setup { may_change, ring_bytes, ..setup(16) };
    setup.feeds[0].interface.name = pattern.to_owned();
    setup
}

fn send(end: &End, numbers: std::ops::Range<u32>) {
    end.run(|| {
        let sender = Sender::new(&end.iface);
        numbers.for_each(|number| sender.send(&frame(number, 60)));
    })
    .unwrap();
}

fn ip(end: &End, args: &[&str]) {
    let done = Command::new("ip").args(["-n", &end.netns]).args(args).status().unwrap();
    assert!(done.success(), "ip {args:?}");
}

/// Pumps until this event. Returns all events that came up to then.
fn pump_to(source: &mut dyn Source, wanted: &SourceEvent) -> Vec<SourceEvent> {
    let (begin, mut events) = (Instant::now(), Vec::new());
    while !events.contains(wanted) {
        source.pump(TURN).unwrap();
        events.extend(source.take_events());
        assert!(begin.elapsed() < LIMIT, "{wanted:?} is not among {events:?}");
    }
    events
}

/// Pumps until this feed has captured this many frames.
fn pump_until_feed(source: &mut dyn Source, feed: FeedSlot, frames: u64) {
    let (begin, control) = (Instant::now(), source.control());
    while control.ledger(feed).unwrap().captured < frames {
        source.pump(TURN).unwrap();
        assert!(begin.elapsed() < LIMIT, "{}", control.ledger(feed).unwrap());
    }
}

fn joined(iface: &str) -> SourceEvent {
    SourceEvent::Joined { iface: iface.to_owned() }
}

fn left(iface: &str) -> SourceEvent {
    SourceEvent::Left { iface: iface.to_owned() }
}

fn interfaces(source: &dyn Source, feed: FeedSlot) -> Vec<InterfaceLedger> {
    source.control().interfaces(feed).unwrap()
}

fn of<'a>(interfaces: &'a [InterfaceLedger], name: &str) -> &'a InterfaceLedger {
    interfaces.iter().find(|own| own.name == name).unwrap_or_else(|| panic!("{name} has no line"))
}

/// Offered and captured frames of an interface.
fn counts(interfaces: &[InterfaceLedger], name: &str) -> (u64, u64) {
    let ledger = &of(interfaces, name).ledger;
    (ledger.offered, ledger.captured)
}

/// Number of records of each interface in the closed rings of a feed, by interface number.
fn records(rings: &[Ring<weir_ring::Mapping>]) -> Vec<u64> {
    let mut found = vec![0; rings[0].interfaces() as usize];
    for ring in rings {
        for seen in read_closed(&mut Reader::new(ring, Start::Oldest).unwrap()) {
            found[seen.meta.interface_id as usize] += 1;
        }
    }
    found
}

#[test]
fn root_each_member_has_exact_counts_in_one_ring() {
    with_each_engine("root_each_member_has_exact_counts_in_one_ring", |engine, bed| {
        let pairs = bed.add_pairs(1, 30).unwrap();
        pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
        bed.rx
            .run(|| {
                let mut source = open(engine, "wrx?", setup_of("wrx?", false)).unwrap();
                let rings = source.rings();
                assert!(
                    rings.iter().all(|ring| ring.interfaces() == 11),
                    "the pattern and wrx0 to wrx9"
                );
                source.start().unwrap();
                let count = |n: u32| 10 + n * 3;
                pairs.iter().zip(1..).for_each(|(pair, n)| send(&pair.tx, 0..count(n)));
                let total: u32 = (1..=9).map(count).sum();
                pump_until(&mut *source, total.into()).unwrap();
                let ledger = source.finish().unwrap();
                assert!(ledger.closes(), "{ledger}");
                assert_eq!((ledger.offered, ledger.captured), (total.into(), total.into()));
                let lines = interfaces(&*source, FeedSlot::first());
                let found = records(&rings);
                for n in 1..=9 {
                    let (name, want) = (format!("wrx{n}"), u64::from(count(n)));
                    let line = of(&lines, &name);
                    assert!(line.is_member && line.ledger.closes(), "{line:?}");
                    assert_eq!((line.ledger.offered, line.ledger.captured), (want, want), "{name}");
                    assert_eq!(line.ledger.wire_bytes, 60 * want);
                    assert_eq!(found[line.id as usize], want, "{name}");
                }
                assert_eq!((lines.len(), found[0]), (10, 0), "wrx10 is no member");
            })
            .unwrap();
    });
}

#[test]
fn root_interfaces_join_leave_and_come_back() {
    with_each_engine("root_interfaces_join_leave_and_come_back", |engine, bed| {
        bed.rx
            .run(|| {
                let mut source = open(engine, "wrx1*", setup_of("wrx1*", false)).unwrap();
                assert!(
                    source.info().notes[0].contains("no interface"),
                    "{:?}",
                    source.info().notes
                );
                source.start().unwrap();
                let begin = Instant::now();
                let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
                assert_eq!(pump_to(&mut *source, &joined("wrx1"))[0], joined("wrx1"));
                let took = begin.elapsed();
                println!("captured {took:?} after `ip` began to make it");
                assert!(took < JOIN_LIMIT, "{took:?}");
                pair.wait_for_carrier().unwrap();
                send(&pair.tx, 0..100);
                pump_until(&mut *source, 100).unwrap();
                ip(&bed.rx, &["link", "delete", "wrx1"]);
                pump_to(&mut *source, &left("wrx1"));
                assert!(!interfaces(&*source, FeedSlot::first())[0].is_member);
                // Another interface joins before wrx1 comes back. Yet wrx1 must keep its interface number.
                bed.add_pairs(12, 1).unwrap();
                pump_to(&mut *source, &joined("wrx12"));
                let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
                pump_to(&mut *source, &joined("wrx1"));
                pair.wait_for_carrier().unwrap();
                send(&pair.tx, 0..50);
                pump_until(&mut *source, 150).unwrap();
                let ledger = source.finish().unwrap();
                assert!(ledger.closes(), "{ledger}");
                let lines = interfaces(&*source, FeedSlot::first());
                assert_eq!(lines.len(), 2);
                assert_eq!((lines[0].id, counts(&lines, "wrx1")), (1, (150, 150)));
                assert_eq!((lines[1].id, counts(&lines, "wrx12")), (2, (0, 0)));
                assert_eq!(records(&source.rings()), [0, 150, 0]);
            })
            .unwrap();
    });
}

#[test]
fn root_an_interface_that_is_gone_at_once_is_not_said_to_be_left_out() {
    let test = "root_an_interface_that_is_gone_at_once_is_not_said_to_be_left_out";
    with_each_engine(test, |engine, bed| {
        bed.rx
            .run(|| {
                let setup = Setup { promiscuous: true, ..setup_of("wrx*", false) };
                let mut source = open(engine, "wrx*", setup).unwrap();
                source.start().unwrap();
                bed.add_pairs(1, 1).unwrap();
                ip(&bed.rx, &["link", "delete", "wrx1"]);
                let events = pump_to(&mut *source, &left("wrx1"));
                assert!(events.contains(&joined("wrx1")), "{events:?}");
                let is_left_out =
                    |event: &SourceEvent| matches!(event, SourceEvent::LeftOut { .. });
                assert!(!events.iter().any(is_left_out), "{events:?}");
                assert!(source.finish().unwrap().closes());
            })
            .unwrap();
    });
}

#[test]
fn root_a_renamed_interface_leaves_and_joins_by_name() {
    with_each_engine("root_a_renamed_interface_leaves_and_joins_by_name", |engine, bed| {
        bed.rx
            .run(|| {
                let mut source = open(engine, "w*", setup_of("w*", false)).unwrap();
                source.start().unwrap();
                send(&bed.tx, 0..500);
                // With `af_packet`, the frames are still unread in the socket's blocks when the name changes.
                ip(&bed.rx, &["link", "set", "wrx0", "name", "wother"]);
                let events = pump_to(&mut *source, &joined("wother"));
                assert!(events.contains(&left("wrx0")), "{events:?}");
                send(&bed.tx, 0..20);
                pump_until(&mut *source, 520).unwrap();
                ip(&bed.rx, &["link", "set", "wother", "name", "gone"]);
                pump_to(&mut *source, &left("wother"));
                send(&bed.tx, 0..7);
                let ledger = source.finish().unwrap();
                assert!(ledger.closes() && ledger.offered == 520, "{ledger}");
                let lines = interfaces(&*source, FeedSlot::first());
                assert_eq!(
                    [counts(&lines, "wrx0"), counts(&lines, "wother")],
                    [(500, 500), (20, 20)]
                );
                assert!(lines.iter().all(|line| !line.is_member));
            })
            .unwrap();
    });
}

/// A filter for frames whose number (see [`frame`]) is below `number`.
fn below(number: u32) -> Filter {
    // ld [14]; jge #number, reject, take
    let insns =
        [Insn::new(0x20, 14), Insn::jump(0x35, number, 0, 1), Insn::new(6, 0), Insn::new(6, 65535)];
    let program = Program::new(insns.to_vec()).unwrap();
    Filter { text: format!("number < {number}"), link_type: 1, program }
}

fn feed_of(pattern: &str, name: &str, filter: Option<Filter>) -> Feed {
    Feed {
        name: name.to_owned(),
        interface: Interface {
            name: pattern.to_owned(),
            description: Some(format!("feed {name}")),
            link_type: 1,
            ..Interface::default()
        },
        filter: filter.map(Into::into),
        ..Feed::default()
    }
}

#[test]
fn root_each_feed_has_its_own_counts_of_each_member() {
    with_each_engine("root_each_feed_has_its_own_counts_of_each_member", |engine, bed| {
        let pairs = bed.add_pairs(1, 2).unwrap();
        pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
        bed.rx
            .run(|| {
                let mut setup = setup_of("wrx*", true);
                setup.feeds = vec![feed_of("wrx*", "few", Some(below(10)))];
                let mut source = open(engine, "wrx*", setup).unwrap();
                let control = source.control();
                assert_eq!(locations(&*source), [FilterLocation::Hook]);
                source.start().unwrap();
                // The filter takes 10 of the 30 frames; the kernel rejects the rest.
                send(&pairs[0].tx, 0..30);
                pump_until(&mut *source, 10).unwrap();
                let late = control.add(feed_of("wrx*", "late", None)).unwrap();
                assert_eq!(late.rings[0].interfaces(), 4, "those that are there are described");
                assert_eq!(names(&late.rings[0]), names(&source.rings()[0]));
                let third = bed.add_pairs(3, 1).unwrap().swap_remove(0);
                pump_to(&mut *source, &joined("wrx3"));
                third.wait_for_carrier().unwrap();
                send(&pairs[0].tx, 0..25);
                send(&third.tx, 0..40);
                pump_until(&mut *source, 30).unwrap();
                let change = Change::Filter(Some(below(5).into()));
                control.change(FeedSlot::first(), change).unwrap();
                send(&pairs[1].tx, 0..8);
                let ledger = source.finish().unwrap();
                assert!(ledger.closes(), "{ledger}");
                let (few, all) = (FeedSlot::first(), late.slot);
                for (feed, name, offered, filtered, captured) in [
                    (few, "wrx1", 55, 35, 20),
                    (few, "wrx2", 8, 3, 5),
                    (few, "wrx3", 40, 30, 10),
                    (all, "wrx1", 25, 0, 25),
                    (all, "wrx2", 8, 0, 8),
                    (all, "wrx3", 40, 0, 40),
                ] {
                    let lines = interfaces(&*source, feed);
                    let ledger = &of(&lines, name).ledger;
                    let found = (ledger.offered, ledger.filtered, ledger.captured);
                    assert_eq!(found, (offered, filtered, captured), "{feed:?} {name}");
                    assert!(ledger.closes(), "{ledger}");
                    let total = control.ledger(feed).unwrap();
                    assert!(total.closes(), "{total}");
                    let sum: u64 = lines.iter().map(|line| line.ledger.offered).sum();
                    assert_eq!(sum, total.offered, "{feed:?}");
                }
                assert_eq!(records(&late.rings), [0, 0, 25, 8, 40]);
            })
            .unwrap();
    });
}

/// The names in a ring's interface descriptions, which are blocks of pcapng.
fn names(ring: &Ring<weir_ring::Mapping>) -> Vec<String> {
    let identity = ring.identity().unwrap();
    let name = |block: &[u8]| {
        // if_name (2) is the first option.
        assert_eq!(block[16..18], 2u16.to_le_bytes());
        let bytes = u16::from_le_bytes([block[18], block[19]]) as usize;
        String::from_utf8(block[20..20 + bytes].to_vec()).unwrap()
    };
    identity.interface_blocks().map(name).collect()
}

#[test]
fn root_links_without_an_ethernet_header_are_left_out_aloud() {
    with_each_engine("root_links_without_an_ethernet_header_are_left_out_aloud", |engine, bed| {
        bed.rx
        .run(|| {
            let mut source = open(engine, "any", setup_of("any", false)).unwrap();
            source.start().unwrap();
            ip(&bed.rx, &["tuntap", "add", "dev", "tun7", "mode", "tun"]);
            ip(&bed.rx, &["link", "set", "tun7", "up"]);
            let begin = Instant::now();
            let mut events = Vec::new();
            let is_told = |event: &SourceEvent| {
                matches!(event, SourceEvent::LeftOut { iface, why } if iface == "tun7" && why.contains("Ethernet"))
            };
            while !events.iter().any(is_told) {
                source.pump(TURN).unwrap();
                events.extend(source.take_events());
                assert!(begin.elapsed() < LIMIT, "{events:?}");
            }
            source.finish().unwrap();
            let lines = interfaces(&*source, FeedSlot::first());
            let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
            assert_eq!(names, ["lo", "wrx0"]);
        })
        .unwrap();
    });
}

/// Sets the link type of a tun or tap device that is down (`TUNSETLINK`, linux/if_tun.h).
fn set_link_type(tap: &File, arphrd: u16) {
    const TUNSETLINK: libc::Ioctl = 0x4004_54cd;
    // SAFETY: this request takes a number in place of a pointer; the descriptor is open.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETLINK, libc::c_ulong::from(arphrd)) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Makes a tap device of this name, which exists as long as the file is open.
fn make_tap(name: &str) -> File {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: `ifreq` is plain old data; all zeroes is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request reads and fills one `ifreq`, which is borrowed for the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    tap
}

#[test]
fn root_a_member_whose_link_type_changes_leaves_and_comes_back_with_ethernet() {
    with_each_engine(
        "root_a_member_whose_link_type_changes_leaves_and_comes_back_with_ethernet",
        |engine, bed| {
            bed.rx
                .run(|| {
                    let tap = make_tap("wtap");
                    let mut source = open(engine, "w*", setup_of("w*", false)).unwrap();
                    source.start().unwrap();
                    let is_in = |source: &dyn Source| {
                        of(&interfaces(source, FeedSlot::first()), "wtap").is_member
                    };
                    assert!(is_in(&*source));
                    set_link_type(&tap, libc::ARPHRD_NONE);
                    pump_to(&mut *source, &left("wtap"));
                    assert!(!is_in(&*source));
                    set_link_type(&tap, libc::ARPHRD_ETHER);
                    pump_to(&mut *source, &joined("wtap"));
                    assert!(is_in(&*source));
                    assert!(source.finish().unwrap().closes());
                })
                .unwrap();
        },
    );
}

/// From now on, packet sockets of this thread cannot set promiscuous mode.
fn refuse_promiscuous_mode() {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // `struct seccomp_data`: the system call at 0, the low words of its arguments from 16 on, every 8 bytes.
    // ld call; jne #setsockopt; ld level; jne #SOL_PACKET; ld option; jeq #PACKET_ADD_MEMBERSHIP, refuse
    let insns = [
        Insn::new(0x20, 0),
        Insn::jump(0x15, libc::SYS_setsockopt as u32, 0, 4),
        Insn::new(0x20, 24),
        Insn::jump(0x15, libc::SOL_PACKET as u32, 0, 2),
        Insn::new(0x20, 32),
        Insn::jump(0x15, libc::PACKET_ADD_MEMBERSHIP as u32, 1, 0),
        Insn::new(6, libc::SECCOMP_RET_ALLOW),
        Insn::new(6, refuse),
    ];
    let filter = insns.as_ptr().cast_mut().cast();
    let program = libc::sock_fprog { len: insns.len() as u16, filter };
    // SAFETY: the program points to instructions, laid out as `sock_filter`, that live through the call.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Pumps until an interface is reported as left out. Returns the reason.
fn pump_to_left_out(source: &mut dyn Source, name: &str) -> String {
    let begin = Instant::now();
    loop {
        for event in source.take_events() {
            match event {
                SourceEvent::LeftOut { iface, why } if iface == name => return why,
                _ => {}
            }
        }
        source.pump(TURN).unwrap();
        assert!(begin.elapsed() < LIMIT, "{name} is not left out");
    }
}

#[test]
fn root_who_is_refused_promiscuous_mode_is_left_out_alone() {
    with_each_engine("root_who_is_refused_promiscuous_mode_is_left_out_alone", |engine, bed| {
        bed.rx
            .run(|| {
                let promiscuous = || Setup { promiscuous: true, ..setup_of("w*", false) };
                let mut source = open(engine, "w*", promiscuous()).unwrap();
                source.start().unwrap();
                let mut late = open(engine, "w*", promiscuous()).unwrap();
                refuse_promiscuous_mode();
                // `late` has wrx0 from its start; wrx1 joins `source` later. Both are refused promiscuous mode.
                late.start().unwrap();
                let why = pump_to_left_out(&mut *late, "wrx0");
                assert!(why.contains("--no-promiscuous"), "{why}");
                let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
                pump_to_left_out(&mut *source, "wrx1");
                pair.wait_for_carrier().unwrap();
                send(&pair.tx, 0..20);
                send(&bed.tx, 0..30);
                pump_until(&mut *source, 30).unwrap();
                let ledger = source.finish().unwrap();
                assert!(ledger.closes() && ledger.offered == 30, "{ledger}");
                assert!(!of(&interfaces(&*source, FeedSlot::first()), "wrx1").is_member);
                assert_eq!(late.finish().unwrap().offered, 0);
                assert!(!of(&interfaces(&*late, FeedSlot::first()), "wrx0").is_member);
            })
            .unwrap();
    });
}

#[test]
fn root_a_frame_of_a_larger_mtu_is_no_super_frame() {
    with_each_engine("root_a_frame_of_a_larger_mtu_is_no_super_frame", |engine, bed| {
        bed.rx
            .run(|| {
                let mut source = open(engine, "w*", setup_of("w*", false)).unwrap();
                source.start().unwrap();
                ip(&bed.rx, &["link", "set", "wrx0", "mtu", "9000"]);
                ip(&bed.tx, &["link", "set", bed.tx.iface.as_str(), "mtu", "9000"]);
                source.pump(TURN).unwrap();
                bed.tx.run(|| Sender::new(&bed.tx.iface).send(&frame(0, 8000))).unwrap();
                pump_until(&mut *source, 1).unwrap();
                let ledger = source.finish().unwrap();
                assert_eq!((ledger.captured, ledger.super_frames), (1, 0), "{ledger}");
            })
            .unwrap();
    });
}

#[test]
fn root_what_the_socket_loses_is_the_sources_and_all_else_an_interfaces() {
    if !require_root("root_what_the_socket_loses_is_the_sources_and_all_else_an_interfaces") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
    pair.wait_for_carrier().unwrap();
    bed.rx
        .run(|| {
            let mut setup = setup_of("wrx*", false);
            setup.ring_bytes = 128 << 20;
            let mut source = open("af_packet", "wrx*", setup).unwrap();
            source.start().unwrap();
            // More frames than fit into the socket's 32 MiB of blocks, which are not read while the frames are sent.
            for (end, frames) in [(&bed.tx, 30_000), (&pair.tx, 12_000)] {
                end.run(|| {
                    let sender = Sender::new(&end.iface);
                    (0..frames).for_each(|number| sender.send(&frame(number, 1500)));
                })
                .unwrap();
            }
            let ledger = source.finish().unwrap();
            assert!(ledger.closes() && ledger.offered == 42_000, "{ledger}");
            assert!(ledger.dropped() > 0, "{ledger}");
            let lines = interfaces(&*source, FeedSlot::first());
            assert_eq!(["wrx0", "wrx1"].map(|name| counts(&lines, name).0), [30_000, 12_000]);
            let captured: u64 = lines.iter().map(|line| line.ledger.captured).sum();
            assert_eq!(captured, ledger.captured);
            assert!(lines.iter().all(|line| line.ledger.drops.is_empty()));
        })
        .unwrap();
}

#[test]
fn root_without_bpf_a_pattern_is_refused_and_says_what_it_takes() {
    const CAP_NET_RAW: u32 = 1 << 13;
    with_each_engine(
        "root_without_bpf_a_pattern_is_refused_and_says_what_it_takes",
        |engine, bed| {
            bed.rx
                .run(|| {
                    keep_only(CAP_NET_RAW);
                    let refused = open(engine, "any", setup_of("any", false)).map(drop);
                    let error = refused.unwrap_err().to_string();
                    assert!(error.contains("CAP_BPF"), "{error}");
                })
                .unwrap();
        },
    );
}

/// With sampling, and after the rings are replaced, frames are counted correctly for each interface.
#[test]
fn root_each_line_closes_whatever_leaves_frames_out() {
    with_each_engine("root_each_line_closes_whatever_leaves_frames_out", |engine, bed| {
        let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
        pair.wait_for_carrier().unwrap();
        bed.rx
            .run(|| {
                let mut setup = setup_of("wrx*", true);
                let sampling = Sampling::OneIn(4);
                let third = Feed { sampling, ..feed_of("wrx*", "fourth", Some(below(40))) };
                setup.feeds = vec![third, feed_of("wrx*", "all", None)];
                let mut source = open(engine, "wrx*", setup).unwrap();
                let control = source.control();
                source.start().unwrap();
                send(&bed.tx, 0..60);
                send(&pair.tx, 0..20);
                let (fourth, all) = (FeedSlot::first(), FeedSlot::new(1));
                pump_until_feed(&mut *source, all, 80);
                let (moved, before) = control.replace_rings(all).unwrap();
                assert!(before.closes() && before.captured == 80, "{before}");
                send(&bed.tx, 0..30);
                pump_until_feed(&mut *source, moved.slot, 30);
                let ledger = source.finish().unwrap();
                assert!(ledger.closes(), "{ledger}");
                let lines = interfaces(&*source, fourth);
                let (wrx0, wrx1) = (&of(&lines, "wrx0").ledger, &of(&lines, "wrx1").ledger);
                assert!(wrx0.closes() && wrx1.closes(), "{wrx0}; {wrx1}");
                assert_eq!((wrx0.offered, wrx0.filtered), (90, 20));
                assert_eq!((wrx1.offered, wrx1.filtered), (20, 0));
                assert_eq!(wrx0.sampled + wrx0.captured + wrx1.sampled + wrx1.captured, 90);
                let lines = interfaces(&*source, moved.slot);
                assert_eq!([counts(&lines, "wrx0"), counts(&lines, "wrx1")], [(30, 30), (0, 0)]);
                assert_eq!(records(&moved.rings), [0, 30, 0]);
            })
            .unwrap();
    });
}

/// A UDP packet from 10.0.0.`source` to an address that no host has, so no network stack accepts it.
fn udp(source: u8) -> Vec<u8> {
    let mut packet = frame(0, 60);
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, source, 10, 9, 9, 9];
    packet[14..34].copy_from_slice(&ip);
    packet[34..42].copy_from_slice(&[0x10, source, 0, 9, 0, 26, 0, 0]);
    packet
}

/// Block lists and shards apply to the frames of each interface.
#[test]
fn root_block_lists_and_shards_are_counted_by_interface() {
    with_each_engine("root_block_lists_and_shards_are_counted_by_interface", |engine, bed| {
        let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
        pair.wait_for_carrier().unwrap();
        bed.rx
            .run(|| {
                let mut setup = setup_of("wrx*", true);
                let shard = |number| Feed {
                    shard: Shard::new(number, 2).unwrap(),
                    ..feed_of("wrx*", &format!("shard {number}"), None)
                };
                setup.feeds = vec![feed_of("wrx*", "most", None), shard(1), shard(2)];
                let mut source = open(engine, "wrx*", setup).unwrap();
                let control = source.control();
                source.start().unwrap();
                let slots = [0, 1, 2].map(FeedSlot::new);
                let named = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
                let block = Change::Block { remove: Vec::new(), add: named.to_vec() };
                control.change(slots[0], block).unwrap();
                for (end, packets) in [(&bed.tx, 0..20), (&pair.tx, 0..10)] {
                    end.run(|| {
                        let sender = Sender::new(&end.iface);
                        packets.for_each(|source| sender.send(&udp(source)));
                    })
                    .unwrap();
                }
                pump_until_feed(&mut *source, slots[0], 26);
                let captured = |slot| control.ledger(slot).unwrap().captured;
                let begin = Instant::now();
                while captured(slots[1]) + captured(slots[2]) < 30 && begin.elapsed() < LIMIT {
                    source.pump(TURN).unwrap();
                }
                assert!(source.finish().unwrap().closes());
                for (name, packets) in [("wrx0", 20), ("wrx1", 10)] {
                    let [most, first, second] =
                        slots.map(|slot| of(&interfaces(&*source, slot), name).ledger.clone());
                    for ledger in [&most, &first, &second] {
                        assert!(ledger.closes() && ledger.offered == packets, "{name}: {ledger}");
                    }
                    assert_eq!((most.blocked, most.captured), (2, packets - 2), "{name}");
                    assert_eq!(first.captured + second.captured, packets, "{name}");
                    assert_eq!(first.filtered + second.filtered, packets, "{name}");
                }
                assert!(slots.iter().all(|slot| control.ledger(*slot).unwrap().closes()));
                assert!(captured(slots[1]) > 0 && captured(slots[2]) > 0, "30 flows are in one");
            })
            .unwrap();
    });
}

#[test]
fn root_of_one_direction_members_have_nothing_of_the_other() {
    with_each_engine("root_of_one_direction_members_have_nothing_of_the_other", |engine, bed| {
        let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
        pair.wait_for_carrier().unwrap();
        bed.rx
            .run(|| {
                let mut setup = setup_of("wrx*", false);
                setup.feeds[0].direction = Direction::Out;
                let mut source = open(engine, "wrx*", setup).unwrap();
                source.start().unwrap();
                for (end, frames) in [(&bed.tx, 30), (&pair.tx, 30), (&bed.rx, 7), (&pair.rx, 5)] {
                    send(end, 0..frames);
                }
                pump_until(&mut *source, 12).unwrap();
                let ledger = source.finish().unwrap();
                assert!(ledger.closes() && ledger.offered == 12, "{ledger}");
                let lines = interfaces(&*source, FeedSlot::first());
                assert_eq!([counts(&lines, "wrx0"), counts(&lines, "wrx1")], [(7, 7), (5, 5)]);
                assert_eq!(records(&source.rings()), [0, 7, 5]);
            })
            .unwrap();
    });
}

#[test]
fn root_bpf_leaves_out_what_it_cannot_attach_to_and_captures_the_rest() {
    if !require_root("root_bpf_leaves_out_what_it_cannot_attach_to_and_captures_the_rest") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let pairs = bed.add_pairs(1, 2).unwrap();
    pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
    // An `ingress` qdisc takes the place where `clsact` would be, and has no egress side.
    let args = ["-n", &bed.rx.netns, "qdisc", "add", "dev", "wrx1", "ingress"];
    assert!(Command::new("tc").args(args).status().unwrap().success());
    bed.rx
        .run(|| {
            let mut source = open("bpf", "wrx*", setup_of("wrx*", false)).unwrap();
            source.start().unwrap();
            let events = source.take_events();
            let is_told = |events: &[SourceEvent]| match events {
                [SourceEvent::LeftOut { iface, why }] => iface == "wrx1" && why.contains("egress"),
                _ => false,
            };
            assert!(is_told(&events), "{events:?}");
            send(&pairs[0].tx, 0..5);
            send(&pairs[1].tx, 0..10);
            pump_until(&mut *source, 10).unwrap();
            let ledger = source.finish().unwrap();
            assert!(ledger.closes() && ledger.offered == 10, "{ledger}");
            let lines = interfaces(&*source, FeedSlot::first());
            assert!(!of(&lines, "wrx1").is_member);
            assert_eq!((counts(&lines, "wrx1"), counts(&lines, "wrx2")), ((0, 0), (10, 10)));
        })
        .unwrap();
}

/// A change of a feed skips members whose interface was removed. At the end, the programs are detached from the
/// other members.
#[test]
fn root_bpf_changes_filters_while_members_go_and_takes_all_off_at_the_end() {
    if !require_root("root_bpf_changes_filters_while_members_go_and_takes_all_off_at_the_end") {
        return;
    }
    let bed = Testbed::new().unwrap();
    bed.add_pairs(1, 3).unwrap();
    let filters = || {
        let shown = Command::new("tc")
            .args(["-n", &bed.rx.netns, "filter", "show", "dev", "wrx0", "ingress"])
            .output();
        String::from_utf8(shown.unwrap().stdout).unwrap()
    };
    bed.rx
        .run(|| {
            let mut source = open("bpf", "wrx*", setup_of("wrx*", true)).unwrap();
            source.start().unwrap();
            assert!(filters().contains("weir_tc_in"), "{}", filters());
            // The source does not know yet that the interface was removed when its programs are replaced.
            ip(&bed.rx, &["link", "delete", "wrx2"]);
            let change = Change::Filter(Some(below(5).into()));
            source.control().change(FeedSlot::first(), change).unwrap();
            send(&bed.tx, 0..30);
            pump_until(&mut *source, 5).unwrap();
            assert!(source.take_events().contains(&left("wrx2")));
            let ledger = source.finish().unwrap();
            assert!(ledger.closes() && ledger.captured == 5 && ledger.offered == 30, "{ledger}");
            assert!(!filters().contains("weir_tc_in"), "{}", filters());
        })
        .unwrap();
}

/// If somebody deletes the qdisc of one member, and with it Weir's programs, the next change of a feed attaches
/// them again.
#[test]
fn root_bpf_a_change_puts_programs_back_where_their_qdisc_was_deleted() {
    if !require_root("root_bpf_a_change_puts_programs_back_where_their_qdisc_was_deleted") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let pair = bed.add_pairs(1, 1).unwrap().swap_remove(0);
    pair.wait_for_carrier().unwrap();
    bed.rx
        .run(|| {
            let mut source = open("bpf", "wrx*", setup_of("wrx*", true)).unwrap();
            source.start().unwrap();
            let args = ["-n", &bed.rx.netns, "qdisc", "del", "dev", "wrx1", "clsact"];
            assert!(Command::new("tc").args(args).status().unwrap().success());
            let change = Change::Filter(Some(below(5).into()));
            source.control().change(FeedSlot::first(), change).unwrap();
            send(&bed.tx, 0..30);
            send(&pair.tx, 0..20);
            pump_until(&mut *source, 10).unwrap();
            let ledger = source.finish().unwrap();
            assert!(ledger.closes() && ledger.captured == 10 && ledger.offered == 50, "{ledger}");
        })
        .unwrap();
}

/// A thread that continuously changes feeds does not keep an interface from joining.
#[test]
fn root_bpf_an_interface_joins_while_feeds_are_changed_all_the_time() {
    if !require_root("root_bpf_an_interface_joins_while_feeds_are_changed_all_the_time") {
        return;
    }
    let bed = Testbed::new().unwrap();
    bed.rx
        .run(|| {
            let mut source = open("bpf", "wrx*", setup_of("wrx*", true)).unwrap();
            source.start().unwrap();
            let (control, is_done) = (source.control(), AtomicBool::new(false));
            let waited = thread::scope(|scope| {
                scope.spawn(|| {
                    let begin = Instant::now();
                    while !is_done.load(Ordering::Acquire) && begin.elapsed() < LIMIT {
                        let change = Change::Filter(Some(below(5).into()));
                        control.change(FeedSlot::first(), change).unwrap();
                    }
                });
                let mut waited = Vec::new();
                for iface in ["wrx5", "wrx6", "wrx7"] {
                    ip(&bed.rx, &["link", "add", iface, "up", "type", "veth"]);
                    let begin = Instant::now();
                    pump_to(&mut *source, &joined(iface));
                    waited.push(begin.elapsed());
                }
                is_done.store(true, Ordering::Release);
                waited
            });
            println!("joined after {waited:?}");
            assert!(waited.iter().all(|waited| *waited < JOIN_LIMIT), "{waited:?}");
            assert!(source.finish().unwrap().closes());
        })
        .unwrap();
}
