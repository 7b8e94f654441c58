//! `weir attach`: interfaces that unmodified tools read, and behind which no network stack answers.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::{End, RX_IPV4};

use common::docker::Docker;
use common::frames::{Sender, arp, assortment, ipv4};
use common::libpcap::{self, Tools, reader};
use common::tools::{Got, bytes_of, pcap, read, tool};
use common::{
    Run, bed, closes, folder, generate, number, path, program, ready, settle, sh, weir, within,
};

/// The name of the interface that the tests create.
const NAME: &str = "weir0";

/// Starts `weir attach` in the end's network namespace, for the end's interface; it takes frames from now on.
fn attach(end: &End, args: &str) -> Run {
    attach_source(end, &end.iface, args)
}

fn attach_source(end: &End, source: &str, args: &str) -> Run {
    attach_by(end, source, weir(&format!("attach {source} --json {args}")))
}

fn attach_by(end: &End, source: &str, command: std::process::Command) -> Run {
    let mut run = Run::start(end, command);
    let line = format!("weir: {source}: ");
    run.wait_for("that it captures", |run| run.stderr().contains(&line));
    run
}

/// Starts tcpdump on an interface; it writes a file, and sees frames from now on.
fn tcpdump(end: &End, iface: &str, file: &str) -> Run {
    let nano = "--time-stamp-precision=nano";
    let mut run =
        Run::start(end, program(&format!("tcpdump -Z root -i {iface} -B 65536 {nano} -w {file}")));
    run.wait_for("that it listens", |run| run.stderr().contains("listening on"));
    run
}

/// Ends tcpdump, and returns the frames that it has written. Asserts that it lost none.
#[track_caller]
fn frames_of(run: Run, file: &Path) -> Vec<Vec<u8>> {
    // The kernel delivers the frames of a block that is not full only after a second.
    thread::sleep(std::time::Duration::from_secs(2));
    let ended = run.stop();
    assert!(ended.stderr.contains("\n0 packets dropped by kernel"), "{}", ended.stderr);
    pcap(file).into_iter().map(|(_, _, data)| data).collect()
}

/// The counts of the interface. Asserts that they agree with those of the capture.
#[track_caller]
fn netdev(json: &Value) -> &Value {
    closes(json);
    assert_eq!(number(&json["drops"], "netdev"), number(&json["netdev"], "refused"), "{json}");
    &json["netdev"]
}

fn has_interface(end: &End, name: &str) -> bool {
    sh(end, "ip -o link show").contains(&format!(": {name}: "))
}

/// Frames of every kind, and with lengths around those at which Weir feeds the interface in another way.
fn many_frames() -> Vec<Vec<u8>> {
    let mut frames = assortment();
    frames.extend([14, 15, 3295, 3296, 3297, 4000, 8999].map(|bytes| match bytes {
        14 | 15 => common::frames::ethernet(0x88b5, &[], bytes),
        _ => ipv4(bytes),
    }));
    frames
}

/// Captures these frames, sent `times` times, to a file; returns the frames in it.
fn file_of(bed: &Testbed, frames: &[Vec<u8>], times: usize, name: &str) -> Vec<Got> {
    let capture = Run::capture(&bed.rx, &format!("--json --write {name}"));
    let sender = Sender::new(&bed.tx);
    for _ in 0..times {
        frames.iter().for_each(|frame| sender.send(frame));
    }
    settle();
    closes(&capture.stop().expect(0).json());
    let got = read(Path::new(name)).1;
    assert_eq!(got.len(), frames.len() * times);
    got
}

