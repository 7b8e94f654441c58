//! Compares the rings of the BPF writer and the Rust writer byte for byte, in test runs of the BPF programs
//! (`BPF_PROG_TEST_RUN`). Tests changes of feeds, and wake-ups.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use weir_frame::pcapng::Interface as PcapInterface;
use weir_frame::record::{Flags, Meta, Record};
use weir_ring::{Batch, Poll, Reader, RingSpec, Start, Words, Writer, WriterKind, memory};

use super::clsact::Side;
use super::serving::TurnEnd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weir_ring::Mapping;
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Waker;

use rustix::event::{PollFd, PollFlags};

use libbpf_rs::MapHandle;

use super::*;
use crate::feed::Feed;
use crate::feed::control::FeedSlot;
use crate::feed::location::FilterLocation;
use crate::kernel::interface::InterfaceQuery;
use crate::limits::HOOK_FEEDS_MAX;

fn setup(snaplen: u32) -> Setup {
    let own = PcapInterface { name: "lo".into(), link_type: 1, snaplen, ..Default::default() };
    Setup {
        feeds: vec![Feed { interface: own, snaplen, ..Feed::default() }],
        ring_bytes: least_ring_bytes(),
        promiscuous: false,
        ..Setup::default()
    }
}

/// Runs a program once on `frame`, on this thread's CPU.
fn run(program: BorrowedFd<'_>, frame: &[u8]) {
    run_times(program, frame, 1);
}

/// As [`run`], this number of times. Returns what the program returned last.
fn run_times(program: BorrowedFd<'_>, frame: &[u8], times: i32) -> u32 {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: times,
        ..Default::default()
    };
    // SAFETY: `options` and the frame it points to live through the call, with their true sizes.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(result, 0, "test run of {} bytes: {}", frame.len(), std::io::Error::last_os_error());
    options.retval
}

#[test]
fn root_a_source_whose_programs_are_not_loaded_leaves_nothing_at_tc() {
    if !root("root_a_source_whose_programs_are_not_loaded_leaves_nothing_at_tc") {
        return;
    }
    // One feed more than the programs have places for.
    let of_queue = |queue| Feed { queue: Some(queue), ..setup(64).feeds[0].clone() };
    let feeds: Vec<Feed> = (0..=HOOK_FEEDS_MAX as u32).map(of_queue).collect();
    let bed = weir_lab::testbed::Testbed::builder().build().unwrap();
    let iface = &bed.rx.iface;
    let attempt = || {
        let index = InterfaceQuery::new().unwrap().find(iface).unwrap().index;
        for tc_attach in [TcAttach::Best, TcAttach::Clsact] {
            let setup = Setup { feeds: feeds.clone(), ..setup(64) };
            let options = BpfOptions { tc_attach, ..BpfOptions::default() };
            let error = Bpf::open(iface, setup, options).err().expect("too many feeds");
            assert!(error.to_string().contains("no place in the kernel"), "{error}");
            assert!(matches!(hooks(index).tcx, None | Some((0, 0))), "{tc_attach:?}");
            assert!(crate::kernel::interface::hooks_qdisc(index).is_err(), "{tc_attach:?}");
        }
    };
    bed.rx.run(attempt).unwrap();
}

#[test]
fn root_the_placeholder_leaves_the_decision_to_the_next_program() {
    if !root("root_the_placeholder_leaves_the_decision_to_the_next_program") {
        return;
    }
    let program = placeholder::load().unwrap();
    // TCX_NEXT, TC_ACT_UNSPEC (linux/bpf.h, linux/pkt_cls.h).
    assert_eq!(run_times(program.as_fd(), &frame(1, 60), 1).cast_signed(), -1);
}

fn pin_to_cpu_0() {
    // SAFETY: `set` is plain data, zeroed, and lives through the call with its true size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// A frame of `len` bytes whose contents are unique to `number`.
fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(len)
    .collect();
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]); // EtherType for local experiments: nothing parses the rest
    bytes
}

/// Frame sizes around every limit in the writers, then pseudo-random sizes.
fn sizes(min: usize, max: usize) -> impl Iterator<Item = usize> {
    let borders = [14, 15, 16, 17, 60, 61, 62, 63, 64, 127, 128, 129, 135, 136, 137, 1514];
    let classes = [2047, 2048, 2049, 10_239, 10_240, 10_241];
    let sorts = (0..9000usize).map(move |i| min + (i * 7919) % (max - min));
    borders.into_iter().chain(classes).filter(move |&size| (min..=max).contains(&size)).chain(sorts)
}

