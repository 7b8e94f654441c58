//! The connection to a machine's monitor, and its events.

use std::time::{Duration, Instant};

use weir_client::error_text;
use weir_vm::hotplug::{self, LimitedMonitor};
use weir_vm::limits::QMP_LOOK_TIME_MAX;
use weir_vm::{Event, Monitor, VmError};

use super::{Leaving, Worker};
use crate::limits::{GUEST_LINGER, QMP_EVENTS_AT_A_TIME};

impl Worker {
    /// Connects to a missing monitor, if the time for that has come.
    pub(super) fn connect(&mut self) {
        if self.monitor.is_some() || self.connect_at > Instant::now() {
            return;
        }
        let fault = match self.spec.hypervisor.monitor() {
            Ok(mut monitor) => match self.begin(monitor.as_mut()) {
                Ok(()) => {
                    self.monitor = Some(monitor);
                    return self.connected();
                }
                Err(error) => error_text(&error),
            },
            Err(error) => {
                if error.is_absence() {
                    self.machine_ended();
                }
                error_text(&error)
            }
        };
        self.connect_at = Instant::now() + self.spec.hypervisor.look_every();
        self.report_fault(fault);
    }

    fn connected(&mut self) {
        let (now, hypervisor) = (Instant::now(), &self.spec.hypervisor);
        self.connected_at = now;
        self.announce_at = Some(now + hypervisor.look_every());
        self.state_again_at =
            hypervisor.state_again_after().iter().map(|after| now + *after).collect();
        (self.fault, self.refusal) = (None, None);
    }

    /// Logs a connection that has lasted. Connections that end at once are retried, and not logged.
    pub(super) fn announce(&mut self) {
        let is_due = self.announce_at.is_some_and(|at| at <= Instant::now());
        let Some(monitor) = self.monitor.as_ref().filter(|_| is_due) else { return };
        let (name, version) = (&self.spec.name, monitor.version());
        (self.spec.say)(format!("guest {name}: QEMU {version} is there").trim_end());
        (self.announce_at, self.reported_fault) = (None, None);
    }

    /// Logs a fault, and logs the same fault again only after a connection has lasted.
    pub(super) fn report_fault(&mut self, fault: String) {
        if self.reported_fault.as_ref() != Some(&fault) {
            (self.spec.say)(&format!("guest {}: {fault}", self.spec.name));
            self.reported_fault = Some(fault.clone());
        }
        self.fault = Some(fault);
    }

    /// Returns when to connect next: at once, unless the last connection is more recent than the interval at which
    /// missing machines are looked for.
    pub(super) fn next_connection(&self) -> Instant {
        Instant::now().max(self.connected_at + self.spec.hypervisor.look_every())
    }

    pub(super) fn drop_monitor(&mut self) {
        (self.monitor, self.announce_at) = (None, None);
        self.state_again_at.clear();
        self.connect_at = self.next_connection();
    }

    /// Checks the plugged devices. If QEMU is still the same, those of this daemon are there; others were left by a
    /// daemon that was killed.
    fn begin(&mut self, monitor: &mut dyn Monitor) -> Result<(), VmError> {
        let mut monitor = LimitedMonitor::new(monitor, QMP_LOOK_TIME_MAX);
        let mut found = hotplug::find_plugged(&mut monitor)?;
        self.port_id = match self.spec.has_port {
            true => hotplug::find_port(&mut monitor, weir_plug::port::NAME)?,
            false => None,
        };
        self.read_state(&mut monitor)?;
        if let Some(active) = &self.active {
            let own = found.iter().position(|one| *one == active.plugged);
            match own {
                Some(at) => drop(found.remove(at)),
                None => self.machine_ended(),
            }
        }
        // Applications in the guest may still read memory that an earlier daemon has left.
        let is_first = self.has_no_devices();
        let linger = if is_first { GUEST_LINGER } else { Duration::ZERO };
        let look_pause = self.spec.hypervisor.unplug_look_after();
        let ask_at = Instant::now() + linger;
        self.leaving = Leaving { all: found, ask_at, look_at: None, look_pause };
        Ok(())
    }

    /// Reads the state that events report. It may have changed while there was no connection.
    fn read_state(&mut self, monitor: &mut dyn Monitor) -> Result<(), VmError> {
        self.is_paused = hotplug::is_paused(monitor)?;
        if let Some(id) = &self.port_id
            && hotplug::is_port_open(monitor, id)? == Some(false)
        {
            (self.spec.end_session)();
        }
        Ok(())
    }

    /// Reads that state again, because the first events may have been missed.
    pub(super) fn read_state_again(&mut self) {
        if self.state_again_at.front().is_none_or(|at| *at > Instant::now()) {
            return;
        }
        self.state_again_at.pop_front();
        let Some(mut monitor) = self.monitor.take() else { return };
        let result = self.read_state(&mut LimitedMonitor::new(monitor.as_mut(), QMP_LOOK_TIME_MAX));
        self.monitor = Some(monitor);
        if let Err(error) = result {
            self.failed(&error);
        }
    }

    /// Removes the state of a machine that has ended, together with its devices.
    fn machine_ended(&mut self) {
        self.drop_monitor();
        self.is_paused = false;
        self.is_detached = self.ends_by.is_some();
        self.leaving.all.clear();
        if self.active.take().is_some() {
            (self.spec.end_session)();
        }
    }

    /// Handles an error of the monitor.
    pub(super) fn failed(&mut self, error: &VmError) {
        // After a refusal or a time-out, the monitor can still be used.
        if !matches!(error, VmError::Refused { .. } | VmError::TimeOut { .. }) {
            self.drop_monitor();
        }
        if matches!(error, VmError::Closed { .. } | VmError::NotRunning { .. }) {
            // The machine has ended, and its successor may exist already.
            self.is_detached = self.ends_by.is_some();
        }
        self.report_fault(error_text(error));
    }

    pub(super) fn take_events(&mut self) {
        let mut is_open = None;
        self.has_more_events = self.monitor.is_some();
        for _ in 0..QMP_EVENTS_AT_A_TIME {
            let Some(monitor) = &mut self.monitor else { break };
            match monitor.wait_event(Duration::ZERO, &mut |_| true) {
                Ok(Some(event)) => self.handle_event(&event, &mut is_open),
                Ok(None) => {
                    self.has_more_events = false;
                    break;
                }
                Err(error) => {
                    self.has_more_events = false;
                    self.failed(&error);
                    // Most likely, QEMU has ended.
                    return self.connect();
                }
            }
        }
        // Ended only after all events: by now, the next broker has begun its own session, or is about to.
        if is_open == Some(false) {
            (self.spec.end_session)();
        }
    }

    fn handle_event(&mut self, event: &Event, is_open: &mut Option<bool>) {
        for plugged in &mut self.leaving.all {
            if plugged.remove_deleted(event) {
                self.leaving.look_at = Some(Instant::now());
            }
        }
        match &*event.name {
            "STOP" => self.is_paused = true,
            "RESUME" => self.is_paused = false,
            "RESET" | "SHUTDOWN" => {
                // All applications in the guest have ended, so they do not read rings any more.
                self.active.iter_mut().for_each(|active| active.left.clear());
                (self.spec.end_session)();
            }
            "VSERPORT_CHANGE" if event.text("id") == self.port_id.as_deref() => {
                *is_open = event.data.get("open").and_then(serde_json::Value::as_bool);
            }
            _ => {}
        }
        // Another program has removed a device, so the other device is removed as well.
        if self.active.as_mut().is_some_and(|active| active.plugged.remove_deleted(event)) {
            self.begin_removal();
            (self.spec.end_session)();
        }
    }
}
