//! Helpers for the unit tests of this crate.

use std::sync::Arc;

use weir_frame::pcapng::Interface;
use weir_frame::record::{Flags, Meta};

use crate::sync::AtomicU64;
use crate::{Clock, Ring, RingSpec, WriterKind, header};

pub fn spec(data_blocks: u64) -> RingSpec {
    let interface = Interface { link_type: 1, snaplen: 65535, ..Interface::default() };
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

/// A formatted ring of the smallest real geometry, on the heap.
pub fn heap_ring() -> Ring<Vec<AtomicU64>> {
    let memory = zeroed(5 << 17);
    header::format(&memory, &spec(4)).unwrap();
    Ring::open(Arc::new(memory)).unwrap()
}

/// Metadata of a test frame, which depends on the ordinal only.
pub fn meta(ordinal: u64) -> Meta {
    Meta {
        interface_id: 0,
        ts_ns: 1_000_000_000 + ordinal,
        wire_len: 100_000,
        flags: ordinal.is_multiple_of(3).then_some(Flags::INBOUND),
        queue: ordinal.is_multiple_of(5).then_some(ordinal as u32),
    }
}

/// Reports that a test did not run, also in the log that the summary of the run reads.
pub fn skip(name: &str, reason: &str) {
    use std::io::Write;
    let line = format!("SKIPPED {name}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
