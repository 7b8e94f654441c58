//! Takes frames of the feed, waits for them, and returns them one by one.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use weir_abi::Stop;
use weir_abi::limits::WAIT_SLICE_MAX;
use weir_client::{Address, ClientError, error_text};
use weir_consumer::{Delivered, Pulled};
use weir_frame::record::{HEADER_BYTES, Outline};

use crate::abi::{self, PacketHeader, Stat};
use crate::handles::{AtDaemon, Handle, Polling, State, Unread};

/// The limit of a wait without a time-out: 136 years.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// How often the daemon is asked for its counts, for calls that must not wait.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Longest time that a reading call waits for statistics: a daemon that is busy with another source must not delay it.
const NOTE_WITHIN: Duration = Duration::from_millis(10);

/// The reason why a reading call has no frames for the program.
#[derive(Clone, Copy)]
pub enum NoFrame {
    /// There are no frames so far, and the wait is not over.
    Later,
    /// No frame came in time.
    Nothing,
    /// The program has called `pcap_breakloop`.
    Break,
    /// The source has ended.
    Ended,
    Failed(c_int),
}

/// The time limit of a reading call.
#[derive(Clone, Copy)]
pub struct Wait {
    begun: Instant,
    limit: Duration,
}

impl Wait {
    /// Returns the limit that the program has set, which begins now.
    pub fn of(state: &State) -> Wait {
        let limit = match u64::try_from(state.options.timeout_ms) {
            _ if state.nonblock => Duration::ZERO,
            Ok(ms @ 1..) => Duration::from_millis(ms),
            _ => FOREVER,
        };
        Wait { begun: Instant::now(), limit }
    }

    /// Ends the wait: the call takes only the frames that are available.
    pub fn end(&mut self) {
        self.limit = Duration::ZERO;
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }
}

/// Follows a fork in the child. The child's reader has another interrupter, and another descriptor for polling: the
/// number of the descriptor that the program holds is made to refer to the new one.
pub fn follow_fork(state: &mut State, stop: &Stop) -> Result<(), ClientError> {
    let Some(reader) = &mut state.reader else { return Ok(()) };
    if state.pid == std::process::id() {
        return Ok(());
    }
    reader.follow()?;
    stop.replace(reader.interrupter()?);
    state.pid = std::process::id();
    // The daemon counts for the child's own connection now.
    (state.at_daemon, state.noted_at, state.asked_at) = Default::default();
    if state.polling != Polling::Unused {
        let new = reader.pollable()?.as_raw_fd();
        // SAFETY: both are epoll instances of this library; the program holds the number of the old one, which stays
        // open.
        unsafe { libc::dup3(new, state.fd, libc::O_CLOEXEC) };
        state.polling = Polling::Readable;
    }
    Ok(())
}

/// Makes [`Handle::unread`] have frames: those that are left, or up to `most` new ones from the feed. After
/// [`NoFrame::Later`] the caller calls this again.
pub fn fill(handle: &Handle, most: u64, wait: Wait) -> Result<(), NoFrame> {
    let left = wait.left();
    match fill_within(handle, most, left.min(WAIT_SLICE_MAX)) {
        Err(NoFrame::Nothing) if left > WAIT_SLICE_MAX => {
            // Until the next call, the thread may be cancelled, and another thread may wait for the descriptor.
            set_readable(handle, false).map_err(NoFrame::Failed)?;
            Err(NoFrame::Later)
        }
        other => other,
    }
}

