//! Messages to the service manager: readiness, reloads, the end of the daemon, and the watchdog.
//!
//! Source: sd_notify(3), sd_watchdog_enabled(3). Without a service manager, nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager.
pub struct Manager {
    /// Interval of watchdog messages; `None` if the manager requests none.
    alive_every: Option<Duration>,
}

impl Manager {
    /// Finds the service manager that started this process, if there is one.
    pub fn new() -> Manager {
        let limit = sd_notify::watchdog_enabled();
        // Half of the limit, as the manual page advises.
        Manager { alive_every: limit.map(|limit| limit / 2) }
    }

    /// Returns the interval at which the daemon must send a watchdog message.
    pub fn alive_every(&self) -> Option<Duration> {
        self.alive_every
    }

    /// Reports that the daemon is ready, or has reloaded its file.
    pub fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Reports that the daemon reloads its file.
    pub fn reloading(&self) {
        tell(&[NotifyState::Reloading]);
    }

    /// Reports that the daemon ends.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// Sends a watchdog message, which reports that the daemon is alive, if the manager requests such messages.
    pub fn alive(&self) {
        if self.alive_every.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

fn tell(states: &[NotifyState]) {
    // Without a manager, the call does nothing. A manager that has ended is not an error.
    let _ = sd_notify::notify(states);
}
