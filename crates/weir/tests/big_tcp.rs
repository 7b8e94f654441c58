//! BIG TCP: super-frames of more than 64 KiB, as long as the interface takes them.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

use common::tools::{Got, read};
use common::{Run, closes, folder, number, path, ready, settle, sh, within};
use weir_frame::flow::FlowKey;
use weir_frame::headers::FrameView;
use weir_frame::record::Flags;
use weir_lab::Testbed;
use weir_lab::testbed::End;

/// Maximum size of the longest super-frame of BIG TCP: `GSO_MAX_SIZE` in the kernel.
const GSO_MAX_SIZE: u32 = 8 * 65_535;
/// Longest frame of TCP segmentation without BIG TCP.
const SUPER_FRAME_BYTES: u32 = 65_536 + 14;
const BYTES: usize = 16 << 20;
const RX_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const PORT: u16 = 7777;

/// A pair that carries super-frames of BIG TCP over IPv6. The limits are raised at both ends.
fn big_bed() -> Testbed {
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    for (end, address) in [(&bed.tx, "fd77::1/64".to_owned()), (&bed.rx, format!("{RX_IPV6}/64"))] {
        let iface = &end.iface;
        sh(
            end,
            &format!("ip link set {iface} gso_max_size {GSO_MAX_SIZE} gro_max_size {GSO_MAX_SIZE}"),
        );
        sh(end, &format!("echo 0 > /proc/sys/net/ipv6/conf/{iface}/disable_ipv6"));
        sh(end, &format!("ip -6 addr add {address} dev {iface} nodad"));
        // Socket buffers for several super-frames under way.
        for memory in ["tcp_rmem", "tcp_wmem"] {
            sh(end, &format!("echo 4096 16777216 67108864 > /proc/sys/net/ipv4/{memory}"));
        }
    }
    bed
}

fn byte_at(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Sends `BYTES` of a pattern over TCP.
fn transfer(bed: &Testbed) {
    let listener = within(&bed.rx, || TcpListener::bind((RX_IPV6, PORT)).expect("a free port"));
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().expect("a caller").0.read_to_end(&mut got).expect("all of it");
        got.len()
    });
    let mut stream = within(&bed.tx, || TcpStream::connect((RX_IPV6, PORT)).expect("a listener"));
    let pattern: Vec<u8> = (0..BYTES).map(byte_at).collect();
    stream.write_all(&pattern).expect("all of it");
    stream.shutdown(Shutdown::Write).expect("a tidy end");
    assert_eq!(reader.join().expect("the reader"), BYTES);
}

/// Asserts that the TCP payload towards the receiver, ordered by sequence number, is all that was sent.
fn has_whole_stream(frames: &[Got]) {
    let mut is_there = vec![false; BYTES];
    let mut first = None;
    for frame in frames {
        if frame.data[12..14] != [0x86, 0xdd] {
            continue;
        }
        // The IPv6 header is followed by TCP or, in a jumbogram, by the hop-by-hop option with its length. Multicast
        // listener reports have a hop-by-hop option, too, and a checksum in place of TCP's port.
        let ip = &frame.data[14..];
        let tcp = match (ip[6], ip.get(40)) {
            (6, _) => &ip[40..],
            (0, Some(6)) => &ip[48..],
            _ => continue,
        };
        if u16::from_be_bytes([tcp[2], tcp[3]]) != PORT {
            continue;
        }
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let first = *first.get_or_insert(seq.wrapping_add(1));
        let at = seq.wrapping_sub(first) as usize;
        for (offset, byte) in tcp[usize::from(tcp[12] >> 4) * 4..].iter().enumerate() {
            assert_eq!(*byte, byte_at(at + offset), "byte {} of the stream", at + offset);
            is_there[at + offset] = true;
        }
    }
    assert!(is_there.iter().all(|there| *there), "bytes of the stream are missing");
}

fn frames_of_big_tcp_are_whole(engine: &str) {
    let bed = big_bed();
    let dir = folder();
    let args = |end: &End| {
        let (file, name) = path(&dir, &format!("{}.pcapng", end.iface));
        (file, format!("--engine {engine} --ring-size 128MiB --json --write {name}"))
    };
    let runs = [&bed.tx, &bed.rx].map(|end| {
        let (file, args) = args(end);
        (file, Run::capture(end, &args))
    });
    transfer(&bed);
    settle();
    for ((file, run), way) in runs.into_iter().zip([Flags::OUTBOUND, Flags::INBOUND]) {
        let ended = run.stop().expect(0);
        assert!(ended.stderr.contains("--snaplen 262144"), "{}", ended.stderr);
        let json = ended.json();
        closes(&json);
        assert_eq!((number(&json, "lapped"), common::dropped(&json)), (0, 0), "{json}");
        let (_, frames) = read(&file);
        for frame in &frames {
            assert_eq!(frame.wire_len as usize, frame.data.len(), "a frame was cut");
        }
        let there: Vec<Got> = frames.into_iter().filter(|frame| frame.has(way)).collect();
        has_whole_stream(&there);
        let big = there.iter().filter(|frame| frame.wire_len > 69_632);
        let longest = big.clone().max_by_key(|frame| frame.wire_len).expect("a frame of BIG TCP");
        assert!(big.clone().all(|frame| frame.has(Flags::SUPER_FRAME)));
        println!(
            "{engine}: {} frames, {} above 69,632 B, the longest {} B",
            there.len(),
            big.count(),
            longest.wire_len
        );
        assert!(longest.wire_len > SUPER_FRAME_BYTES);
        let key = FlowKey::of(&FrameView::parse(&longest.data)).expect("TCP in IPv6");
        assert_eq!(key.dst_port, PORT, "behind the option of a jumbogram");
    }
}

#[test]
fn root_frames_of_big_tcp_are_whole_at_tc() {
    let Some(_alone) = ready("root_frames_of_big_tcp_are_whole_at_tc", &[]) else { return };
    frames_of_big_tcp_are_whole("bpf --hook tc");
}

#[test]
fn root_frames_of_big_tcp_are_whole_off_packet_sockets() {
    let Some(_alone) = ready("root_frames_of_big_tcp_are_whole_off_packet_sockets", &[]) else {
        return;
    };
    frames_of_big_tcp_are_whole("af_packet");
}
