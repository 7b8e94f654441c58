//! Waiting a moment before looking again.
//!
//! The index entry of the open block is a line that the writer stores to with every burst. Each look at it
//! takes the line away from the writer, which must fetch it back: a reader that looks all the time halves
//! the writer. A look every few tens of microseconds costs it next to nothing, and is still far below
//! what a system call and a wake-up take. For longer waits, [`wake`](crate::wake).

use std::time::{Duration, Instant};

/// First and longest wait. At 10 Gbit/s and minimum frames, 20 us are 300 frames.
const LEAST: Duration = Duration::from_micros(20);
const MOST: Duration = Duration::from_micros(50);

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
