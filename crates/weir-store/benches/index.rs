//! The cost of an index: the work of [`Scan`] for each frame and for each piece of 1 MiB, on one CPU.
//!
//! `cargo bench -p weir-store --bench index [-- RUNS]`, on a machine that does nothing else. A run describes 64 pieces
//! whose frames lie in memory one behind the other, as in a ring; the median of the runs is printed.

use std::hint::black_box;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_store::index::Scan;

const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 64;
/// Bytes of a frame's block besides its own.
const BLOCK_BYTES: usize = 32;
const ETHERNET: u16 = 1;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // as a test: that it builds is enough
    }
    let runs = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(9_usize);
    let mut set = CpuSet::new();
    set.set(1);
    sched_setaffinity(None, &set).expect("this bench needs CPU 1");
    println!(
        "{runs} runs of {PIECES} pieces of 1 MiB: Mpps, median [least-most], and bytes of index a piece"
    );
    for caplen in [64, 800] {
        for (what, flows) in [("1000 flows", 1000), ("every frame another flow", u32::MAX)] {
            row(caplen, what, flows, runs);
        }
    }
}

fn row(caplen: usize, what: &str, flows: u32, runs: usize) {
    let stride = caplen + BLOCK_BYTES;
    let frames = PIECE_BYTES / stride;
    let pieces: Vec<Vec<u8>> = (0..PIECES)
        .map(|piece| {
            let numbers = (piece * frames) as u32..((piece + 1) * frames) as u32;
            numbers.flat_map(|number| block(number % flows, stride)).collect()
        })
        .collect();
    let mut scan = Scan::new();
    let mut set_bytes = 0;
    let mut run = || {
        let begin = Instant::now();
        set_bytes = 0;
        for (at, piece) in pieces.iter().enumerate() {
            for (number, block) in piece.chunks_exact(stride).enumerate() {
                let frame = &block[BLOCK_BYTES..];
                scan.add(number as u64, ETHERNET, frame, caplen as u32);
            }
            let piece = scan.finish((at * PIECE_BYTES) as u64, PIECE_BYTES as u32);
            set_bytes += 8 * black_box(piece).set.words().len();
        }
        (PIECES * frames) as f64 / begin.elapsed().as_secs_f64() / 1e6
    };
    run();
    let mut rates: Vec<f64> = (0..runs.max(1)).map(|_| run()).collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "{caplen:4} B, {what:24} {:7.2} [{:.2}-{:.2}]  {:6}",
        rates[rates.len() / 2],
        rates[0],
        rates[rates.len() - 1],
        set_bytes / PIECES
    );
}

/// A frame of UDP over IPv4 behind room for the rest of its block. Flows are mixed, as on a link.
fn block(flow: u32, stride: usize) -> Vec<u8> {
    let mut block = vec![0; stride];
    let frame = &mut block[BLOCK_BYTES..];
    let mixed = flow.wrapping_mul(0x9e37_79b1);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&(0x0a00_0000 | mixed >> 8).to_be_bytes());
    frame[30..34].copy_from_slice(&(0xc000_0200 | mixed & 0xff).to_be_bytes());
    frame[34..36].copy_from_slice(&(mixed as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
    block
}
