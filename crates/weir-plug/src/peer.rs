//! The other end of a server's connection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::credentials::Who;
use crate::error::PlugError;
use crate::limits::OUTGOING_MAX;
use crate::message::Message;
use crate::transport::Transport;
use crate::wire;

/// The other end of a connection. Messages to the peer are queued, so a thread does not wait for a peer that does not
/// read.
pub struct Peer {
    number: u64,
    who: Who,
    transport: Arc<dyn Transport>,
    /// `None` once the connection has ended.
    outgoing: Mutex<Option<SyncSender<Outgoing>>>,
}

/// A message and its descriptors.
pub(crate) type Outgoing = (Message, Vec<OwnedFd>);

impl Peer {
    /// Creates a peer, and the queue of its messages for [`write`].
    pub(crate) fn new(
        number: u64,
        who: Who,
        transport: Arc<dyn Transport>,
    ) -> (Peer, Receiver<Outgoing>) {
        let (outgoing, queue) = sync_channel(OUTGOING_MAX);
        let outgoing = Mutex::new(Some(outgoing));
        (Peer { number, who, transport, outgoing }, queue)
    }

    /// Returns the number of the connection. No other connection of the server has had it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the peer's identity.
    #[must_use]
    pub fn who(&self) -> &Who {
        &self.who
    }

    /// Sends a notification. If [`OUTGOING_MAX`] earlier messages are still in the queue, the connection is closed.
    ///
    /// # Errors
    /// [`PlugError::Closed`]: the connection has ended, or is closed by this call.
    pub fn notify(
        &self,
        method: &str,
        params: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), PlugError> {
        let message = Message::Notification { method: method.to_owned(), params: Some(params) };
        let sent = match &*self.outgoing() {
            Some(outgoing) => outgoing.try_send((message, descriptors)),
            None => return Err(PlugError::Closed),
        };
        sent.map_err(|error| {
            if let TrySendError::Full(_) = error {
                self.hang_up();
            }
            PlugError::Closed
        })
    }

    /// Ends the connection.
    pub fn hang_up(&self) {
        *self.outgoing() = None;
        self.transport.hang_up();
    }

    /// Sends an answer. Waits while the queue is full.
    pub(crate) fn answer(&self, answer: Message, fds: Vec<OwnedFd>) -> Result<(), PlugError> {
        let outgoing = self.outgoing().clone();
        let sent = outgoing.and_then(|outgoing| outgoing.send((answer, fds)).ok());
        sent.ok_or(PlugError::Closed)
    }

    /// Closes the queue: [`write`] ends after it has written the queued messages.
    pub(crate) fn finish(&self) {
        *self.outgoing() = None;
    }

    fn outgoing(&self) -> MutexGuard<'_, Option<SyncSender<Outgoing>>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the messages of a peer's queue until the queue is closed. Then closes the connection.
pub(crate) fn write(transport: &dyn Transport, queue: Receiver<Outgoing>) -> io::Result<()> {
    let written = queue.iter().try_for_each(|(message, fds)| wire::send(transport, &message, &fds));
    transport.hang_up();
    written
}
