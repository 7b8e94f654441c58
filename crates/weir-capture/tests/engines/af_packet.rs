use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use weir_capture::af_packet::AfPacket;
use weir_capture::{
    CaptureError, Direction, Feed, FeedSlot, Filter, FilterLocation, Info, Pumped, Setup, Source,
};
use weir_filter::{Insn, Program};
use weir_frame::record::Flags;
use weir_lab::generator::{self, GenEngine, GenOptions};
use weir_lab::testbed::{End, Testbed, ifindex, require_root, skip};
use weir_ring::wake::Sleeper;
use weir_ring::{Ledger, Reader, Start};

use super::common::{LIMIT, Seen, TURN, locations, pump_until, read_closed, reader_of, setup};

/// Sends frames unchanged on an interface of the calling thread's namespace.
pub(super) struct Sender {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

impl Sender {
    pub(super) fn new(iface: &str) -> Sender {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `sockaddr_ll` is plain integers; all zeroes is a value of it.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex(iface).unwrap() as i32;
        Sender { socket, address }
    }

    pub(super) fn send(&self, frame: &[u8]) {
        // SAFETY: frame and address live through the call, and their true sizes are passed.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of_val(&self.address) as u32,
            )
        };
        let error = io::Error::last_os_error();
        assert_eq!(sent, frame.len() as isize, "{} bytes: {error}", frame.len());
    }
}

fn send_all(end: &End, iface: &str, frames: &[Vec<u8>]) {
    end.run(|| {
        let sender = Sender::new(iface);
        frames.iter().for_each(|frame| sender.send(frame));
    })
    .unwrap();
}

fn try_ip(end: &End, args: &[&str]) -> bool {
    let done = Command::new("ip").args(["-n", &end.netns]).args(args).output().unwrap();
    done.status.success()
}

fn ip(end: &End, args: &[&str]) {
    assert!(try_ip(end, args), "ip {args:?}");
}

/// An untagged frame with a number. Its EtherType is for local experiments, so no network stack answers it.
pub(super) fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> =
        (0..bytes.max(18)).map(|at| (number as usize * 7 + at) as u8).collect();
    frame[..6].copy_from_slice(&[0x02, 0, 0, 0, 0, 0x99]);
    frame[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 0x98]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The frame of this number with these VLAN tags, outermost first.
pub(super) fn tagged(number: u32, bytes: usize, tags: &[[u8; 4]]) -> Vec<u8> {
    let mut frame = frame(number, bytes);
    frame.splice(12..12, tags.concat());
    frame
}

struct Captured {
    seen: Vec<Seen>,
    ledger: Ledger,
    info: Info,
    locations: Vec<FilterLocation>,
}

impl Captured {
    fn frames(&self) -> Vec<&[u8]> {
        self.seen.iter().map(|seen| &seen.frame[..]).collect()
    }
}

/// Captures at `end` while `send` sends, until `frames` frames are captured.
fn capture(end: &End, setup: Setup, frames: usize, send: impl FnOnce() + Send) -> Captured {
    end.run(|| {
        let mut source = AfPacket::open(&end.iface, setup).unwrap();
        let mut reader = reader_of(&source);
        source.start().unwrap();
        send();
        pump_until(&mut source, frames as u64).unwrap();
        let ledger = source.finish().unwrap();
        assert!(ledger.closes(), "{ledger}");
        assert_eq!(source.finish().unwrap(), ledger);
        Captured {
            seen: read_closed(&mut reader),
            ledger,
            info: source.info().clone(),
            locations: locations(&source),
        }
    })
    .unwrap()
}

fn now_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

#[test]
fn root_frames_come_byte_exact_and_in_order() {
    if !require_root("root_frames_come_byte_exact_and_in_order") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let frames: Vec<_> = (0..3000).map(|n| frame(n, 18 + (n as usize * 37) % 1497)).collect();
    let before = now_ns();
    let got = capture(&bed.rx, setup(16), 3000, || send_all(&bed.tx, &bed.tx.iface, &frames));
    assert!(got.frames() == frames);
    assert_eq!((got.ledger.offered, got.ledger.captured), (3000, 3000));
    assert_eq!((got.info.hook, got.info.notes.len()), (Some("socket"), 0), "{:?}", got.info.notes);
    for seen in &got.seen {
        assert_eq!(seen.meta.wire_len as usize, seen.frame.len());
        assert_eq!(seen.meta.flags, Some(Flags::INBOUND));
        assert!((before..now_ns()).contains(&seen.meta.ts_ns));
    }
    assert!(got.seen.is_sorted_by_key(|seen| seen.meta.ts_ns));
}

