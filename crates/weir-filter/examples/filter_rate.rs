//! What a verdict costs: machine code, native Rust, libpcap's interpreter and ours, on the same frames.
//! `cargo run --release -p weir-filter --example filter_rate`. Rounds are interleaved; the figures are the
//! median and the spread of ten.

use std::hint::black_box;
use std::time::Instant;

use weir_filter::{Frame, UserFilter, interpret};

#[path = "../tests/homes/oracle.rs"]
mod oracle;

const ROUNDS: usize = 10;
const FRAMES: usize = 256;
const TURNS: usize = 4000;

type Native = fn(&[u8]) -> bool;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..at + 2)?.first_chunk()?))
}

/// Where the layer above IPv4 begins, if the packet is a first fragment of this protocol.
fn ipv4(bytes: &[u8], protocol: u8) -> Option<usize> {
    let found = u16_at(bytes, 12)? == 0x800
        && *bytes.get(23)? == protocol
        && u16_at(bytes, 20)? & 0x1fff == 0;
    found.then_some(14 + 4 * usize::from(*bytes.get(14)? & 0xf))
}

fn has_port(bytes: &[u8], protocol: u8, port: u16) -> Option<bool> {
    let at = match u16_at(bytes, 12)? {
        0x86dd if *bytes.get(20)? == protocol => 54,
        0x800 => ipv4(bytes, protocol)?,
        _ => return None,
    };
    Some(u16_at(bytes, at)? == port || u16_at(bytes, at + 2)? == port)
}

const CASES: [(&str, Native); 4] = [
    ("tcp port 80", |bytes| has_port(bytes, 6, 80).unwrap_or(false)),
    ("udp port 53 or tcp port 443", |bytes| {
        has_port(bytes, 17, 53).unwrap_or(false) || has_port(bytes, 6, 443).unwrap_or(false)
    }),
    ("tcp[tcpflags] & tcp-syn != 0", |bytes| {
        let flags = ipv4(bytes, 6).and_then(|at| bytes.get(at + 13));
        flags.is_some_and(|flags| flags & 2 != 0)
    }),
    ("greater 1000", |bytes| bytes.len() >= 1000),
];

/// IPv4 and IPv6, TCP and UDP, some ports, many sizes.
fn frames() -> Vec<Vec<u8>> {
    let one = |n: usize| {
        let mut bytes = vec![0u8; [60, 64, 128, 590, 1514][n % 5]];
        let (tcp, ports) = (!n.is_multiple_of(3), [[0, 80], [0, 53], [1, 187], [156, 64], [8, 1]]);
        if !n.is_multiple_of(4) {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[23] = if tcp { 6 } else { 17 };
            bytes[36..38].copy_from_slice(&ports[n % 7 % 5]);
            bytes[47] = (n % 11) as u8;
        } else {
            bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            bytes[20] = if tcp { 6 } else { 17 };
            bytes[54..56].copy_from_slice(&ports[n % 7 % 5]);
        }
        bytes
    };
    (0..FRAMES).map(one).collect()
}

/// Nanoseconds a frame.
fn time(frames: &[Vec<u8>], turns: usize, verdict: impl Fn(&[u8]) -> bool) -> (f64, usize) {
    let begin = Instant::now();
    let mut taken = 0;
    for _ in 0..turns {
        for frame in frames {
            taken += usize::from(verdict(black_box(frame)));
        }
    }
    (begin.elapsed().as_nanos() as f64 / (turns * frames.len()) as f64, taken / turns)
}

fn main() {
    let frames = frames();
    println!(
        "ns a frame, median (least to most) of {ROUNDS} rounds, {FRAMES} frames of 60 to 1514 bytes"
    );
    for (text, native) in CASES {
        let program = oracle::compile(text);
        let filter = UserFilter::new(program.clone());
        let mut rows: [(&str, Vec<f64>); 4] =
            ["machine code", "native Rust", "libpcap", "interpreter"]
                .map(|name| (name, Vec::new()));
        for _ in 0..ROUNDS {
            let results = [
                time(&frames, TURNS, |bytes| filter.run(bytes, bytes.len() as u32) > 0),
                time(&frames, TURNS, native),
                time(&frames, TURNS / 4, |bytes| {
                    oracle::run(&program, bytes, bytes.len() as u32) > 0
                }),
                time(&frames, TURNS / 4, |bytes| {
                    interpret::run(&program, &Frame::whole(bytes)) > 0
                }),
            ];
            for ((_, times), (ns, taken)) in rows.iter_mut().zip(results) {
                assert_eq!(taken, results[0].1, "{text}: they disagree");
                times.push(ns);
            }
        }
        println!(
            "'{text}': {} instructions, {}",
            program.insns().len(),
            if filter.is_compiled() { "compiled" } else { "not compiled" }
        );
        for (name, times) in &mut rows {
            times.sort_by(f64::total_cmp);
            println!(
                "  {name:12} {:7.2} ({:.2} to {:.2})",
                times[ROUNDS / 2],
                times[0],
                times[ROUNDS - 1]
            );
        }
        let median = |row: usize| rows[row].1[ROUNDS / 2];
        println!(
            "  machine code is {:.2} of native Rust's time, libpcap {:.1} times machine code's",
            median(0) / median(1),
            median(2) / median(0)
        );
    }
}
