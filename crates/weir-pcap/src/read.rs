//! The functions that read frames: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.

use std::ffi::{c_int, c_uchar};
use std::ptr::null;

use weir_abi::{Stop, cancel};

use crate::abi::{self, Handler, PacketHeader, Pcap};
use crate::frames::{NoFrame, Wait, fill, first, set_readable, take_break};
use crate::guard::guarded;
use crate::handles::{Handle, Lookup};
use crate::real;

/// Most frames for one `pcap_dispatch` without a count.
const DISPATCH_MAX: u64 = 1 << 16;
/// Most frames that are taken at a time for `pcap_next`, which returns them one by one.
const AHEAD: u64 = 1024;

/// Passes frames to the callback: at most `count`, or if that is 0 or less, the frames that are available.
///
/// # Safety
/// `callback` is the program's. It may close the handle, throw, jump, or be cancelled, and so may this function: no
/// stack frame between the program and this call has a value to drop, and neither has this function's.
unsafe fn dispatch(
    lookup: Lookup,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> Result<c_int, NoFrame> {
    // SAFETY: the handle is looked up again after each callback.
    let Some(mut handle) = (unsafe { lookup.get() }) else { return Err(NoFrame::Break) };
    let (mut wait, nanoseconds) = wait_of(handle);
    let most = u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(DISPATCH_MAX);
    let mut handed = 0;
    let why = loop {
        // SAFETY: this function holds no lock and has no value to drop, and the caller promises the same for its own
        // callers.
        unsafe { cancel::test() };
        handle.set_busy(true);
        let filled =
            guarded(Err(NoFrame::Failed(abi::ERROR)), || fill(handle, most - handed, wait));
        match filled {
            Ok(()) => {}
            Err(NoFrame::Later) => {
                handle.set_busy(false);
                continue;
            }
            Err(why) => break Some(why),
        }
        let mut is_over = false;
        // A callback may itself read frames, or not return: so the remaining frames are asked for again each time.
        // SAFETY: they are the records of the last `fill`.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            // SAFETY: `first` has returned the header and its bytes.
            if unsafe { handle.takes(&header, data) } {
                // The callback may ask for statistics, set a filter, or close the handle: no lock is held.
                handle.set_busy(false);
                // SAFETY: the callback is the program's own. It gets a header and `caplen` bytes, valid until it
                // returns.
                unsafe { callback(user, &header, data) };
                handed += 1;
                // SAFETY: the handle is looked up again after each callback.
                let Some(same) = (unsafe { lookup.get() }) else { return Ok(handed as c_int) };
                handle = same;
                handle.set_busy(true);
            }
            is_over = handed >= most || handle.stop.get().is_some_and(Stop::is_set);
            if is_over {
                break;
            }
        }
        if is_over {
            break None;
        }
        // If the filter rejected all of these frames, the call goes on waiting, until a frame was passed to the
        // callback.
        if handed > 0 {
            wait.end();
        }
        handle.set_busy(false);
    };
    let found_nothing = matches!(why, Some(NoFrame::Nothing));
    let set = guarded(Err(abi::ERROR), || set_readable(handle, found_nothing));
    handle.set_busy(false);
    set.map_err(NoFrame::Failed)?;
    match why {
        Some(why @ NoFrame::Failed(_)) => Err(why),
        _ if handed > 0 => Ok(handed as c_int),
        // A break before the first frame is reported at once; after frames, the next call reports it.
        Some(NoFrame::Break) | None => {
            take_break(handle);
            Err(NoFrame::Break)
        }
        Some(why) => Err(why),
    }
}

/// Returns the time limit of a call that begins now, and whether its time stamps have nanoseconds.
fn wait_of(handle: &Handle) -> (Wait, bool) {
    let state = handle.state();
    (Wait::of(&state), state.options.nanoseconds)
}

/// See pcap_dispatch(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_dispatch(
    p: *mut Pcap,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> c_int {
    let Some(lookup) = Lookup::of(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_dispatch(p, count, callback, user) };
    };
    // SAFETY: the callback is the program's; this function has no value to drop.
    match unsafe { dispatch(lookup, count, callback, user) } {
        Ok(handed) => handed,
        Err(NoFrame::Nothing | NoFrame::Later) => 0,
        Err(NoFrame::Break) => abi::ERROR_BREAK,
        // 0 would mean a time-out, after which programs call again.
        Err(NoFrame::Ended) => abi::ERROR_BREAK,
        Err(NoFrame::Failed(status)) => status,
    }
}

