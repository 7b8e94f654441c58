//! Frames for the program: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.

use std::ffi::{c_int, c_uchar};
use std::ptr::null;
use std::sync::Arc;

use weir_abi::Stop;

use crate::abi::{self, Handler, PacketHeader, Pcap};
use crate::frames::{NoFrame, Wait, fill, first, set_readable, take_break, takes};
use crate::guard::guarded;
use crate::handles::{self, Handle};
use crate::real;

/// Frames that one `pcap_dispatch` without a count hands over at most.
const DISPATCH_MAX: u64 = 1 << 16;
/// Frames that are taken at a time for `pcap_next`, which hands them over one by one.
const AHEAD: u64 = 1024;

/// Hands frames to the callback: `count` of them, or those that are there.
///
/// # Safety
/// The callback is the program's.
unsafe fn dispatch(
    handle: &Arc<Handle>,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> Result<c_int, NoFrame> {
    handle.set_busy(true);
    let (mut wait, nanoseconds) = {
        let state = handle.state();
        (Wait::of(&state), state.options.nanoseconds)
    };
    let stop = handle.stop.get();
    let most = u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(DISPATCH_MAX);
    let mut handed = 0;
    let why = loop {
        let filled =
            guarded(Err(NoFrame::Failed(abi::ERROR)), || fill(handle, most - handed, wait));
        if let Err(why) = filled {
            break Some(why);
        }
        let filter = handle.state().filter.clone();
        let mut is_over = false;
        // A callback may read, too, or not return: what is left is asked for anew each time.
        // SAFETY: what `fill` has given last.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            if takes(filter.as_ref(), &header, data) {
                // It may ask for statistics, set a filter, or close: nothing is held.
                handle.set_busy(false);
                // SAFETY: the program's own callback, as it demands: a header and `caplen` bytes, until it returns.
                unsafe { callback(user, &header, data) };
                handle.set_busy(true);
                handed += 1;
            }
            is_over = handed >= most || stop.is_some_and(Stop::is_set);
            if is_over {
                break;
            }
        }
        if is_over {
            break None;
        }
        // What a filter left out is no reason to return: frames are waited for until one is handed over.
        if handed > 0 {
            wait = Wait::NOT;
        }
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
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_dispatch(p, count, callback, user) };
    };
    // SAFETY: the program's callback.
    match unsafe { dispatch(&handle, count, callback, user) } {
        Ok(handed) => handed,
        Err(NoFrame::Nothing) => 0,
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
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_loop(p, count, callback, user) };
    };
    let mut left = count;
    loop {
        // SAFETY: the program's callback.
        match unsafe { dispatch(&handle, left, callback, user) } {
            Ok(handed) if count > 0 => {
                left -= handed;
                if left <= 0 {
                    return 0;
                }
            }
            Ok(_) | Err(NoFrame::Nothing) => {}
            Err(NoFrame::Break) => return abi::ERROR_BREAK,
            Err(NoFrame::Ended) => return 0,
            Err(NoFrame::Failed(status)) => return status,
        }
    }
}

/// The next frame that the filter takes.
fn next(handle: &Handle) -> Result<(PacketHeader, *const u8), NoFrame> {
    handle.set_busy(true);
    let found = next_of(handle);
    if matches!(found, Err(NoFrame::Break)) {
        take_break(handle);
    }
    // A frame's memory is the reader's, and arming may change that: it is armed only where there is none.
    let set = set_readable(handle, matches!(found, Err(NoFrame::Nothing)));
    handle.set_busy(false);
    set.map_err(NoFrame::Failed)?;
    found
}

fn next_of(handle: &Handle) -> Result<(PacketHeader, *const u8), NoFrame> {
    let (wait, nanoseconds, filter) = {
        let state = handle.state();
        (Wait::of(&state), state.options.nanoseconds, state.filter.clone())
    };
    loop {
        fill(handle, AHEAD, wait)?;
        // SAFETY: what `fill` has given last.
        while let Some((header, data, behind)) = unsafe { first(handle.unread(), nanoseconds) } {
            handle.set_unread(behind);
            if takes(filter.as_ref(), &header, data) {
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
pub unsafe extern "C" fn pcap_next_ex(
    p: *mut Pcap,
    header: *mut *mut PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_next_ex(p, header, data) };
    };
    match guarded(Err(NoFrame::Failed(abi::ERROR)), || next(&handle)) {
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
        Err(NoFrame::Nothing) => 0,
        Err(NoFrame::Break | NoFrame::Ended) => abi::ERROR_BREAK,
        Err(NoFrame::Failed(status)) => status,
    }
}

/// See pcap_next(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(p: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let Some(handle) = handles::find(p) else {
        // SAFETY: passed on.
        return unsafe { real::pcap_next(p, header) };
    };
    match guarded(Err(NoFrame::Failed(abi::ERROR)), || next(&handle)) {
        Ok((found, bytes)) => {
            // SAFETY: the program's header.
            unsafe { *header = found };
            bytes
        }
        Err(_) => null(),
    }
}
