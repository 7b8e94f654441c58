//! Flows that the programs have ended: a ring of records for each CPU.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use weir_flow::EndReason;

use crate::layout::{COUNTS_WORDS, RECORD_WORDS, Slot, TAIL_WORDS, counts, record_of};

/// Records that are read before their space in the ring is released.
const AT_A_TIME: u64 = 64;

/// Takes all records that a CPU has written so far, from its ring of `ring_records` records.
///
/// Each slice covers all CPUs; `tails` is written.
pub fn drain(
    cpu: usize,
    ring_records: u64,
    records: &[AtomicU64],
    all_counts: &[AtomicU64],
    tails: &[AtomicU64],
    mut each: impl FnMut(Slot, usize, EndReason),
) {
    let ring_words = ring_records as usize * RECORD_WORDS;
    let ring = &records[cpu * ring_words..][..ring_words];
    let tail = &tails[cpu * TAIL_WORDS];
    let mut at = tail.load(Acquire);
    // Pairs with weir_store_ordered in weir_emit: the records before `head` are whole.
    let head = all_counts[cpu * COUNTS_WORDS + counts::HEAD].load(Acquire);
    while at < head {
        let end = head.min(at + AT_A_TIME);
        for number in at..end {
            let place = (number & (ring_records - 1)) as usize * RECORD_WORDS;
            let (slot, number, reason) = record_of(&ring[place..][..RECORD_WORDS]);
            each(slot, number, reason);
        }
        at = end;
        // Releases the space to the program, which loads the tail before it writes there.
        tail.store(at, Release);
    }
}