#[test]
fn root_looking_in_vain_and_coming_late_change_nothing() {
    if !require_root("root_looking_in_vain_and_coming_late_change_nothing") {
        return;
    }
    // Each round first polls without frames, and then finds about 16 blocks at once: the frames come every 9 ms, and
    // the kernel retires a block some 4 ms after its first frame. A receiver that continued at the wrong block would
    // lose frames or reorder them.
    const ROUNDS: u32 = 10;
    const PARTS: u32 = 16;
    let bed = Testbed::new().unwrap();
    let (seen, ledger) = bed
        .rx
        .run(|| {
            let mut source = AfPacket::open(&bed.rx.iface, setup(16)).unwrap();
            let mut reader = reader_of(&source);
            source.start().unwrap();
            for round in 0..ROUNDS {
                for _ in 0..5 + round {
                    source.pump(Duration::from_micros(100)).unwrap();
                }
                let first = round * PARTS;
                let send = || {
                    let sender = Sender::new(&bed.tx.iface);
                    for number in first..first + PARTS {
                        sender.send(&frame(number, 60));
                        std::thread::sleep(Duration::from_millis(9));
                    }
                };
                bed.tx.run(send).unwrap();
                pump_until(&mut source, u64::from(first + PARTS)).unwrap();
            }
            let ledger = source.finish().unwrap();
            (read_closed(&mut reader), ledger)
        })
        .unwrap();
    assert!(ledger.closes() && ledger.drops["kernel"] == 0, "{ledger}");
    let want: Vec<_> = (0..ROUNDS * PARTS).map(|n| frame(n, 60)).collect();
    assert!(seen.iter().map(|seen| &seen.frame).eq(&want));
}

#[test]
fn root_tags_are_where_they_were_on_the_wire() {
    if !require_root("root_tags_are_where_they_were_on_the_wire") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let c_tag = [0x81, 0x00, 0x20, 0x64];
    let s_tag = [0x88, 0xa8, 0xe0, 0xc8];
    let mut frames = Vec::new();
    for n in 0..50 {
        for tags in [&[][..], &[c_tag], &[s_tag], &[s_tag, c_tag], &[c_tag, c_tag], &[c_tag; 3]] {
            frames.push(tagged(n, 60 + n as usize * 20, tags));
        }
    }
    // From a received frame, the stack has removed the outer tag before the socket gets the frame. In a frame
    // that a raw socket sends, all tags are still in place.
    for (end, from) in [(&bed.rx, &bed.tx), (&bed.tx, &bed.tx)] {
        let got = capture(end, setup(16), frames.len(), || send_all(from, &from.iface, &frames));
        assert!(got.frames() == frames, "captured at {}", end.iface);
        assert!(got.seen.iter().all(|seen| seen.meta.wire_len as usize == seen.frame.len()));
        let flags = if end.iface == bed.rx.iface { Flags::INBOUND } else { Flags::OUTBOUND };
        assert!(got.seen.iter().all(|seen| seen.meta.flags == Some(flags)));
    }
}

#[test]
fn root_tags_that_the_kernel_adds_on_the_way_out_are_there() {
    if !require_root("root_tags_that_the_kernel_adds_on_the_way_out_are_there") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let plain: Vec<_> = (0..20).map(|n| tagged(n, 100, &[[0x81, 0x00, 0x00, 0x07]])).collect();
    for (proto, outer) in [("802.1Q", [0x81, 0x00, 0, 100]), ("802.1ad", [0x88, 0xa8, 0, 100])] {
        let vlan = ["link", "add", "link", &bed.tx.iface, "name", "v100", "type", "vlan"];
        if !try_ip(&bed.tx, &[&vlan[..], &["proto", proto, "id", "100"]].concat()) {
            let test = "root_tags_that_the_kernel_adds_on_the_way_out_are_there";
            return skip(test, "needs VLAN interfaces (the kernel's 8021q module)");
        }
        ip(&bed.tx, &["link", "set", "v100", "up"]);
        let mut want = plain.clone();
        for frame in &mut want {
            frame.splice(12..12, outer);
        }
        for end in [&bed.tx, &bed.rx] {
            let got = capture(end, setup(16), 20, || send_all(&bed.tx, "v100", &plain));
            assert!(got.frames() == want, "{proto} captured at {}", end.iface);
        }
        ip(&bed.tx, &["link", "del", "v100"]);
    }
}

