//! What the probe tells, waited for.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use weir_probe::ProbeEvent;

/// Far more than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What `wanted` takes of the next event that it takes anything of.
pub fn wait_for<T>(events: &Receiver<ProbeEvent>, wanted: impl Fn(ProbeEvent) -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let event = events.recv_timeout(LIMIT.saturating_sub(begin.elapsed())).expect("an event");
        if let Some(wanted) = wanted(event) {
            return wanted;
        }
    }
}
