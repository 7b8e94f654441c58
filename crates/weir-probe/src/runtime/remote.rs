//! A consumer in another process: the probe's side.

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

/// A consumer in another process. The owner of this value transfers the updates to that process, and rings with
/// [`weir_ring::pass::send_rings`]. Dropping it ends the consumer.
///
/// The other process creates a channel for each feed that it will read, in advance, all with one wake page. A consumer
/// that is moved to new rings, because another consumer was withdrawn, needs one more channel, and lines beside those
/// of the old rings. Without them it is not attached: the result is
/// [`Event::NotAttached`](crate::core::Event::NotAttached), or an error of the command. If a later step fails, the
/// channel that the feed has taken hangs up and is lost.
///
/// In all other cases, a channel that hangs up means that the probe's process has died or that the consumer has ended.
/// The channel of a feed that the consumer has left stays, with its lines, until the other process was told so and has
/// answered ([`let_go_of_channel`](RemoteConsumer::let_go_of_channel)). The other process closes its own end as soon as
/// it is told ([`Sleeper::close_channel`](weir_ring::wake::Sleeper::close_channel)): no writer confirms thresholds
/// there any more.
///
/// No writer and no command waits for this consumer: its process may be stopped, and is not trusted. The stream to it
/// should have time-outs.
pub struct RemoteConsumer {
    /// The consumer's id in commands to the probe.
    pub id: ConsumerId,
    membership: Membership,
}

impl Probe {
    /// Adds a consumer in another process, whose wake page has `lines` lines: it can read so many rings at a time.
    ///
    /// # Errors
    /// 0 or more than [`RINGS_MAX`] lines; the probe has been stopped.
    pub fn add_remote_consumer(&self, lines: usize) -> Result<RemoteConsumer, ProbeError> {
        self.add_remote_consumer_at(0..lines)
    }

    /// Like [`add_remote_consumer`](Probe::add_remote_consumer), if only the lines `free` of the wake page are free:
    /// the others are for rings of another writer.
    ///
    /// # Errors
    /// No line, or a line at or above [`RINGS_MAX`]; or the probe has been stopped.
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
    /// Adds a channel that the other process has created ([`weir_ring::pass::receive_waker`]), for the next feed to
    /// which it is attached. Returns the channel's number. Both processes number the channels from 0, in the order in
    /// which they were created.
    ///
    /// # Errors
    /// [`NarrowWaker`](CaptureError::NarrowWaker) if the wake page has too few lines; more channels than
    /// [`REMOTE_CHANNELS_MAX`](crate::limits::REMOTE_CHANNELS_MAX); [`Ended`](CaptureError::Ended) if the consumer was
    /// withdrawn. After an error, the numbers in both processes differ, so the consumer should be ended.
    pub fn give_channel(&self, waker: Waker) -> Result<usize, ProbeError> {
        let mut state = self.membership.shared.lock();
        Ok(state.registry.give_channel(self.id, waker)?)
    }

    /// Records that the other process knows that it has left the feed of this channel ([`Update::Left`]), and does not
    /// sleep on its lines any more: the channel hangs up, and the lines become free for other feeds. Has no effect
    /// before the consumer has left the feed.
    pub fn let_go_of_channel(&self, number: usize) {
        self.membership.shared.lock().registry.let_go_of_channel(self.id, number);
    }

    /// Returns the updates that have come since the last call.
    #[must_use]
    pub fn take_updates(&self) -> Vec<Update> {
        self.membership.updates.take()
    }

    /// Waits for the next update, and returns it; `None` after `limit`, or if the probe was stopped and all updates
    /// were returned.
    #[must_use]
    pub fn wait_for_update(&self, limit: Duration) -> Option<Update> {
        self.membership.updates.wait(limit)
    }

    /// Waits for at most `limit` until the consumer joins a feed. For a process that reads one feed to its end and is
    /// told nothing else: updates that it has left other feeds are skipped, so the channels and lines of these feeds
    /// stay in use.
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        self.membership.updates.wait_for_feed(limit)
    }
}
