//! The feed's frames: taken as many as are due, waited for, and found one by one in what was taken.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_abi::Stop;
use weir_client::{Address, ClientError};
use weir_consumer::Pulled;
use weir_frame::record::{HEADER_BYTES, Outline};

use crate::abi::{self, Insn, PacketHeader, Program};
use crate::handles::{Handle, Polling, Rest, State};
use crate::real;

/// Without a time-out a wait has no end; it is as long as the clock goes.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Why a call that reads has no frames for the program.
pub enum NoFrame {
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
pub struct Wait {
    limit: Duration,
}

impl Wait {
    pub const NOT: Wait = Wait { limit: Duration::ZERO };

    pub fn of(state: &State) -> Wait {
        let limit = match u64::try_from(state.options.timeout_ms) {
            _ if state.nonblock => Duration::ZERO,
            Ok(ms @ 1..) => Duration::from_millis(ms),
            _ => FOREVER,
        };
        Wait { limit }
    }
}

/// Takes up to `most` frames from the feed, behind what was left.
pub fn fill(handle: &Handle, most: u64, wait: Wait) -> Result<Rest, NoFrame> {
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
pub fn set_readable(handle: &Handle, found_nothing: bool) -> Result<(), c_int> {
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
pub fn take_break(handle: &Handle) -> bool {
    handle.stop.get().is_some_and(Stop::take)
}

/// The first frame of some records: its header, its bytes, and the records behind it.
///
/// # Safety
/// The records are those of [`fill`], and nobody has filled since.
pub unsafe fn first(rest: Rest, nanoseconds: bool) -> Option<(PacketHeader, *const u8, Rest)> {
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
pub fn takes(filter: Option<&Arc<[Insn]>>, header: &PacketHeader, data: *const u8) -> bool {
    filter.is_none_or(|insns| {
        let program = Program { len: insns.len() as u32, insns: insns.as_ptr().cast_mut() };
        // SAFETY: a program that libpcap has validated, and `caplen` bytes; neither is written.
        unsafe { real::pcap_offline_filter(&program, header, data) != 0 }
    })
}