#[test]
fn root_only_the_wanted_direction_is_offered() {
    if !require_root("root_only_the_wanted_direction_is_offered") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let incoming: Vec<_> = (0..100).map(|n| frame(n, 60)).collect();
    let outgoing: Vec<_> = (1000..1070).map(|n| frame(n, 60)).collect();
    for (direction, want_in, want_out) in
        [(Direction::In, 100, 0), (Direction::Out, 0, 70), (Direction::Both, 100, 70)]
    {
        let mut setup = setup(16);
        setup.feeds[0].direction = direction;
        let got = capture(&bed.rx, setup, want_in + want_out, || {
            send_all(&bed.rx, &bed.rx.iface, &outgoing);
            send_all(&bed.tx, &bed.tx.iface, &incoming);
        });
        let count = |flags| got.seen.iter().filter(|seen| seen.meta.flags == Some(flags)).count();
        assert_eq!((count(Flags::INBOUND), count(Flags::OUTBOUND)), (want_in, want_out));
        assert_eq!(got.ledger.offered as usize, want_in + want_out, "{direction:?}");
    }
}

#[test]
fn root_snaplen_cuts_what_is_kept_and_not_what_was() {
    if !require_root("root_snaplen_cuts_what_is_kept_and_not_what_was") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let frames: Vec<_> = (0..40)
        .map(|n| match n % 2 {
            0 => frame(n, 60 + 30 * n as usize),
            _ => tagged(n, 60 + 30 * n as usize, &[[0x81, 0x00, 0, 9]]),
        })
        .collect();
    for snaplen in [1, 13, 14, 18, 96] {
        let mut setup = setup(16);
        setup.feeds[0].snaplen = snaplen as u32;
        let got = capture(&bed.rx, setup, 40, || send_all(&bed.tx, &bed.tx.iface, &frames));
        for (seen, frame) in got.seen.iter().zip(&frames) {
            assert_eq!(seen.frame, frame[..snaplen.min(frame.len())], "snaplen {snaplen}");
            assert_eq!(seen.meta.wire_len as usize, frame.len());
        }
    }
}

/// A filter with this many loads, which takes frames of the testbed's EtherType.
pub(super) fn long_filter(loads: usize) -> Filter {
    use weir_filter::insn::{JEQ, JMP, LD_H_ABS, RET_K};
    let load = Insn::new(LD_H_ABS, 12);
    let mut insns = vec![load; loads];
    insns.extend([
        Insn::jump(JMP | JEQ, 0x88b5, 0, 1),
        Insn::new(RET_K, 262_144),
        Insn::new(RET_K, 0),
    ]);
    let program = Program::new(insns).expect("valid");
    Filter { text: format!("{loads} loads"), link_type: 1, program }
}

#[test]
fn root_a_filter_that_is_too_long_for_the_socket_runs_in_user_space() {
    if !require_root("root_a_filter_that_is_too_long_for_the_socket_runs_in_user_space") {
        return;
    }
    let frames: Vec<_> = (0..50).map(|n| frame(n, 60)).collect();
    for (loads, location) in [(1, FilterLocation::Hook), (2000, FilterLocation::Compiled)] {
        let bed = Testbed::new().unwrap();
        let mut setup = setup(16);
        setup.feeds[0].filter = Some(Arc::new(long_filter(loads)));
        let got = capture(&bed.rx, setup, 50, || send_all(&bed.tx, &bed.tx.iface, &frames));
        assert!(got.frames() == frames, "{loads}");
        assert_eq!(got.locations, [location], "{loads}");
    }
}

#[test]
fn root_jumbo_frames_are_whole() {
    if !require_root("root_jumbo_frames_are_whole") {
        return;
    }
    for mtu in [9000, 65_535] {
        let bed = Testbed::builder().mtu(mtu).build().unwrap();
        let mut frames: Vec<_> =
            (0..60).map(|n| frame(n, mtu as usize + 14 - n as usize)).collect();
        frames.push(tagged(60, mtu as usize + 14, &[[0x81, 0x00, 0, 9]]));
        let got = capture(&bed.rx, setup(16), 61, || send_all(&bed.tx, &bed.tx.iface, &frames));
        assert!(got.frames() == frames, "MTU {mtu}");
        assert_eq!(got.ledger.super_frames, 0);
    }
}

