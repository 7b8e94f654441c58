//! Frames: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`, `pcap_breakloop`, and waiting for them.

use std::ffi::{c_char, c_int, c_uchar};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_abi::Stop;
use weir_client::{Address, ClientError};
use weir_consumer::Pulled;
use weir_frame::record::{HEADER_BYTES, Outline};

use crate::abi::{self, Handler, Insn, PacketHeader, Pcap, Program};
use crate::guard::{guarded, write_error};
use crate::handles::{self, Handle, Polling, Rest, State};
use crate::real;

/// Frames that one `pcap_dispatch` without a count hands over at most.
const DISPATCH_MAX: u64 = 1 << 16;
/// Frames that are taken at a time for `pcap_next`, which hands them over one by one.
const AHEAD: u64 = 1024;
/// Without a time-out a wait has no end; it is as long as the clock goes.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Why a call that reads has no frames for the program.
enum NoFrame {
    /// There is none within the time.
    Nothing,
    /// The program asked to break.
    Break,
    /// None will come.
    Ended,
    Failed(c_int),
}

/// How a call that reads waits.
#[derive(Clone, Copy)]
struct Wait {
    limit: Duration,
}

impl Wait {
    const NOT: Wait = Wait { limit: Duration::ZERO };

    fn of(state: &State) -> Wait {
        let limit = match u64::try_from(state.options.timeout_ms) {
            _ if state.nonblock => Duration::ZERO,
            Ok(ms @ 1..) => Duration::from_millis(ms),
            _ => FOREVER,
        };
        Wait { limit }
    }
}

/// Takes up to `most` frames from the feed, behind what was left.
fn fill(handle: &Handle, most: u64, wait: Wait) -> Result<Rest, NoFrame> {
    let not_activated = "it is not activated";
    let mut state = handle.state();
    let state = &mut *state;
    let (Some(reader), Some(stop)) = (&mut state.reader, handle.stop.get()) else {
        return Err(NoFrame::Failed(handle.fail(abi::ERROR_NOT_ACTIVATED, not_activated)));
    };
    if stop.is_set() {
        return Err(NoFrame::Break);
    }
    let rest = std::mem::replace(&mut state.rest, Rest::NONE);
    if rest.bytes > 0 {
        return Ok(rest);
    }
    let failed = |error: ClientError, name: &Address| {
        NoFrame::Failed(handle.fail(abi::ERROR, &format!("{name}: {error}")))
    };
    let begun = Instant::now();
    loop {
        if let Err(error) = reader.open() {
            return Err(failed(error, &state.name));
        }
        if state.pid != std::process::id() {
            // A fork: what it sleeps on is another, and so is the descriptor.
            match reader.interrupter() {
                Ok(interrupter) => stop.replace(interrupter),
                Err(error) => return Err(failed(error, &state.name)),
            }
            (state.pid, state.polling) = (std::process::id(), Polling::Unused);
        }
        let left = wait.limit.saturating_sub(begun.elapsed());
        match reader.next_unless(most, left, || stop.is_set()) {
            Ok(Pulled::Frames(_)) => {
                let bytes = reader.run().block_bytes;
                return Ok(Rest { at: bytes.as_ptr(), bytes: bytes.len() });
            }
            Ok(Pulled::Nothing) => return Err(NoFrame::Nothing),
            Ok(Pulled::Ended) => return Err(NoFrame::Ended),
            Ok(Pulled::Interrupted) if stop.is_set() => return Err(NoFrame::Break),
            // Another signal: the wait goes on.
            Ok(Pulled::Interrupted) => {}
            Err(error) => return Err(failed(error, &state.name)),
        }
    }
}

/// Has the program's descriptor, if it uses one, tell of what comes behind a call that found nothing; behind any other
/// it is readable.
fn set_readable(handle: &Handle, found_nothing: bool) -> Result<(), c_int> {
    let mut state = handle.state();
    let state = &mut *state;
    let Some(reader) = &mut state.reader else { return Ok(()) };
    let set = match (state.polling, found_nothing) {
        (Polling::Unused, _) | (Polling::Readable, false) => return Ok(()),
        (_, true) => {
            state.polling = Polling::Armed;
            reader.arm()
        }
        (Polling::Armed, false) => {
            state.polling = Polling::Readable;
            reader.disarm()
        }
    };
    set.map_err(|error| handle.fail(abi::ERROR, &error.to_string()))
}

/// Whether a break was asked for: it is taken note of.
fn take_break(handle: &Handle) -> bool {
    handle.stop.get().is_some_and(Stop::take)
}

