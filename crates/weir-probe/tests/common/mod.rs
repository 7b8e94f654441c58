//! Waits for events of the probe.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use weir_probe::ProbeEvent;

/// Far more than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Result of `wanted` for the first event for which it has one.
pub fn wait_for<T>(events: &Receiver<ProbeEvent>, wanted: impl Fn(ProbeEvent) -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let event = events.recv_timeout(LIMIT.saturating_sub(begin.elapsed())).expect("an event");
        if let Some(wanted) = wanted(event) {
            return wanted;
        }
    }
}
