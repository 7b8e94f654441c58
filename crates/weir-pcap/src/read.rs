//! Frames for the program: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.

use std::ffi::{c_int, c_uchar};
use std::ptr::null;

use weir_abi::{Stop, cancel};

use crate::abi::{self, Handler, PacketHeader, Pcap};
use crate::frames::{NoFrame, Wait, fill, first, set_readable, take_break};
use crate::guard::guarded;
use crate::handles::{Handle, Lookup};
use crate::real;

/// Frames that one `pcap_dispatch` without a count hands over at most.
const DISPATCH_MAX: u64 = 1 << 16;
/// Frames that are taken at a time for `pcap_next`, which hands them over one by one.
const AHEAD: u64 = 1024;

/// Hands frames to the callback: `count` of them, or those that are there.
///
/// # Safety
/// The callback is the program's. It may close the handle, throw, jump, or be cancelled, and so may this: no frame
/// between the program and this call has anything to drop, and neither has this one.
unsafe fn dispatch(
    lookup: Lookup,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> Result<c_int, NoFrame> {
    // SAFETY: it is looked up anew behind the callback.
    let Some(mut handle) = (unsafe { lookup.get() }) else { return Err(NoFrame::Break) };
    let (mut wait, nanoseconds) = wait_of(handle);
    let most = u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(DISPATCH_MAX);
    let mut handed = 0;
    let why = loop {
        // SAFETY: nothing is held here, and the caller promises the same of the frames below.
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
        // A callback may read, too, or not return: the remaining frames are asked for again each
        // time. SAFETY: what `fill` has given last.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            // SAFETY: a frame that `first` has found.
            if unsafe { handle.takes(&header, data) } {
                // It may ask for statistics, set a filter, or close: nothing is held.
                handle.set_busy(false);
                // SAFETY: the program's own callback, as it demands: a header and `caplen` bytes, until it returns.
                unsafe { callback(user, &header, data) };
                handed += 1;
                // SAFETY: as above.
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
        // Frames that a filter rejects are no reason to return: the call waits until a frame is handed
        // over.
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
        // One that comes before the first frame is told at once; behind frames, by the next call.
        Some(NoFrame::Break) | None => {
            take_break(handle);
            Err(NoFrame::Break)
        }
        Some(why) => Err(why),
    }
}

/// How a call that begins now waits, and whether its time stamps have nanoseconds.
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
        // SAFETY: passed on.
        return unsafe { real::pcap_dispatch(p, count, callback, user) };
    };
    // SAFETY: the program's callback; there is nothing to drop here.
    match unsafe { dispatch(lookup, count, callback, user) } {
        Ok(handed) => handed,
        Err(NoFrame::Nothing | NoFrame::Later) => 0,
        Err(NoFrame::Break) => abi::ERROR_BREAK,
        // 0 would be a time-out, after which programs come again.
        Err(NoFrame::Ended) => abi::ERROR_BREAK,
        Err(NoFrame::Failed(status)) => status,
    }
}

/// See pcap_loop(3PCAP). A source that has ended, as a file at a daemon does, is an end and no error: 0.
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
        // SAFETY: passed on.
        return unsafe { real::pcap_loop(p, count, callback, user) };
    };
    let mut left = count;
    loop {
        // SAFETY: the program's callback; there is nothing to drop here.
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

/// The next frame that the filter takes.
///
/// # Safety
/// The thread may be cancelled: no frame between the program and this call has anything to drop.
unsafe fn next(handle: &Handle) -> Result<(PacketHeader, *const u8), NoFrame> {
    let (wait, nanoseconds) = wait_of(handle);
    loop {
        // SAFETY: as the caller promises, and nothing is held here.
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

/// The same within a short time.
fn next_within(
    handle: &Handle,
    wait: Wait,
    nanoseconds: bool,
) -> Result<(PacketHeader, *const u8), NoFrame> {
    let found = next_of(handle, wait, nanoseconds);
    if matches!(found, Err(NoFrame::Break)) {
        take_break(handle);
    }
    // A frame's memory is the reader's, and arming may change that: it is armed only where there is none.
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
        // SAFETY: what `fill` has given last.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            // SAFETY: a frame that `first` has found.
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
    // SAFETY: there is no callback that could close it.
    let Some(handle) = Lookup::of(p).and_then(|lookup| unsafe { lookup.get() }) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_next_ex(p, header, data) };
    };
    // SAFETY: there is nothing to drop here.
    match unsafe { next(handle) } {
        Ok((found, bytes)) => {
            let own = handle.header.get();
            // SAFETY: `own` is the handle's, which lives until `pcap_close`; the others are the program's.
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
    // SAFETY: there is no callback that could close it.
    let Some(handle) = Lookup::of(p).and_then(|lookup| unsafe { lookup.get() }) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_next(p, header) };
    };
    // SAFETY: there is nothing to drop here.
    match unsafe { next(handle) } {
        Ok((found, bytes)) => {
            // SAFETY: the program's header.
            unsafe { *header = found };
            bytes
        }
        Err(_) => null(),
    }
}