#[test]
fn root_tcpdump_sees_every_frame_of_a_file_with_its_bytes_in_order() {
    let test = "root_tcpdump_sees_every_frame_of_a_file_with_its_bytes_in_order";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = Testbed::builder().mtu(9000).build().unwrap();
    let dir = folder();
    let (_, name) = path(&dir, "source.pcapng");
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let wanted = file_of(&bed, &many_frames(), 100, &name);
    let args = format!("attach file:{name} --netdev {NAME} --wait-for-reader --json");
    let mut run = Run::start(&bed.rx, weir(&args));
    run.wait_for("that it waits", |run| run.stderr().contains("waiting for a packet socket"));
    let reader = tcpdump(&bed.rx, NAME, &seen_name);
    let json = run.end().expect(0).json();
    assert!(reader.end().stderr.contains("\n0 packets dropped by kernel"));
    let frames: Vec<_> = pcap(&seen).into_iter().map(|(_, _, data)| data).collect();
    assert!(frames == bytes_of(&wanted), "{} of {} frames", frames.len(), wanted.len());
    assert_eq!(number(netdev(&json), "received"), wanted.len() as u64, "{json}");
    assert_eq!(number(&json, "delivered"), wanted.len() as u64, "{json}");
    assert_eq!(number(netdev(&json), "sent_into"), 0, "{json}");
    assert!(!has_interface(&bed.rx, NAME));
}

#[test]
fn root_tcpdump_on_the_interface_sees_what_a_capture_of_the_same_link_has() {
    let test = "root_tcpdump_on_the_interface_sees_what_a_capture_of_the_same_link_has";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = bed();
    let dir = folder();
    let (written, written_name) = path(&dir, "written.pcapng");
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let capture = Run::capture(&bed.rx, &format!("--json --write {written_name}"));
    let run = attach(&bed.rx, &format!("--netdev {NAME} --filter udp"));
    let reader = tcpdump(&bed.rx, NAME, &seen_name);
    let sender = Sender::new(&bed.tx);
    // First one by one, so that each frame is fed alone, and then many at a time.
    for frame in assortment() {
        sender.send(&frame);
    }
    generate(&bed.tx, "--frames 20000 --rate 200kpps --size 64 --flows 100");
    settle();
    let frames = frames_of(reader, &seen);
    let json = run.stop().expect(0).json();
    closes(&capture.stop().expect(0).json());
    let is_udp = |frame: &[u8]| tool_udp(frame);
    let wanted = bytes_of(&read(&written).1).into_iter().filter(|frame| is_udp(frame));
    let wanted: Vec<_> = wanted.collect();
    assert!(wanted.len() > 20_000 && frames == wanted, "{} of {}", frames.len(), wanted.len());
    assert_eq!(number(netdev(&json), "received"), wanted.len() as u64, "{json}");
    assert_eq!(number(&json, "lapped"), 0, "{json}");
}

#[test]
fn root_every_tool_on_the_interface_sees_every_frame_of_a_capture() {
    let test = "root_every_tool_on_the_interface_sees_every_frame_of_a_capture";
    let Some(_alone) = ready(test, &[&libpcap::NAMES[..], &["cc"]].concat()) else { return };
    let bed = bed();
    let dir = folder();
    let (written, written_name) = path(&dir, "written.pcapng");
    let sent = assortment();
    let generated = 5000;
    let frames = sent.len() + generated;
    let capture = Run::capture(&bed.rx, &format!("--frames {frames} --write {written_name}"));
    let run = attach(&bed.rx, &format!("--netdev {NAME}"));
    let start = |line: &[&str]| {
        let mut command = program(line[0]);
        command.args(&line[1..]);
        Run::start(&bed.rx, command)
    };
    let tools = Tools::start(&dir, NAME, frames, "", start);
    let ways = ["loop", "dispatch", "select", "epoll", "next", "next_ex", "fork", "setuid"];
    let open = PermissionsExt::from_mode(0o777);
    fs::set_permissions(dir.path(), open).expect("permissions");
    let readers = ways.map(|way| {
        let (file, name) = path(&dir, &format!("{way}.pcap"));
        let mut run = start(&[reader(), NAME, &name, way, &frames.to_string()]);
        run.wait_for("that it reads", |run| run.stderr().contains("reader: reads"));
        (way, file, run)
    });
    let sender = Sender::new(&bed.tx);
    sent.iter().for_each(|frame| sender.send(frame));
    generate(&bed.tx, &format!("--frames {generated} --rate 50kpps --flows 100"));
    capture.end().expect(0);
    let wanted = libpcap::frames(&written);
    assert_eq!(wanted.len(), frames);
    for file in tools.end(frames) {
        assert!(libpcap::frames(&file) == wanted, "{}", file.display());
    }
    for (way, file, reader) in readers {
        // The numbers of frames received, dropped by the socket, and dropped by the interface; then the number of
        // frames that the reader has seen.
        let told = reader.end().expect(0).text();
        assert_eq!(told, format!("{frames} 0 0\n{frames}\n"), "{way}");
        assert!(libpcap::frames(&file) == wanted, "{way}");
    }
    let json = run.stop().expect(0).json();
    assert_eq!(number(netdev(&json), "received"), frames as u64, "{json}");
}

