//! Claims to a guest's memory, which wait until its devices are plugged in.

use std::sync::Arc;
use std::time::Instant;

use weir_client::error_text;
use weir_vm::{GuestMemory, VmError, hotplug};

use super::{Active, NOT_SERVED, Worker};
use crate::guests::machine::Claim;
use crate::limits::PLUG_REFUSAL_STAYS;

impl Worker {
    /// Answers claims: at once if no devices are leaving any more, else when they have waited long enough.
    pub(super) fn answer(&mut self) {
        for (until, reply) in std::mem::take(&mut self.waiting) {
            // Checked just before the answer, because answering earlier claims may have taken seconds.
            if reply.is_abandoned() {
                continue;
            }
            let refused = if self.ends_by.is_some() {
                NOT_SERVED.to_owned()
            } else if self.is_detached {
                format!(
                    "guest {name} is detached from the host; feeds open again after `weir vm attach {name}` there",
                    name = self.spec.name
                )
            } else if self.monitor.is_none() && self.active.is_none() {
                self.unreachable()
            } else if self.leaving.all.is_empty() || self.active.is_some() {
                match self.claim() {
                    Ok(claim) => {
                        reply.send(Ok(claim));
                        continue;
                    }
                    Err(refused) => refused,
                }
            } else if until > Instant::now() {
                self.waiting.push((until, reply));
                continue;
            } else {
                self.unreleased()
            };
            reply.send(Err(refused));
        }
    }

    /// Claims the memory for one more feed. Plugs the devices in if necessary.
    fn claim(&mut self) -> Result<Claim, String> {
        if self.active.is_none() {
            if let Some((until, refusal)) = &self.refusal
                && Instant::now() < *until
            {
                return Err(refusal.clone());
            }
            self.plug().map_err(|error| self.not_plugged(&error))?;
        }
        let active = self.active.as_mut().ok_or("it has gone")?;
        active.feeds += 1;
        let (memory, inbox) = (Arc::clone(&active.memory), Arc::clone(&self.inbox));
        Ok(Claim { memory, inbox, left: None })
    }

    fn not_plugged(&mut self, error: &VmError) -> String {
        let text = error_text(error);
        // These errors mean that QEMU refuses, or that there is no port or no memory: the monitor still works.
        let is_refusal = matches!(
            error,
            VmError::Refused { .. }
                | VmError::NoPort { .. }
                | VmError::NoMemory { .. }
                | VmError::RegionSize { .. }
                | VmError::Words { .. }
                | VmError::Random { .. }
        );
        // The next caller must not wait as long.
        if is_refusal || matches!(error, VmError::TimeOut { .. }) {
            self.refusal = Some((Instant::now() + PLUG_REFUSAL_STAYS, text.clone()));
        }
        if !is_refusal {
            self.failed(error);
        }
        text
    }

    fn plug(&mut self) -> Result<(), VmError> {
        let gone = VmError::Closed { command: "device_add" };
        let monitor = self.monitor.as_mut().ok_or(gone)?.as_mut();
        // Before the memory is created, because that allocates and zeroes all of its pages.
        let buses = hotplug::find_buses(monitor, self.spec.region_mib)?;
        let memory = Arc::new(GuestMemory::create(self.spec.region_mib, self.spec.pages)?);
        match hotplug::plug_into(monitor, buses, &memory) {
            Ok(plugged) => {
                let (idle_since, left) = (Instant::now(), Vec::new());
                self.active = Some(Active { memory, plugged, feeds: 0, idle_since, left });
                (self.fault, self.reported_fault, self.refusal) = (None, None, None);
                Ok(())
            }
            Err(error) => {
                // Devices that could not be unplugged now are unplugged later.
                let found = hotplug::find_plugged(monitor);
                if found.is_err() || matches!(error, VmError::TimeOut { .. }) {
                    // QEMU may still execute commands that it has not answered. The result is read
                    // after the next connection.
                    self.drop_monitor();
                    self.connect_at = Instant::now() + self.spec.hypervisor.look_every();
                }
                self.leaving.all = found.unwrap_or_default();
                self.leaving.ask_at = Instant::now();
                Err(error)
            }
        }
    }
}
