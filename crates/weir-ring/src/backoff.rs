//! Waiting a moment before looking again, for readers that poll all the time.
//!
//! The index entry of the open block is a line that the writer stores to with every burst. Each look at it
//! takes the line away from the writer, which must fetch it back; so does whatever the reader's
//! processor fetches ahead, which is more. So a polling reader waits between two looks that found
//! nothing, and stays a little behind:
//!
//! ```no_run
//! # fn read(mut reader: weir_ring::Reader<weir_ring::Mapping>) -> Result<(), weir_ring::RingError> {
//! use weir_ring::backoff::{Backoff, DISTANCE_BYTES};
//! use weir_ring::{Batch, Poll};
//! let (mut batch, mut backoff) = (Batch::new(), Backoff::new());
//! reader.keep_distance(DISTANCE_BYTES);
//! loop {
//!     match reader.poll(&mut batch)? {
//!         Poll::Frames(_) => backoff.reset(), // and do something with the batch
//!         Poll::Lapped(missed) => eprintln!("{missed} frames missed"),
//!         Poll::Empty => backoff.wait(),
//!         Poll::Closed => return Ok(()),
//!     }
//! }
//! # }
//! ```
//!
//! A wait is far below what a system call and a wake-up take. For longer ones, [`wake`](crate::wake).

use std::time::{Duration, Instant};

/// First and longest wait. At 10 Gbit/s and minimum frames, 20 us are 300 frames.
const LEAST: Duration = Duration::from_micros(20);
const MOST: Duration = Duration::from_micros(50);

/// How far behind the writer a polling reader does not disturb it: 16 KiB, or 180 minimum frames. Found
/// by trying; 8 KiB was not always enough.
pub const DISTANCE_BYTES: u32 = 16 * 1024;

/// How long a polling reader waits after [`Poll::Empty`](crate::Poll::Empty).
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new()
    }
}

impl Backoff {
    /// Begins with the shortest wait.
    #[must_use]
    pub fn new() -> Self {
        Backoff { next: LEAST }
    }

    /// Spins for 20 us, and for up to 50 us when called again and again. Gives up no CPU.
    pub fn wait(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < self.next {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
        self.next = (self.next + self.next / 2).min(MOST);
    }

    /// Something was there: the next wait is a short one.
    pub fn reset(&mut self) {
        self.next = LEAST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new();
        let begin = Instant::now();
        for _ in 0..5 {
            backoff.wait();
        }
        // 20 + 30 + 45 + 50 + 50 us, at least.
        assert!(begin.elapsed() >= Duration::from_micros(195));
        assert_eq!(backoff.next, MOST);
        backoff.reset();
        assert_eq!(backoff.next, LEAST);
    }
}
