//! The C functions of a feed. They turn pointers into references, and failures into results.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::time::Duration;

use crate::VERSION;
use crate::failure::{Code, Failure};
use crate::feed::Feed;
use crate::guard::guarded;
use crate::handle::Handle;
use crate::options::Options;
use crate::statistics::Counts;
use crate::text;
use weir_abi::Stop;

/// Returns the library's `WEIR_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn weir_version() -> u32 {
    VERSION
}

/// Connects to the daemon and finds the source.
///
/// # Safety
/// `feed` can be written; `name` ends with NUL; `options` is NULL or as big as it says, with strings that end with NUL;
/// `error` is NULL or has room for `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_open(
    feed: *mut *mut Handle,
    name: *const c_char,
    options: *const Options,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    let opened = guarded(|| {
        if feed.is_null() {
            return Err(Failure::argument("feed is NULL"));
        }
        // SAFETY: as the caller promises.
        let asked = unsafe { Options::read(options)?.asked(name)? };
        Feed::connect(&asked)
    });
    let (handle, result, why) = match opened {
        Ok((feed, stop)) => {
            let handle = Box::new(Handle { stop, feed: UnsafeCell::new(feed) });
            (Box::into_raw(handle), 0, String::new())
        }
        Err(failure) => (ptr::null_mut(), failure.result(), failure.text),
    };
    // SAFETY: as the caller promises.
    unsafe {
        text::copy_to(&why, error, error_size);
        if !feed.is_null() {
            feed.write(handle);
        }
    }
    result
}

/// Closes a feed and frees its memory.
///
/// # Safety
/// `feed` is NULL or came from [`weir_open`]; no thread and no signal handler uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_close(feed: *mut Handle) {
    if !feed.is_null() {
        // SAFETY: the pointer was made by `Box::into_raw` in `weir_open`. The caller promises to close the feed only
        // once.
        let handle = unsafe { Box::from_raw(feed) };
        let _ = guarded(|| {
            drop(handle);
            Ok(())
        });
    }
}

/// Calls `body` with the feed, and stores the text of a failure in the feed.
///
/// # Safety
/// `feed` is NULL or came from [`weir_open`] and is not closed, and no other thread uses it.
pub unsafe fn with(
    feed: *mut Handle,
    body: impl FnOnce(&mut Feed, &Stop) -> Result<c_int, Failure>,
) -> c_int {
    if feed.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: as the caller promises. `weir_break` uses only `stop`, to which there are only shared references.
    let (stop, feed) = unsafe { (&(*feed).stop, &mut *(*feed).feed.get()) };
    match guarded(|| feed.check().and_then(|()| body(feed, stop))) {
        Ok(result) => result,
        Err(failure) => feed.fail(&failure),
    }
}

/// Returns the given text; for NULL, an empty one.
///
/// # Safety
/// `text` is NULL or ends with NUL.
unsafe fn text_or_empty(what: &str, text: *const c_char) -> Result<String, Failure> {
    // SAFETY: as the caller promises; the text is copied here.
    Ok(unsafe { text::from_c(what, text) }?.unwrap_or_default().to_owned())
}

pub fn not_null<T>(what: &str, pointer: *mut T) -> Result<(), Failure> {
    if pointer.is_null() { Err(Failure::argument(format!("{what} is NULL"))) } else { Ok(()) }
}

/// Starts the capture.
///
/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start(feed: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(feed, |feed, stop| feed.start(stop).map(|()| 0)) }
}

/// Returns the text of the last failure.
///
/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_error(feed: *const Handle) -> *const c_char {
    if feed.is_null() {
        return c"feed is NULL".as_ptr();
    }
    // SAFETY: as the caller promises.
    unsafe { &*(*feed).feed.get() }.error().as_ptr()
}

