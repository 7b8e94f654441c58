//! Classic programs on sockets: run by a model of the kernel, and by the kernel itself, with the outer VLAN tag in
//! the bytes of the frame, and beside the bytes (in the metadata of the packet, where the kernel puts it).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_filter::classic::{ClassicError, convert};
use weir_filter::insn::*;
use weir_filter::{Frame, Insn, Program, Tag, interpret};
use weir_lab::testbed::{End, Testbed, ifindex, require_root};

use crate::kernel::{Socket, attach_classic};
use crate::{expressions, frames, model, oracle, random, taken_off};

fn takes(program: &Program, wire: &[u8]) -> bool {
    oracle::run(program, wire, wire.len() as u32) > 0
}

/// Compares the model with libpcap: on the frame as it is, and with a tag of each protocol. The model gets the tag
/// beside the bytes, as the kernel has it, and libpcap gets it in the bytes, as on the wire.
#[track_caller]
fn held_to_libpcap(program: &Program, code: &[Insn], bytes: &[u8]) {
    let verdict = |taken: bool| if taken { 1500 } else { 0 };
    let expected = verdict(takes(program, bytes));
    assert_eq!(model::run(code, bytes, None), expected, "{program:?} on {bytes:02x?}");
    let tags = [0x8100, 0x88a8, 0x9100].map(|protocol| Tag { protocol, tci: 0x2064 });
    for tag in tags.into_iter().filter(|_| bytes.len() >= 12) {
        let wire = frames::tagged(bytes, tag);
        let expected = verdict(takes(program, &wire));
        let found = model::run(code, bytes, Some(tag));
        assert_eq!(found, expected, "{tag:?}, {program:?} as {code:?} on {bytes:02x?}");
    }
}

/// Converts the program for sockets, and checks that the model accepts the result.
#[track_caller]
fn converted(program: &Program) -> Vec<Insn> {
    let code = convert(program, 1500).unwrap_or_else(|error| panic!("{program:?}: {error}"));
    assert!(model::is_taken(&code), "{program:?} as {code:?}");
    code
}

#[test]
fn expressions_give_libpcaps_verdict_whether_the_tag_is_beside_the_bytes_or_not() {
    let frames = frames::all();
    for text in expressions::all() {
        let program = oracle::compile(&text);
        let code = converted(&program);
        frames.iter().for_each(|bytes| held_to_libpcap(&program, &code, bytes));
    }
}

#[test]
fn a_missing_protocol_is_that_of_8021q() {
    let bytes: Vec<u8> = (0..60).collect();
    let program = oracle::compile("vlan 100 and ether[12] = 0x81");
    let tag = |protocol| Some(Tag { protocol, tci: 100 });
    let code = converted(&program);
    assert_eq!(model::run(&code, &bytes, tag(0)), 1500);
    assert_eq!(model::run(&code, &bytes, tag(0x88a8)), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_give_libpcaps_verdict_as_classic_programs(
        program in random::sparing(),
        bytes in random::bytes(),
    ) {
        held_to_libpcap(&program, &converted(&program), &bytes);
    }

    /// The kernel refuses to load words that were not written.
    #[test]
    fn scratch_memory_begins_as_zero(program in random::sparing(), bytes in random::bytes()) {
        // Without the 15 stores at its beginning, which only libpcap needs: it does not clear its scratch memory.
        let rest = &program.insns()[15..];
        let program = Program::new(rest).expect("the end of one");
        let code = converted(&program);
        let tags = [None, Some(Tag { protocol: 0x88a8, tci: 0x2064 })];
        for tag in tags.into_iter().filter(|tag| tag.is_none() || bytes.len() >= 12) {
            let frame = Frame { bytes: &bytes, wire_len: bytes.len() as u32, tag };
            let expected = interpret::run(&program, &frame) > 0;
            prop_assert_eq!(model::run(&code, &bytes, tag) > 0, expected, "{:?}", program);
        }
        let refused = Socket::classic(&code).err().filter(|error| !is_too_long(error, &code));
        prop_assert!(refused.is_none(), "{:?}: {:?} as {:?}", refused, program, code);
    }

    /// These programs use all words of scratch memory. The conversion succeeds if it needs none for itself.
    #[test]
    fn random_programs_that_use_all_words_do_so_or_are_refused(
        program in random::program(),
        bytes in random::bytes(),
    ) {
        match convert(&program, 1500) {
            Ok(_) => held_to_libpcap(&program, &converted(&program), &bytes),
            Err(error) => prop_assert_eq!(error, ClassicError::NoWord),
        }
    }
}

/// Every load, at every offset near the tag.
#[test]
fn loads_around_the_tag_see_the_wire() {
    let bytes: Vec<u8> = (0x40..0x60).collect();
    let rest = [Insn::new(STX, 1), Insn::new(TAX, 0), Insn::new(LD_MEM, 1)];
    for k in 0..24 {
        for code in [LD_W_ABS, LD_H_ABS, LD_B_ABS, LDX_MSH, LD_W_IND, LD_H_IND, LD_B_IND] {
            for index in if code & 0xe0 == 0x40 { 0..20 } else { 0..1 } {
                for len in 12..=bytes.len() {
                    // The loaded value and the registers after it, all combined in A.
                    let mut insns = vec![
                        Insn::new(LD_IMM, 0x77),
                        Insn::new(LDX_IMM, index),
                        Insn::new(code, k),
                    ];
                    insns.extend(rest);
                    insns.extend([Insn::new(ALU | MUL, 251), Insn::new(ALU | XOR | X, 0)]);
                    let ends = [0x8100, 0x2064].map(|odd| {
                        let end = [
                            Insn::jump(JMP | JGT, odd, 0, 1),
                            Insn::new(RET_K, 1),
                            Insn::new(RET_K, 0),
                        ];
                        Program::new([&insns[..], &end].concat()).expect("valid")
                    });
                    for program in ends {
                        held_to_libpcap(&program, &converted(&program), &bytes[..len]);
                    }
                }
            }
        }
    }
}

/// On older kernels a socket has 20 KiB for its filter (net.core.optmem_max), as eBPF: some 2,000 instructions.
fn is_too_long(error: &io::Error, code: &[Insn]) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM) && code.len() > 100
}

