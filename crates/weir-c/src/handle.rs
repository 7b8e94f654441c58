//! The memory behind a `weir_feed *`: a feed, which one thread uses at a time, and what ends its waits, which any may.

use std::cell::UnsafeCell;

use crate::feed::Feed;
use weir_abi::Stop;

/// The object to which a `weir_feed *` points.
pub struct Handle {
    pub stop: Stop,
    /// Used by the thread whose turn it is, as the header says; by `weir_break` never.
    pub feed: UnsafeCell<Feed>,
}
