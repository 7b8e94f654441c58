//! The functions that read and wait, as C sees them. A thread that is in one of them may be cancelled.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use weir_abi::limits::WAIT_SLICE_MAX;
use weir_abi::{Stop, cancel};

use crate::api::{not_null, with};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::frame::{Block, Frame};
use crate::handle::Handle;

/// Frames, or a block.
const ONE: c_int = 1;
/// Nothing came in time.
const NONE: c_int = 0;

/// Calls `wait`, which waits as long as it is told at most, until it gives something else than [`NONE`] or the time is
/// over.
///
/// # Safety
/// As [`with`]. The thread may be cancelled: no frame between the program and this call has anything to drop. `wait`
/// has not, because it can be copied.
unsafe fn wait_for(
    feed: *mut Handle,
    timeout_ms: c_int,
    wait: impl Fn(&mut Feed, &Stop, Duration) -> Result<c_int, Failure> + Copy,
) -> c_int {
    let limit = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
    let begun = Instant::now();
    loop {
        // SAFETY: nothing is held here, and the caller promises the same of the frames below.
        unsafe { cancel::test() };
        let left = limit.saturating_sub(begun.elapsed());
        // SAFETY: as the caller promises.
        let result = unsafe { with(feed, |feed, stop| wait(feed, stop, left.min(WAIT_SLICE_MAX))) };
        if result != NONE || left <= WAIT_SLICE_MAX {
            return result;
        }
    }
}

/// The next frame.
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
        // The way of most frames: nothing on it panics, so it needs no guard, and nothing is a cancellation point.
        if !stop.is_set()
            && let Ok(Some(next)) = own.next_taken()
        {
            // SAFETY: as the caller promises.
            unsafe { frame.write(next) };
            return ONE;
        }
    }
    let wait = |feed: &mut Feed, stop: &Stop, limit| next_frame(feed, stop, frame, limit);
    // SAFETY: as the caller promises; there is nothing to drop here.
    unsafe { wait_for(feed, timeout_ms, wait) }
}

/// The same where frames are to be waited for, or something is wrong.
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

/// The next frames.
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
