//! Waiting: `pcap_breakloop`, whether calls wait, and descriptors for event loops.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::abi::{self, Pcap};
use crate::guard::{guarded, write_error};
use crate::handles::{self, Handle, Polling};
use crate::real;

/// See pcap_breakloop(3PCAP): also in signal handlers, and by other threads.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(p: *mut Pcap) {
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_breakloop(p) };
    };
    if let Some(stop) = handle.stop.get() {
        stop.set();
    }
}

/// See pcap_setnonblock(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(
    p: *mut Pcap,
    nonblock: c_int,
    errbuf: *mut c_char,
) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_setnonblock(p, nonblock, errbuf) };
    };
    guarded(abi::ERROR, || {
        let mut state = handle.state();
        if state.reader.is_none() {
            // SAFETY: the program's buffer.
            unsafe { write_error(errbuf, "it is not activated") };
            return handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
        }
        state.nonblock = nonblock != 0;
        0
    })
}

/// See pcap_getnonblock(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || c_int::from(handle.state().nonblock)),
        // SAFETY: passed on.
        None => unsafe { real::pcap_getnonblock(p, errbuf) },
    }
}

fn descriptor(handle: &Handle) -> c_int {
    let mut state = handle.state();
    let state = &mut *state;
    let Some(reader) = &mut state.reader else {
        return handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
    };
    if state.polling == Polling::Unused {
        // Whatever was called before: frames that were taken may be waiting.
        if let Err(error) = reader.disarm() {
            return handle.fail(abi::ERROR, &error.to_string());
        }
        state.polling = Polling::Readable;
    }
    match reader.pollable() {
        Ok(fd) => fd.as_raw_fd(),
        Err(error) => handle.fail(abi::ERROR, &error.to_string()),
    }
}

/// See pcap_get_selectable_fd(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_selectable_fd(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || descriptor(&handle)),
        // SAFETY: passed on.
        None => unsafe { real::pcap_get_selectable_fd(p) },
    }
}

/// See pcap_fileno(3PCAP). Programs select on it.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_fileno(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || descriptor(&handle)),
        // SAFETY: passed on.
        None => unsafe { real::pcap_fileno(p) },
    }
}

/// See pcap_get_required_select_timeout(3PCAP): none is.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval {
    match handles::find(p) {
        Some(_) => null_mut(),
        // SAFETY: passed on.
        None => unsafe { real::pcap_get_required_select_timeout(p) },
    }
}
