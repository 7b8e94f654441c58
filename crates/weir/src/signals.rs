//! Signals that end a run: SIGINT, SIGTERM, SIGQUIT and SIGHUP. The first signal requests an orderly end, a later one
//! ends the process at once. If the end may take long, the second signal shortens it, and only the third ends the
//! process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGXFSZ, TERM_SIGNALS};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use weir_export::EndAtOnce;

use crate::out;

/// A signal that follows another within this time is ignored as a duplicate: `timeout` sends one to its child and one
/// to the child's process group, and a terminal sends one to the whole foreground group.
const DUPLICATE_WITHIN: Duration = Duration::from_millis(500);

/// Returns a flag that the first signal sets. A later signal ends the process as if the signal were unhandled. Each
/// signal unparks the thread that called this function.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut is_first = true;
    on_each_signal(move || {
        flag.store(true, Ordering::Release);
        std::mem::replace(&mut is_first, false)
    })?;
    Ok(stop)
}

/// Like [`stop_flag`], for a run whose end may take long. A signal that arrives after the end was requested, or has
/// begun, shortens the end. Only a later signal ends the process.
pub fn stop_flag_and_end() -> Result<(Arc<AtomicBool>, End)> {
    let (stop, end) = (Arc::new(AtomicBool::new(false)), End::default());
    let (flag, of_signals) = (Arc::clone(&stop), end.clone());
    on_each_signal(move || {
        let is_at_end = flag.swap(true, Ordering::AcqRel) || is_set(&of_signals.has_begun);
        let is_last = of_signals.at_once.is_asked_for();
        if is_at_end {
            of_signals.at_once.ask();
        }
        !is_last
    })?;
    Ok((stop, end))
}

/// The end of a run. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct End {
    has_begun: Arc<AtomicBool>,
    /// Set by a signal that shortens the end.
    pub at_once: EndAtOnce,
}

impl End {
    /// Records that the end of the run has begun, with or without a signal.
    pub fn begins(&self) {
        self.has_begun.store(true, Ordering::Release);
    }
}

/// Starts a thread that calls `goes_on` at each signal that is not a duplicate, and then unparks the thread that called
/// this function. If `goes_on` returns false, the process ends as if the signal were unhandled.
fn on_each_signal(mut goes_on: impl FnMut() -> bool + Send + 'static) -> Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals =
        Signals::new(TERM_SIGNALS.iter().copied().chain(hang_up)).context("handling signals")?;
    let caller = thread::current();
    let mut last: Option<Instant> = None;
    on_thread(move || {
        for signal in signals.forever() {
            if last.is_some_and(|last| last.elapsed() < DUPLICATE_WITHIN) {
                continue;
            }
            last = Some(Instant::now());
            if signal == SIGINT {
                out::end_line_of_ctrl_c();
            }
            let goes_on = goes_on();
            caller.unpark();
            if !goes_on {
                // The call ends the process, so its result does not matter.
                let _ = emulate_default_handler(signal);
            }
        }
    })
}

/// Calls `wait`, which waits for signals, on a new thread.
fn on_thread(wait: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("weir-signals".into());
    thread.spawn(wait).context("starting a thread for signals")?;
    Ok(())
}

/// Returns a flag that SIGUSR1 sets, which requests a report. Each call returns the same flag, and the signal unparks
/// the thread that called this function last. The first call must come before anything is opened: until then, the
/// signal ends the process.
pub fn report_flag() -> Result<Arc<AtomicBool>> {
    static REPORT: Mutex<Option<Report>> = Mutex::new(None);
    let mut report = REPORT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(report) = report.as_ref() {
        *report.caller.lock().unwrap_or_else(PoisonError::into_inner) = thread::current();
        return Ok(Arc::clone(&report.asked));
    }
    let new = Report { asked: Arc::default(), caller: Arc::new(Mutex::new(thread::current())) };
    let (flag, caller) = (Arc::clone(&new.asked), Arc::clone(&new.caller));
    let mut signals = Signals::new([SIGUSR1]).context("handling signals")?;
    on_thread(move || {
        for _ in signals.forever() {
            flag.store(true, Ordering::Release);
            caller.lock().unwrap_or_else(PoisonError::into_inner).unpark();
        }
    })?;
    Ok(Arc::clone(&report.insert(new).asked))
}

/// The handling of SIGUSR1.
struct Report {
    asked: Arc<AtomicBool>,
    caller: Arc<Mutex<Thread>>,
}

/// Keeps SIGUSR2 from ending the process: tcpdump flushes its file on this signal. A recorder may handle it as a
/// trigger.
pub fn ignore_usr2() -> Result<()> {
    handle_without_effect(SIGUSR2)
}

/// Makes writes beyond the limit of a file's size (RLIMIT_FSIZE) fail with EFBIG, which is reported, instead of ending
/// the process by SIGXFSZ.
pub fn take_file_size_limit_as_error() -> Result<()> {
    handle_without_effect(SIGXFSZ)
}

/// Handles a signal by a flag that nobody reads.
fn handle_without_effect(signal: i32) -> Result<()> {
    signal_hook::flag::register(signal, Arc::default()).context("handling signals")?;
    Ok(())
}

/// Returns two flags for a daemon: one that is set by signals to end, and one that is set by SIGHUP, which requests
/// that the daemon reads its file again. Each signal unparks the thread that called this function.
pub fn daemon_flags() -> Result<(Arc<AtomicBool>, Arc<AtomicBool>)> {
    let flags = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (stop, reload) = (Arc::clone(&flags.0), Arc::clone(&flags.1));
    let mut signals =
        Signals::new(TERM_SIGNALS.iter().copied().chain([SIGHUP])).context("handling signals")?;
    let caller = thread::current();
    on_thread(move || {
        for signal in signals.forever() {
            let flag = if signal == SIGHUP { &reload } else { &stop };
            flag.store(true, Ordering::Release);
            caller.unpark();
        }
    })?;
    Ok(flags)
}

/// Returns whether this signal was ignored when the process was started, as `nohup` does with SIGHUP. It must then stay
/// ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns whether the flag is set.
pub fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}
