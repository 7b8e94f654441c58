//! A guest's machine: its monitor, and the devices that are plugged into it, on a separate thread.
//!
//! A caller posts a request and waits for its answer, so a QEMU that does not answer delays no
//! other caller. The machine's last known status can be read without waiting.

mod inbox;
mod worker;

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_client::protocol::GuestState;
use weir_vm::{GuestMemory, TakenRing};

use crate::limits::{CLAIM_WAIT_MAX, DETACH_EXTRA_WAIT_MAX};
use inbox::{ClaimReply, Inbox, Request};
pub(crate) use worker::{Spec, Worker};

/// The error for requests to a machine whose thread has ended.
pub(super) const NOT_SERVED: &str =
    "the guest is not served: the daemon's file has changed, or the daemon ends; try again";

/// The last known status of a machine.
#[derive(Clone, Debug)]
pub(crate) struct MachineStatus {
    pub(crate) state: GuestState,
    /// The reason for the state, if it is a fault.
    pub(crate) reason: Option<String>,
    pub(crate) qemu: Option<String>,
    pub(crate) used_mib: u64,
}

/// A handle to a machine.
pub(crate) struct Machine {
    inbox: Arc<Inbox>,
    status: Arc<Mutex<MachineStatus>>,
}

/// A claim to a guest's memory, which stays plugged in while there is a claim.
pub(crate) struct Claim {
    memory: Arc<GuestMemory>,
    inbox: Arc<Inbox>,
    /// A ring that applications in the guest may still read.
    left: Option<Arc<TakenRing>>,
}

impl Claim {
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Keeps this ring for a while after this value is dropped.
    pub(crate) fn leave(&mut self, place: Arc<TakenRing>) {
        self.left = Some(place);
    }
}

#[cfg(test)]
impl Claim {
    pub(crate) fn of_no_machine(memory: Arc<GuestMemory>) -> Claim {
        Claim { memory, inbox: Arc::new(Inbox::new().unwrap()), left: None }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (memory, left) = (Arc::clone(&self.memory), self.left.take());
        self.inbox.post(Request::Release { memory, left });
    }
}

impl Machine {
    /// Creates a machine, and the worker that serves it ([`Worker::run`]).
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(spec: Spec) -> std::io::Result<(Machine, Worker)> {
        let inbox = Arc::new(Inbox::new()?);
        let state = GuestState::Absent;
        let status = MachineStatus { state, reason: None, qemu: None, used_mib: 0 };
        let status = Arc::new(Mutex::new(status));
        let worker = Worker::new(spec, Arc::clone(&inbox), Arc::clone(&status));
        Ok((Machine { inbox, status }, worker))
    }

    /// Returns the last known status. Never waits.
    pub(crate) fn status(&self) -> MachineStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Claims the memory for one more feed. The devices are plugged in when this returns.
    ///
    /// # Errors
    /// The message for the guest.
    pub(crate) fn claim(&self) -> Result<Claim, String> {
        let (reply, answer, _caller) = ClaimReply::new();
        self.inbox.post(Request::Claim(reply));
        answer.recv_timeout(CLAIM_WAIT_MAX).unwrap_or_else(|error| {
            if error == RecvTimeoutError::Disconnected {
                return Err(NOT_SERVED.to_owned());
            }
            let reason = self.status().reason;
            let reason = reason.unwrap_or_else(|| "QEMU is slow to answer".to_owned());
            Err(format!("the memory is not plugged in yet ({reason}); try again"))
        })
    }

    /// Makes the guest release its devices, and plugs none in until [`attach`](Machine::attach).
    /// `close_feeds` is called once no feed can be opened any more; it is not called if the request
    /// is refused.
    ///
    /// # Errors
    /// The machine cannot be reached, so the request is refused; or the devices are not released in time, so they are
    /// removed when the guest answers; or the guest was attached in the meantime.
    pub(crate) fn detach(
        &self,
        within: Duration,
        close_feeds: impl FnOnce(),
    ) -> Result<(), String> {
        let (reply, answer) = sync_channel(1);
        let (begun, has_begun) = sync_channel(1);
        let deadline = Instant::now() + within + DETACH_EXTRA_WAIT_MAX;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.inbox.post(Request::Detach { within, begun, reply });
        // If QEMU does not answer now, the feeds end with their session once it does.
        if has_begun.recv_timeout(left()).is_ok() {
            close_feeds();
        }
        answer.recv_timeout(left()).unwrap_or_else(|error| {
            let text = match error {
                RecvTimeoutError::Disconnected => NOT_SERVED,
                RecvTimeoutError::Timeout => {
                    "QEMU does not answer; is its process stopped? Its devices go once it does"
                }
            };
            Err(text.to_owned())
        })
    }

    /// Allows the guest to open feeds again. Ends a detachment that is in progress.
    pub(crate) fn attach(&self) {
        self.inbox.post(Request::Attach);
    }

    /// Reports that the port has ended, so that the thread checks whether QEMU has, too.
    pub(crate) fn port_ended(&self) {
        self.inbox.post(Request::PortEnded);
    }

    /// Tells the machine's thread to end: at once for `None`, else when the devices are gone, or after this time.
    pub(crate) fn end(&self, unplugs: Option<Duration>) {
        self.inbox.post(Request::End { unplugs });
    }
}
