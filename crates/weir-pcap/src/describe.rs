//! Functions by which a handle describes itself, and unsupported functions.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weir_abi::cancel;
use weir_client::error_text;
use weir_client::limits::PATIENCE_MAX;

use crate::abi::{self, Dumper, Pcap, Stat};
use crate::frames::note_statistics;
use crate::guard::guarded;
use crate::handles::{self, Handle};
use crate::real;

/// Defines functions that call the real libpcap with the inner handle, which exists once the handle is activated.
macro_rules! asked_of_inner {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $missing:expr, $failed:expr;)*) => {$(
        /// See the page of this name, section 3PCAP.
        ///
        /// # Safety
        /// As libpcap demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(p: *mut Pcap $(, $arg: $type)*) -> $result {
            let Some(handle) = handles::find(p) else {
                // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
                return unsafe { real::$name(p $(, $arg)*) };
            };
            let Some(inner) = handle.inner() else {
                handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
                return $missing;
            };
            // Some of these functions open a file, which is a cancellation point.
            let result = cancel::disabled(|| {
                // SAFETY: the arguments are passed on, with the inner handle, which is libpcap's own.
                unsafe { real::$name(inner $(, $arg)*) }
            });
            let failed: fn($result) -> bool = $failed;
            if failed(result) {
                handle.fail_inner();
            }
            result
        }
    )*};
}

asked_of_inner! {
    pcap_datalink() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_datalink_ext() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_list_datalinks(list: *mut *mut c_int) -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_set_datalink(value: c_int) -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_snapshot() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_is_swapped() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_major_version() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_minor_version() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_bufsize() -> c_int = abi::ERROR_NOT_ACTIVATED, |status| status < 0;
    pcap_file() -> *mut libc::FILE = null_mut(), |_| false;
    pcap_dump_open(name: *const c_char) -> *mut Dumper = null_mut(), |file| file.is_null();
    pcap_dump_open_append(name: *const c_char) -> *mut Dumper = null_mut(), |file| file.is_null();
    pcap_dump_fopen(file: *mut libc::FILE) -> *mut Dumper = null_mut(), |file| file.is_null();
}

/// See pcap_get_tstamp_precision(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_get_tstamp_precision(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || c_int::from(handle.state().options.nanoseconds)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_get_tstamp_precision(p) },
    }
}

/// See pcap_list_tstamp_types(3PCAP). Feeds have one type of time stamps, so there is no choice.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_list_tstamp_types(
    p: *mut Pcap,
    types: *mut *mut c_int,
) -> c_int {
    match handles::find(p) {
        Some(_) => {
            // SAFETY: the program passes a pointer that can be written, as libpcap demands.
            unsafe { *types = null_mut() };
            0
        }
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_list_tstamp_types(p, types) },
    }
}

/// See pcap_geterr(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_geterr(p: *mut Pcap) -> *mut c_char {
    match handles::find(p) {
        Some(handle) => handle.error(),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_geterr(p) },
    }
}

/// See pcap_perror(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_perror(p: *mut Pcap, prefix: *const c_char) {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_perror(p, prefix) };
    };
    guarded((), || {
        // SAFETY: both are C strings: the program's, and the text of an error.
        let [prefix, error] = unsafe {
            [CStr::from_ptr(prefix), CStr::from_ptr(handle.error())].map(CStr::to_string_lossy)
        };
        // The program asks to print this.
        eprintln!("{prefix}: {error}");
    });
}

/// How long the daemon's answer to a program that asks for statistics is reused: a program may ask after each packet,
/// and the daemon answers at most 200 requests a second.
const ANSWER_HOLDS: Duration = Duration::from_millis(10);

/// Returns the statistics. Does not wait for another call on the handle: if this runs in a signal handler, the handler
/// may have interrupted that call.
fn statistics(handle: &Handle) -> Result<Stat, c_int> {
    if handle.is_busy() {
        return Ok(handle.told());
    }
    let Some(mut state) = handle.try_state() else { return Ok(handle.told()) };
    if state.reader.is_none() {
        return Err(handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated"));
    }
    // An answer that a reading call asked for is not reused: a program that asks only at its end learns of every loss.
    if state.asked_at.is_some_and(|at| at.elapsed() < ANSWER_HOLDS) {
        return Ok(handle.told());
    }
    state.asked_at = Some(Instant::now());
    if let Some(error) = note_statistics(handle, &mut state, PATIENCE_MAX) {
        return Err(handle.fail(abi::ERROR, &format!("{}: {}", state.name, error_text(&error))));
    }
    Ok(handle.told())
}

/// See pcap_stats(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_stats(p, stat) };
    };
    match guarded(Err(abi::ERROR), || statistics(&handle)) {
        Ok(told) => {
            // SAFETY: the program passes a pointer that can be written, as libpcap demands.
            unsafe { *stat = told };
            0
        }
        Err(status) => status,
    }
}

const READ_ONLY: &str = "host: names are for reading: a feed of a daemon sends nothing";

/// See pcap_inject(3PCAP). Fails always: a feed cannot send.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_inject(
    p: *mut Pcap,
    data: *const c_void,
    size: usize,
) -> c_int {
    match handles::find(p) {
        Some(handle) => handle.fail(abi::ERROR, READ_ONLY),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_inject(p, data, size) },
    }
}

/// See pcap_sendpacket(3PCAP). Fails always: a feed cannot send.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_sendpacket(
    p: *mut Pcap,
    data: *const c_uchar,
    size: c_int,
) -> c_int {
    match handles::find(p) {
        Some(handle) => handle.fail(abi::ERROR, READ_ONLY),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_sendpacket(p, data, size) },
    }
}
