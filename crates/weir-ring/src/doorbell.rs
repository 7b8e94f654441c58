//! The algorithm behind sleeping: a threshold in one word, and who looks at it when.
//!
//! Sleeper and writer each store one word and load the other's (Dekker's pattern), so both need a full
//! fence between the two, or each could miss the other:
//!
//! ```text
//! sleeper: threshold = ordinal + N   fence G   load the ring's ordinal   sleep if it is below the threshold
//! writer:  publish the ordinal  fence H   load the threshold   wake if the ordinal reaches it
//! ```
//!
//! A BPF writer has no such fence (`bpf/ring.h`): there a threshold may be missed, and the sleeper's time
//! limit is what wakes it. So every sleep has a limit.

use crate::sync::{AtomicU64, Ordering, fence};

/// The threshold of a reader that is awake.
pub const AWAKE: u64 = u64::MAX;

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
