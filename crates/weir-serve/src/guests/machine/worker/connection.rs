//! The connection to a machine's monitor, and what comes by it unasked.

use std::time::{Duration, Instant};

use weir_client::error_text;
use weir_vm::{Event, Monitor, VmError, hotplug};

use super::{Leaving, Worker};
use crate::limits::{GUEST_LINGER, QMP_EVENTS_AT_A_TIME};

impl Worker {
    /// Connects to a monitor that is not there, if it is time.
    pub(super) fn connect(&mut self) {
        if self.monitor.is_some() || self.connect_at > Instant::now() {
            return;
        }
        match self.spec.hypervisor.monitor() {
            Ok(mut monitor) => match self.begin(monitor.as_mut()) {
                Ok(()) => {
                    self.monitor = Some(monitor);
                    self.blame(None);
                }
                Err(error) => {
                    self.connect_at = Instant::now() + self.spec.hypervisor.look_every();
                    self.blame(Some(error_text(&error)));
                }
            },
            Err(error) => {
                self.connect_at = Instant::now() + self.spec.hypervisor.look_every();
                if error.is_absence() {
                    self.forget();
                }
                self.blame(Some(error_text(&error)));
            }
        }
    }

    /// A fault is told once.
    pub(super) fn blame(&mut self, fault: Option<String>) {
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(fault)) {
            (self.spec.say)(&format!("guest {}: {fault}", self.spec.name));
        }
        self.fault = fault;
    }

    /// Finds what there is at a monitor: our devices are still there if it is the same QEMU, and others are what a
    /// daemon left that was killed.
    pub(super) fn begin(&mut self, monitor: &mut dyn Monitor) -> Result<(), VmError> {
        let mut found = hotplug::find_plugged(monitor)?;
        self.port_id = hotplug::find_port(monitor, weir_plug::port::NAME)?;
        self.is_paused = hotplug::is_paused(monitor)?;
        if let Some(active) = &self.active {
            let own = found.iter().position(|one| *one == active.plugged);
            match own {
                Some(at) => drop(found.remove(at)),
                None => self.forget(),
            }
        }
        // Applications in the guest may still read what a daemon has left that was here before.
        let is_first = self.active.is_none() && self.leaving.all.is_empty();
        let linger = if is_first { GUEST_LINGER } else { Duration::ZERO };
        self.leaving = Leaving { all: found, ask_at: Instant::now() + linger, look_at: None };
        Ok(())
    }

    /// The machine has ended, and with it all that was plugged in.
    pub(super) fn forget(&mut self) {
        self.monitor = None;
        self.is_paused = false;
        self.is_detached = self.ends_by.is_some();
        self.leaving.all.clear();
        if self.active.take().is_some() {
            (self.spec.end_session)();
        }
    }

    /// Takes down what the monitor has failed at.
    pub(super) fn failed(&mut self, error: &VmError) {
        // After a refusal, and after a time-out, the monitor can be used on.
        if !matches!(error, VmError::Refused { .. } | VmError::TimeOut { .. }) {
            self.monitor = None;
            self.connect_at = Instant::now();
        }
        if matches!(error, VmError::Closed { .. } | VmError::NotRunning { .. }) {
            // The machine has ended, and the next one may be there already.
            self.is_detached = self.ends_by.is_some();
        }
        self.blame(Some(error_text(error)));
    }

    pub(super) fn take_events(&mut self) {
        let mut is_open = None;
        self.has_more_events = self.monitor.is_some();
        for _ in 0..QMP_EVENTS_AT_A_TIME {
            let Some(monitor) = &mut self.monitor else { break };
            match monitor.wait_event(Duration::ZERO, &mut |_| true) {
                Ok(Some(event)) => self.note(&event, &mut is_open),
                Ok(None) => {
                    self.has_more_events = false;
                    break;
                }
                Err(error) => {
                    self.has_more_events = false;
                    self.failed(&error);
                    // QEMU has ended, most likely.
                    return self.connect();
                }
            }
        }
        // The next broker has a session of its own by then, or is about to.
        if is_open == Some(false) {
            (self.spec.end_session)();
        }
    }

    pub(super) fn note(&mut self, event: &Event, is_open: &mut Option<bool>) {
        for plugged in &mut self.leaving.all {
            if plugged.remove_deleted(event) {
                self.leaving.look_at = Some(Instant::now());
            }
        }
        match &*event.name {
            "STOP" => self.is_paused = true,
            "RESUME" => self.is_paused = false,
            "RESET" | "SHUTDOWN" => {
                // Nobody in it reads anything any more.
                self.active.iter_mut().for_each(|active| active.left.clear());
                (self.spec.end_session)();
            }
            "VSERPORT_CHANGE" if event.text("id") == self.port_id.as_deref() => {
                *is_open = event.data.get("open").and_then(serde_json::Value::as_bool);
            }
            _ => {}
        }
        // Somebody else has taken a device out: what is left of both goes.
        if self.active.as_mut().is_some_and(|active| active.plugged.remove_deleted(event)) {
            self.give_up();
            (self.spec.end_session)();
        }
    }
}