#[test]
fn root_offload_super_frames_say_what_they_are() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    if !require_root("root_offload_super_frames_say_what_they_are") {
        return;
    }
    const BYTES: usize = 4 << 20;
    let bed = Testbed::builder().addresses(true).build().unwrap();
    let got = capture(&bed.rx, setup(64), 20, || {
        let to = (weir_lab::testbed::RX_IPV4, 5001);
        let listener = bed.rx.run(|| TcpListener::bind(to).unwrap()).unwrap();
        let mut out = bed.tx.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let (mut inside, _) = listener.accept().unwrap();
        let read = std::thread::spawn(move || {
            let mut all = Vec::with_capacity(BYTES);
            inside.read_to_end(&mut all).unwrap();
            all.len()
        });
        out.write_all(&vec![1; BYTES]).unwrap();
        drop(out);
        assert_eq!(read.join().unwrap(), BYTES);
    });
    let is_super = |seen: &Seen| seen.meta.flags.unwrap().has(Flags::SUPER_FRAME);
    assert!(got.ledger.super_frames > 0, "{}", got.ledger);
    for seen in &got.seen {
        assert!(is_super(seen) || seen.meta.wire_len <= 1514, "{:?}", seen.meta);
    }
    let not_ready =
        got.seen.iter().filter(|s| s.meta.flags.unwrap().has(Flags::CHECKSUM_NOT_READY));
    assert!(not_ready.count() > 0, "veth leaves TCP checksums to the receiver");
}

/// Sends at full rate until `stop` is set. Returns the number of frames that the link accepted.
fn generate(bed: &Testbed, stop: &AtomicBool) -> u64 {
    let options = GenOptions { engine: GenEngine::LiveFrames, ..GenOptions::default() };
    bed.tx.run(|| generator::run(&bed.tx.iface, &options, stop).unwrap().sent).unwrap()
}

#[test]
fn root_the_ledger_closes_at_overload() {
    if !require_root("root_the_ledger_closes_at_overload") {
        return;
    }
    let bed = Testbed::builder().gro(true).build().unwrap();
    let stop = AtomicBool::new(false);
    let (ledger, sent, delivered) = std::thread::scope(|scope| {
        let (bed, stop, rx) = (&bed, &stop, &bed.rx);
        let (started, has_started) = channel();
        let sending = scope.spawn(move || {
            // Frames that are sent before the source has started are not counted.
            has_started.recv().expect("the source starts");
            generate(bed, stop)
        });
        let receiving = scope.spawn(move || {
            rx.run(|| {
                let mut source = AfPacket::open(&rx.iface, setup(64)).unwrap();
                let mut reader = reader_of(&source);
                source.start().unwrap();
                started.send(()).unwrap();
                pump_until(&mut source, 100_000).unwrap();
                // Pause between calls of `pump` until the kernel has dropped a frame because all blocks were
                // full. The pauses grow, for a slow generator. `ledger` has the counts of the last `pump`.
                let (begin, mut away) = (Instant::now(), Duration::from_millis(300));
                while source.ledger().unwrap().drops["kernel"] == 0 && begin.elapsed() < LIMIT {
                    std::thread::sleep(away);
                    source.pump(TURN).unwrap();
                    away *= 2;
                }
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(700) {
                    source.pump(TURN).unwrap();
                }
                stop.store(true, Ordering::Relaxed);
                let sent = sending.join().unwrap();
                // The link has accepted the last frames, but they may still wait for a softirq at the
                // receiver.
                let begin = Instant::now();
                while source.ledger().unwrap().offered < sent && begin.elapsed() < LIMIT {
                    source.pump(TURN).unwrap();
                }
                let ledger = source.finish().unwrap();
                let mut tally = weir_ring::Tally::default();
                while !matches!(
                    reader.count_in_place(&mut tally, u32::MAX).unwrap(),
                    weir_ring::Poll::Closed
                ) {}
                (ledger, sent, reader.delivered() + reader.lapped())
            })
            .unwrap()
        });
        receiving.join().unwrap()
    });
    assert!(ledger.closes(), "{ledger}");
    assert_eq!(ledger.offered, sent, "what the link took was offered");
    assert_eq!(ledger.captured, delivered);
    assert!(ledger.drops["kernel"] > 0, "{ledger}");
}