fn hold_writers_together(hook: Hook, snaplen: u32, record_queue: bool, size_max: usize) {
    pin_to_cpu_0();
    let setup = setup(snaplen);
    let options = BpfOptions { hook, record_queue, ..BpfOptions::default() };
    let mut bpf = Bpf::open("lo", setup.clone(), options).unwrap();
    bpf.serving.shared.control.follow_tai();
    let spec = RingSpec {
        data_blocks: 4,
        interfaces: vec![setup.feeds[0].interface.clone()],
        cpu: Some(0),
        clock: weir_ring::Clock::Realtime,
        writer: WriterKind::Bpf,
    };
    let mut rust = Writer::new(memory::create_memfd("oracle", &spec).unwrap());
    let program = {
        let state = bpf.serving.shared.state();
        let at = &state.programs.at;
        at.program(at.sides().next().expect("a side")).try_clone().unwrap()
    };
    let program = program.as_fd();
    let mut reader = Reader::new(&bpf.rings()[0], Start::Oldest).unwrap();
    let (mut batch, mut frames) = (Batch::new(), 0);
    let before_ns = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    // A test run at TC refuses a frame that is an Ethernet header without a payload.
    let size_min = if hook == Hook::Tc { 15 } else { 14 };
    for (number, size) in sizes(size_min, size_max).enumerate() {
        let frame = frame(number as u64, size);
        run(program, &frame);
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1), "{size} bytes");
        let records: Vec<Record<'_>> = batch.records().collect();
        let kept = &frame[..size.min(snaplen as usize)];
        assert_eq!(records[0].frame, kept, "{size} bytes");
        let ts_ns = records[0].meta.ts_ns;
        let now_ns = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        assert!((before_ns..=now_ns).contains(&ts_ns), "stamp {ts_ns} is no time of this test");
        rust.push(
            &Meta {
                interface_id: 0,
                ts_ns,
                wire_len: size as u32,
                flags: (hook == Hook::Tc).then_some(Flags::INBOUND),
                // The skb of a test run has no RX queue.
                queue: (record_queue && hook == Hook::Xdp).then_some(0),
            },
            kept,
        );
        rust.publish();
        frames += 1;
    }
    let ledger = bpf.finish().unwrap();
    rust.close();
    assert_eq!((ledger.offered, ledger.captured), (frames, frames));
    assert!(ledger.closes());
    let opened = bpf.rings()[0].writer_word(WriterWord::Opened);
    assert!(opened > 4, "the ring wrapped: {opened} blocks");
    // Block 0 may differ only in the private state of the BPF writer.
    let private = 0x10180 / 8..0x10200 / 8;
    let ring = bpf.rings()[0].clone();
    let (ours, theirs) = (rust.ring().memory().words(), ring.memory().words());
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        if private.contains(&index) {
            continue;
        }
        let load = |word: &weir_ring::AtomicU64| word.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(load(ours), load(theirs), "word at byte {:#x}", index * 8);
    }
}

fn root(test: &str) -> bool {
    weir_lab::testbed::require_root(test)
}

#[test]
fn root_tc_and_rust_writers_make_the_same_bytes() {
    if root("root_tc_and_rust_writers_make_the_same_bytes") {
        hold_writers_together(Hook::Tc, 262_144, false, 3500);
    }
}

#[test]
fn root_tc_and_rust_writers_agree_on_queues_and_cut_frames() {
    if root("root_tc_and_rust_writers_agree_on_queues_and_cut_frames") {
        hold_writers_together(Hook::Tc, 701, true, 3500);
    }
}

#[test]
fn root_xdp_and_rust_writers_make_the_same_bytes() {
    if root("root_xdp_and_rust_writers_make_the_same_bytes") {
        hold_writers_together(Hook::Xdp, 262_144, false, 3000);
    }
}

#[test]
fn root_xdp_with_frags_and_rust_writers_make_the_same_bytes() {
    if root("root_xdp_with_frags_and_rust_writers_make_the_same_bytes") {
        hold_writers_together(Hook::Xdp, 262_144, true, 15_000);
    }
}

