//! Atomics for the whole crate: those of `std` in service, those of loom in the model.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An acquire load, made of a relaxed load and a fence.
///
/// Readers map their memory read-only. There Rust guarantees only relaxed loads, and recommends this replacement
/// (`std::sync::atomic`, "Atomic accesses to read-only memory"). On x86 the two are one `mov`.
#[inline]
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}