#[test]
fn root_frames_that_other_cpus_receive_are_counted_as_received() {
    let test = "root_frames_that_other_cpus_receive_are_counted_as_received";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = bed();
    let dir = folder();
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let run = attach(&bed.rx, &format!("--netdev {NAME}"));
    // RPS distributes flows over CPUs 0 and 1. /sys shows the interfaces of the network namespace that mounts it.
    let steer = format!("echo 3 >/sys/class/net/{NAME}/queues/rx-0/rps_cpus");
    sh(&bed.rx, &format!("unshare --mount sh -c 'mount -t sysfs sysfs /sys && {steer}'"));
    let reader = tcpdump(&bed.rx, NAME, &seen_name);
    generate(&bed.tx, "--frames 30000 --rate 100kpps --size 64 --flows 100");
    settle();
    // These frames are fed one by one.
    let sender = Sender::new(&bed.tx);
    assortment().iter().for_each(|frame| sender.send(frame));
    settle();
    let seen = frames_of(reader, &seen).len() as u64;
    let json = run.stop().expect(0).json();
    // A CPU whose backlog is full drops frames, which tcpdump then does not see.
    assert_eq!(number(netdev(&json), "received"), seen, "{json}");
    let all = 30_000 + assortment().len() as u64;
    assert_eq!(number(&json, "delivered") + number(&json["netdev"], "refused"), all, "{json}");
    assert!(seen > all / 2, "{json}");
}

/// Whether libpcap's filter `udp` accepts a frame: it does not look behind VLAN tags.
fn tool_udp(frame: &[u8]) -> bool {
    match frame[12..14] {
        [8, 0] => frame[23] == 17,
        [0x86, 0xdd] => frame[20] == 17,
        _ => false,
    }
}

/// IP packets that the end's stack has received.
fn received_by_stack(end: &End) -> u64 {
    let text = sh(end, "cat /proc/net/snmp");
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let value = pairs.find(|(name, _)| *name == "InReceives").expect("a counter").1;
    value.parse().expect("a number")
}