#[test]
fn root_the_ledger_closes_when_stopped_in_full_flight() {
    if !require_root("root_the_ledger_closes_when_stopped_in_full_flight") {
        return;
    }
    let bed = Testbed::builder().gro(true).build().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| generate(&bed, &stop));
        for round in 0..5 {
            let ledger = bed
                .rx
                .run(|| {
                    let mut source = AfPacket::open(&bed.rx.iface, setup(16)).unwrap();
                    source.start().unwrap();
                    if round > 0 {
                        pump_until(&mut source, 1000 * round).unwrap();
                        std::thread::sleep(Duration::from_millis(100 * round));
                    }
                    source.finish().unwrap()
                })
                .unwrap();
            assert!(ledger.closes(), "round {round}: {ledger}");
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().unwrap();
    });
}

#[test]
fn root_an_interface_that_vanishes_ends_the_capture_and_loses_nothing() {
    if !require_root("root_an_interface_that_vanishes_ends_the_capture_and_loses_nothing") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let frames: Vec<_> = (0..50).map(|n| frame(n, 60)).collect();
    bed.rx
        .run(|| {
            let mut source = AfPacket::open(&bed.rx.iface, setup(16)).unwrap();
            let mut reader = reader_of(&source);
            source.start().unwrap();
            send_all(&bed.tx, &bed.tx.iface, &frames);
            ip(&bed.rx, &["link", "del", &bed.rx.iface]);
            let error = pump_until(&mut source, u64::MAX).unwrap_err();
            assert!(matches!(error, CaptureError::Vanished { .. }), "{error}");
            let ledger = source.finish().unwrap();
            assert!(ledger.closes(), "{ledger}");
            let seen = read_closed(&mut reader);
            assert!(seen.iter().map(|seen| &seen.frame).eq(&frames));
        })
        .unwrap();
}

#[test]
fn root_an_interface_that_goes_down_comes_back() {
    if !require_root("root_an_interface_that_goes_down_comes_back") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let frames: Vec<_> = (0..20).map(|n| frame(n, 60)).collect();
    let got = capture(&bed.rx, setup(16), 0, || ());
    assert_eq!(got.ledger.offered, 0);
    bed.rx
        .run(|| {
            let mut source = AfPacket::open(&bed.rx.iface, setup(16)).unwrap();
            source.start().unwrap();
            send_all(&bed.tx, &bed.tx.iface, &frames);
            pump_until(&mut source, 20).unwrap();
            ip(&bed.rx, &["link", "set", &bed.rx.iface, "down"]);
            for _ in 0..15 {
                source.pump(TURN).unwrap();
            }
            ip(&bed.rx, &["link", "set", &bed.rx.iface, "up"]);
            bed.tx.wait_for_carrier().unwrap();
            send_all(&bed.tx, &bed.tx.iface, &frames);
            pump_until(&mut source, 40).unwrap();
            assert!(source.finish().unwrap().closes());
        })
        .unwrap();
}

#[test]
fn root_missing_interfaces_and_options_are_said() {
    if !require_root("root_missing_interfaces_and_options_are_said") {
        return;
    }
    let bed = Testbed::new().unwrap();
    bed.rx
        .run(|| {
            let open = |iface: &str, setup| AfPacket::open(iface, setup).err().expect("refused");
            assert!(matches!(open("nosuch0", setup(16)), CaptureError::NoInterface { .. }));
            let mut no_snaplen = setup(16);
            no_snaplen.feeds[0].snaplen = 0;
            assert!(matches!(open(&bed.rx.iface, no_snaplen), CaptureError::Options(_)));
            assert!(matches!(open(&bed.rx.iface, setup(1)), CaptureError::RingTooSmall { .. }));
            ip(&bed.rx, &["link", "set", &bed.rx.iface, "down"]);
            assert!(matches!(open(&bed.rx.iface, setup(16)), CaptureError::InterfaceDown { .. }));
        })
        .unwrap();
}

