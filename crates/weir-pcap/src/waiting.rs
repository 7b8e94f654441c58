//! Waiting: `pcap_breakloop`, non-blocking mode, and descriptors for event loops.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use weir_abi::Stop;
use weir_client::{ClientError, error_text};

use crate::abi::{self, Pcap};
use crate::frames::follow_fork;
use crate::guard::guarded;
use crate::handles::{self, Handle, Polling, State};
use crate::real;

/// See pcap_breakloop(3PCAP). Signal handlers and other threads may call it.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_breakloop(p: *mut Pcap) {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
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
pub unsafe extern "C-unwind" fn pcap_setnonblock(
    p: *mut Pcap,
    nonblock: c_int,
    errbuf: *mut c_char,
) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_setnonblock(p, nonblock, errbuf) };
    };
    guarded(abi::ERROR, || {
        // As in libpcap, this is allowed before the handle is activated.
        let mut state = handle.state();
        state.nonblock = nonblock != 0;
        0
    })
}

/// See pcap_getnonblock(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || c_int::from(handle.state().nonblock)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_getnonblock(p, errbuf) },
    }
}

fn descriptor(handle: &Handle) -> c_int {
    let mut state = handle.state();
    let Some(stop) = handle.stop.get().filter(|_| state.reader.is_some()) else {
        return handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
    };
    match descriptor_of(&mut state, stop) {
        Ok(fd) => fd,
        Err(error) => handle.fail(abi::ERROR, &error_text(&error)),
    }
}

fn descriptor_of(state: &mut State, stop: &Stop) -> Result<c_int, ClientError> {
    follow_fork(state, stop)?;
    if let Some(reader) = state.reader.as_mut().filter(|_| state.polling == Polling::Unused) {
        // Readable at first: an earlier call may have left frames that the program has not read yet.
        reader.disarm()?;
        (state.fd, state.polling) = (reader.pollable()?.as_raw_fd(), Polling::Readable);
    }
    Ok(state.fd)
}

/// See pcap_get_selectable_fd(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_get_selectable_fd(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || descriptor(&handle)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_get_selectable_fd(p) },
    }
}

/// See pcap_fileno(3PCAP). Returns the same descriptor as `pcap_get_selectable_fd`, because programs use it for
/// select().
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_fileno(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || descriptor(&handle)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_fileno(p) },
    }
}

/// See pcap_get_required_select_timeout(3PCAP). No time-out is required.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_get_required_select_timeout(
    p: *mut Pcap,
) -> *const libc::timeval {
    match handles::find(p) {
        Some(_) => null_mut(),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_get_required_select_timeout(p) },
    }
}
