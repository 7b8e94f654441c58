//! Helpers of the tests of this folder: frames whose every byte follows from their ordinal, so that any
//! process can tell a whole frame from a torn, stale or repeated one.
#![allow(dead_code, reason = "each test uses its own part")]

use std::io::Write;

use weir_frame::pcapng::Interface;
use weir_frame::record::{Flags, Meta, Record};
use weir_ring::{AtomicU64, Clock, RingSpec, WriterKind};

pub fn spec(data_blocks: u64) -> RingSpec {
    let interface = Interface {
        name: "test0".to_owned(),
        link_type: 1,
        snaplen: 69_632,
        ..Interface::default()
    };
    RingSpec {
        data_blocks,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    }
}

pub fn zeroed(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// A well-mixed number that follows from another. Source: splitmix64, Steele et al., 2014.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

pub fn meta(ordinal: u64, caplen: u32) -> Meta {
    let mixed = mix(ordinal);
    Meta {
        interface_id: 0,
        ts_ns: 1_700_000_000_000_000_000 + ordinal,
        wire_len: caplen + (mixed >> 8 & 0xff) as u32,
        flags: (mixed & 1 == 0).then_some(Flags(mixed as u32)),
        queue: (mixed & 2 == 0).then_some(ordinal as u32),
    }
}

/// Fills `frame` with the bytes that belong to the frame of this ordinal.
pub fn fill(frame: &mut [u8], ordinal: u64) {
    let seed = mix(!ordinal);
    for (i, bytes) in frame.chunks_mut(8).enumerate() {
        let word = seed.wrapping_mul(i as u64 | 1).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}

pub fn frame(ordinal: u64, caplen: u32) -> Vec<u8> {
    let mut frame = vec![0; caplen as usize];
    fill(&mut frame, ordinal);
    frame
}

/// Whether a record is the frame of this ordinal, to the byte.
pub fn is_whole(record: &Record<'_>, ordinal: u64, caplen: u32, scratch: &mut Vec<u8>) -> bool {
    scratch.resize(caplen as usize, 0);
    fill(scratch, ordinal);
    record.meta == meta(ordinal, caplen) && record.frame == &scratch[..]
}

/// Reports that a test did not run, also in the log that the summary of the run reads.
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED {name}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
