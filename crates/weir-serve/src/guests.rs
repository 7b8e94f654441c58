//! Virtual machines that read feeds. Each shares memory with the daemon while it has open feeds.

mod channel;
pub(crate) mod config;
mod control;
mod hypervisor;
pub(crate) mod machine;
mod ports;
pub(crate) mod relay;
pub(crate) mod session;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use weir_client::protocol::InRegion;
use weir_plug::Serving;
use weir_plug::message::RpcError;
use weir_probe::{Probe, SubscriptionId};

use crate::config::GuestConfig;
use crate::guests::machine::{Claim, Machine};
use crate::guests::relay::{Bell, Relay, RelayError};
use crate::guests::session::GuestSession;
use crate::limits::RELAY_END_TIME_MAX;
use crate::reader::Reads;

/// The guests that are served.
#[derive(Default)]
pub(crate) struct Guests {
    all: RwLock<BTreeMap<String, Arc<Guest>>>,
    /// Set when the daemon begins to serve guests.
    server: Mutex<Option<GuestServer>>,
    /// Held while guests are added or removed.
    changes: Mutex<()>,
}

/// The server of guests' sessions, and the daemon's log.
#[derive(Clone)]
pub(crate) struct GuestServer {
    /// The server that serves connections over the guests' ports.
    pub(crate) serving: Weak<Serving>,
    /// Writes a message for the operator of the daemon.
    pub(crate) say: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A guest.
pub(crate) struct Guest {
    pub(crate) name: Arc<str>,
    pub(crate) config: GuestConfig,
    pub(crate) session: Arc<GuestSession>,
    pub(crate) machine: Machine,
    pub(crate) threads: Arc<GuestThreads>,
    /// When the log last reported the beginning of a session.
    pub(crate) session_told: Mutex<Option<Instant>>,
}

/// The threads of a guest: whether they must end, and how many have not ended yet.
pub(crate) struct GuestThreads {
    is_over: AtomicBool,
    /// Readable once the threads must end.
    end: OwnedFd,
    count: Mutex<usize>,
    changed: Condvar,
}

/// Counts a guest's thread until it is dropped.
pub(crate) struct ThreadGuard(Arc<GuestThreads>);

/// A guest's feed. Dropping it frees its place in the region.
pub(crate) struct GuestFeed {
    pub(crate) relay: Relay,
    claim: Claim,
    /// The guest has reported that no process in it has the ring mapped any more.
    is_unmapped: AtomicBool,
}

impl GuestFeed {
    /// Records that no process in the guest has the ring mapped any more.
    pub(crate) fn unmapped(&self) {
        self.is_unmapped.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl GuestFeed {
    /// A copy in memory that is not plugged into a machine.
    pub(crate) fn of_no_machine(relay: Relay, memory: Arc<weir_vm::GuestMemory>) -> GuestFeed {
        let claim = Claim::of_no_machine(memory);
        GuestFeed { relay, claim, is_unmapped: AtomicBool::new(false) }
    }
}

impl Drop for GuestFeed {
    fn drop(&mut self) {
        self.relay.finish_by(Instant::now() + RELAY_END_TIME_MAX);
        if !self.is_unmapped.load(Ordering::Relaxed) {
            self.claim.leave(Arc::clone(self.relay.taken()));
        }
    }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> RpcError {
    RpcError::refused(weir_client::error_text(error))
}

impl Guests {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Guest>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Guest>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the server and the log for guests, once guests are served.
    pub(crate) fn server(&self) -> MutexGuard<'_, Option<GuestServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock that is held while guests are added or removed.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, guest: &Arc<Guest>) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(guest.name.to_string(), Arc::clone(guest));
    }

    pub(crate) fn remove(&self, guest: &Guest) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(&*guest.name);
    }
}

impl Guest {
    /// Copies the frames of a subscription into this guest's region. Plugs the region in if necessary.
    pub(crate) fn copy(
        self: &Arc<Guest>,
        probe: &Probe,
        subscription: SubscriptionId,
        reads: &Reads,
        data_blocks: u64,
    ) -> Result<(GuestFeed, InRegion), RpcError> {
        let claim = self.machine.claim().map_err(RpcError::refused)?;
        let memory = claim.memory();
        let port = self.session.port();
        let ring = Arc::new(move || port.iter().for_each(|port| port.ring()));
        let bell = Bell { memory: Arc::clone(memory), ring };
        let relay = Relay::start(probe, subscription, reads, data_blocks, bell);
        let relay = relay.map_err(|error| match error {
            RelayError::Probe(error) => crate::refusal::refused(error),
            error => refused(&error),
        })?;
        let at = InRegion {
            token: memory.token().to_string(),
            region_bytes: memory.region_bytes(),
            place: relay.place(),
        };
        Ok((GuestFeed { relay, claim, is_unmapped: AtomicBool::new(false) }, at))
    }
}

impl GuestThreads {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<GuestThreads> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (count, changed) = (Mutex::default(), Condvar::new());
        Ok(GuestThreads { is_over: AtomicBool::new(false), end, count, changed })
    }

    /// Returns a descriptor that is readable once the threads must end.
    pub(crate) fn end_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    pub(crate) fn count_one(self: &Arc<GuestThreads>) -> ThreadGuard {
        *self.count() += 1;
        ThreadGuard(Arc::clone(self))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Tells the guest's threads to end.
    pub(crate) fn end(&self) {
        let _count = self.count();
        self.is_over.store(true, Ordering::Release);
        // The write fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        self.changed.notify_all();
    }

    /// Sleeps for `limit`, or until the guest's threads must end.
    pub(crate) fn sleep(&self, limit: Duration) {
        let count = self.count();
        drop(self.changed.wait_timeout_while(count, limit, |_| !self.is_over()));
    }

    /// Waits until all threads have ended, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let count = self.count();
        drop(self.changed.wait_timeout_while(count, limit, |count| *count > 0));
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}