/// The generic XDP hook gets super-frames whole, but an XDP program can read only 65,535 bytes of a frame.
#[test]
fn root_what_xdp_cannot_read_of_a_long_frame_is_cut() {
    if !root("root_what_xdp_cannot_read_of_a_long_frame_is_cut") {
        return;
    }
    pin_to_cpu_0();
    let options = BpfOptions { hook: Hook::Xdp, ..BpfOptions::default() };
    let mut bpf = Bpf::open("lo", setup(262_144), options).unwrap();
    let program = {
        let state = bpf.serving.shared.state();
        state.programs.at.program(None).try_clone().unwrap()
    };
    let mut reader = Reader::new(&bpf.rings()[0], Start::Oldest).unwrap();
    let mut batch = Batch::new();
    for (number, size) in [65_534, 65_535, 65_536, 70_000].into_iter().enumerate() {
        let frame = frame(number as u64, size);
        run(program.as_fd(), &frame);
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1), "{size} bytes");
        let record = batch.records().next().unwrap();
        assert!(record.frame == &frame[..size.min(65_535)], "{size} bytes");
        assert_eq!(record.meta.wire_len as usize, size);
    }
    let ledger = bpf.finish().unwrap();
    assert_eq!((ledger.captured, ledger.dropped()), (4, 0), "{ledger}");
    assert!(ledger.closes());
}

#[test]
fn root_a_frozen_ring_cannot_be_mapped_writable() {
    if !root("root_a_frozen_ring_cannot_be_mapped_writable") {
        return;
    }
    let bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let fd = bpf.rings()[0].memory().as_fd().try_clone_to_owned().unwrap();
    let bytes = bpf.rings()[0].geometry().total_bytes();
    // SAFETY: a BPF array cannot shrink; if the mapping succeeds, nothing accesses it.
    assert!(unsafe { Mapping::map(fd, bytes, weir_ring::memory::Access::Write) }.is_err());
}

#[test]
fn contradicting_options_say_what_to_leave_out() {
    let options = |hook, consume| BpfOptions { hook, consume, ..BpfOptions::default() };
    let error = check_options("eth0", &setup_plain(64), &options(Hook::Tc, true)).unwrap_err();
    assert!(error.to_string().contains("--hook tc"));
    let mut out = setup_plain(64);
    out.feeds[0].direction = Direction::Out;
    assert!(check_options("eth0", &out, &options(Hook::Xdp, false)).is_err());
    assert!(check_options("eth0", &setup_plain(0), &options(Hook::Tc, false)).is_err());
}

fn setup_plain(snaplen: u32) -> Setup {
    Setup {
        feeds: vec![Feed { snaplen, ..Feed::default() }],
        ring_bytes: 64 << 20,
        promiscuous: false,
        ..Setup::default()
    }
}

#[test]
fn root_a_frozen_ring_is_read_through_a_passed_descriptor() {
    if !root("root_a_frozen_ring_is_read_through_a_passed_descriptor") {
        return;
    }
    pin_to_cpu_0();
    let bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let rings = bpf.rings();
    let fds: Vec<_> = rings.iter().map(|ring| ring.memory().as_fd()).collect();
    weir_ring::pass::send(&ours, &fds).unwrap();
    let received = weir_ring::pass::receive_rings(&theirs, 1024, memory::Trust::Anybody).unwrap();
    assert_eq!(received.len(), rings.len());
    let identity = received[0].identity().unwrap();
    assert_eq!((identity.interfaces, identity.cpu, identity.snaplen), (1, Some(0), 64));
    run(egress(&bpf).as_fd(), &frame(7, 100));
    let mut reader = Reader::new(&received[0], Start::Oldest).unwrap();
    let mut batch = Batch::new();
    assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
    let record = batch.records().next().unwrap();
    assert_eq!((record.frame, record.meta.flags), (&frame(7, 100)[..64], Some(Flags::OUTBOUND)));
}

/// The program for the egress side.
fn egress(bpf: &Bpf) -> std::os::fd::OwnedFd {
    let state = bpf.serving.shared.state();
    state.programs.at.program(Some(Side::Egress)).try_clone().unwrap()
}