/// A TCP SYN for a port of `192.0.2.2`, which `arp` asks for.
fn syn() -> Vec<u8> {
    let mut frame = ipv4(60);
    frame[23] = 6;
    frame[24..26].fill(0);
    let sum: u32 =
        frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..54]
        .copy_from_slice(&[4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn root_no_stack_answers_behind_the_interface() {
    let test = "root_no_stack_answers_behind_the_interface";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    // The second bed has addresses; the interface is in its receiver's network namespace.
    let (bed, behind) = (bed(), Testbed::builder().addresses(true).build().unwrap());
    let dir = folder();
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let into = format!("netns:{}", behind.rx.netns);
    let run = attach(&bed.rx, &format!("--netdev {NAME} --into {into}"));
    assert!(!has_interface(&bed.rx, NAME), "it is in the other namespace");
    sh(&behind.rx, &format!("ip addr add 192.0.2.2/24 dev {NAME}"));
    let link = sh(&behind.rx, &format!("ip -o link show {NAME}"));
    let mac = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    let mac = mac.expect("an address").split(':');
    let mac: Vec<u8> = mac.map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    let reader = tcpdump(&behind.rx, NAME, &seen_name);
    let before = received_by_stack(&behind.rx);
    let sender = Sender::new(&bed.tx);
    let mut wanted = Vec::new();
    for number in 0..60 {
        let mut frame = if number % 2 == 0 { arp() } else { syn() };
        // Some frames are sent to the interface's own address, the others to the broadcast address.
        frame[..6].copy_from_slice(if number % 3 == 0 { &[0xff; 6] } else { &mac });
        sender.send(&frame);
        wanted.push(frame);
    }
    settle();
    let frames = frames_of(reader, &seen);
    let json = run.stop().expect(0).json();
    assert!(frames == wanted, "an answer, or a frame less: {} frames", frames.len());
    assert_eq!(number(netdev(&json), "sent_into"), 0, "an answer was sent: {json}");
    assert_eq!(json["netdev"]["name"], format!("{into}/{NAME}"), "{json}");
    assert_eq!(received_by_stack(&behind.rx), before);
    // The counter would have shown such packets: it counts one that the stack receives on another interface.
    let mut frame = syn();
    frame[..6].fill(0xff);
    Sender::new(&behind.tx).send(&frame);
    settle();
    assert_eq!(received_by_stack(&behind.rx), before + 1);
}

#[test]
fn root_what_is_sent_into_the_interface_is_counted_and_reaches_nobody() {
    let test = "root_what_is_sent_into_the_interface_is_counted_and_reaches_nobody";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = bed();
    let dir = folder();
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let run = attach(&bed.rx, &format!("--netdev {NAME}"));
    sh(&bed.rx, &format!("ip addr add 192.0.2.2/24 dev {NAME}"));
    let reader = tcpdump(&bed.rx, NAME, &seen_name);
    within(&bed.rx, || {
        let socket = UdpSocket::bind("192.0.2.2:0").expect("a socket");
        for _ in 0..25 {
            socket.send_to(b"weir", "192.0.2.77:9").expect("it is sent");
        }
    });
    // Frames that bypass TC, and more than the 1000 that a tap queues for its reader.
    let link = sh(&bed.rx, &format!("ip -o link show {NAME}"));
    let ifindex = link.split(':').next().and_then(|number| number.parse().ok());
    let around = Sender::bypassing(&End { ifindex: ifindex.expect("a number"), ..bed.rx.clone() });
    for _ in 0..1200 {
        let error = around.try_send(&ipv4(60)).expect_err("nobody takes it");
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
    }
    settle();
    assert!(frames_of(reader, &seen).is_empty());
    let json = run.stop().expect(0).json();
    assert_eq!(number(netdev(&json), "sent_into"), 25 + 1200, "{json}");
    assert_eq!(number(&json, "offered"), 0, "{json}");
}

const BYTES: usize = 8 << 20;

/// Sends `BYTES` of a pattern over TCP.
fn transfer(bed: &Testbed) {
    let listener = within(&bed.rx, || TcpListener::bind((RX_IPV4, 7777)).expect("a free port"));
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().expect("a caller").0.read_to_end(&mut got).expect("all of it");
        got.len()
    });
    let mut stream = within(&bed.tx, || TcpStream::connect((RX_IPV4, 7777)).expect("a listener"));
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    stream.write_all(&pattern).expect("all of it");
    stream.shutdown(Shutdown::Write).expect("a tidy end");
    assert_eq!(reader.join().expect("the reader"), BYTES);
}

/// The number of bytes of the stream that are in these frames, by sequence number.
fn stream_bytes(frames: &[Vec<u8>]) -> usize {
    let (mut is_there, mut first) = (vec![false; BYTES], None);
    for frame in frames.iter().filter(|frame| frame[12..14] == [8, 0]) {
        let ip = &frame[14..];
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let tcp = &ip[20..total];
        let seq = u32::from_be_bytes(*tcp[4..].first_chunk().unwrap());
        let first = *first.get_or_insert(seq.wrapping_add(1));
        for (offset, byte) in tcp[usize::from(tcp[12] >> 4) * 4..].iter().enumerate() {
            let at = seq.wrapping_sub(first) as usize + offset;
            assert_eq!(*byte, (at ^ at >> 8 ^ at >> 16) as u8, "at {at}");
            is_there[at] = true;
        }
    }
    is_there.iter().filter(|is_there| **is_there).count()
}

