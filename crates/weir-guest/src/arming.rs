//! Decides when the host must send a bell for a slot.
//!
//! The host's writer sees one word for all sleepers of a feed: the lowest threshold that its ring has not reached. It
//! makes a full fence between its two steps, like every writer that is a thread. So the owner need not wait for it as
//! for BPF programs (`weir_ring::doorbell`, letters G, H and Q to T):
//!
//! ```text
//! sleeper: threshold, fence G, look       tell the owner    . . . . . .    T: look   sleep
//! owner:                                  word = lowest threshold   U   S: look, wake   confirm
//! host:    publish the ordinal   fence H   load the word, send a bell if the ordinal reaches it
//! ```
//!
//! *U* is a full fence, and pairs with *H*. For each publication of the host and each store of the owner, either *S*
//! sees the publication, or the host sees the store (Dekker's pattern). *S* wakes the sleepers whose threshold it sees
//! reached. For all other sleepers the host checks the word, which is not above the threshold of any sleeper that *S*
//! did not wake. So when such a sleeper's threshold is reached, the word is reached, too, and the host sends a bell.
//! The owner reads the ring after every bell, and so sees the frames for which the bell was sent. It does this for all
//! slots before it confirms to any sleeper, so a confirmation holds for all slots of a consumer.
//!
//! The host may send only one bell for a threshold, as long as the word stays the same. After that bell the owner
//! stores another threshold, which the ring has not reached. If the owner stores one for which the host has sent a bell
//! before, the ring has reached it already, and *S* sees that.
//!
//! If a turn finds that the new word is reached already, it stores the next one, at most [`ARM_TRIES_MAX`] times. A
//! word that stays reached costs only a bell for the host's next publication: it is still not above any threshold.
//!
//! `tests/loom_bells.rs` models a host, this code, and sleepers, and also shows that each step is needed, by omitting
//! it.

use weir_ring::AtomicU64;
use weir_ring::doorbell;

use crate::limits::ARM_TRIES_MAX;

/// The sleepers that wait for one ring, for [`arm`].
pub trait Sleepers {
    /// Loads the number of frames in the ring, wakes every sleeper whose threshold is reached, and returns the number
    /// (S).
    fn look(&mut self) -> u64;

    /// Returns the lowest threshold above this number of frames, or [`AWAKE`](doorbell::AWAKE) if there is none.
    fn earliest(&self, ordinal: u64) -> u64;
}

/// Wakes the sleepers whose threshold is reached, and stores the word for which the host sends a bell to the others.
pub fn arm(word: &AtomicU64, sleepers: &mut impl Sleepers) {
    let mut ordinal = sleepers.look();
    for _ in 0..ARM_TRIES_MAX {
        let threshold = sleepers.earliest(ordinal);
        // U, the fence after this store, pairs with H in the host's writer.
        doorbell::set_threshold(word, threshold);
        ordinal = sleepers.look();
        if ordinal < threshold {
            return;
        }
    }
}
