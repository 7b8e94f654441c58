//! Ctrl-C, SIGTERM and a terminal that goes away: the first asks for a tidy end, a later one for any end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, TERM_SIGNALS};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// A signal this soon after the first is the same wish: `timeout` sends one to its child and one to the
/// child's group, and a terminal one to everybody in it.
const SAME_WISH: Duration = Duration::from_millis(500);

/// A flag that the first signal sets; a later one ends the process as if it were unhandled. The calling thread is
/// unparked then.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals =
        Signals::new(TERM_SIGNALS.iter().copied().chain(hang_up)).context("handling signals")?;
    let (flag, caller) = (Arc::clone(&stop), thread::current());
    thread::Builder::new()
        .name("weir-signals".into())
        .spawn(move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                flag.store(true, Ordering::Release);
                caller.unpark();
                if first.get_or_insert_with(Instant::now).elapsed() >= SAME_WISH {
                    // Ends the process, so there is no error to look at.
                    let _ = emulate_default_handler(signal);
                }
            }
        })
        .context("starting a thread for signals")?;
    Ok(stop)
}

/// For a daemon: a flag that a signal to end sets, and one that SIGHUP sets, which asks for its file to be read again.
/// The calling thread is unparked then.
pub fn daemon_flags() -> Result<(Arc<AtomicBool>, Arc<AtomicBool>)> {
    let flags = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (stop, reload) = (Arc::clone(&flags.0), Arc::clone(&flags.1));
    let mut signals =
        Signals::new(TERM_SIGNALS.iter().copied().chain([SIGHUP])).context("handling signals")?;
    let caller = thread::current();
    thread::Builder::new()
        .name("weir-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let flag = if signal == SIGHUP { &reload } else { &stop };
                flag.store(true, Ordering::Release);
                caller.unpark();
            }
        })
        .context("starting a thread for signals")?;
    Ok(flags)
}

/// Whether whoever started us has this signal ignored: `nohup` does so with SIGHUP, and means it.
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
