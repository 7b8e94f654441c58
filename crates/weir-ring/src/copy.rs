//! Copies bytes into and out of ring memory. No other module does that.
//!
//! | implementation | used on | unit |
//! |---|---|---|
//! | [`vector`] | x86-64 | up to 32 bytes, in assembly, which the compiler does not analyse |
//! | `words` | other processors; under loom and Miri, which cannot run assembly | a 64-bit atomic |
//!
//! Both store the same bytes at the same places; a test compares them. They differ in the bytes that a reader gets that
//! loads them while they are stored. No reader uses such bytes: they are not yet published, or the block has been
//! claimed again. So the algorithm does not depend on the implementation (decision 0003).

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod vector;
#[cfg(any(test, loom, miri, not(target_arch = "x86_64")))]
mod words;

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
pub use vector::{load, prefetch, store_record};
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
pub use words::{load, prefetch, store_record};

/// Joins two halves to a word.
pub const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
