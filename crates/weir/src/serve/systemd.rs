//! Messages to the service manager: readiness, reloads, the end, and that the daemon is alive.
//!
//! Source: sd_notify(3), sd_watchdog_enabled(3). Without a manager nothing is told.

use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager.
pub struct Manager {
    /// How often it wants to hear that the daemon is alive.
    alive_every: Option<Duration>,
}

impl Manager {
    /// The one that started this process, if one did.
    pub fn new() -> Manager {
        let limit = sd_notify::watchdog_enabled();
        // Half of the limit, as the manual page advises.
        Manager { alive_every: limit.map(|limit| limit / 2) }
    }

    /// How long the daemon may wait until it says that it is alive.
    pub fn alive_every(&self) -> Option<Duration> {
        self.alive_every
    }

    /// The daemon serves, or serves by its new file.
    pub fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// It reads its file again.
    pub fn reloading(&self) {
        tell(&[NotifyState::Reloading]);
    }

    /// It ends.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// It is alive.
    pub fn alive(&self) {
        if self.alive_every.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

fn tell(states: &[NotifyState]) {
    // Without a manager there is nobody to tell; one that has gone need not hear.
    let _ = sd_notify::notify(states);
}
