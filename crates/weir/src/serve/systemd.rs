//! Messages to the service manager: readiness, reloads, the end, and the watchdog.
//!
//! Source: sd_notify(3), sd_watchdog_enabled(3). Without a manager, nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager.
pub struct Manager {
    /// Interval of watchdog messages; `None`: the manager wants none.
    alive_every: Option<Duration>,
}

impl Manager {
    /// The manager that started this process, if there is one.
    pub fn new() -> Manager {
        let limit = sd_notify::watchdog_enabled();
        // Half of the limit, as the manual page advises.
        Manager { alive_every: limit.map(|limit| limit / 2) }
    }

    /// Interval at which the daemon must send a watchdog message.
    pub fn alive_every(&self) -> Option<Duration> {
        self.alive_every
    }

    /// The daemon is ready, or has reloaded its file.
    pub fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The daemon reloads its file.
    pub fn reloading(&self) {
        tell(&[NotifyState::Reloading]);
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// The daemon is alive: sends a watchdog message, if the manager wants one.
    pub fn alive(&self) {
        if self.alive_every.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

fn tell(states: &[NotifyState]) {
    // Without a manager this does nothing, and a manager that has gone is no error.
    let _ = sd_notify::notify(states);
}
