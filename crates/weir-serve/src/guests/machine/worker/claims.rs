//! Who opens a guest's feed waits for its devices.

use std::sync::Arc;
use std::time::Instant;

use weir_client::error_text;
use weir_vm::{GuestMemory, VmError, hotplug};

use super::{Active, Worker};
use crate::guests::machine::Claim;

impl Worker {
    /// Answers claims: once nothing is leaving any more, or when they have waited long enough.
    pub(super) fn answer(&mut self) {
        for (until, reply) in std::mem::take(&mut self.waiting) {
            let refused = if self.is_detached {
                format!(
                    "guest {name} is detached from the host; feeds open again after `weir vm attach {name}` there",
                    name = self.spec.name
                )
            } else if self.monitor.is_none() && self.active.is_none() {
                self.not_there()
            } else if self.leaving.all.is_empty() || self.active.is_some() {
                match self.claim() {
                    Ok(claim) => {
                        // Whoever does not wait any more gives it back by that.
                        let _ = reply.send(Ok(claim));
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
            let _ = reply.send(Err(refused));
        }
    }

    /// One more feed, whose devices are plugged in if need be.
    pub(super) fn claim(&mut self) -> Result<Claim, String> {
        if self.active.is_none() {
            self.plug().map_err(|error| {
                let text = error_text(&error);
                // What was refused is the guest's affair, and no fault of its monitor.
                if !matches!(
                    error,
                    VmError::Refused { .. } | VmError::NoPort { .. } | VmError::NoMemory { .. }
                ) {
                    self.failed(&error);
                }
                text
            })?;
        }
        let active = self.active.as_mut().ok_or("it has gone")?;
        active.feeds += 1;
        let (memory, inbox) = (Arc::clone(&active.memory), Arc::clone(&self.inbox));
        Ok(Claim { memory, inbox, left: None })
    }

    pub(super) fn plug(&mut self) -> Result<(), VmError> {
        let memory = Arc::new(GuestMemory::create(self.spec.region_mib, self.spec.pages)?);
        let gone = VmError::Closed { command: "device_add" };
        let monitor = self.monitor.as_mut().ok_or(gone)?.as_mut();
        match hotplug::plug(monitor, &memory) {
            Ok(plugged) => {
                let (idle_since, left) = (Instant::now(), Vec::new());
                self.active = Some(Active { memory, plugged, feeds: 0, idle_since, left });
                self.blame(None);
                Ok(())
            }
            Err(error) => {
                // What could not be taken back is taken back later.
                let found = hotplug::find_plugged(monitor);
                if found.is_err() || matches!(error, VmError::TimeOut { .. }) {
                    // QEMU may carry out yet what it has not answered: whoever connects next looks for it.
                    self.monitor = None;
                    self.connect_at = Instant::now() + self.spec.hypervisor.look_every();
                }
                self.leaving.all = found.unwrap_or_default();
                self.leaving.ask_at = Instant::now();
                Err(error)
            }
        }
    }
}
