//! Frames out of a ring, parsed and counted by flow, on one core: `cargo bench -p weir-flow`.
//!
//! `cargo bench -p weir-flow [-- [ROUNDS [RUNS]] [ROWS]]`, on a machine that does nothing else. ROWS is part of a row's
//! name. A ring holds 4 million frames of 60 bytes, some more with IPv6 or a VLAN tag, which a slower walk parses; its
//! reader copies records out as every consumer's does, and the table counts them. Prints the median of the runs, and
//! their spread.

use std::hint::black_box;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_flow::{FlowConfig, FlowTable, Seen};
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::{
    Batch, Clock, Mapping, Poll, Reader, Ring, RingSpec, Start, Writer, WriterKind, memory,
};

/// Frames of a ring.
const FRAMES: u64 = 4 << 20;
/// 92 to 96 bytes a frame, and some room.
const DATA_BLOCKS: u64 = 512;
/// Time between two frames: 10 Gbit/s of the smallest.
const FRAME_NS: u64 = 67;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // as a test: that it builds is enough
    }
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let only =
        std::env::args().skip(1).find(|a| a.parse::<usize>().is_err() && !a.starts_with('-'));
    let (rounds, runs) =
        (numbers.first().copied().unwrap_or(4), numbers.get(1).copied().unwrap_or(5));
    let mut cpus = CpuSet::new();
    cpus.set(1);
    let _ = sched_setaffinity(None, &cpus);
    println!(
        "60 B frames (IPv6 62, VLAN 64), ring to table, {runs} runs of {rounds} x {FRAMES} frames: median [least-most]"
    );
    for (name, headers, flows, biflow) in [
        ("1 flow", Headers::V4, 1, false),
        ("1,000 flows", Headers::V4, 1_000, false),
        ("100,000 flows", Headers::V4, 100_000, false),
        ("1 million flows", Headers::V4, 1_000_000, false),
        ("1 million biflows", Headers::V4, 1_000_000, true),
        ("every frame a new flow", Headers::V4, FRAMES, false),
        ("IPv6, 1 flow", Headers::V6, 1, false),
        ("IPv6, 1 million flows", Headers::V6, 1_000_000, false),
        ("IPv6, every frame a new flow", Headers::V6, FRAMES, false),
        ("VLAN, 1 flow", Headers::Vlan, 1, false),
        ("VLAN, 1 million flows", Headers::Vlan, 1_000_000, false),
        ("VLAN, every frame a new flow", Headers::Vlan, FRAMES, false),
    ] {
        if only.as_ref().is_some_and(|only| !name.contains(&only[..])) {
            continue;
        }
        let ring = ring_of(headers, flows);
        let mut mpps: Vec<f64> = (0..runs).map(|_| run(&ring, flows, biflow, rounds)).collect();
        mpps.sort_by(f64::total_cmp);
        println!("{name:28} {:6.1} Mpps [{:.1}-{:.1}]", mpps[runs / 2], mpps[0], mpps[runs - 1]);
    }
    let ring = ring_of(Headers::V4, 1);
    let mut mpps: Vec<f64> = (0..runs).map(|_| read_only(&ring, rounds)).collect();
    mpps.sort_by(f64::total_cmp);
    println!("{:28} {:6.1} Mpps", "reading alone", mpps[runs / 2]);
}

/// The headers of the frames. All are UDP.
#[derive(Clone, Copy)]
enum Headers {
    V4,
    V6,
    /// IPv4 behind a VLAN tag.
    Vlan,
}

impl Headers {
    /// A frame.
    fn frame(self) -> Vec<u8> {
        const IPV4: [u8; 24] =
            [0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x10, 0x92, 0, 53];
        const IPV6: [u8; 8] = [0x60, 0, 0, 0, 0, 8, 17, 64];
        const ADDRESSES: [u16; 16] =
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1, 0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];
        let mut frame = vec![0; 12];
        match self {
            Headers::V4 => frame.extend([&[8, 0][..], &IPV4].concat()),
            Headers::Vlan => frame.extend([&[0x81, 0, 0, 7, 8, 0][..], &IPV4].concat()),
            Headers::V6 => {
                frame.extend([&[0x86, 0xdd][..], &IPV6].concat());
                frame.extend(ADDRESSES.iter().flat_map(|part| part.to_be_bytes()));
                frame.extend([0x10, 0x92, 0, 53, 0, 8]);
            }
        }
        frame.resize(self.len(), 0);
        frame
    }

    /// Where the source address ends.
    fn source_end(self) -> usize {
        match self {
            Headers::V4 => 30,
            Headers::Vlan => 34,
            Headers::V6 => 38,
        }
    }

    /// The smallest that an Ethernet takes: 60 bytes and the tag, or all of the headers.
    fn len(self) -> usize {
        match self {
            Headers::V4 => 60,
            Headers::Vlan => 64,
            Headers::V6 => 62,
        }
    }

    /// The first byte of the source port: addresses of the destination stand between.
    fn port(self) -> usize {
        match self {
            Headers::V4 | Headers::Vlan => self.source_end() + 4,
            Headers::V6 => self.source_end() + 16,
        }
    }
}