/// See pcap_loop(3PCAP). When a source ends, such as a file at a daemon, the result is 0, as at the end of a file.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_loop(
    p: *mut Pcap,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> c_int {
    let Some(lookup) = Lookup::of(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_loop(p, count, callback, user) };
    };
    let mut left = count;
    loop {
        // SAFETY: the callback is the program's; this function has no value to drop.
        match unsafe { dispatch(lookup, left, callback, user) } {
            Ok(handed) if count > 0 => {
                left -= handed;
                if left <= 0 {
                    return 0;
                }
            }
            Ok(_) | Err(NoFrame::Nothing | NoFrame::Later) => {}
            Err(NoFrame::Break) => return abi::ERROR_BREAK,
            Err(NoFrame::Ended) => return 0,
            Err(NoFrame::Failed(status)) => return status,
        }
    }
}

/// Returns the next frame that the filter accepts.
///
/// # Safety
/// The thread may be cancelled: no stack frame between the program and this call has a value to drop.
unsafe fn next(handle: &Handle) -> Result<(PacketHeader, *const u8), NoFrame> {
    let (wait, nanoseconds) = wait_of(handle);
    loop {
        // SAFETY: as the caller promises; this function holds no lock and has no value to drop.
        unsafe { cancel::test() };
        handle.set_busy(true);
        let found =
            guarded(Err(NoFrame::Failed(abi::ERROR)), || next_within(handle, wait, nanoseconds));
        handle.set_busy(false);
        if !matches!(found, Err(NoFrame::Later)) {
            return found;
        }
    }
}

/// Like [`next`], for a part of the time limit.
fn next_within(
    handle: &Handle,
    wait: Wait,
    nanoseconds: bool,
) -> Result<(PacketHeader, *const u8), NoFrame> {
    let found = next_of(handle, wait, nanoseconds);
    if matches!(found, Err(NoFrame::Break)) {
        take_break(handle);
    }
    // A frame is in the reader's memory, and arming may change that memory: so it is armed only if there is no frame.
    let set = set_readable(handle, matches!(found, Err(NoFrame::Nothing)));
    set.map_err(NoFrame::Failed)?;
    found
}

fn next_of(
    handle: &Handle,
    wait: Wait,
    nanoseconds: bool,
) -> Result<(PacketHeader, *const u8), NoFrame> {
    loop {
        fill(handle, AHEAD, wait)?;
        // SAFETY: the records are those of the last `fill`.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            // SAFETY: `first` has returned the header and its bytes.
            if unsafe { handle.takes(&header, data) } {
                return Ok((header, data));
            }
        }
    }
}

/// See pcap_next_ex(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_next_ex(
    p: *mut Pcap,
    header: *mut *mut PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    // SAFETY: this call runs no callback that could close the handle.
    let Some(handle) = Lookup::of(p).and_then(|lookup| unsafe { lookup.get() }) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_next_ex(p, header, data) };
    };
    // SAFETY: this function has no value to drop.
    match unsafe { next(handle) } {
        Ok((found, bytes)) => {
            let own = handle.header.get();
            // SAFETY: `own` belongs to the handle, which lives until `pcap_close`; the other pointers are the
            // program's.
            unsafe {
                *own = found;
                *header = own;
                *data = bytes;
            }
            1
        }
        Err(NoFrame::Nothing | NoFrame::Later) => 0,
        Err(NoFrame::Break | NoFrame::Ended) => abi::ERROR_BREAK,
        Err(NoFrame::Failed(status)) => status,
    }
}

/// See pcap_next(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_next(
    p: *mut Pcap,
    header: *mut PacketHeader,
) -> *const c_uchar {
    // SAFETY: this call runs no callback that could close the handle.
    let Some(handle) = Lookup::of(p).and_then(|lookup| unsafe { lookup.get() }) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_next(p, header) };
    };
    // SAFETY: this function has no value to drop.
    match unsafe { next(handle) } {
        Ok((found, bytes)) => {
            // SAFETY: the program passes a header that can be written, as libpcap demands.
            unsafe { *header = found };
            bytes
        }
        Err(_) => null(),
    }
}