/// A consumer's wake page with a line for each ring, the consumer's end of the channel, and the waker for the
/// writer.
fn wake_page() -> (Mapping, std::os::unix::net::UnixStream, Waker) {
    use rustix::fs::{MemfdFlags, SealFlags};
    let page = rustix::fs::memfd_create("weir-test", MemfdFlags::ALLOW_SEALING).unwrap();
    let lines = cpus::entries().unwrap() as usize;
    let bytes = (lines * 128).next_multiple_of(4096) as u64;
    rustix::fs::ftruncate(&page, bytes).unwrap();
    // SAFETY: a memfd of this size that nobody shortens, reached as `AtomicU64` only.
    let page = unsafe { Mapping::map(page, bytes, weir_ring::memory::Access::Write) }.unwrap();
    page.words().iter().for_each(|word| word.store(weir_ring::doorbell::AWAKE, Ordering::Relaxed));
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&page, seals).unwrap();
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (waker, writer_socket) = pair.unwrap();
    let theirs = page.as_fd().try_clone_to_owned().unwrap();
    (page, waker.into(), Waker::attach(theirs, writer_socket, lines).unwrap())
}

#[test]
fn root_a_consumer_that_always_wants_the_next_frame_does_not_hold_the_owner() {
    let test = "root_a_consumer_that_always_wants_the_next_frame_does_not_hold_the_owner";
    if !root(test) {
        return;
    }
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, AtomicU64};
    let mut bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let ring = bpf.rings()[0].clone();
    let (page, waker, writers_end) = wake_page();
    waker.set_nonblocking(true).unwrap();
    bpf.control().attach(FeedSlot::first(), writers_end, 0).unwrap();
    let channels = bpf.serving.shared.channels.as_fd().try_clone_to_owned().unwrap();
    let sent = egress(&bpf);
    let (over, messages) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to_cpu_0();
            while !over.load(Ordering::Relaxed) {
                run_times(sent.as_fd(), &frame(7, 60), 10_000);
            }
        });
        // Sends a message as soon as the owner has read the previous one.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                page.words()[0].store(ring.frames_written() + 1, Ordering::Relaxed);
                let mut untaken = [PollFd::new(&channels, PollFlags::IN)];
                let none = rustix::event::Timespec::default();
                if rustix::event::poll(&mut untaken, Some(&none)).unwrap() == 0 {
                    // The owner answers every message, whatever its contents.
                    let _ = (&waker).write(&[0]);
                    messages.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let (begin, before) = (Instant::now(), bpf.serving.turns);
        let mut calls = 0;
        // On a busy machine, the thread that sends messages may start late.
        let has_come = || messages.load(Ordering::Relaxed) > 1;
        while calls < 20 || !has_come() && begin.elapsed() < Duration::from_secs(30) {
            bpf.pump(Duration::from_millis(5)).unwrap();
            calls += 1;
        }
        let took = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        let gaps = took.as_nanos() / TURN_MIN.as_nanos();
        let turns = u128::from(bpf.serving.turns - before);
        // Each call of `pump` begins with a turn, in addition to those that the time allows.
        assert!(turns <= gaps + calls, "{turns} turns in the time of {gaps}");
        assert!(has_come(), "no message was taken");
        let mut rings = 0;
        while let Ok(more @ 1..) = (&waker).read(&mut [0; 4096]) {
            rings += u128::from(more > 0);
        }
        assert!(rings <= gaps + 1, "{rings} rings in {gaps} gaps");
    });
}

#[test]
fn root_a_source_that_is_dropped_is_detached_whoever_has_its_control() {
    if !root("root_a_source_that_is_dropped_is_detached_whoever_has_its_control") {
        return;
    }
    let mut bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    bpf.start().unwrap();
    let (control, rings) = (bpf.control(), bpf.rings());
    let shared = Arc::clone(&bpf.serving.shared);
    assert!(!shared.state().attachments.is_empty());
    drop(bpf);
    assert!(shared.state().attachments.is_empty(), "its programs are at the hook still");
    assert!(rings.iter().all(|ring| ring.is_closed()));
    assert!(control.ledger(FeedSlot::first()).unwrap().closes());
}

#[test]
fn root_a_feed_of_a_queue_that_finds_no_place_is_told_the_limit() {
    if !root("root_a_feed_of_a_queue_that_finds_no_place_is_told_the_limit") {
        return;
    }
    let setup = Setup { may_change: true, ..setup(64) };
    let bpf = Bpf::open("lo", setup, BpfOptions::default()).unwrap();
    let control = bpf.control();
    let feed = || Feed { queue: Some(0), ..Feed::default() };
    let error = (1..=HOOK_FEEDS_MAX).find_map(|_| control.add(feed()).err()).expect("it is full");
    let error = error.to_string();
    assert!(error.contains(&format!("{HOOK_FEEDS_MAX} feeds")) && error.contains("@q"), "{error}");
    assert!(!error.contains("relay"), "{error}");
}

