//! TCP with segmentation offloads, and the two directions of a link.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;

use common::frames::{Sender, ipv4};
use common::tools::{Got, all_read, in_time_order, read, tool};
use common::{Run, bed, closes, folder, number, path, ready, settle, sh, weir, within};
use weir_frame::record::Flags;
use weir_lab::Testbed;
use weir_lab::testbed::RX_IPV4;

const TOOLS: [&str; 3] = ["capinfos", "tshark", "tcpdump"];
const BYTES: usize = 8 << 20;

/// Sends `BYTES` of a pattern from one end to the other over TCP.
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

/// Reassembles the TCP payload towards the receiver by sequence number. It equals the bytes that were sent if no frame
/// is missing, cut or shifted.
fn payload(frames: &[&Got]) -> Vec<u8> {
    let mut stream = vec![None; BYTES];
    let mut first = None;
    for frame in frames {
        let ip = &frame.data[14..];
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        // The length is 0 if it exceeds 65535 (BIG TCP).
        let total = if total == 0 { ip.len() } else { total };
        let tcp = &ip[usize::from(ip[0] & 15) * 4..total];
        if u16::from_be_bytes([tcp[2], tcp[3]]) != 7777 {
            continue;
        }
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let syn = tcp[13] & 2 != 0;
        let first = *first.get_or_insert_with(|| {
            assert!(syn, "the first frame of the connection is missing");
            seq.wrapping_add(1)
        });
        let at = seq.wrapping_sub(first) as usize;
        for (offset, byte) in tcp[usize::from(tcp[12] >> 4) * 4..].iter().enumerate() {
            stream[at + offset] = Some(*byte);
        }
    }
    stream.into_iter().map(|byte| byte.expect("every byte of the stream")).collect()
}

#[test]
fn root_super_frames_are_kept_whole_flagged_and_counted() {
    let test = "root_super_frames_are_kept_whole_flagged_and_counted";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = Testbed::builder().gro(true).addresses(true).build().unwrap();
    let dir = folder();
    let (at_tx, tx_name) = path(&dir, "tx.pcapng");
    let (at_rx, rx_name) = path(&dir, "rx.pcapng");
    let runs = [(&bed.tx, &tx_name), (&bed.rx, &rx_name)]
        .map(|(end, name)| Run::capture(end, &format!("--hook tc --json --write {name}")));
    // A second capture of the same frames, with filters on bytes in the headers, on bytes in pages, and on the length.
    let filters = ["tcp dst port 7777", "ip[3000] & 1 != 0", "greater 10000", "tcp[5] & 1 != 0"];
    let mut command = weir(&format!("capture {} --hook tc --json", bed.rx.iface));
    for (at, filter) in filters.iter().enumerate() {
        command.args(["--feed", &format!("f{at}: {filter}")]);
    }
    let filtering = Run::capture_by(&bed.rx, command);
    transfer(&bed);
    settle();
    let filtered = filtering.stop().expect(0).json();
    let files = [(at_tx, Flags::OUTBOUND), (at_rx, Flags::INBOUND)];
    for (run, (file, way)) in runs.into_iter().zip(files) {
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "lapped"), 0, "{json}");
        let (_, frames) = read(&file);
        in_time_order(&frames);
        all_read(&file, &frames);
        let supers = frames.iter().filter(|frame| frame.has(Flags::SUPER_FRAME)).count();
        assert_eq!(supers as u64, number(&json, "super_frames"), "{json}");
        assert!(supers > 0, "no super-frame in {BYTES} bytes: {json}");
        for frame in &frames {
            assert_eq!(frame.wire_len as usize, frame.data.len(), "a frame was cut");
            let longer = frame.wire_len > 1514;
            assert_eq!(frame.has(Flags::SUPER_FRAME), longer, "{} bytes", frame.wire_len);
        }
        println!(
            "{} frames, {supers} of them super-frames, the longest {} B",
            frames.len(),
            frames.iter().map(|frame| frame.wire_len).max().unwrap()
        );
        let there: Vec<&Got> =
            frames.iter().filter(|frame| frame.has(way) && frame.data[12..14] == [8, 0]).collect();
        let expected = (0..BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8);
        assert!(payload(&there).into_iter().eq(expected), "the stream differs");
    }
    for (at, filter) in filters.iter().enumerate() {
        let (wanted, name) = path(&dir, "wanted.pcap");
        tool("tcpdump", &["-Z", "root", "-r", &rx_name, "-w", &name, filter]);
        let wanted = read(&wanted).1.len() as u64;
        assert!(wanted > 0, "'{filter}' takes nothing");
        assert_eq!(number(&filtered["feeds"][at], "captured"), wanted, "'{filter}': {filtered}");
    }
}