/// The first frame of some records: its header, its bytes, and the records behind it.
///
/// # Safety
/// The records are those of [`fill`], and nobody has filled since.
unsafe fn first(rest: Rest, nanoseconds: bool) -> Option<(PacketHeader, *const u8, Rest)> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(rest.at, rest.bytes) };
    // The reader has checked all lengths: it fails at the end and not before.
    let outline = Outline::read(bytes).ok()?;
    let (seconds, ns) = (outline.ts_ns / 1_000_000_000, outline.ts_ns % 1_000_000_000);
    let fraction = if nanoseconds { ns } else { ns / 1000 };
    let ts = libc::timeval { tv_sec: seconds as i64, tv_usec: fraction as i64 };
    let header = PacketHeader { ts, caplen: outline.caplen, len: outline.wire_len };
    let data = &bytes[HEADER_BYTES as usize..];
    let behind = &bytes[outline.block_bytes as usize..];
    Some((header, data.as_ptr(), Rest { at: behind.as_ptr(), bytes: behind.len() }))
}

/// Whether a filter takes a frame; none takes all.
fn takes(filter: Option<&Arc<[Insn]>>, header: &PacketHeader, data: *const u8) -> bool {
    filter.is_none_or(|insns| {
        let program = Program { len: insns.len() as u32, insns: insns.as_ptr().cast_mut() };
        // SAFETY: a program that libpcap has validated, and `caplen` bytes; neither is written.
        unsafe { real::pcap_offline_filter(&program, header, data) != 0 }
    })
}

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
    let Some(_reading) = handle.begin_reading() else {
        let text = "a callback reads what its caller is reading";
        return Err(NoFrame::Failed(handle.fail(abi::ERROR, text)));
    };
    let (mut wait, nanoseconds) = {
        let state = handle.state();
        (Wait::of(&state), state.options.nanoseconds)
    };
    let stop = handle.stop.get();
    let most = u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(DISPATCH_MAX);
    let mut handed = 0;
    let why = loop {
        // Between two fills the lock is free: a callback may ask for statistics, set a filter, or close.
        let filled =
            guarded(Err(NoFrame::Failed(abi::ERROR)), || fill(handle, most - handed, wait));
        let mut rest = match filled {
            Ok(rest) => rest,
            Err(why) => break Some(why),
        };
        let filter = handle.state().filter.clone();
        let mut is_over = false;
        // SAFETY: what `fill` has just given, and only this call fills: `_reading`.
        while let Some((header, data, behind)) = unsafe { first(rest, nanoseconds) } {
            rest = behind;
            if takes(filter.as_ref(), &header, data) {
                // SAFETY: the program's own callback, as it demands: a header and `caplen` bytes, until it returns.
                unsafe { callback(user, &header, data) };
                handed += 1;
            }
            is_over = handed >= most || stop.is_some_and(Stop::is_set);
            if is_over {
                break;
            }
        }
        handle.state().rest = rest;
        if is_over {
            break None;
        }
        // What a filter left out is no reason to return: frames are waited for until one is handed over.
        if handed > 0 {
            wait = Wait::NOT;
        }
    };
    let found_nothing = matches!(why, Some(NoFrame::Nothing));
    if let Err(status) = guarded(Err(abi::ERROR), || set_readable(handle, found_nothing)) {
        return Err(NoFrame::Failed(status));
    }
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
    let Some(_reading) = handle.begin_reading() else {
        let text = "a callback reads what its caller is reading";
        return Err(NoFrame::Failed(handle.fail(abi::ERROR, text)));
    };
    let (wait, nanoseconds, filter) = {
        let state = handle.state();
        (Wait::of(&state), state.options.nanoseconds, state.filter.clone())
    };
    let found = loop {
        let rest = match fill(handle, AHEAD, wait) {
            Ok(rest) => rest,
            Err(why) => break Err(why),
        };
        // SAFETY: what `fill` has just given, and only this call fills.
        let Some((header, data, behind)) = (unsafe { first(rest, nanoseconds) }) else { continue };
        handle.state().rest = behind;
        if takes(filter.as_ref(), &header, data) {
            break Ok((header, data));
        }
    };
    if matches!(found, Err(NoFrame::Break)) {
        take_break(handle);
    }
    // A frame's memory is the reader's, and arming may change that: it is armed only where there is none.
    set_readable(handle, matches!(found, Err(NoFrame::Nothing))).map_err(NoFrame::Failed)?;
    found
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
