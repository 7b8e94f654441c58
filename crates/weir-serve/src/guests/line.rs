//! A guest's port and its session, for those who do not serve it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::json;
use weir_client::protocol::SOURCES_CHANGED;
use weir_plug::Peer;
use weir_plug::port::{Port, PortTransport};
use weir_plug::transport::Transport;

/// A guest's port and its session, while there are such.
#[derive(Default)]
pub(crate) struct Line {
    port: Mutex<Option<Arc<Port>>>,
    session: Mutex<Option<Arc<PortTransport>>>,
    /// Whom a broker is to the daemon that it speaks to.
    peer: Mutex<Weak<Peer>>,
    /// The last session was ended here, and not by the guest.
    is_ended_here: AtomicBool,
}

impl Line {
    /// The port, while QEMU is there.
    pub(crate) fn port(&self) -> Option<Arc<Port>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a broker has a session.
    pub(crate) fn has_session(&self) -> bool {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends the session, if there is one: its feeds are closed by that, soon.
    pub(crate) fn end_session(&self) {
        if let Some(session) = &*self.session.lock().unwrap_or_else(PoisonError::into_inner) {
            self.is_ended_here.store(true, Ordering::Release);
            session.hang_up();
        }
    }

    /// A broker is connected.
    pub(crate) fn set_peer(&self, peer: &Arc<Peer>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(peer);
    }

    /// Tells a broker that the daemon's file has changed: it asks for its sources again.
    pub(crate) fn tell_of_sources(&self) {
        let peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        // One that does not take it is ended by that.
        peer.iter().for_each(|peer| _ = peer.notify(SOURCES_CHANGED, json!({}), Vec::new()));
    }

    /// QEMU is there, or gone.
    pub(crate) fn set_port(&self, port: Option<&Arc<Port>>) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = port.cloned();
    }

    /// Whether the last session was ended by [`end_session`](Line::end_session), and not by the guest.
    pub(crate) fn is_ended_here(&self) -> bool {
        self.is_ended_here.load(Ordering::Acquire)
    }

    /// A broker has a session, or none any more.
    pub(crate) fn set_session(&self, session: Option<&Arc<PortTransport>>) {
        let mut own = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ended_here.store(false, Ordering::Release);
        *own = session.cloned();
    }
}
