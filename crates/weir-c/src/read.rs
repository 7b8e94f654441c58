//! The C functions that read and wait. They are cancellation points, but for `weir_next_frame` while it has frames that
//! it need not take from the ring.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use weir_abi::limits::WAIT_SLICE_MAX;
use weir_abi::{Stop, cancel};

use crate::api::{not_null, with};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::frame::{Block, Frame};
use crate::handle::Handle;

/// Result: a frame or a block was returned.
const ONE: c_int = 1;
/// Result: none came in time.
const NONE: c_int = 0;

/// Calls `wait` repeatedly, each time with a limit for its wait, until its result is not [`NONE`] or `timeout_ms` is
/// over.
///
/// # Safety
/// As [`with`]. The thread may be cancelled: no stack frame between the program and this call has a value to drop.
/// `wait` has none, because it is `Copy`.
unsafe fn wait_for(
    feed: *mut Handle,
    timeout_ms: c_int,
    wait: impl Fn(&mut Feed, &Stop, Duration) -> Result<c_int, Failure> + Copy,
) -> c_int {
    let limit = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
    let begun = Instant::now();
    loop {
        // SAFETY: this function holds no lock and has no value to drop, and the caller promises the same for its own
        // callers.
        unsafe { cancel::test() };
        let left = limit.saturating_sub(begun.elapsed());
        // SAFETY: as the caller promises.
        let result = unsafe { with(feed, |feed, stop| wait(feed, stop, left.min(WAIT_SLICE_MAX))) };
        if result != NONE || left <= WAIT_SLICE_MAX {
            return result;
        }
    }
}

/// Returns the next frame.
///
/// # Safety
/// As [`with`]; `frame` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weir_next_frame(
    feed: *mut Handle,
    frame: *mut *const Frame,
    timeout_ms: c_int,
) -> c_int {
    if !feed.is_null() && !frame.is_null() {
        // SAFETY: as the caller promises. `weir_break` uses `stop` only.
        let (stop, own) = unsafe { (&(*feed).stop, &mut *(*feed).feed.get()) };
        // The path of most frames: nothing in it panics, so it needs no guard, and it has no cancellation point.
        if !stop.is_set() {
            match own.next_taken() {
                Ok(None) => {}
                Ok(Some(next)) => {
                    // SAFETY: as the caller promises.
                    unsafe { frame.write(next) };
                    return ONE;
                }
                Err(failure) => return own.fail(&failure),
            }
        }
    }
    let wait = |feed: &mut Feed, stop: &Stop, limit| next_frame(feed, stop, frame, limit);
    // SAFETY: as the caller promises; there is nothing to drop here.
    unsafe { wait_for(feed, timeout_ms, wait) }
}

/// Returns the next frame when `weir_next_frame` must take frames from the ring, or must refuse.
fn next_frame(
    feed: &mut Feed,
    stop: &Stop,
    frame: *mut *const Frame,
    limit: Duration,
) -> Result<c_int, Failure> {
    not_null("frame", frame)?;
    feed.check_stop(stop)?;
    if !feed.pull(stop, limit)? {
        return Ok(NONE);
    }
    let Some(next) = feed.next_taken()? else { return Ok(NONE) };
    // SAFETY: not NULL, as checked above; can be written, as the caller of `weir_next_frame` promises.
    unsafe { frame.write(next) };
    Ok(ONE)
}

/// Returns the next frames as one block.
///
/// # Safety
/// As [`with`]; `block` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weir_next_block(
    feed: *mut Handle,
    block: *mut *const Block,
    timeout_ms: c_int,
) -> c_int {
    let wait = |feed: &mut Feed, stop: &Stop, limit| {
        not_null("block", block)?;
        feed.check_stop(stop)?;
        if !feed.has_taken() && !feed.pull(stop, limit)? {
            return Ok(NONE);
        }
        let Some(next) = feed.block_taken() else { return Ok(NONE) };
        // SAFETY: not NULL, as checked above; can be written, as the caller promises.
        unsafe { block.write(next) };
        Ok(ONE)
    };
    // SAFETY: as the caller promises; there is nothing to drop here.
    unsafe { wait_for(feed, timeout_ms, wait) }
}
