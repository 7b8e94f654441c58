//! The algorithm by which readers sleep: each has a wake threshold in one word, and the writer compares it with its
//! ordinal.
//!
//! Sleeper and writer each store one word and load the other's (Dekker's pattern), so both need a full
//! fence between the two, or each could miss the other:
//!
//! ```text
//! sleeper: threshold = ordinal + N   fence G   load the ring's ordinal   sleep if it is below the threshold
//! writer:  publish the ordinal       fence H   load the threshold        wake if the ordinal reaches it
//! ```
//!
//! A BPF writer has no such fence (`bpf/ring.h`). It does not load the threshold either, but a word `armed`, in which
//! its owner keeps the lowest threshold. The processor may load `armed` before the program's own ordinal is stored;
//! then neither side sees the other. So for a long sleep the owner makes the fence for all programs:
//!
//! ```text
//! sleeper: threshold, fence G, look           tell the owner   . . . . . . . . .   T: look   sleep
//! owner:                                      armed = threshold   Q: wait   S: look   confirm
//! program: publish the ordinal, R: load armed, ring the owner's doorbell if the ordinal reaches it
//! ```
//!
//! *Q* is `synchronize_rcu` (`membarrier(MEMBARRIER_CMD_GLOBAL)`, or its replacement: `kernel/rcu.rs` in
//! `weir-capture`). Every run of a program is an RCU read-side critical section. So for each run at least one of these
//! holds: code after the wait sees the run's stores, or the run sees the stores from before the wait. *R* relies on
//! this. A run that does not see `armed` has published its ordinal before *S*, where the owner looks at the rings and
//! wakes readers. A run whose ordinal *S* does not see sees `armed`, and rings the doorbell. There is no third case.
//! The owner sends the wake-ups of *S* before the confirmation; for frames that are published later, a program rings
//! the doorbell, and the owner wakes the reader. *T* finds thresholds for which the owner did not wake the reader
//! because of its limit of wake-ups (`wake::RING_GAP`).
//!
//! The owner changes `armed` when another consumer's threshold is lower, or when the lowest threshold was reached.
//! While some consumer sleeps after a confirmation, the owner waits (*Q*) and looks (*S*) again after each change.
//!
//! Without a confirmation a wake-up may be missed, so the sleeper looks at the ring itself every
//! `wake::UNCONFIRMED_LIMIT`.
//!
//! `tests/loom_wakeups.rs` models this algorithm, and also shows that each step is needed, by omitting it.

use crate::sync::{AtomicU64, Ordering, fence};

/// The threshold of a reader that is awake.
pub const AWAKE: u64 = u64::MAX;
/// The threshold of a reader that is to be woken each time a quarter of its ring was filled
/// ([`Sleeper::wait_for_quarter`](crate::wake::Sleeper::wait_for_quarter)). No number of frames reaches it.
pub const EACH_QUARTER: u64 = u64::MAX - 1;

/// Called by the sleeper: requests a wake-up once the ring holds `ordinal` frames. Afterwards the caller must look at
/// the ring once more before it sleeps.
pub fn set_threshold(word: &AtomicU64, ordinal: u64) {
    word.store(ordinal, Ordering::Relaxed);
    fence(Ordering::SeqCst); // G, pairs with H in `is_due`
}

/// Called by the sleeper when it is awake again: requests no wake-up any more.
pub fn clear_threshold(word: &AtomicU64) {
    word.store(AWAKE, Ordering::Relaxed);
}

/// Called by the writer after it has published `ordinal` frames: whether the sleeper must be woken.
#[inline]
pub fn is_due(word: &AtomicU64, ordinal: u64) -> bool {
    due(word, ordinal).is_some()
}

/// As [`is_due`], but returns the threshold that was reached. The threshold is loaded only once: a second load could
/// return the threshold that the sleeper sets next, which is not due yet.
#[inline]
pub(crate) fn due(word: &AtomicU64, ordinal: u64) -> Option<u64> {
    fence(Ordering::SeqCst); // H, pairs with G in `set_threshold`
    let threshold = word.load(Ordering::Relaxed);
    (ordinal >= threshold).then_some(threshold)
}
