//! A guest's port and its session, for other parts of the daemon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::json;
use weir_client::protocol::SOURCES_CHANGED;
use weir_plug::Peer;
use weir_plug::port::{Port, PortTransport};
use weir_plug::transport::Transport;

/// A guest's port and its session, while they exist.
#[derive(Default)]
pub(crate) struct GuestSession {
    port: Mutex<Option<Arc<Port>>>,
    transport: Mutex<Option<Arc<PortTransport>>>,
    /// The broker's connection.
    peer: Mutex<Weak<Peer>>,
    /// Whether the daemon ended the last session, and not the guest.
    is_ended_here: AtomicBool,
    /// Number of feeds that the guest has opened.
    opened: AtomicU64,
}

impl GuestSession {
    /// Returns the port, while there is a connection to it.
    pub(crate) fn port(&self) -> Option<Arc<Port>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number for the guest's next feed. It reveals nothing about other clients.
    pub(crate) fn next_key(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Tells whether a broker has a session.
    pub(crate) fn has_session(&self) -> bool {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends the session, if there is one. Its feeds are closed soon after.
    pub(crate) fn end_session(&self) {
        if let Some(session) = &*self.transport.lock().unwrap_or_else(PoisonError::into_inner) {
            self.is_ended_here.store(true, Ordering::Release);
            session.hang_up();
        }
    }

    /// Records the connection of a broker.
    pub(crate) fn set_peer(&self, peer: &Arc<Peer>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(peer);
    }

    /// Tells a broker that the daemon's file has changed, so that it asks for its sources again.
    pub(crate) fn tell_of_sources(&self) {
        let peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        // An error means that the broker does not read: its session ends.
        peer.iter().for_each(|peer| _ = peer.notify(SOURCES_CHANGED, json!({}), Vec::new()));
    }

    /// Records that the port is connected, or is not any more.
    pub(crate) fn set_port(&self, port: Option<&Arc<Port>>) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = port.cloned();
    }

    /// Tells whether the last session was ended by [`end_session`](GuestSession::end_session), and not by the guest.
    pub(crate) fn is_ended_here(&self) -> bool {
        self.is_ended_here.load(Ordering::Acquire)
    }

    /// Records that a broker has a session, or none any more.
    pub(crate) fn set_session(&self, session: Option<&Arc<PortTransport>>) {
        let mut transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ended_here.store(false, Ordering::Release);
        *transport = session.cloned();
    }
}
