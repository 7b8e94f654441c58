//! A monitor with a time limit for all commands together.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::VmError;
use crate::qmp::{Event, Monitor};

/// A monitor that is used for a limited time: after that, commands are not sent, and no command takes longer. The limit
/// is needed because QEMU's answers decide how many commands a search takes.
pub struct LimitedMonitor<'a> {
    monitor: &'a mut dyn Monitor,
    start: Instant,
    limit: Duration,
}

impl LimitedMonitor<'_> {
    /// Limits the use of this monitor to `limit` from now on.
    pub fn new(monitor: &mut dyn Monitor, limit: Duration) -> LimitedMonitor<'_> {
        LimitedMonitor { monitor, start: Instant::now(), limit }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }
}

impl Monitor for LimitedMonitor<'_> {
    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError> {
        let left = self.left();
        if left.is_zero() {
            let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
            return Err(VmError::TimeOut { command, limit_ms });
        }
        self.monitor.execute_with(command, arguments, descriptor, limit.min(left))
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.monitor.readable()
    }

    fn version(&self) -> &str {
        self.monitor.version()
    }

    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        let left = self.left();
        self.monitor.wait_event(limit.min(left), is_wanted)
    }
}
