//! `struct weir_statistics` of the header.

use std::ffi::{CString, c_char, c_int};

use crate::text;

/// `WEIR_UNKNOWN`.
const UNKNOWN: u64 = u64::MAX;

/// `struct weir_drop`.
#[repr(C)]
struct Drop {
    name: *const c_char,
    frames: u64,
}

/// `struct weir_statistics`.
#[repr(C)]
pub struct Counts {
    offered: u64,
    filtered: u64,
    blocked: u64,
    sampled: u64,
    captured: u64,
    dropped: u64,
    drops: *const Drop,
    drop_count: usize,
    missed_before: u64,
    delivered: u64,
    lapped: u64,
    late: u64,
    lives: u64,
    kept_bytes: u64,
    wire_bytes: u64,
    super_frames: u64,
    filtered_uncounted: c_int,
}

/// The counts, and the memory to which they point.
pub struct Statistics {
    pub counts: Counts,
    _drops: Vec<Drop>,
    _names: Vec<CString>,
}

impl Statistics {
    /// Converts the client's statistics. `unread` is the number of frames that were taken from the reader and not
    /// handed out yet.
    pub fn new(statistics: &weir_client::Statistics, unread: u64) -> Statistics {
        let (ledger, delivered) = (&statistics.ledger, &statistics.delivered);
        let names: Vec<CString> = ledger.drops.keys().map(|name| text::to_c(name)).collect();
        let drops = names.iter().zip(ledger.drops.values());
        let drops = drops.map(|(name, frames)| Drop { name: name.as_ptr(), frames: *frames });
        let drops: Vec<Drop> = drops.collect();
        let counts = Counts {
            offered: ledger.offered,
            filtered: ledger.filtered,
            blocked: ledger.blocked,
            sampled: ledger.sampled,
            captured: ledger.captured,
            dropped: ledger.drops.values().fold(0, |sum, frames| sum.saturating_add(*frames)),
            drops: drops.as_ptr(),
            drop_count: drops.len(),
            missed_before: ledger.missed_before.unwrap_or(UNKNOWN),
            delivered: delivered.frames.saturating_sub(unread),
            lapped: delivered.lapped,
            late: delivered.late,
            lives: statistics.lives,
            kept_bytes: ledger.kept_bytes,
            wire_bytes: ledger.wire_bytes,
            super_frames: ledger.super_frames,
            filtered_uncounted: ledger.filtered_uncounted.into(),
        };
        // Moving a vector or a `CString` does not move its contents, so the pointers stay valid.
        Statistics { counts, _drops: drops, _names: names }
    }
}