/// Returns the section header and the descriptions of all interfaces so far.
///
/// # Safety
/// As [`with`]; `header` and `bytes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pcapng_header(
    feed: *mut Handle,
    header: *mut *const u8,
    bytes: *mut usize,
) -> c_int {
    let write = |feed: &mut Feed, stop: &Stop| {
        not_null("header", header)?;
        not_null("bytes", bytes)?;
        let own = feed.pcapng_header(stop)?;
        // SAFETY: not NULL, as checked above; can be written, as the caller promises.
        unsafe {
            header.write(own.as_ptr());
            bytes.write(own.len());
        }
        Ok(0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, write) }
}

/// Returns the pcap link type.
///
/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_link_type(feed: *const Handle) -> c_int {
    // SAFETY: as the caller promises; a failure is stored in memory that belongs to the feed alone (`UnsafeCell`).
    unsafe { with(feed.cast_mut(), |feed, _| Ok(feed.link_type())) }
}

/// Returns the name of an interface.
///
/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_interface_name(feed: *mut Handle, interface: u32) -> *const c_char {
    let mut name = ptr::null();
    let find = |feed: &mut Feed, _: &Stop| {
        name = feed.interface_name(interface).map_or(ptr::null(), |name| name.as_ptr());
        Ok(0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, find) };
    name
}

/// Returns a descriptor for event loops.
///
/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fd(feed: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(feed, Feed::pollable) }
}

/// Ends a wait. Any thread and signal handlers may call this.
///
/// # Safety
/// `feed` is NULL or came from [`weir_open`] and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_break(feed: *mut Handle) {
    if !feed.is_null() {
        // SAFETY: as the caller promises; the feed itself, which another thread may be using, is not touched.
        unsafe { &(*feed).stop }.set();
    }
}

/// Sets another filter.
///
/// # Safety
/// As [`with`]; `filter` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_set_filter(feed: *mut Handle, filter: *const c_char) -> c_int {
    let set = |feed: &mut Feed, stop: &Stop| {
        // SAFETY: as the caller promises.
        let filter = unsafe { text_or_empty("the filter", filter) }?;
        feed.set_filter(stop, &filter).map(|()| 0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, set) }
}

/// Copies the strings at `entries`.
///
/// # Safety
/// `entries` has `count` strings that end with NUL.
unsafe fn texts(entries: *const *const c_char, count: usize) -> Result<Vec<String>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    not_null("entries", entries.cast_mut())?;
    // SAFETY: as the caller promises.
    let entries = unsafe { std::slice::from_raw_parts(entries, count) };
    // SAFETY: as the caller promises.
    entries.iter().map(|entry| unsafe { text_or_empty("an entry", *entry) }).collect()
}

/// Blocks frames that match these entries.
///
/// # Safety
/// As [`with`]; `entries` has `count` strings that end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_block_entries(
    feed: *mut Handle,
    entries: *const *const c_char,
    count: usize,
    expires_ms: u64,
) -> c_int {
    let block = |feed: &mut Feed, stop: &Stop| {
        // SAFETY: as the caller promises.
        let add = unsafe { texts(entries, count) }?;
        let blocked = match expires_ms {
            0 => feed.block(stop, &add, &[]),
            _ => feed.block_for(stop, &add, Duration::from_millis(expires_ms)),
        };
        blocked.map(|()| 0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, block) }
}

/// Removes entries.
///
/// # Safety
/// As [`weir_block_entries`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_unblock_entries(
    feed: *mut Handle,
    entries: *const *const c_char,
    count: usize,
) -> c_int {
    let unblock = |feed: &mut Feed, stop: &Stop| {
        // SAFETY: as the caller promises.
        let remove = unsafe { texts(entries, count) }?;
        feed.block(stop, &[], &remove).map(|()| 0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, unblock) }
}

/// Returns the counts of all frames.
///
/// # Safety
/// As [`with`]; `statistics` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_get_statistics(
    feed: *mut Handle,
    statistics: *mut *const Counts,
) -> c_int {
    let get = |feed: &mut Feed, stop: &Stop| {
        not_null("statistics", statistics)?;
        let own = feed.statistics(stop)?;
        // SAFETY: not NULL, as checked above; can be written, as the caller promises.
        unsafe { statistics.write(&raw const own.counts) };
        Ok(0)
    };
    // SAFETY: as the caller promises.
    unsafe { with(feed, get) }
}
