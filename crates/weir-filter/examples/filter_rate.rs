//! Cost of a verdict, for one filter and for sets of them.
//!
//! In user space: machine code, native Rust, libpcap's interpreter and Weir's, on the same frames.
//! In the kernel, as root: an XDP program that is the filter, as in capture programs. `cargo run
//! --release -p weir-filter --example filter_rate`. Rounds are interleaved. The figures are the
//! median and the range of ten rounds, in CPU time, so that waiting for a CPU does not count.

use std::hint::black_box;

use weir_filter::ebpf::Target;
use weir_filter::{Frame, Program, UserFilter, UserFilterSet, interpret};
use weir_lab::verdict::{FRAMES, frames, has_port, has_syn, thread_ns, time};

use kernel::Loaded;

#[path = "../tests/locations/kernel.rs"]
#[allow(dead_code)] // the tests need more of it
mod kernel;
#[path = "../tests/locations/oracle.rs"]
mod oracle;

const ROUNDS: usize = 10;
const TURNS: u32 = 4000;
/// Runs of a program in the kernel, on one frame.
const RUNS: i32 = 1_000_000;
/// The first port of the filters of a set.
const PORTS: u16 = 5000;

type Native = fn(&[u8]) -> bool;

const CASES: [(&str, Native); 4] = [
    ("tcp port 80", |bytes| has_port(bytes, 6, 80)),
    ("udp port 53 or tcp port 443", |bytes| has_port(bytes, 17, 53) || has_port(bytes, 6, 443)),
    ("tcp[tcpflags] & tcp-syn != 0", has_syn),
    ("greater 1000", |bytes| bytes.len() >= 1000),
];

/// UDP over IPv4, 60 bytes, to this port.
fn udp(port: u16) -> Vec<u8> {
    let mut bytes = vec![0u8; 60];
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = 17;
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// Median, minimum and maximum.
struct Spread(f64, f64, f64);

/// Runs all forms in turn, round by round, and prints a line for each. Their answers must agree.
fn rounds<const N: usize>(names: [&str; N], round: impl Fn() -> [(f64, u64); N]) -> [Spread; N] {
    let mut rows = names.map(|name| (name, Vec::new()));
    for _ in 0..ROUNDS {
        let results = round();
        for ((name, times), (ns, sum)) in rows.iter_mut().zip(results) {
            assert_eq!(sum, results[0].1, "{name} disagrees");
            times.push(ns);
        }
    }
    rows.map(|(name, mut times)| {
        times.sort_by(f64::total_cmp);
        let spread = Spread(times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
        println!("  {name:28} {:8.2} ({:.2} to {:.2})", spread.0, spread.1, spread.2);
        spread
    })
}

fn bars([code, native, libpcap, ..]: &[Spread; 4]) {
    println!(
        "  machine code takes {:.2} of native Rust's time, libpcap {:.1} times machine code's",
        code.0 / native.0,
        libpcap.0 / code.0
    );
}

const IN_USER_SPACE: [&str; 4] = ["machine code", "native Rust", "libpcap", "interpreter"];

fn one_filter(frames: &[Vec<u8>], text: &str, native: Native) {
    let program = oracle::compile(text);
    let filter = UserFilter::new(program.clone());
    println!(
        "'{text}': {} instructions, {}",
        program.insns().len(),
        if filter.is_compiled() { "compiled" } else { "not compiled" }
    );
    let wire_len = |bytes: &[u8]| bytes.len() as u32;
    bars(&rounds(IN_USER_SPACE, || {
        [
            time(frames, TURNS, |bytes| filter.run(bytes, wire_len(bytes)) > 0),
            time(frames, TURNS, native),
            time(frames, TURNS / 4, |bytes| oracle::run(&program, bytes, wire_len(bytes)) > 0),
            time(frames, TURNS / 4, |bytes| interpret::run(&program, &Frame::whole(bytes)) > 0),
        ]
    }));
}

/// Bit `n` for the `n`th verdict.
fn mask(verdicts: impl Iterator<Item = bool>) -> u32 {
    verdicts.enumerate().fold(0, |mask, (n, taken)| mask | u32::from(taken) << n)
}

fn set(programs: &[Program]) {
    let count = programs.len() as u16;
    let ports = PORTS..PORTS + count;
    // Half of the frames match one of the filters, half match none.
    let frames: Vec<_> = (0..FRAMES as u16).map(|n| udp(PORTS + n % (2 * count))).collect();
    let set: Vec<_> = programs.iter().map(Some).collect();
    let filters = UserFilterSet::new(&set);
    println!(
        "{count} x 'udp port N', in user space, {}",
        if filters.is_compiled() { "compiled" } else { "not compiled" }
    );
    let wire_len = |bytes: &[u8]| bytes.len() as u32;
    bars(&rounds(IN_USER_SPACE, || {
        [
            time(&frames, TURNS, |bytes| filters.run(bytes, wire_len(bytes))),
            time(&frames, TURNS, |bytes| {
                mask(black_box(ports.clone()).map(|n| has_port(bytes, 17, n)))
            }),
            time(&frames, TURNS / 8, |bytes| {
                mask(programs.iter().map(|one| oracle::run(one, bytes, wire_len(bytes)) > 0))
            }),
            time(&frames, TURNS / 8, |bytes| {
                mask(programs.iter().map(|one| interpret::run(one, &Frame::whole(bytes)) > 0))
            }),
        ]
    }));
}

/// Nanoseconds a run in the kernel.
fn time_in_kernel(program: &Loaded, frame: &[u8]) -> f64 {
    let begin = thread_ns();
    program.run_often(frame, RUNS);
    (thread_ns() - begin) / f64::from(RUNS)
}

fn in_kernel(programs: &[Program], target: Target) {
    let set: Vec<_> = programs.iter().map(Some).collect();
    let filter = Loaded::set(&set, target).expect("short");
    let nothing = Loaded::set(&[], target).expect("two instructions");
    for (name, port) in [("none takes", 1), ("the last takes", PORTS + programs.len() as u16 - 1)] {
        let frame = udp(port);
        println!("{} x 'udp port N', {target:?} in the kernel, {name}", programs.len());
        // The tests check the answers.
        rounds(["nothing", "the filter"], || {
            [&nothing, &filter].map(|program| (time_in_kernel(program, &frame), 0))
        });
    }
}

fn main() {
    println!("ns a frame, median (least to most) of {ROUNDS} rounds");
    println!("{FRAMES} frames of 60 to 1514 bytes, in user space");
    let frames = frames();
    for (text, native) in CASES {
        one_filter(&frames, text, native);
    }
    for count in [1, 4, 16] {
        let texts = (PORTS..PORTS + count).map(|port| format!("udp port {port}"));
        let programs: Vec<_> = texts.map(|text| oracle::compile(&text)).collect();
        set(&programs);
        if weir_lab::testbed::require_root("filter_rate: the kernel's part") {
            for target in [Target::Xdp, Target::Tc] {
                in_kernel(&programs, target);
            }
        }
    }
}