/// Drops all capabilities except these from the calling thread. The raw system call does not change other
/// threads.
pub(super) fn keep_only(capabilities: u32) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // _LINUX_CAPABILITY_VERSION_3: two words each of effective, permitted, inheritable.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let data: [[u32; 3]; 2] = [[capabilities, capabilities, 0], [0; 3]];
    // SAFETY: capset reads a header and two triples, both live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const data) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[test]
fn root_without_rights_it_is_said_which_are_missing() {
    if !require_root("root_without_rights_it_is_said_which_are_missing") {
        return;
    }
    let bed = Testbed::new().unwrap();
    bed.rx
        .run(|| {
            keep_only(0);
            let error = AfPacket::open(&bed.rx.iface, setup(16)).err().expect("refused");
            assert!(matches!(error, CaptureError::NoRights { .. }), "{error}");
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
        })
        .unwrap();
}

#[test]
fn root_without_bpf_the_socket_counts_and_says_so() {
    if !require_root("root_without_bpf_the_socket_counts_and_says_so") {
        return;
    }
    const CAP_NET_RAW: u32 = 1 << 13;
    let bed = Testbed::builder().gro(true).build().unwrap();
    let incoming: Vec<_> = (0..100).map(|n| frame(n, 60)).collect();
    for (direction, frames) in [(Direction::In, 100), (Direction::Out, 30), (Direction::Both, 130)]
    {
        let started = Barrier::new(2);
        let without_bpf = || {
            let outgoing = Sender::new(&bed.rx.iface);
            keep_only(CAP_NET_RAW);
            let mut setup = setup(16);
            setup.feeds[0] = Feed { direction, snaplen: 50, ..Feed::default() };
            let mut source = AfPacket::open(&bed.rx.iface, setup).unwrap();
            let mut reader = reader_of(&source);
            source.start().unwrap();
            started.wait();
            incoming[..30].iter().for_each(|frame| outgoing.send(frame));
            pump_until(&mut source, frames).unwrap();
            let ledger = source.finish().unwrap();
            assert!(ledger.closes() && ledger.offered == frames, "{ledger}");
            assert!(read_closed(&mut reader).iter().all(|seen| seen.frame.len() == 50));
            let notes = &source.info().notes;
            assert!(notes.iter().any(|note| note.contains("CAP_BPF")), "{notes:?}");
        };
        std::thread::scope(|scope| {
            let capturing = scope.spawn(|| bed.rx.run(without_bpf).unwrap());
            started.wait();
            send_all(&bed.tx, &bed.tx.iface, &incoming);
            capturing.join().unwrap();
        });
    }
}

#[test]
fn root_a_single_frame_on_an_idle_link_is_seen_within_20_ms() {
    if !require_root("root_a_single_frame_on_an_idle_link_is_seen_within_20_ms") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let started = bed.rx.run(|| {
        let mut source = AfPacket::open(&bed.rx.iface, setup(16)).unwrap();
        source.start().unwrap();
        source
    });
    let mut source = started.unwrap();
    let mut readers = [Reader::new(&source.rings()[0], Start::Oldest).unwrap()];
    let sleeper = Sleeper::new(1).unwrap();
    source.control().attach(FeedSlot::first(), sleeper.waker().unwrap(), 0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let pumping = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Acquire) {
                assert_eq!(
                    source.pump(LIMIT.min(Duration::from_millis(20))).unwrap(),
                    Pumped::More
                );
            }
            source.finish().unwrap()
        }
    });
    let mut waits: Vec<Duration> = bed
        .tx
        .run(|| {
            let sender = Sender::new(&bed.tx.iface);
            let mut batch = weir_ring::Batch::new();
            (0..21)
                .map(|n| {
                    std::thread::sleep(Duration::from_millis(7 + n % 5));
                    let begin = Instant::now();
                    sender.send(&frame(n as u32, 60));
                    assert_eq!(
                        sleeper.sleep(&readers, 1, LIMIT).unwrap(),
                        weir_ring::wake::Woken::Frames
                    );
                    assert_eq!(readers[0].poll(&mut batch).unwrap(), weir_ring::Poll::Frames(1));
                    begin.elapsed()
                })
                .collect()
        })
        .unwrap();
    waits.sort();
    // The median, because single waits may be long on a busy machine.
    assert!(waits[10] < Duration::from_millis(20), "{waits:?}");
    stop.store(true, Ordering::Release);
    let ledger = pumping.join().unwrap();
    assert!(ledger.closes() && ledger.captured == 21, "{ledger}");
}
