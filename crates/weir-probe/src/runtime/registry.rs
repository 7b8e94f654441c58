//! The probe's records of feeds and consumers: which rings a consumer reads, and which wakers wake it. It has no
//! threads and no locks: the runtime keeps it behind its own lock, and a simulator can use it directly.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use weir_capture::pace::{Pace, ReaderProgress};
use weir_capture::{CaptureError, FeedHandle, FeedSlot, FilterLocation, WakerSlot};
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

use super::channels::{Channels, GivenChannels};
use super::updates::{Joined, LetGo, Update, Updates};
use crate::core::{ConsumerId, FeedId, SourceId};

/// The current feeds and consumers, and which consumer is attached to which feed.
#[derive(Default)]
pub struct Registry {
    feeds: BTreeMap<FeedId, OpenFeed>,
    members: BTreeMap<ConsumerId, Member>,
    attached: BTreeMap<(ConsumerId, FeedId), Attached>,
    /// Number of times that each source was opened.
    lives: BTreeMap<SourceId, u64>,
}

/// A current feed.
pub struct OpenFeed {
    /// The source of the feed.
    pub source: SourceId,
    /// Its slot in the source's [`FeedControl`](weir_capture::FeedControl).
    pub slot: FeedSlot,
    /// The rings of the feed.
    pub rings: Vec<Ring<Mapping>>,
    from: Vec<u64>,
    /// The place where its frames are filtered.
    pub location: FilterLocation,
    life: u64,
    pace: Option<Pace>,
}

/// The probe's record of a consumer.
struct Member {
    channels: Channels,
    /// For each line of the consumer's wake page, whether it is in use.
    lines: Vec<bool>,
    updates: Arc<Updates>,
}

/// A feed's waker for one consumer.
struct Attached {
    slot: WakerSlot,
    first_line: usize,
    count: usize,
    channel: Option<usize>,
    /// Kept until the consumer is told of the feed. So the feed's writer waits for the consumer from the start.
    progress: Option<ReaderProgress>,
}

/// The lines of a consumer that a waker uses, for the time in which a feed's owner adds the waker. Must be passed to
/// [`Registry::attached`] or [`Registry::not_attached`].
pub struct Attaching {
    /// The first of the lines.
    pub first_line: usize,
    count: usize,
    channel: Option<usize>,
    progress: Option<ReaderProgress>,
}

impl Registry {
    /// Records that a source was opened: feeds that are added from now on belong to its next life.
    pub fn opened(&mut self, source: SourceId) {
        *self.lives.entry(source).or_default() += 1;
    }

    /// Removes the records of a source that is gone for good.
    pub fn closed(&mut self, source: SourceId) {
        self.lives.remove(&source);
    }

    /// Adds a feed.
    pub fn add_feed(&mut self, source: SourceId, feed: FeedId, handle: FeedHandle) {
        let life = self.lives.get(&source).copied().unwrap_or_default();
        let FeedHandle { slot, rings, from, location, pace } = handle;
        self.feeds.insert(feed, OpenFeed { source, life, slot, rings, from, location, pace });
    }

    /// Returns a current feed.
    #[must_use]
    pub fn feed(&self, id: FeedId) -> Option<&OpenFeed> {
        self.feeds.get(&id)
    }

    /// Returns the feeds of a source, and their slots.
    #[must_use]
    pub fn feeds_of(&self, source: SourceId) -> Vec<(FeedId, FeedSlot)> {
        let own = self.feeds.iter().filter(|(_, feed)| feed.source == source);
        own.map(|(&id, feed)| (id, feed.slot)).collect()
    }