#[test]
fn root_rings_are_put_all_or_none() {
    if !root("root_rings_are_put_all_or_none") {
        return;
    }
    let setup = Setup { may_change: true, ..setup(64) };
    let bpf = Bpf::open("lo", setup.clone(), BpfOptions::default()).unwrap();
    let state = bpf.serving.shared.state();
    let (place, cpus) = (3, cpus::entries().unwrap());
    let own = memory_of_rings(&setup);
    state.programs.put_rings(place * cpus, &own).unwrap();
    state.programs.forget_rings(place * cpus..(place + 1) * cpus).unwrap();
    // The kernel refuses a ring whose size differs from that of the rings with which the programs were verified.
    let larger = Setup { ring_bytes: 2 * setup.ring_bytes, ..setup };
    let mut mixed = own;
    *mixed.last_mut().unwrap() = memory_of_rings(&larger).remove(0);
    assert!(state.programs.put_rings(place * cpus, &mixed).is_err());
    let forgotten = state.programs.forget_rings(place * cpus..place * cpus + 1);
    assert!(forgotten.is_err(), "the first ring was there still");
}

#[test]
fn root_the_rings_of_a_feed_that_cannot_join_are_freed() {
    if !root("root_the_rings_of_a_feed_that_cannot_join_are_freed") {
        return;
    }
    let pattern = crate::kernel::interface::LinkPattern::parse("lo*").unwrap();
    let setup = Setup { may_change: true, ..setup(64) };
    let source =
        pattern::BpfPattern::open(&pattern, setup.clone(), BpfOptions::default(), String::new());
    let source = source.unwrap();
    assert_eq!(source.control().interfaces(FeedSlot::first()).unwrap().len(), 1, "lo");
    let mut feed = setup.feeds[0].clone();
    // The ring's header has space for this description once, as that of the pattern, but not again for an interface.
    feed.interface.description = Some("long".repeat(10_000));
    let error = source.control().add(feed).map(drop).unwrap_err();
    let shared = &source.serving.shared;
    let forgotten =
        shared.state().programs.forget_rings(shared.cpus as u32..2 * shared.cpus as u32);
    assert!(forgotten.is_err(), "the rings were there still: {error}");
    assert_eq!(source.control().add(setup.feeds[0].clone()).unwrap().rings[0].interfaces(), 2);
}

/// Drops all capabilities of this thread and of threads that it starts later.
fn drop_capabilities() {
    // _LINUX_CAPABILITY_VERSION_3: two words each of effective, permitted, inheritable.
    let (header, data) = ([0x2008_0522u32, 0], [[0u32; 3]; 2]);
    // SAFETY: capset reads a header and two triples, both live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const data) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn root_without_rights_a_change_says_which_are_missing() {
    if !root("root_without_rights_a_change_says_which_are_missing") {
        return;
    }
    let setup = Setup { may_change: true, ..setup(64) };
    let bpf = Bpf::open("lo", setup, BpfOptions::default()).unwrap();
    let control = bpf.control();
    std::thread::scope(|scope| {
        let without = || {
            drop_capabilities();
            let filter = crate::feed::change::Change::Filter(Some(Arc::new(filter())));
            let error = control.change(FeedSlot::first(), filter).unwrap_err();
            assert!(matches!(error, CaptureError::NoRights { .. }), "{error}");
            let error = control.add(Feed::default()).map(drop).unwrap_err();
            assert!(matches!(error, CaptureError::NoRights { .. }), "{error}");
        };
        scope.spawn(without).join().unwrap();
    });
    // On this thread, which has the capabilities, the change succeeds.
    assert_eq!(control.add(Feed::default()).unwrap().location, FilterLocation::Hook);
}

