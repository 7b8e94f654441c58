//! The one place that names atomics: `std`'s in service, loom's in the model.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An acquire load, as a relaxed load and a fence.
///
/// Readers map their memory read-only, where Rust promises only relaxed loads (`std::sync::atomic`,
/// "Atomic accesses to read-only memory", which names this way out). On x86 the two are one `mov`.
#[inline]
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}
