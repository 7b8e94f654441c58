//! The object behind a `weir_feed *`. It has the feed, which one thread at a time uses, and the `Stop`, which any
//! thread may use.

use std::cell::UnsafeCell;

use crate::feed::Feed;
use weir_abi::Stop;

/// The object to which a `weir_feed *` points.
pub struct Handle {
    pub stop: Stop,
    /// Only the thread that currently uses the feed accesses this, as the header says; `weir_break` never does.
    pub feed: UnsafeCell<Feed>,
}
