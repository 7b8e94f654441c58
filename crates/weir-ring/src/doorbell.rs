//! The algorithm behind sleeping: a wish in one word, and who looks at it when.
//!
//! Sleeper and writer each store one word and load the other's (Dekker's pattern), so both need a full
//! fence between the two, or each could miss the other:
//!
//! ```text
//! sleeper: wish = ordinal + N   fence G   load the ring's ordinal   sleep if it is below the wish
//! writer:  publish the ordinal  fence H   load the wish             ring if the ordinal reaches it
//! ```
//!
//! A BPF writer has no such fence (`bpf/ring.h`): there a wish may be missed, and the sleeper's time
//! limit is what wakes it. So every sleep has a limit.

use crate::sync::{AtomicU64, Ordering, fence};

/// The wish of a reader that is awake.
pub const AWAKE: u64 = u64::MAX;

/// The sleeper's side: wants to be woken once the ring holds `ordinal` frames. Afterwards the caller
/// must look at the ring once more before it sleeps.
pub fn wish(word: &AtomicU64, ordinal: u64) {
    word.store(ordinal, Ordering::Relaxed);
    fence(Ordering::SeqCst); // G, pairs with H in `is_due`
}

/// The sleeper's side: awake again.
pub fn withdraw(word: &AtomicU64) {
    word.store(AWAKE, Ordering::Relaxed);
}

/// The writer's side, after publishing `ordinal` frames: whether the sleeper is to be woken.
#[inline]
pub fn is_due(word: &AtomicU64, ordinal: u64) -> bool {
    due(word, ordinal).is_some()
}

/// As [`is_due`], with the wish that is fulfilled. Loaded once: a second look could find the wish that
/// the sleeper makes after this one, which is not due yet.
#[inline]
pub(crate) fn due(word: &AtomicU64, ordinal: u64) -> Option<u64> {
    fence(Ordering::SeqCst); // H, pairs with G in `wish`
    let wish = word.load(Ordering::Relaxed);
    (ordinal >= wish).then_some(wish)
}
