//! The algorithm behind sleeping: a threshold in one word, and who looks at it when.
//!
//! Sleeper and writer each store one word and load the other's (Dekker's pattern), so both need a full
//! fence between the two, or each could miss the other:
//!
//! ```text
//! sleeper: threshold = ordinal + N   fence G   load the ring's ordinal   sleep if it is below the threshold
//! writer:  publish the ordinal       fence H   load the threshold        wake if the ordinal reaches it
//! ```
//!
//! A BPF writer has no such fence (`bpf/ring.h`). It does not load the threshold either, but a word `armed` that
//! its owner keeps at the lowest threshold, and it may load that before its own ordinal is stored: then neither
//! sees the other. So for a long sleep the owner makes the fence for all of them:
//!
//! ```text
//! sleeper: threshold, fence G, look           tell the owner   . . . . . . . . .   T: look   sleep
//! owner:                                      armed = threshold   Q: wait   S: look   confirm
//! program: publish the ordinal, R: load armed, ring the owner's doorbell if the ordinal reaches it
//! ```
//!
//! *Q* is `synchronize_rcu` (`membarrier(MEMBARRIER_CMD_GLOBAL)`, or what stands in for it: `kernel/rcu.rs` in
//! `weir-capture`). Every run of a program is an RCU read-side section. Of each one, either what it stored before
//! the end of the wait is seen behind it, or it sees what was stored before the beginning of the wait; a run that
//! is both is both. Paired with *R*: a run that does not see `armed` has published its ordinal before *S*, where
//! the owner looks at the rings and wakes; a run whose ordinal *S* misses sees `armed`, and rings. Nothing is
//! between the two. What *S* finds, it sends before the confirmation; what a program publishes later rings the
//! doorbell, and the owner wakes. *T* is for thresholds that the owner's limit of wake-ups (`wake::RING_GAP`) kept
//! it from waking for.
//!
//! `armed` changes when another consumer's threshold is lower, or the lowest was reached. While some consumer
//! sleeps by a confirmation, the owner waits (*Q*) and looks (*S*) again behind each change.
//!
//! Without a confirmation, a threshold may be missed, and the sleeper looks by itself every `wake::UNCONFIRMED_LIMIT`.
//!
//! `tests/loom_wakeups.rs` has this as a model, and leaves out each step once.

use crate::sync::{AtomicU64, Ordering, fence};

/// The threshold of a reader that is awake.
pub const AWAKE: u64 = u64::MAX;
/// The threshold of a reader that is to be woken each time a quarter of its ring was filled
/// ([`Sleeper::wait_for_quarter`](crate::wake::Sleeper::wait_for_quarter)). No number of frames reaches it.
pub const EACH_QUARTER: u64 = u64::MAX - 1;

/// The sleeper's side: wants to be woken once the ring holds `ordinal` frames. Afterwards the caller
/// must look at the ring once more before it sleeps.
pub fn set_threshold(word: &AtomicU64, ordinal: u64) {
    word.store(ordinal, Ordering::Relaxed);
    fence(Ordering::SeqCst); // G, pairs with H in `is_due`
}

/// The sleeper's side: awake again.
pub fn clear_threshold(word: &AtomicU64) {
    word.store(AWAKE, Ordering::Relaxed);
}

/// The writer's side, after publishing `ordinal` frames: whether the sleeper is to be woken.
#[inline]
pub fn is_due(word: &AtomicU64, ordinal: u64) -> bool {
    due(word, ordinal).is_some()
}

/// As [`is_due`], with the threshold that was reached. Loaded once: a second look could find the threshold that
/// the sleeper sets after this one, which is not due yet.
#[inline]
pub(crate) fn due(word: &AtomicU64, ordinal: u64) -> Option<u64> {
    fence(Ordering::SeqCst); // H, pairs with G in `set_threshold`
    let threshold = word.load(Ordering::Relaxed);
    (ordinal >= threshold).then_some(threshold)
}
