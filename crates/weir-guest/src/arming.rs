//! When the host is to ring for a slot.
//!
//! The host's writer sees one word of a feed's sleepers: the lowest threshold that its ring has not reached. It makes
//! a full fence between its two steps, as any writer does that is a thread, so the owner needs no wait for it as BPF
//! programs do (`weir_ring::doorbell`, letters G, H and Q to T):
//!
//! ```text
//! sleeper: threshold, fence G, look       tell the owner    . . . . . .    T: look   sleep
//! owner:                                  word = lowest threshold   U   S: look, wake   confirm
//! host:    publish the ordinal   fence H   load the word, send a bell if the ordinal reaches it
//! ```
//!
//! *U* is a full fence, and pairs with *H*: of a publication of the host's and a store of the owner's, *S* sees the
//! first, or the host sees the second (Dekker's pattern). Sleepers that *S* sees are woken. Sleepers that it does not
//! see are checked against the word, which is not above the threshold of any sleeper that *S* did not wake: a sleeper
//! that is reached is reached together with the word, and a bell is sent. The owner reads the ring after every bell,
//! and so sees the frames for which the bell was sent. It does that for each of the slots before it confirms to
//! anybody, so a confirmation holds for all slots of a consumer.
//!
//! The host may send one bell for a threshold and no more, for as long as the word stays the same. Behind that bell the
//! owner stores another one: a threshold that the ring has not reached. Where it stores one that the host has sent a
//! bell for before, the host has reached it already, and *S* sees that.
//!
//! A turn that finds the new word reached stores the next one, [`ARM_TRIES_MAX`] times at most. A word that is left
//! reached costs a bell for the host's next publication and nothing else: it is still not above any threshold.
//!
//! `tests/loom_bells.rs` has a host, this code, and sleepers, and leaves out each step once.

use weir_ring::AtomicU64;
use weir_ring::doorbell;

use crate::limits::ARM_TRIES_MAX;

/// The sleepers on one ring, for [`arm`].
pub trait Sleepers {
    /// Reads how many frames the ring holds, wakes every sleeper that waits for no more than that, and
    /// returns it (S).
    fn look(&mut self) -> u64;

    /// The lowest threshold that so many frames do not reach, or [`AWAKE`](doorbell::AWAKE).
    fn earliest(&self, ordinal: u64) -> u64;
}

/// Wakes those whose threshold is reached, and has the host ring for the others.
pub fn arm(word: &AtomicU64, sleepers: &mut impl Sleepers) {
    let mut ordinal = sleepers.look();
    for _ in 0..ARM_TRIES_MAX {
        let threshold = sleepers.earliest(ordinal);
        // U, the fence behind this store, pairs with H in the host's writer.
        doorbell::set_threshold(word, threshold);
        ordinal = sleepers.look();
        if ordinal < threshold {
            return;
        }
    }
}