#[test]
fn the_kernel_gives_libpcaps_verdict_by_classic_programs() {
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| !frame.is_empty()).collect();
    let texts = expressions::all().into_iter().map(|text| oracle::compile(&text));
    let (mut compared, mut too_long) = (0, 0);
    for program in texts.chain(random::some(&random::sparing(), 150)) {
        let code = convert(&program, u32::MAX).expect("it has a word to spare");
        let socket = match Socket::classic(&code) {
            Err(error) if is_too_long(&error, &code) => {
                too_long += 1;
                continue;
            }
            socket => socket.unwrap_or_else(|error| panic!("{code:?}: {error}")),
        };
        for bytes in &frames {
            let whole = bytes.len() as u32;
            let expected = if takes(&program, bytes) { whole } else { 0 };
            assert_eq!(socket.run(bytes), expected, "{program:?} on {bytes:02x?}");
        }
        compared += 1;
    }
    // Sockets of Linux 6.1 have 20 KiB for filters.
    assert!(compared > 10 * too_long, "{compared} compared, {too_long} too long here");
}

/// A conditional jump of classic BPF skips at most 255 instructions. Both branches of the jump here skip nearly as
/// many, and in the converted program more.
#[test]
fn long_jumps_arrive() {
    let mut insns = vec![
        Insn::new(LD_B_ABS, 0),
        Insn::jump(JMP | JEQ, 7, 1, 0),
        Insn::jump(JMP | JEQ, 2, 251, 252),
    ];
    insns.extend([Insn::new(LD_W_ABS, 14); 250]);
    insns.extend([Insn::new(RET_A, 0), Insn::new(RET_K, 0), Insn::new(RET_K, 9)]);
    let program = Program::new(insns).expect("valid");
    let code = converted(&program);
    for first in [2, 3, 7] {
        let mut bytes = [1; 60];
        bytes[0] = first;
        assert_eq!(takes(&program, &bytes), first != 2);
        held_to_libpcap(&program, &code, &bytes);
        held_to_libpcap(&program, &code, &bytes[..14]);
    }
}

#[test]
fn the_kernel_takes_long_programs() {
    let optmem = std::fs::read_to_string("/proc/sys/net/core/optmem_max").expect("a limit");
    // At least 128 KiB. On older kernels the limit is 20 KiB.
    let has_room = optmem.trim().parse::<u32>().expect("a number") >= 128 << 10;
    let hosts: Vec<_> =
        (0..if has_room { 120 } else { 20 }).map(|n| format!("host 10.0.{n}.1")).collect();
    let program = oracle::compile(&hosts.join(" or "));
    let code = converted(&program);
    assert!(code.len() > 6 * hosts.len(), "{} instructions", code.len());
    let socket = Socket::classic(&code).expect("the kernel takes it");
    for bytes in frames::all().iter().filter(|frame| !frame.is_empty()) {
        held_to_libpcap(&program, &code, bytes);
        let expected = if takes(&program, bytes) { bytes.len().min(1500) } else { 0 };
        assert_eq!(socket.run(bytes) as usize, expected, "{bytes:02x?}");
    }
}

