//! A guest's machine: its monitor, and the devices that are plugged into it, on a thread of their own.
//!
//! Whoever asks for something leaves a request and waits for the answer, or does not: nobody else waits for a QEMU
//! that does not answer. What is known of the machine lies beside, for who only looks.

mod inbox;
mod worker;

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_client::protocol::GuestState;
use weir_vm::{GuestMemory, TakenRing};

use crate::limits::{CLAIM_WAIT_MAX, DETACH_EXTRA_WAIT_MAX};
use inbox::{Inbox, Request};
pub(crate) use worker::{Spec, Worker};

/// What is known of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) state: GuestState,
    /// Why it is so, if that is a fault.
    pub(crate) reason: Option<String>,
    pub(crate) qemu: Option<String>,
    pub(crate) used_mib: u64,
}

/// A machine, for who asks for something.
pub(crate) struct Machine {
    inbox: Arc<Inbox>,
    shown: Arc<Mutex<Shown>>,
}

/// The right to a guest's memory, which is plugged in as long as somebody has one.
pub(crate) struct Claim {
    memory: Arc<GuestMemory>,
    inbox: Arc<Inbox>,
    /// A place that applications in the guest may still read.
    left: Option<Arc<TakenRing>>,
}

impl Claim {
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Has this place stay for a while once the claim is dropped.
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
        self.inbox.post(Request::LetGo { memory, left });
    }
}

impl Machine {
    /// A machine, and what looks after it ([`Worker::run`]).
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn new(spec: Spec) -> std::io::Result<(Machine, Worker)> {
        let inbox = Arc::new(Inbox::new()?);
        let state = GuestState::Absent;
        let shown = Shown { state, reason: None, qemu: None, used_mib: 0 };
        let shown = Arc::new(Mutex::new(shown));
        let worker = Worker::new(spec, Arc::clone(&inbox), Arc::clone(&shown));
        Ok((Machine { inbox, shown }, worker))
    }

    /// What is known of it now; waits for nobody.
    pub(crate) fn shown(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One more feed: the devices are there when this returns.
    ///
    /// # Errors
    /// What to tell the guest.
    pub(crate) fn claim(&self) -> Result<Claim, String> {
        let (reply, answer) = sync_channel(1);
        self.inbox.post(Request::Claim(reply));
        // A claim that comes later is dropped with the channel, and so given back.
        answer.recv_timeout(CLAIM_WAIT_MAX).unwrap_or_else(|_| {
            let reason = self.shown().reason.unwrap_or_else(|| "QEMU is slow to answer".to_owned());
            Err(format!("the memory is not plugged in yet ({reason}); try again"))
        })
    }

    /// Keeps it without devices from here on. `close_feeds` is called when no feed can be opened any more.
    ///
    /// # Errors
    /// They are not released within the limit; they go once the guest does.
    pub(crate) fn detach(
        &self,
        within: Duration,
        close_feeds: impl FnOnce(),
    ) -> Result<(), String> {
        let (reply, answer) = sync_channel(1);
        self.inbox.post(Request::Detach { within, reply });
        close_feeds();
        answer.recv_timeout(within + DETACH_EXTRA_WAIT_MAX).unwrap_or_else(|_| {
            Err("QEMU does not answer; is its process stopped? Its devices go once it does"
                .to_owned())
        })
    }

    /// Feeds may be opened again.
    pub(crate) fn attach(&self) {
        self.inbox.post(Request::Attach);
    }

    /// The port has ended: has QEMU, too?
    pub(crate) fn port_ended(&self) {
        self.inbox.post(Request::PortEnded);
    }

    /// Has its thread end: at once, or, if `unplugs`, when the devices are gone, at most after so long.
    pub(crate) fn end(&self, unplugs: Option<Duration>) {
        self.inbox.post(Request::End { unplugs });
    }
}