/// Makes socketpair(2) fail on this thread from now on.
fn refuse_socketpairs() {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EMFILE as u32;
    // ld call; jeq #socketpair, refuse
    let insns = [
        weir_filter::Insn::new(0x20, 0),
        weir_filter::Insn::jump(0x15, libc::SYS_socketpair as u32, 1, 0),
        weir_filter::Insn::new(6, libc::SECCOMP_RET_ALLOW),
        weir_filter::Insn::new(6, refuse),
    ];
    let filter = insns.as_ptr().cast_mut().cast();
    let program = libc::sock_fprog { len: insns.len() as u16, filter };
    // SAFETY: the program points to instructions, laid out as `sock_filter`, that live through the call.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn root_a_relay_that_cannot_be_started_is_not_there() {
    if !root("root_a_relay_that_cannot_be_started_is_not_there") {
        return;
    }
    let setup = Setup { may_change: true, ..setup(64) };
    let mut bpf = Bpf::open("lo", setup, BpfOptions::default()).unwrap();
    bpf.start().unwrap();
    let shared = &*bpf.serving.shared;
    std::thread::scope(|scope| {
        let refused = || {
            refuse_socketpairs();
            shared.open_relay(&mut shared.state()).unwrap_err();
        };
        scope.spawn(refused).join().unwrap();
    });
    {
        let served = shared.served();
        assert!(served.relay.is_none() && served.places.last().unwrap().rings.is_empty());
    }
    shared.open_relay(&mut shared.state()).unwrap();
    assert!(shared.served().relay.is_some());
    bpf.stop().unwrap();
}

#[test]
fn root_a_feed_that_moves_loses_no_frame_though_the_programs_cannot_be_waited_for() {
    let test = "root_a_feed_that_moves_loses_no_frame_though_the_programs_cannot_be_waited_for";
    if !root(test) {
        return;
    }
    pin_to_cpu_0();
    let setup = Setup { may_change: true, ..setup(64) };
    let mut bpf = Bpf::open("lo", setup, BpfOptions::default()).unwrap();
    let control = bpf.control();
    let former = bpf.rings();
    let send = |frames: u64| {
        let program = egress(&bpf);
        (0..frames).for_each(|number| run(program.as_fd(), &frame(number, 60)));
    };
    send(10);
    rcu::REFUSED.set(true);
    let (moved, before) = control.replace_rings(FeedSlot::first()).unwrap();
    rcu::REFUSED.set(false);
    assert_eq!((before.offered, before.captured), (10, 10));
    assert!(!former[0].is_closed(), "programs may be writing there");
    send(20);
    // Another feed gets another place, and the memory of the place that the moved feed has left is freed.
    let joined = control.add(Feed { snaplen: 64, ..Feed::default() }).unwrap();
    assert!(former.iter().all(|ring| ring.is_closed()));
    send(30);
    assert_eq!(former[0].frames_written(), 10);
    assert_eq!(moved.rings[0].frames_written(), 50);
    assert_eq!(joined.rings[0].frames_written(), 30);
    // If `remove` fails, the feed stays and keeps its place.
    rcu::REFUSED.set(true);
    control.remove(joined.slot).map(drop).unwrap_err();
    rcu::REFUSED.set(false);
    let third = control.add(Feed { snaplen: 64, ..Feed::default() }).unwrap();
    send(5);
    let left = control.remove(joined.slot).unwrap();
    assert_eq!((left.offered, left.captured), (30, 30));
    bpf.stop().unwrap();
    for (slot, frames) in [(moved.slot, 55), (third.slot, 5)] {
        let ledger = control.ledger(slot).unwrap();
        assert!(ledger.closes() && ledger.captured == frames, "{ledger}");
    }
}

fn memory_of_rings(setup: &Setup) -> Vec<MapHandle> {
    super::memory::create(setup, 0..1).unwrap()
}