/// The begin and end, in the stream, of each run of frames whose payloads follow each other, in order of arrival. A
/// sender on several CPUs reorders frames at times, and the interface must keep that order.
fn places(frames: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for frame in frames.iter().filter(|frame| frame[12..14] == [8, 0]) {
        let ip = &frame[14..];
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let tcp = &ip[20..total];
        let payload = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        let seq = u32::from_be_bytes(*tcp[4..].first_chunk().unwrap());
        match runs.last_mut() {
            _ if payload == 0 => {}
            Some((_, end)) if *end == seq => *end = seq.wrapping_add(payload as u32),
            _ => runs.push((seq, seq.wrapping_add(payload as u32))),
        }
    }
    runs
}

#[test]
fn root_super_frames_are_kept_or_segmented_as_asked() {
    let test = "root_super_frames_are_kept_or_segmented_as_asked";
    let Some(_alone) = ready(test, &["tcpdump", "tshark", "ethtool"]) else { return };
    let bed = Testbed::builder().gro(true).addresses(true).build().unwrap();
    // The sender computes checksums itself, so they are in the frames, and the receiver's GRO merges frames.
    sh(&bed.tx, &format!("ethtool -K {} tx off", bed.tx.iface));
    let dir = folder();
    let (written, written_name) = path(&dir, "written.pcapng");
    let (kept, kept_name) = path(&dir, "kept.pcap");
    let (cut, cut_name) = path(&dir, "segments.pcap");
    let capture = Run::capture(&bed.rx, &format!("--direction in --json --write {written_name}"));
    let keep = attach(&bed.rx, "--direction in --netdev weir0");
    let segment =
        attach(&bed.rx, "--direction in --netdev weir1 --super-frames segment --mtu 1400");
    let readers = (tcpdump(&bed.rx, "weir0", &kept_name), tcpdump(&bed.rx, "weir1", &cut_name));
    transfer(&bed);
    settle();
    let (whole, segments) = (frames_of(readers.0, &kept), frames_of(readers.1, &cut));
    let [keep, segment] = [keep, segment].map(|run| run.stop().expect(0).json());
    closes(&capture.stop().expect(0).json());
    let wanted = bytes_of(&read(&written).1);
    assert!(whole == wanted, "{} of {} frames", whole.len(), wanted.len());
    let long = wanted.iter().filter(|frame| frame.len() > 1514).count();
    assert!(long > 0, "no super-frame in {BYTES} bytes");
    assert_eq!(number(netdev(&keep), "segmented"), 0, "{keep}");
    let above = wanted.iter().filter(|frame| frame.len() > 1414).count();
    let counts = netdev(&segment);
    assert_eq!(number(counts, "segmented"), above as u64, "{segment}");
    assert_eq!(number(counts, "unsegmented"), 0, "{segment}");
    assert_eq!(number(counts, "received"), segments.len() as u64, "{segment}");
    assert_eq!(number(&segment, "delivered"), wanted.len() as u64, "{segment}");
    assert!(segments.iter().all(|frame| frame.len() <= 1414));
    assert_eq!((stream_bytes(&whole), stream_bytes(&segments)), (BYTES, BYTES));
    let check = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    let wrong = "tcp.checksum.status != 1 or ip.checksum.status != 1";
    let listed = tool("tshark", &[&["-r", &cut_name], &check[..], &["-Y", wrong]].concat());
    assert_eq!(listed, "", "tshark finds wrong checksums");
    assert_eq!(tool("tshark", &["-r", &cut_name, "-Y", "_ws.malformed"]), "");
    assert!(places(&segments) == places(&wanted), "segments stand in the order of their frames");
}