#[test]
fn root_loopback_shows_each_packet_once_to_libpcap_and_twice_to_others() {
    let test = "root_loopback_shows_each_packet_once_to_libpcap_and_twice_to_others";
    let Some(_alone) = ready(test, &[]) else { return };
    for (engine, times) in [("pcap", 1), ("af_packet", 2)] {
        let bed = bed();
        sh(&bed.rx, "ip link set lo up");
        let command = weir(&format!("capture lo --engine {engine} --json"));
        let capture = Run::capture_by(&bed.rx, command);
        within(&bed.rx, || {
            let (from, to) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
            let (from, to) = (from.expect("a socket"), to.expect("a socket"));
            for _ in 0..25 {
                from.send_to(b"weir", to.local_addr().unwrap()).expect("it is sent");
            }
        });
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 25 * times, "{engine}: {json}");
        // libpcap counts the duplicates that it discards: they are filtered, not lost.
        assert_eq!(number(&json, "offered") - number(&json, "filtered"), 25 * times, "{json}");
    }
}

#[test]
fn root_a_direction_takes_just_its_frames() {
    let test = "root_a_direction_takes_just_its_frames";
    let Some(_alone) = ready(test, &[]) else { return };
    a_direction_takes_just_its_frames("--engine bpf --hook tc");
}

#[test]
fn root_a_direction_takes_just_its_frames_off_packet_sockets() {
    let test = "root_a_direction_takes_just_its_frames_off_packet_sockets";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine af_packet", "--engine pcap"] {
        a_direction_takes_just_its_frames(engine);
    }
}

fn a_direction_takes_just_its_frames(engine: &str) {
    let bed = bed();
    for (direction, inbound, outbound) in [("in", 30, 0), ("out", 0, 20), ("both", 30, 20)] {
        let dir = folder();
        let (file, name) = path(&dir, "way.pcapng");
        let args = format!("{engine} --direction {direction} --json --write {name}");
        let capture = Run::capture(&bed.rx, &args);
        let (there, back) = (Sender::new(&bed.tx), Sender::new(&bed.rx));
        (0..30).for_each(|_| there.send(&ipv4(60)));
        (0..20).for_each(|_| back.send(&ipv4(61)));
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        let (_, frames) = read(&file);
        // libpcap does not report the direction of a frame.
        if !engine.contains("pcap") {
            let count = |flag| frames.iter().filter(|frame| frame.has(flag)).count();
            assert_eq!(count(Flags::INBOUND), inbound, "{args}");
            assert_eq!(count(Flags::OUTBOUND), outbound, "{args}");
        }
        assert_eq!(frames.len(), inbound + outbound, "{args}");
        assert_eq!(number(&json, "captured"), (inbound + outbound) as u64, "{args}: {json}");
        let sixty = frames.iter().filter(|frame| frame.data.len() == 60).count();
        assert_eq!(sixty, inbound, "{args}: in and out are mixed up");
    }
}

#[test]
fn root_watching_leaves_the_watched_connection_alone() {
    let test = "root_watching_leaves_the_watched_connection_alone";
    let Some(_alone) = ready(test, &["ethtool"]) else { return };
    let bed = Testbed::builder().addresses(true).build().unwrap();
    let features = |bed: &Testbed| common::sh(&bed.tx, "ethtool -k wtx0");
    let before = features(&bed);
    let capture = Run::capture(&bed.rx, "--json");
    assert_eq!(features(&bed), before, "watching changed the offloads of the peer");
    transfer(&bed);
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(json["hook"], "tc", "auto must be passive: {json}");
}