    /// Records that a feed's frames are filtered at this place from now on.
    pub fn set_location(&mut self, id: FeedId, location: FilterLocation) {
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.location = location;
        }
    }

    /// Removes a feed. The wakers of its readers become free.
    pub fn forget_feed(&mut self, id: FeedId) {
        self.feeds.remove(&id);
        let readers = self.attached.keys().filter(|(_, feed)| *feed == id);
        let gone: Vec<ConsumerId> = readers.map(|(reader, _)| *reader).collect();
        gone.into_iter().for_each(|reader| self.forget_waker(reader, id));
    }

    /// Adds a consumer that the core has added.
    pub fn add_member(&mut self, id: ConsumerId, channels: Channels, updates: Arc<Updates>) {
        let own = channels.lines();
        let lines = (0..own.end).map(|line| !own.contains(&line)).collect();
        self.members.insert(id, Member { channels, lines, updates });
    }

    /// Adds a channel that a consumer in another process has created. Returns its number.
    ///
    /// # Errors
    /// [`CaptureError::Ended`] if there is no such consumer, or it was withdrawn; [`CaptureError::NarrowWaker`] if the
    /// channel's wake page has too few lines; or the consumer has too many channels.
    pub fn give_channel(&mut self, id: ConsumerId, waker: Waker) -> Result<usize, CaptureError> {
        self.given(id).ok_or(CaptureError::Ended)?.add(waker)
    }

    /// Records that a consumer in another process knows that it has left the feed which has this channel.
    pub fn let_go_of_channel(&mut self, id: ConsumerId, number: usize) {
        let free = self.given(id).map(|given| given.let_go(number)).unwrap_or_default();
        self.free_lines(id, free);
    }

    /// Closes the channels of a consumer that was withdrawn.
    pub fn withdrawn(&mut self, id: ConsumerId) {
        self.given(id).into_iter().for_each(GivenChannels::withdraw);
    }

    fn given(&mut self, id: ConsumerId) -> Option<&mut GivenChannels> {
        match &mut self.members.get_mut(&id)?.channels {
            Channels::Given(given) => Some(given),
            Channels::Made { .. } => None,
        }
    }

    /// Removes a consumer.
    pub fn remove_member(&mut self, id: ConsumerId) {
        self.members.remove(&id);
    }

    /// Ends the updates of all consumers.
    pub fn end_members(&self) {
        self.members.values().for_each(|member| member.updates.end());
    }

    /// Tells whether there are no feeds, no consumers, and no wakers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty() && self.members.is_empty() && self.attached.is_empty()
    }

    /// Reserves lines of a consumer for a feed, and creates a waker for the feed's owner.
    ///
    /// # Errors
    /// [`CaptureError::Ended`] if the consumer or the feed is gone; or no lines or descriptors are left.
    pub fn attach(
        &mut self,
        consumer: ConsumerId,
        id: FeedId,
    ) -> Result<(Waker, Attaching), CaptureError> {
        let feed = self.feeds.get(&id).ok_or(CaptureError::Ended)?;
        let count = feed.rings.len();
        let member = self.members.get_mut(&consumer).ok_or(CaptureError::Ended)?;
        let pace = feed.pace.as_ref().filter(|_| member.channels.may_hold_up());
        let progress = pace.map(|pace| pace.join(0));
        let first_line = member.find_lines(count)?;
        let (waker, channel) = member.channels.take(id, first_line..first_line + count)?;
        member.lines[first_line..first_line + count].fill(true);
        Ok((waker, Attaching { first_line, count, channel, progress }))
    }

    /// Records that the feed's owner has added this waker.
    pub fn attached(&mut self, consumer: ConsumerId, feed: FeedId, of: Attaching, slot: WakerSlot) {
        let Attaching { first_line, count, channel, progress } = of;
        let attached = Attached { slot, first_line, count, channel, progress };
        self.attached.insert((consumer, feed), attached);
    }

    /// Releases the lines after the feed's owner has refused the waker.
    pub fn not_attached(&mut self, consumer: ConsumerId, of: &Attaching) {
        self.detached(consumer, of.first_line..of.first_line + of.count, of.channel);
    }

    /// Returns the slot of a consumer's waker at the feed.
    #[must_use]
    pub fn waker_of(&self, consumer: ConsumerId, feed: FeedId) -> Option<WakerSlot> {
        self.attached.get(&(consumer, feed)).map(|attached| attached.slot)
    }

    /// Removes the record of a waker that the feed does not use any more.
    pub fn forget_waker(&mut self, consumer: ConsumerId, feed: FeedId) {
        let gone = self.attached.remove(&(consumer, feed));
        if let Some(Attached { first_line, count, channel, .. }) = gone {
            self.detached(consumer, first_line..first_line + count, channel);
        }
    }

    /// Tells a consumer that it reads a feed from now on. Returns feeds whose updates were discarded, because too many
    /// were waiting.
    pub fn joined(&mut self, consumer: ConsumerId, id: FeedId) -> Vec<LetGo> {
        let (Some(feed), Some(attached)) =
            (self.feeds.get(&id), self.attached.get_mut(&(consumer, id)))
        else {
            return Vec::new();
        };
        let joined = Joined {
            feed: id,
            source: feed.source,
            life: feed.life,
            rings: feed.rings.clone(),
            from: feed.from.clone(),
            first_line: attached.first_line,
            channel: attached.channel,
            progress: attached.progress.take(),
        };
        if let (Some(number), Some(given)) = (joined.channel, self.given(consumer)) {
            given.joined(number);
        }
        self.tell(consumer, Update::Joined(joined))
    }

    /// Tells a consumer that it stops reading a feed, after the frames that are in the rings now. Returns feeds whose
    /// updates were discarded, because too many were waiting.
    pub fn left(&mut self, consumer: ConsumerId, id: FeedId) -> Vec<LetGo> {
        // A feed that was removed has closed its rings: the ends of these rings are known to their readers.
        let rings = self.feeds.get(&id).map(|feed| feed.rings.as_slice()).unwrap_or_default();
        let until = rings.iter().map(Ring::frames_written).collect();
        self.left_at(consumer, id, until)
    }

    /// Tells the readers of a feed that it has ended at these ordinals, because other feeds may go on writing its
    /// rings. Returns, for each reader, the feeds whose updates were discarded.
    pub fn ended_at(&mut self, id: FeedId, until: &[u64]) -> Vec<(ConsumerId, Vec<LetGo>)> {
        let readers = self.attached.keys().filter(|(_, feed)| *feed == id);
        let readers: Vec<ConsumerId> = readers.map(|(reader, _)| *reader).collect();
        let tell = |reader| (reader, self.left_at(reader, id, until.to_vec()));
        readers.into_iter().map(tell).collect()
    }

    fn left_at(&mut self, consumer: ConsumerId, id: FeedId, until: Vec<u64>) -> Vec<LetGo> {
        self.given(consumer).into_iter().for_each(|given| given.left(id));
        self.tell(consumer, Update::Left(id, until))
    }

    fn tell(&mut self, consumer: ConsumerId, update: Update) -> Vec<LetGo> {
        let Some(member) = self.members.get(&consumer) else { return Vec::new() };
        let gone = member.updates.push(update);
        member.channels.wake();
        for LetGo { feed, .. } in &gone {
            let free = self.given(consumer).map(|given| given.not_told(*feed)).unwrap_or_default();
            self.free_lines(consumer, free);
        }
        gone
    }

    /// Releases the lines and the channel of a feed that does not wake the consumer any more.
    fn detached(&mut self, id: ConsumerId, lines: Range<usize>, channel: Option<usize>) {
        let free = match (channel, self.given(id)) {
            (Some(number), Some(given)) => given.detached(number),
            _ => vec![lines],
        };
        self.free_lines(id, free);
    }

    fn free_lines(&mut self, id: ConsumerId, free: Vec<Range<usize>>) {
        if let Some(member) = self.members.get_mut(&id) {
            free.into_iter().for_each(|lines| member.lines[lines].fill(false));
        }
    }
}

impl Member {
    /// Finds `count` consecutive free lines, for a feed with this many rings. Returns the first.
    fn find_lines(&self, count: usize) -> Result<usize, CaptureError> {
        let is_free = |first: &usize| self.lines[*first..*first + count].iter().all(|taken| !taken);
        let first = (0..(self.lines.len() + 1).saturating_sub(count)).find(is_free);
        first.ok_or_else(|| {
            CaptureError::Options(format!(
                "a consumer of {} rings has no room for {count} more; add it with more lines",
                self.lines.len()
            ))
        })
    }
}