#[test]
fn root_the_interface_is_gone_however_the_command_ends() {
    let test = "root_the_interface_is_gone_however_the_command_ends";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut run = attach(&bed.rx, &format!("--netdev {NAME}"));
        assert!(has_interface(&bed.rx, NAME));
        run.signal(signal);
        let code = run.end().code;
        assert_eq!(code, (signal != libc::SIGKILL).then_some(0));
        assert!(!has_interface(&bed.rx, NAME), "signal {signal}");
    }
    let run = attach(&bed.rx, &format!("--netdev {NAME} --duration 300ms"));
    netdev(&run.end().expect(0).json());
    assert!(!has_interface(&bed.rx, NAME));
}

#[test]
fn root_an_interface_that_exists_is_left_alone() {
    let test = "root_an_interface_that_exists_is_left_alone";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let refused = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, weir(&format!("attach {args}"))).end().refused(words);
    };
    let first = attach(&bed.rx, &format!("--netdev {NAME}"));
    let before = sh(&bed.rx, "ip -d link show");
    refused(&format!("wrx0 --netdev {NAME}"), &[NAME, "exists", "--netdev"]);
    refused("file:/dev/null --netdev wrx0", &["/dev/null"]);
    refused("gen: --netdev wrx0", &["wrx0", "exists"]);
    refused("wrx0 --netdev wrx0", &["for ever"]);
    refused(&format!("gen: --netdev {NAME} --into netns:weir-none"), &["weir-none"]);
    assert_eq!(sh(&bed.rx, "ip -d link show"), before);
    first.stop().expect(0);
    for bad in ["a/b", "sixteen-bytes-xy"] {
        let ended =
            Run::start(&bed.rx, weir(&format!("attach gen: --netdev {bad}"))).end().expect(2);
        assert!(ended.stderr.contains("cannot be the name of an interface"), "{}", ended.stderr);
    }
}

#[test]
fn root_frames_that_the_interface_does_not_take_are_named() {
    let test = "root_frames_that_the_interface_does_not_take_are_named";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let run = attach(&bed.rx, &format!("--netdev {NAME} --fail-on-loss"));
    generate(&bed.tx, "--frames 3000 --rate 100kpps --size 64");
    // The interface does not count what it is fed in this way, so nothing tells when the last frame is there.
    thread::sleep(std::time::Duration::from_secs(1));
    sh(&bed.rx, &format!("ip link set {NAME} down"));
    let sender = Sender::new(&bed.tx);
    (0..7).for_each(|_| sender.send(&ipv4(60)));
    settle();
    generate(&bed.tx, "--frames 5000 --rate 100kpps --size 64");
    settle();
    let ended = run.stop().expect(1);
    let json = ended.json();
    assert_eq!(number(netdev(&json), "refused"), 5007, "{json}");
    assert_eq!(number(&json, "delivered"), 3000, "{json}");
    // Somebody removes the interface: this is an error, and later frames are counted as lost, by name.
    let run = attach(&bed.rx, &format!("--netdev {NAME}"));
    sh(&bed.rx, &format!("ip link del {NAME}"));
    generate(&bed.tx, "--frames 1000 --rate 100kpps --size 64");
    let ended = run.end().expect(2);
    assert!(ended.stderr.contains("weir0 was removed"), "{}", ended.stderr);
    netdev(&ended.json());
}

#[test]
fn root_frames_that_were_cut_are_fed_so_and_counted() {
    let test = "root_frames_that_were_cut_are_fed_so_and_counted";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = bed();
    let dir = folder();
    let (seen, seen_name) = path(&dir, "seen.pcap");
    let run = attach(&bed.rx, &format!("--netdev {NAME} --snaplen 96 --super-frames segment"));
    let reader = tcpdump(&bed.rx, NAME, &seen_name);
    let sender = Sender::new(&bed.tx);
    let sent = [60, 96, 97, 1514].map(ipv4);
    sent.iter().for_each(|frame| sender.send(frame));
    settle();
    let frames = frames_of(reader, &seen);
    let json = run.stop().expect(0).json();
    let wanted: Vec<_> = sent.iter().map(|frame| frame[..frame.len().min(96)].to_vec()).collect();
    assert_eq!(frames, wanted);
    assert_eq!(number(netdev(&json), "cut"), 2, "{json}");
}