/// Like [`fill`], for at most `limit`. The handle is locked during that time.
fn fill_within(handle: &Handle, most: u64, limit: Duration) -> Result<(), NoFrame> {
    let mut state = handle.state();
    let state = &mut *state;
    let Some(stop) = handle.stop.get().filter(|_| state.reader.is_some()) else {
        let text = "it is not activated";
        return Err(NoFrame::Failed(handle.fail(abi::ERROR_NOT_ACTIVATED, text)));
    };
    if stop.is_set() {
        return Err(NoFrame::Break);
    }
    if handle.unread().bytes > 0 {
        return Ok(());
    }
    let failed = |error: ClientError, name: &Address| {
        NoFrame::Failed(handle.fail(abi::ERROR, &format!("{name}: {}", error_text(&error))))
    };
    follow_fork(state, stop).map_err(|error| failed(error, &state.name))?;
    if state.noted_at.is_none_or(|at| at.elapsed() >= NOTE_EVERY) {
        // Without an answer, the statistics stay as they were, and reading goes on.
        note_statistics(handle, state, NOTE_WITHIN);
    }
    let Some(reader) = &mut state.reader else { return Err(NoFrame::Nothing) };
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match reader.next_unless(most, left, || stop.is_set()) {
            Ok(Pulled::Frames(_)) => {
                tell(handle, &state.at_daemon, reader.delivered());
                let bytes = reader.run().block_bytes;
                handle.set_unread(Unread { at: bytes.as_ptr(), bytes: bytes.len() });
                return Ok(());
            }
            Ok(Pulled::Nothing) => {
                // All frames from before a change of the filter were read, so the daemon has filtered all later ones.
                // Frames that are held back for their order may be from before the change.
                if reader.held() == 0 {
                    handle.set_filter(state, None);
                }
                return Err(NoFrame::Nothing);
            }
            Ok(Pulled::Ended) => return Err(NoFrame::Ended),
            Ok(Pulled::Interrupted) if stop.is_set() => return Err(NoFrame::Break),
            // Another signal has interrupted the wait, which goes on.
            Ok(Pulled::Interrupted) => {}
            Err(error) => return Err(failed(error, &state.name)),
        }
    }
}

/// Asks the daemon for its counts, and stores the statistics for calls that must not wait.
pub fn note_statistics(handle: &Handle, state: &mut State, limit: Duration) -> Option<ClientError> {
    let reader = state.reader.as_mut()?;
    state.noted_at = Some(Instant::now());
    match reader.statistics_within(limit) {
        Ok(told) => {
            let lost = told.ledger.drops.values();
            state.at_daemon = AtDaemon {
                captured: told.ledger.captured,
                lost: lost.fold(0, |sum: u64, count| sum.saturating_add(*count)),
                missed_before: told.ledger.missed_before.unwrap_or(0),
            };
            tell(handle, &state.at_daemon, told.delivered);
            None
        }
        Err(error) => Some(error),
    }
}

/// Stores the statistics: the daemon's counts of some time ago, and those of this process.
fn tell(handle: &Handle, at_daemon: &AtDaemon, delivered: Delivered) {
    let Delivered { frames, lapped, .. } = delivered;
    // The daemon's counts lack the frames that were captured since its answer.
    let captured = at_daemon.captured.max(frames.saturating_add(lapped));
    // libpcap's counts wrap around at 2^32, and programs know that.
    handle.set_told(Stat {
        // Frames that passed the filter, whether lost or not, as libpcap counts them on Linux.
        recv: captured.saturating_add(at_daemon.lost) as u32,
        drop: lapped.saturating_add(at_daemon.lost) as u32,
        ifdrop: at_daemon.missed_before as u32,
    });
}

/// Sets the program's descriptor, if the program uses it. After a call that found nothing, it becomes readable when
/// frames come; after any other call it is readable.
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
    set.map_err(|error| handle.fail(abi::ERROR, &error_text(&error)))
}

/// Tells whether the program has called `pcap_breakloop`, and clears the flag.
pub fn take_break(handle: &Handle) -> bool {
    handle.stop.get().is_some_and(Stop::take)
}

/// Returns the first frame of some records: its header, its bytes, and the records after it.
///
/// # Safety
/// The records are [`Handle::unread`], and [`fill`] was not called since they were taken.
pub unsafe fn first(
    unread: Unread,
    nanoseconds: bool,
) -> Option<(PacketHeader, *const u8, Unread)> {
    if unread.bytes == 0 {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(unread.at, unread.bytes) };
    // The reader has checked all lengths, so this fails only at the end.
    let outline = Outline::read(bytes).ok()?;
    let (seconds, ns) = (outline.ts_ns / 1_000_000_000, outline.ts_ns % 1_000_000_000);
    let fraction = if nanoseconds { ns } else { ns / 1000 };
    let ts = libc::timeval { tv_sec: seconds as i64, tv_usec: fraction as i64 };
    let header = PacketHeader { ts, caplen: outline.caplen, len: outline.wire_len };
    let data = &bytes[HEADER_BYTES as usize..];
    let behind = &bytes[outline.block_bytes as usize..];
    Some((header, data.as_ptr(), Unread { at: behind.as_ptr(), bytes: behind.len() }))
}