#[test]
fn root_an_interface_joins_a_frozen_ring() {
    if !root("root_an_interface_joins_a_frozen_ring") {
        return;
    }
    pin_to_cpu_0();
    let setup = setup(64);
    let bpf = Bpf::open("lo", setup.clone(), BpfOptions::default()).unwrap();
    let rings = &bpf.rings()[..1];
    let ring = &rings[0];
    let program = egress(&bpf);
    let program = program.as_fd();
    run(program, &frame(1, 100));
    let mut reader = Reader::new(ring, Start::Oldest).unwrap();
    let own = setup.feeds[0].interface.clone();
    let joined = PcapInterface { name: "vnet7".into(), ..own.clone() };
    assert!(matches!(ring.append_interface(&joined), Err(weir_ring::RingError::ReadOnly)));
    for id in 1..4 {
        assert_eq!(
            bpf.serving.shared.state().programs.append_interface(0, rings, &joined).unwrap(),
            id
        );
        assert_eq!(ring.interfaces(), id + 1);
    }
    let spec = RingSpec {
        data_blocks: 4,
        interfaces: [vec![own.clone()], vec![joined; 3]].concat(),
        cpu: Some(0),
        clock: weir_ring::Clock::Realtime,
        writer: WriterKind::Bpf,
    };
    let all = memory::create_memfd("oracle", &spec).unwrap();
    assert_eq!(ring.identity().unwrap(), all.identity().unwrap());
    // An interface of another link type is refused before anything is stored.
    let other = PcapInterface { link_type: 101, ..own };
    assert!(bpf.serving.shared.state().programs.append_interface(0, rings, &other).is_err());
    run(program, &frame(2, 100));
    let mut batch = Batch::new();
    let mut frames = 0;
    while let Poll::Frames(more) = reader.poll(&mut batch).unwrap() {
        frames += more;
    }
    assert_eq!(frames, 2);
}

#[test]
fn root_a_consumer_of_silent_rings_sleeps_without_a_timer_and_misses_no_frame() {
    if !root("root_a_consumer_of_silent_rings_sleeps_without_a_timer_and_misses_no_frame") {
        return;
    }
    use std::sync::atomic::AtomicBool;
    use weir_ring::wake::{Sleeper, Woken};
    let mut bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let rings = bpf.rings();
    let sleeper = Sleeper::new(rings.len()).unwrap();
    let waker = sleeper.waker().unwrap();
    bpf.control().attach(FeedSlot::first(), waker, 0).unwrap();
    let sent = egress(&bpf);
    let over = AtomicBool::new(false);
    // Exceeded only if a wake-up was missed, or the owner has ended.
    let limit = Duration::from_secs(20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Longer than the consumer waits for a confirmation: the owner must react to the consumer's
                // messages about thresholds, not to its own time-out.
                bpf.serving.answer(Duration::from_secs(3), None).unwrap();
            }
        });
        let consumer = scope.spawn(|| {
            let mut readers: Vec<_> =
                rings.iter().map(|ring| Reader::new(ring, Start::Oldest).unwrap()).collect();
            let mut batch = Batch::new();
            // One sleep may end with two new frames.
            while readers[0].ordinal() < 120 {
                let woken = sleeper.sleep(&readers, 1, limit).unwrap();
                assert_eq!(woken, Woken::Frames);
                while readers[0].poll(&mut batch).unwrap() != Poll::Empty {}
            }
            // A consumer that polled by a timer would have many context switches.
            let before = switches_of_this_thread();
            let woken = sleeper.sleep(&readers, 1, Duration::from_secs(3)).unwrap();
            (woken, switches_of_this_thread() - before)
        });
        pin_to_cpu_0();
        // Some frames come before the confirmation, some while the consumer waits for it, some long after.
        for number in 0..120u64 {
            let begin = Instant::now();
            while rings[0].frames_written() < number {
                assert!(begin.elapsed() < limit);
            }
            std::thread::sleep(Duration::from_millis([0, 6, 12, 25, 40, 80][number as usize % 6]));
            run(sent.as_fd(), &frame(number, 60));
        }
        let ended = consumer.join();
        over.store(true, Ordering::Relaxed);
        let (woken, switches) = ended.unwrap();
        assert_eq!(woken, Woken::Limit);
        assert!(switches < 100, "{switches} times off its CPU in a silence of 3 s");
    });
}

