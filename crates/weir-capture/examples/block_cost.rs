//! Cost of flow keys, hashes and block lists for a frame in the kernel:
//! `sudo target/release/examples/block_cost`, after `cargo build --release -p weir-capture --example block_cost`.
//!
//! Prints nanoseconds of CPU time for each frame at XDP, measured in the kernel's test runs of programs.
//! The time of a program that only writes new addresses into each frame is subtracted. Rounds are
//! interleaved; the figures are the best of fifteen and the median, and in user space one run.

use std::net::{Ipv4Addr, Ipv6Addr};

use libbpf_rs::{ProgramInput, ProgramMut};
use rustix::time::{ClockId, clock_gettime};
use weir_capture::bpf::block::Blocks;
use weir_filter::block::{BlockList, Entry};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

#[path = "../tests/flow/blocking.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod blocking;

const ROUNDS: usize = 15;
const FRAMES: u32 = 300_000;
const ENTRIES: u32 = 10_000;

/// A UDP frame of 74 bytes, without addresses.
fn frame(six: bool) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if six {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64]);
        frame.resize(54, 0);
    } else {
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    frame.extend([0x10, 0x92, 0, 53, 0, 20, 0, 0]);
    // The UDP header says 20 bytes; the rest is padding.
    frame.resize(74, 0);
    frame
}

/// Ranges of the frames' addresses: `struct weir_ends`.
#[derive(Clone, Copy)]
struct Ends {
    src: [u32; 2],
    dst: [u32; 2],
}

const V4: fn([u8; 4]) -> u32 = u32::from_be_bytes;

/// 2^24 sources and 2^16 destinations.
fn far() -> Ends {
    Ends { src: [V4([100, 0, 0, 0]), 1 << 24], dst: [V4([192, 168, 0, 0]), 1 << 16] }
}

/// Sources in the first addresses of 10.0.0.0/8, one destination.
fn near(sources: u32) -> Ends {
    Ends { src: [V4([10, 0, 0, 0]), sources], dst: [V4([192, 168, 0, 1]), 1] }
}

fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(V4([10, 0, 0, 0]) + n)
}

/// Spreads consecutive numbers over 32 bits.
fn scattered(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b1)
}

fn list(entry: impl Fn(u32) -> Entry) -> BlockList {
    let mut list = BlockList::default();
    for n in 0..ENTRIES {
        list.add(entry(n)).expect("room");
    }
    list
}

struct Row {
    name: &'static str,
    program: &'static str,
    six: bool,
    list: BlockList,
    ends: Ends,
    /// The fraction of frames that is blocked.
    blocked: f64,
    /// Times of the program, one for each round.
    ns: Vec<f64>,
    /// Times of the program that only writes addresses.
    bare_ns: Vec<f64>,
}

fn rows() -> Vec<Row> {
    let row = |name, program, list, ends, blocked| Row {
        name,
        program,
        six: false,
        list,
        ends,
        blocked,
        ns: Vec::new(),
        bare_ns: Vec::new(),
    };
    let flow = |n| {
        let text = format!("udp {}:4242 192.168.0.1:53", address(n));
        text.parse().expect("a flow")
    };
    let prefix = |address: u32, bits| {
        Entry::around(Ipv4Addr::from_bits(address).into(), bits).expect("a prefix")
    };
    let addresses = || list(|n| Entry::Address(address(n).into()));
    let mixed = |n: u32| match n % 3 {
        0 => Entry::Address(address(n).into()),
        1 => flow(n),
        _ => prefix(scattered(n), 24),
    };
    let none = BlockList::default;
    let mut rows = vec![
        row("key", "cost_key", none(), far(), 0.0),
        row("key and hash", "cost_hash", none(), far(), 0.0),
        row("empty list", "cost_block", none(), far(), 0.0),
        row("addresses, none matches", "cost_block", addresses(), far(), 0.0),
        row("addresses, all match", "cost_block", addresses(), near(ENTRIES), 1.0),
        row("flows, none matches", "cost_block", list(flow), far(), 0.0),
        row("flows, all match", "cost_block", list(flow), near(ENTRIES), 1.0),
        row("/24, none matches", "cost_block", list(|n| prefix(scattered(n), 24)), far(), 0.0),
        row(
            "/24, all match",
            "cost_block",
            list(|n| prefix(V4([10, 0, 0, 0]) + (n << 8), 24)),
            near(ENTRIES << 8),
            1.0,
        ),
        row("all kinds, none matches", "cost_block", list(mixed), far(), 0.0),
    ];
    for (name, program) in [("key, IPv6", "cost_key"), ("key and hash, IPv6", "cost_hash")] {
        rows.push(Row { six: true, ..row(name, program, none(), far(), 0.0) });
    }
    let six = |n: u32| {
        let upper = u128::from(scattered(n)) << 96;
        Entry::around(Ipv6Addr::from_bits(upper).into(), 32).expect("a prefix")
    };
    rows.push(Row {
        six: true,
        ..row("/32 of IPv6, none matches", "cost_block", list(six), far(), 0.0)
    });
    rows
}

