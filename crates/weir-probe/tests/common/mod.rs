//! Waits for events of the probe.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use weir_probe::ProbeEvent;

/// Much longer than any step of these tests takes.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits for an event for which `wanted` returns a result, and returns this result. Other events are skipped.
pub fn wait_for<T>(events: &Receiver<ProbeEvent>, wanted: impl Fn(ProbeEvent) -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let event = events.recv_timeout(LIMIT.saturating_sub(begin.elapsed())).expect("an event");
        if let Some(wanted) = wanted(event) {
            return wanted;
        }
    }
}
