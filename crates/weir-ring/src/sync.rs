//! Atomics for the whole crate: those of `std`, or in models those of loom.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Loads with acquire ordering, by a relaxed load and a fence.
///
/// Readers map their memory read-only. For such memory Rust guarantees only relaxed loads, and recommends this
/// replacement (`std::sync::atomic`, "Atomic accesses to read-only memory"). On x86 both together are one `mov`.
#[inline]
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}