fn main() {
    let mut blocks = Blocks::new(1).expect("maps: run as root");
    let mut storage = blocking::storage();
    let mut skel = blocking::load(&mut storage, &blocks);
    let mut rows = rows();
    for _ in 0..ROUNDS {
        for row in &mut rows {
            blocks.set(0, &row.list).expect("room");
            let bss = skel.maps.bss_data.as_deref_mut().expect("variables");
            bss.ends.src_base = row.ends.src[0];
            bss.ends.src_range = row.ends.src[1];
            bss.ends.dst_base = row.ends.dst[0];
            bss.ends.dst_range = row.ends.dst[1];
            let before = bss.blocked;
            let program = match row.program {
                "cost_key" => &skel.progs.cost_key,
                "cost_hash" => &skel.progs.cost_hash,
                _ => &skel.progs.cost_block,
            };
            row.bare_ns.push(time(&skel.progs.cost_nothing, row.six));
            row.ns.push(time(program, row.six));
            let bss = skel.maps.bss_data.as_deref().expect("variables");
            let blocked = (bss.blocked - before) as f64 / f64::from(FRAMES);
            // Some of the scattered prefixes contain addresses of the frames.
            assert!((blocked - row.blocked).abs() < 0.01, "{}: {blocked}", row.name);
        }
    }
    println!("{ENTRIES} entries, {FRAMES} frames a run, ns a frame");
    for row in &mut rows {
        row.ns.sort_by(f64::total_cmp);
        row.bare_ns.sort_by(f64::total_cmp);
        let less = |at: usize| row.ns[at] - row.bare_ns[at];
        println!("{:30} best {:6.1}  median {:6.1}", row.name, less(0), less(ROUNDS / 2));
    }
    in_user_space(rows.iter().find(|row| row.name == "all kinds, none matches").expect("a row"));
}

/// The cost of the same list in an engine in user space, which has the keys already.
fn in_user_space(row: &Row) {
    let key = |n| FlowKey {
        addresses: Addresses::V4 {
            src: Ipv4Addr::from_bits(row.ends.src[0] + scattered(n) % row.ends.src[1]),
            dst: Ipv4Addr::from_bits(row.ends.dst[0] + scattered(!n) % row.ends.dst[1]),
        },
        src_port: 4242,
        dst_port: 53,
        protocol: 17,
    };
    let keys: Vec<FlowKey> = (0..FRAMES).map(key).collect();
    let start_ns = now_ns();
    let blocked = keys.iter().filter(|key| row.list.contains(key)).count();
    let ns = (now_ns() - start_ns) / f64::from(FRAMES);
    println!("{:30} one run {ns:3.1}  ({blocked} blocked)", "the same in user space");
}

/// CPU time of this thread, which depends less on other work of the machine.
fn now_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn time(program: &ProgramMut<'_>, six: bool) -> f64 {
    let frame = frame(six);
    let input = ProgramInput { data_in: Some(&frame), repeat: FRAMES, ..ProgramInput::default() };
    let start_ns = now_ns();
    program.test_run(input).expect("a test run");
    (now_ns() - start_ns) / f64::from(FRAMES)
}