#[test]
fn root_frames_that_are_no_ethernet_are_refused() {
    let test = "root_frames_that_are_no_ethernet_are_refused";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "raw.pcap");
    // Version 2.4, LINKTYPE_RAW, no frames.
    let words: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 101];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(file, bytes).expect("a file");
    let run = Run::start(&bed.rx, weir(&format!("attach file:{name} --netdev {NAME}")));
    run.end().refused(&["link type 101", "Ethernet"]);
    assert!(!has_interface(&bed.rx, NAME));
}

/// Starts a daemon that captures the receiving end for root. Also returns the folder of its socket.
fn daemon(bed: &Testbed) -> (TempDir, Run) {
    let dir = folder();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    let at = dir.path().display();
    let text = "[sources.lan]\nsource = \"wrx0\"\nusers = [0]\nring_mib = 16\n";
    fs::write(dir.path().join("weir.toml"), text).expect("a file");
    let line = format!("serve --config {at}/weir.toml --socket {at}/weir.sock");
    let mut daemon = Run::start(&bed.rx, weir(&line));
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    (dir, daemon)
}

#[test]
fn root_a_daemons_frames_are_fed_with_two_capabilities() {
    let test = "root_a_daemons_frames_are_fed_with_two_capabilities";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let (bed, elsewhere) = (bed(), bed());
    let (dir, daemon) = daemon(&bed);
    let with = |rights: &str| {
        let mut command = program(&format!("setpriv --bounding-set=-all{rights} --"));
        command.arg(env!("CARGO_BIN_EXE_weir"));
        let socket = dir.path().join("weir.sock");
        command.args(["attach", "host:lan", "--json", "--netdev", NAME, "--socket"]).arg(socket);
        command
    };
    let tap = Run::start(&elsewhere.rx, with("")).end();
    tap.refused(&[NAME, "CAP_NET_ADMIN", "--cap-add"]);
    let programs = Run::start(&elsewhere.rx, with(",+net_admin")).end();
    programs.refused(&[NAME, "CAP_BPF", "--cap-add"]);
    let run = attach_by(&elsewhere.rx, "host:lan", with(",+net_admin,+bpf"));
    let status = fs::read_to_string(format!("/proc/{}/status", run.pid())).expect("a status");
    assert!(status.contains("CapPrm:\t0000000000000000"), "it keeps rights: {status}");
    generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
    settle();
    let json = run.stop().expect(0).json();
    assert_eq!(number(netdev(&json), "received"), 20_000, "{json}");
    assert_eq!(number(&json, "lapped"), 0, "{json}");
    daemon.stop().expect(0);
}

#[test]
fn docker_a_container_with_two_capabilities_has_the_interface() {
    let test = "docker_a_container_with_two_capabilities_has_the_interface";
    let Some(_alone) = ready(test, &[]) else { return };
    let Some(docker) = Docker::start(test) else { return };
    docker.image(Path::new(env!("CARGO_BIN_EXE_weir")), "weir");
    let bed = bed();
    let (dir, daemon) = daemon(&bed);
    let mount = format!("{}:/run/weir", dir.path().display());
    let container = ["run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"];
    // Docker 20.10 does not know CAP_BPF.
    let has_bpf = docker.command(&["create", "--cap-add=BPF", "weir", "/weir"]).output();
    let second = match has_bpf.expect("docker").status.success() {
        true => "--cap-add=BPF",
        false => "--cap-add=SYS_ADMIN",
    };
    let rights =
        ["--cap-add=NET_ADMIN", second, "--device=/dev/net/tun", "--volume", mount.as_str()];
    let attach = ["weir", "/weir", "attach", "host:lan", "--netdev", NAME, "--json"];
    let command = docker.command(&[&container[..], &rights[..], &attach[..]].concat());
    let run = attach_by(&bed.rx, "host:lan", command);
    generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
    settle();
    let json = run.stop().expect(0).json();
    assert_eq!(number(netdev(&json), "received"), 20_000, "{json}");
    daemon.stop().expect(0);
}