/// A ring with a frame each of `flows` flows in random order, over and over.
fn ring_of(headers: Headers, flows: u64) -> Ring<Mapping> {
    let interface = Interface { link_type: 1, snaplen: 65535, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: DATA_BLOCKS,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    let ring = memory::create_memfd("flows", &spec).expect("memory for a ring");
    let mut writer = Writer::new(ring.clone());
    let (mut frame, end, port) = (headers.frame(), headers.source_end(), headers.port());
    for at in 0..FRAMES {
        // An odd multiplier gives every flow of a power of two once; of others, nearly so.
        let flow = (at.wrapping_mul(2_654_435_761) % FRAMES % flows) as u32;
        frame[end - 4..end].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
        frame[port] = flow as u8;
        let meta = Meta {
            ts_ns: 1_700_000_000_000_000_000 + at * FRAME_NS,
            wire_len: frame.len() as u32,
            ..Meta::default()
        };
        writer.push(&meta, &frame);
    }
    writer.close();
    ring
}

/// Reads all frames of a closed ring, and hands them over.
fn read(ring: &Ring<Mapping>, batch: &mut Batch, mut take: impl FnMut(&Batch)) {
    let mut reader = Reader::new(ring, Start::Oldest).expect("a ring");
    loop {
        match reader.poll(batch).expect("a sound ring") {
            Poll::Frames(_) => take(batch),
            Poll::Closed => break,
            Poll::Empty | Poll::Lapped(_) => panic!("a closed ring that was never full"),
        }
    }
    assert_eq!(reader.delivered(), FRAMES);
}

fn run(ring: &Ring<Mapping>, flows: u64, biflow: bool, rounds: usize) -> f64 {
    // Every frame a new flow: no more than half of them fit, so that a frame meets no flow of the round before.
    let flows_max = if flows == FRAMES { FRAMES / 2 } else { 2 << 20 };
    let config = FlowConfig { flows_max, biflow, ..FlowConfig::default() };
    let mut table = FlowTable::new(config).expect("memory for a table");
    let (mut batch, mut packets) = (Batch::new(), 0);
    let mut ended = |record: weir_flow::FlowRecord| packets += record.packets();
    // The first round fills the table.
    read(ring, &mut batch, |batch| table.add(batch.records().map(Into::into), &mut ended));
    let (start, mut later_ns) = (Instant::now(), 0);
    for _ in 0..rounds {
        later_ns += FRAMES * FRAME_NS;
        read(ring, &mut batch, |batch| {
            let frames = batch.records().map(Seen::from);
            table.add(frames.map(|seen| Seen { ts_ns: seen.ts_ns + later_ns, ..seen }), &mut ended);
        });
    }
    let seconds = start.elapsed().as_secs_f64();
    let counters = table.counters();
    table.finish(&mut ended);
    let frames = FRAMES * rounds as u64;
    assert_eq!(packets, frames + FRAMES);
    if flows == FRAMES {
        assert!(counters.began > frames, "{counters:?}");
    } else {
        assert!(counters.began <= flows, "{counters:?}");
    }
    frames as f64 / seconds / 1e6
}

fn read_only(ring: &Ring<Mapping>, rounds: usize) -> f64 {
    let mut batch = Batch::new();
    let start = Instant::now();
    for _ in 0..rounds {
        read(ring, &mut batch, |batch| {
            batch.records().for_each(|record| {
                black_box(&record);
            });
        });
    }
    (FRAMES * rounds as u64) as f64 / start.elapsed().as_secs_f64() / 1e6
}
