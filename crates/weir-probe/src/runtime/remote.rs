//! A consumer in another process, as the probe has it.

use std::time::Duration;

use weir_ring::wake::Waker;

use super::Probe;
use super::channels::Channels;
use super::consumer::Membership;
use super::updates::{Joined, Update};
use crate::core::ConsumerId;
use crate::error::ProbeError;

/// A consumer in another process: whoever holds this carries what it is told over to that process, rings with
/// [`weir_ring::pass::send_rings`]. Dropping it ends the consumer.
///
/// The other process makes a channel for each feed that it is to read, ahead of time, all on one wake page; a
/// consumer that is moved to fresh rings, because the right of another was withdrawn, needs one more. Without one it is
/// not attached: [`Event::NotAttached`](crate::core::Event::NotAttached), or the command's error. When it leaves a
/// feed the channel hangs up, which it may notice before it is told.
///
/// No writer waits for it, whatever it reads: it can be stopped, and is not trusted.
pub struct RemoteConsumer {
    /// Its name in the probe's commands.
    pub id: ConsumerId,
    membership: Membership,
}

impl Probe {
    /// Adds a consumer in another process, whose wake page has `lines` lines: as many rings can it read at a time.
    ///
    /// # Errors
    /// The probe has been stopped.
    pub fn add_remote_consumer(&self, lines: usize) -> Result<RemoteConsumer, ProbeError> {
        let membership = self.add(Channels::given(lines))?;
        Ok(RemoteConsumer { id: membership.id, membership })
    }
}

impl RemoteConsumer {
    /// Takes a channel that the other process has made ([`weir_ring::pass::receive_waker`]), for the next feed that it
    /// is attached to. Gives its number: they are numbered from 0 in the order in which they are given, as the
    /// other process numbers those that it makes.
    ///
    /// # Errors
    /// [`NarrowWaker`](weir_capture::CaptureError::NarrowWaker) if its page has too few lines.
    pub fn give_channel(&self, waker: Waker) -> Result<usize, ProbeError> {
        let mut state = self.membership.shared.lock();
        Ok(state.registry.give_channel(self.id, waker)?)
    }

    /// The updates that have come since this was asked last.
    #[must_use]
    pub fn take_updates(&self) -> Vec<Update> {
        self.membership.updates.take()
    }

    /// The next update, once it is there; `None` after `limit`, and when the probe has been stopped and told all.
    #[must_use]
    pub fn wait_for_update(&self, limit: Duration) -> Option<Update> {
        self.membership.updates.wait(limit)
    }

    /// Waits until it joins a feed, at most `limit`: [`Consumer::wait_for_feed`](crate::Consumer::wait_for_feed).
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        self.membership.updates.wait_for_feed(limit)
    }
}