/// A packet socket in the calling thread's namespace, which receives the frames of this interface.
fn packet_socket(iface: &str) -> OwnedFd {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointers are passed; a descriptor or -1 comes back.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let bytes: libc::c_int = 32 << 20;
    // SAFETY: `sockaddr_ll` is plain integers; all zeroes is a value of it.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex(iface).expect("it is there") as i32;
    // SAFETY: the values live through the calls, with their true sizes.
    let results = unsafe {
        [
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const bytes).cast(),
                4,
            ),
            libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32),
        ]
    };
    assert_eq!(results, [0, 0], "{}", io::Error::last_os_error());
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes live through the call, with their true length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize, "{}", io::Error::last_os_error());
}

/// Returns a frame that has arrived, or `None`.
fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 16_384];
    // SAFETY: the kernel writes at most `bytes.len()` bytes.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
    };
    bytes.truncate(usize::try_from(got).ok()?);
    Some(bytes)
}

/// A sender, and two sockets that receive the same frames.
struct Link<'a> {
    from: &'a End,
    sender: OwnedFd,
    /// Has no filter, and so receives all frames.
    witness: OwnedFd,
    /// Receives each frame before the witness, because the kernel serves the newest socket first.
    judge: OwnedFd,
}

/// Marks the end of the sent frames. Nothing else sends this EtherType, which is for experiments.
const LAST: [u8; 60] = {
    let mut frame = [0xee; 60];
    (frame[0], frame[12], frame[13]) = (2, 0x88, 0xb6);
    frame
};

impl<'a> Link<'a> {
    fn new(bed: &'a Testbed) -> Link<'a> {
        let sender = bed.tx.run(|| packet_socket(&bed.tx.iface)).expect("a namespace");
        // Its filter rejects all frames, because nobody reads from it.
        attach_classic(sender.as_fd(), &[Insn::new(RET_K, 0)]).expect("a filter");
        let socket = || bed.rx.run(|| packet_socket(&bed.rx.iface)).expect("a namespace");
        let witness = socket();
        Link { from: &bed.tx, sender, witness, judge: socket() }
    }

    /// Sends `frames`. Returns the frames that each socket has received: those of the witness, then those of the
    /// judge.
    fn pass(&self, frames: &[Vec<u8>]) -> [HashSet<Vec<u8>>; 2] {
        frames.iter().for_each(|frame| send(&self.sender, frame));
        send(&self.sender, &LAST);
        let (start, mut seen) = (Instant::now(), HashSet::new());
        while !seen.contains(&LAST[..]) {
            assert!(start.elapsed() < Duration::from_secs(10), "nothing of {}", self.from.iface);
            seen.extend(receive(&self.witness));
        }
        [seen, std::iter::from_fn(|| receive(&self.judge)).collect()]
    }
}

#[test]
fn root_classic_programs_see_the_tag_that_the_kernel_took_off() {
    if !require_root("root_classic_programs_see_the_tag_that_the_kernel_took_off") {
        return;
    }
    let bed = Testbed::builder().mtu(9000).build().expect("a testbed");
    let link = Link::new(&bed);
    let texts = expressions::all().into_iter().map(|text| oracle::compile(&text));
    let programs: Vec<_> = texts.chain(random::some(&random::sparing(), 150)).collect();
    let plain: Vec<_> =
        frames::all().into_iter().filter(|frame| (20..9000).contains(&frame.len())).collect();
    let (mut taken, mut rejected) = (0, 0);
    for tag in [(0x8100, 0x2064), (0x88a8, 100)].map(|(protocol, tci)| Tag { protocol, tci }) {
        let wire: Vec<_> = plain.iter().map(|frame| frames::tagged(frame, tag)).collect();
        for program in &programs {
            let code = convert(program, u32::MAX).expect("it has a word to spare");
            match attach_classic(link.judge.as_fd(), &code) {
                // The socket keeps its old filter until then, and both count towards the limit.
                Err(error) if is_too_long(&error, &code) => continue,
                attached => attached.unwrap_or_else(|error| panic!("{code:?}: {error}")),
            }
            let [seen, chosen] = link.pass(&wire);
            for frame in &wire {
                // The kernel delivers every frame without its tag in the bytes.
                let (off, _) = taken_off(frame);
                assert!(seen.contains(&off), "{frame:02x?} did not come, or not so");
                let expected = takes(program, frame);
                assert_eq!(
                    chosen.contains(&off),
                    expected,
                    "{program:?} as {code:?} on {frame:02x?}"
                );
                if expected { taken += 1 } else { rejected += 1 }
            }
        }
    }
    assert!(taken > 10_000 && rejected > 10_000, "{taken} taken, {rejected} rejected");
}
