//! Ctrl-C and SIGTERM: the first asks for a tidy end, the second for any end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::TERM_SIGNALS;

/// A flag that the first signal sets; the second ends the process as if it were unhandled.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in TERM_SIGNALS {
        // The order matters: the second signal finds the flag set, and only then the first sets it.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("handling signals")?;
    }
    Ok(stop)
}

/// Whether a signal has come.
pub fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}
