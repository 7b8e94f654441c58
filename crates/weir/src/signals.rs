//! Ctrl-C, SIGTERM and a terminal that goes away: the first asks for a tidy end, a later one for any end; where a tidy
//! end takes long, the second for a short one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2, TERM_SIGNALS};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use weir_export::EndAtOnce;

/// A signal this soon after the first is the same wish: `timeout` sends one to its child and one to the
/// child's group, and a terminal one to everybody in it.
const SAME_WISH: Duration = Duration::from_millis(500);

/// A flag that the first signal sets; a later one ends the process as if it were unhandled. The calling thread is
/// unparked then.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut is_first = true;
    at_each_wish(move || {
        flag.store(true, Ordering::Release);
        std::mem::replace(&mut is_first, false)
    })?;
    Ok(stop)
}

/// As [`stop_flag`], of a run whose end may take long. A signal that comes once the run is to end makes the end short,
/// and only a later one ends the process.
pub fn stop_flag_and_end() -> Result<(Arc<AtomicBool>, End)> {
    let (stop, end) = (Arc::new(AtomicBool::new(false)), End::default());
    let (flag, of_signals) = (Arc::clone(&stop), end.clone());
    at_each_wish(move || {
        let is_at_end = flag.swap(true, Ordering::AcqRel) || is_set(&of_signals.has_begun);
        let is_last = of_signals.at_once.is_asked_for();
        if is_at_end {
            of_signals.at_once.ask();
        }
        !is_last
    })?;
    Ok((stop, end))
}

/// The end of a run. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct End {
    has_begun: Arc<AtomicBool>,
    /// Asked for by signals.
    pub at_once: EndAtOnce,
}

impl End {
    /// The run is at its end, whether it was asked to or not.
    pub fn begins(&self) {
        self.has_begun.store(true, Ordering::Release);
    }
}

/// Starts the thread of signals, which calls this at each that is not the same wish as the one before; the calling
/// thread is unparked then. False: the process is to end as if the signal were unhandled.
fn at_each_wish(mut goes_on: impl FnMut() -> bool + Send + 'static) -> Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals =
        Signals::new(TERM_SIGNALS.iter().copied().chain(hang_up)).context("handling signals")?;
    let caller = thread::current();
    let mut last: Option<Instant> = None;
    on_thread(move || {
        for signal in signals.forever() {
            if last.is_some_and(|last| last.elapsed() < SAME_WISH) {
                continue;
            }
            last = Some(Instant::now());
            let goes_on = goes_on();
            caller.unpark();
            if !goes_on {
                // Ends the process, so there is no error to look at.
                let _ = emulate_default_handler(signal);
            }
        }
    })
}

/// Waits for signals on a thread of its own.
fn on_thread(wait: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("weir-signals".into());
    thread.spawn(wait).context("starting a thread for signals")?;
    Ok(())
}

/// A flag that SIGUSR1 sets, which asks for a report and ends nothing. It is the same at each call; the first one is
/// made before anything is opened, for until then the signal ends the process. The thread that called last is
/// unparked.
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

/// Ignores SIGUSR2 unless a recorder handles it, which makes it a trigger: tcpdump flushes its file on it.
pub fn ignore_usr2() -> Result<()> {
    let nobody = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR2, nobody).context("handling signals")?;
    Ok(())
}

/// For a daemon: a flag that a signal to end sets, and one that SIGHUP sets, which asks for its file to be read again.
/// The calling thread is unparked then.
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

/// Whether the process that started us has this signal ignored: `nohup` does so with SIGHUP, and
/// means it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether a signal has come.
pub fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}