#[test]
fn root_a_consumer_that_waits_for_quarters_is_woken_when_one_was_filled() {
    if !root("root_a_consumer_that_waits_for_quarters_is_woken_when_one_was_filled") {
        return;
    }
    use weir_ring::wake::{Sleeper, Woken};
    let mut bpf = Bpf::open("lo", setup_plain(2000), BpfOptions::default()).unwrap();
    let (control, rings) = (bpf.control(), bpf.rings());
    let sleeper = Sleeper::new(rings.len()).unwrap();
    control.attach(FeedSlot::first(), sleeper.waker().unwrap(), 0).unwrap();
    let sent = egress(&bpf);
    let readers: Vec<_> =
        rings.iter().map(|ring| Reader::new(ring, Start::Oldest).unwrap()).collect();
    let wait = |limit| sleeper.wait_for_quarter(readers.iter().enumerate(), limit).unwrap();
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(50));
    pin_to_cpu_0();
    let quarter = rings[0].geometry().data_blocks / 4;
    let mut number = 0;
    let mut fill_to = |blocks| {
        while rings[0].writer_word(WriterWord::Opened) < blocks {
            run(sent.as_fd(), &frame(number, 1500));
            number += 1;
        }
    };
    std::thread::scope(|scope| {
        // The owner runs until it is woken. `_waking` wakes it even if this test panics.
        scope.spawn(|| while bpf.serving.answer(long, None).unwrap() != TurnEnd::Interrupted {});
        let _waking = Waking(&*control);
        let begin = Instant::now();
        while wait(short).is_none() {
            assert!(begin.elapsed() < long, "the owner does not answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        fill_to(1);
        // The first quarter has begun, which may have caused a wake-up.
        while wait(short) != Some(Woken::Limit) {}
        fill_to(quarter);
        assert_eq!(wait(short), Some(Woken::Limit), "it is not full yet");
        for quarters in 1..=4 {
            fill_to(quarters * quarter + 1);
            assert_eq!(wait(long), Some(Woken::Frames), "{quarters} quarters");
        }
        assert_eq!(wait(short), Some(Woken::Limit), "once for each");
    });
}

/// Wakes the source when this value is dropped.
struct Waking<'a>(&'a dyn FeedControl);

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

#[test]
fn root_a_channel_that_its_consumer_holds_on_to_does_not_keep_the_owner_awake() {
    if !root("root_a_channel_that_its_consumer_holds_on_to_does_not_keep_the_owner_awake") {
        return;
    }
    use std::io::Write;
    let mut bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let control = bpf.control();
    // The first consumer hangs up while it holds a duplicate of the writer's end of its channel. The second one
    // sends a message after it was detached.
    let (_page, hangs_up, waker) = wake_page();
    let _copy = waker.as_fd().try_clone_to_owned().unwrap();
    control.attach(FeedSlot::first(), waker, 0).unwrap();
    hangs_up.shutdown(std::net::Shutdown::Both).unwrap();
    let (_page, sends, waker) = wake_page();
    let _other_copy = waker.as_fd().try_clone_to_owned().unwrap();
    let slot = control.attach(FeedSlot::first(), waker, 0).unwrap();
    bpf.pump(Duration::from_millis(1)).unwrap();
    control.detach(FeedSlot::first(), slot);
    (&sends).write_all(&[0]).unwrap();
    let before = switches_of_this_thread();
    bpf.serving.answer(Duration::from_secs(1), None).unwrap();
    let switches = switches_of_this_thread() - before;
    assert!(switches < 100, "{switches} turns in a silent second");
}

#[test]
fn root_a_source_that_waits_is_woken_once_for_each_call() {
    if !root("root_a_source_that_waits_is_woken_once_for_each_call") {
        return;
    }
    let mut bpf = Bpf::open("lo", setup(64), BpfOptions::default()).unwrap();
    let (control, limit, pause) =
        (bpf.control(), Duration::from_secs(20), Duration::from_millis(100));
    assert!(bpf.can_be_woken());
    let begin = Instant::now();
    // Woken before the turn.
    control.wake();
    assert!(bpf.serving.answer(limit, None).unwrap() == TurnEnd::Interrupted);
    // Woken during the turn.
    let woken = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(pause);
            control.wake();
        });
        bpf.serving.answer(limit, None).unwrap()
    });
    assert!(woken == TurnEnd::Interrupted && begin.elapsed() >= pause);
    assert!(bpf.serving.answer(pause, None).unwrap() == TurnEnd::Limit);
    assert!(begin.elapsed() < limit, "it waited for its limit");
}

/// Number of voluntary context switches of this thread.
fn switches_of_this_thread() -> i64 {
    // SAFETY: `usage` is plain data, zeroed, and the kernel fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

#[test]
fn clients_of_a_daemon_are_not_told_to_choose_a_hook() {
    let [own, of_daemon] = [false, true].map(|is_for_clients| queue_warning(None, is_for_clients));
    assert!(own.contains("capture with --hook xdp"), "{own}");
    assert!(
        of_daemon.contains("@q may capture nothing here") && !of_daemon.contains("--"),
        "{of_daemon}"
    );
}
