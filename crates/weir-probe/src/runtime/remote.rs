//! A consumer in another process, as the probe has it.

use std::ops::Range;
use std::time::Duration;

use weir_capture::CaptureError;
use weir_ring::wake::{RINGS_MAX, Waker};

use super::Probe;
use super::channels::Channels;
use super::consumer::Membership;
use super::updates::{Joined, Update};
use crate::core::ConsumerId;
use crate::error::ProbeError;

/// A consumer in another process: the holder of this carries its messages over to that process, and rings with
/// [`weir_ring::pass::send_rings`]. Dropping it ends the consumer.
///
/// The other process makes a channel for each feed that it is to read, ahead of time, all on one wake page. A consumer
/// that is moved to fresh rings, because the right of another was withdrawn, needs one more, and lines beside those of
/// the old rings. Without them it is not attached: [`Event::NotAttached`](crate::core::Event::NotAttached), or the
/// command's error. If a later step fails, the channel that a feed has taken hangs up and is lost.
///
/// Otherwise a channel that hangs up means that the probe's process has died or that the consumer has ended. The
/// channel of a feed that the consumer has left stays, with its lines, until the other process was told so and has
/// answered ([`let_go_of_channel`](RemoteConsumer::let_go_of_channel)). The other process closes its own end as soon
/// as it is told ([`Sleeper::close_channel`](weir_ring::wake::Sleeper::close_channel)): nobody confirms its thresholds
/// there any more.
///
/// No writer waits for it, whatever it reads, and no command: it can be stopped, and is not trusted. The stream to it
/// should have time-outs.
pub struct RemoteConsumer {
    /// Its name in the probe's commands.
    pub id: ConsumerId,
    membership: Membership,
}

impl Probe {
    /// Adds a consumer in another process, whose wake page has `lines` lines: as many rings can it read at a time.
    ///
    /// # Errors
    /// 0 or more than [`RINGS_MAX`] lines; the probe has been stopped.
    pub fn add_remote_consumer(&self, lines: usize) -> Result<RemoteConsumer, ProbeError> {
        self.add_remote_consumer_at(0..lines)
    }

    /// The same, of which these lines of its wake page are free: the others are for rings of somebody else.
    ///
    /// # Errors
    /// No line, or one at or above [`RINGS_MAX`]; the probe has been stopped.
    pub fn add_remote_consumer_at(&self, free: Range<usize>) -> Result<RemoteConsumer, ProbeError> {
        if free.is_empty() || free.end > RINGS_MAX {
            let Range { start, end } = free;
            let said = format!("lines {start}..{end} of a wake page; it has 1 to {RINGS_MAX}");
            return Err(CaptureError::Options(said).into());
        }
        let membership = self.add(Channels::given(free))?;
        Ok(RemoteConsumer { id: membership.id, membership })
    }
}

impl RemoteConsumer {
    /// Takes a channel that the other process has made ([`weir_ring::pass::receive_waker`]), for the next feed that it
    /// is attached to. Gives its number: they are numbered from 0 in the order in which they are given, as the
    /// other process numbers those that it makes.
    ///
    /// # Errors
    /// [`NarrowWaker`](CaptureError::NarrowWaker) if its page has too few lines; it has more than
    /// [`REMOTE_CHANNELS_MAX`](crate::limits::REMOTE_CHANNELS_MAX); [`Ended`](CaptureError::Ended) if it was withdrawn.
    /// After an error the numbers are not those of the other process any more: it is best ended.
    pub fn give_channel(&self, waker: Waker) -> Result<usize, ProbeError> {
        let mut state = self.membership.shared.lock();
        Ok(state.registry.give_channel(self.id, waker)?)
    }

    /// The other process knows that it has left the feed for which it had this channel ([`Update::Left`]), and sleeps
    /// on its lines no more: the channel hangs up, and the lines are free for other feeds. Nothing happens before it
    /// has left.
    pub fn let_go_of_channel(&self, number: usize) {
        self.membership.shared.lock().registry.let_go_of_channel(self.id, number);
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

    /// Waits until it joins a feed, at most `limit`. For a process that reads one feed to its end and is told of
    /// nothing else: that it has left others is passed over, so their channels and lines stay.
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        self.membership.updates.wait_for_feed(limit)
    }
}
