//! Bytes into and out of ring memory: the one place that moves them.
//!
//! | way | where | unit |
//! |---|---|---|
//! | [`vector`] | x86-64 | up to 32 bytes, by instructions that the compiler cannot see through |
//! | [`words`] | elsewhere; models and Miri, which cannot see through them either | a 64-bit atomic |
//!
//! Both put the same bytes at the same places (a test holds them together). They differ in what somebody sees who looks
//! at bytes that are being written: nobody believes that before they were published, or after the block was claimed
//! again, so nothing of the algorithm rests on it (decision 0003).

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

/// Two halves as a word.
pub const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
