//! Ctrl-C, SIGTERM and a terminal that goes away: the first asks for a tidy end, the second for any end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, TERM_SIGNALS};

/// A flag that the first signal sets; the second ends the process as if it were unhandled.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in TERM_SIGNALS.iter().copied().chain(hang_up) {
        // The order matters: the second signal finds the flag set, and only then the first sets it.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("handling signals")?;
    }
    Ok(stop)
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
