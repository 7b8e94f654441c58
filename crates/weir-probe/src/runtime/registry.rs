//! The probe's records of feeds and of consumers: which rings they read, and what wakes them. No thread and no lock:
//! the runtime holds it behind its own, a simulator by itself.

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

/// The present feeds and consumers, and which consumer is attached to which feed.
#[derive(Default)]
pub struct Registry {
    feeds: BTreeMap<FeedId, OpenFeed>,
    members: BTreeMap<ConsumerId, Member>,
    attached: BTreeMap<(ConsumerId, FeedId), Attached>,
    /// How often each source has been opened.
    lives: BTreeMap<SourceId, u64>,
}

/// A present feed.
pub struct OpenFeed {
    /// Of this source.
    pub source: SourceId,
    /// Its name in the source's [`FeedControl`](weir_capture::FeedControl).
    pub slot: FeedSlot,
    /// Its rings.
    pub rings: Vec<Ring<Mapping>>,
    from: Vec<u64>,
    /// Where its frames are chosen.
    pub location: FilterLocation,
    life: u64,
    pace: Option<Pace>,
}

/// A consumer as the probe knows it.
struct Member {
    channels: Channels,
    /// Which lines of its wake page are taken.
    lines: Vec<bool>,
    updates: Arc<Updates>,
}

/// A feed that wakes a consumer.
struct Attached {
    slot: WakerSlot,
    first_line: usize,
    count: usize,
    channel: Option<usize>,
    /// Kept until the consumer is told of the feed, so that the feed's writer waits for it from the start.
    progress: Option<ReaderProgress>,
}

/// A waker for a feed's owner, and the lines of its consumer that it takes. To be given back to the [`Registry`].
pub struct Attaching {
    /// The first line.
    pub first_line: usize,
    count: usize,
    channel: Option<usize>,
    progress: Option<ReaderProgress>,
}

impl Registry {
    /// A source was opened: feeds that are added from now on are of its next life.
    pub fn opened(&mut self, source: SourceId) {
        *self.lives.entry(source).or_default() += 1;
    }

    /// A source is gone for good.
    pub fn closed(&mut self, source: SourceId) {
        self.lives.remove(&source);
    }

    /// A feed is there.
    pub fn add_feed(&mut self, source: SourceId, feed: FeedId, handle: FeedHandle) {
        let life = self.lives.get(&source).copied().unwrap_or_default();
        let FeedHandle { slot, rings, from, location, pace } = handle;
        self.feeds.insert(feed, OpenFeed { source, life, slot, rings, from, location, pace });
    }

    /// A present feed.
    #[must_use]
    pub fn feed(&self, id: FeedId) -> Option<&OpenFeed> {
        self.feeds.get(&id)
    }

    /// The feeds of a source, and their slots.
    #[must_use]
    pub fn feeds_of(&self, source: SourceId) -> Vec<(FeedId, FeedSlot)> {
        let own = self.feeds.iter().filter(|(_, feed)| feed.source == source);
        own.map(|(&id, feed)| (id, feed.slot)).collect()
    }

    /// A feed's frames are chosen there from now on.
    pub fn set_location(&mut self, id: FeedId, location: FilterLocation) {
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.location = location;
        }
    }

    /// A feed is gone: the wakers of its readers are free.
    pub fn forget_feed(&mut self, id: FeedId) {
        self.feeds.remove(&id);
        let readers = self.attached.keys().filter(|(_, feed)| *feed == id);
        let gone: Vec<ConsumerId> = readers.map(|(reader, _)| *reader).collect();
        gone.into_iter().for_each(|reader| self.forget_waker(reader, id));
    }

    /// A consumer that the core has added.
    pub fn add_member(&mut self, id: ConsumerId, channels: Channels, updates: Arc<Updates>) {
        let own = channels.lines();
        let lines = (0..own.end).map(|line| !own.contains(&line)).collect();
        self.members.insert(id, Member { channels, lines, updates });
    }

    /// A consumer in another process has made one more channel; gives its number.
    ///
    /// # Errors
    /// [`CaptureError::Ended`] if there is no such consumer, or it was withdrawn; [`CaptureError::NarrowWaker`] if the
    /// channel's page has too few lines; it has too many.
    pub fn give_channel(&mut self, id: ConsumerId, waker: Waker) -> Result<usize, CaptureError> {
        self.given(id).ok_or(CaptureError::Ended)?.add(waker)
    }

    /// A consumer in another process knows that it has left the feed which has this channel.
    pub fn let_go_of_channel(&mut self, id: ConsumerId, number: usize) {
        let free = self.given(id).map(|given| given.let_go(number)).unwrap_or_default();
        self.free_lines(id, free);
    }

    /// A consumer has no right any more.
    pub fn withdrawn(&mut self, id: ConsumerId) {
        self.given(id).into_iter().for_each(GivenChannels::withdraw);
    }

    fn given(&mut self, id: ConsumerId) -> Option<&mut GivenChannels> {
        match &mut self.members.get_mut(&id)?.channels {
            Channels::Given(given) => Some(given),
            Channels::Made { .. } => None,
        }
    }

    /// A consumer is gone.
    pub fn remove_member(&mut self, id: ConsumerId) {
        self.members.remove(&id);
    }

    /// Ends the updates of all consumers.
    pub fn end_members(&self) {
        self.members.values().for_each(|member| member.updates.end());
    }

    /// Whether there is no feed, no consumer, and nothing that wakes one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty() && self.members.is_empty() && self.attached.is_empty()
    }

    /// Takes lines of a consumer for a feed, and makes a waker for the feed's owner.
    ///
    /// # Errors
    /// [`CaptureError::Ended`] if one of them is gone; no lines or descriptors are left.
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

    /// The feed's owner has taken that waker.
    pub fn attached(&mut self, consumer: ConsumerId, feed: FeedId, of: Attaching, slot: WakerSlot) {
        let Attaching { first_line, count, channel, progress } = of;
        let attached = Attached { slot, first_line, count, channel, progress };
        self.attached.insert((consumer, feed), attached);
    }

    /// The feed's owner has refused it.
    pub fn not_attached(&mut self, consumer: ConsumerId, of: &Attaching) {
        self.detached(consumer, of.first_line..of.first_line + of.count, of.channel);
    }

    /// The number of a consumer's waker at the feed.
    #[must_use]
    pub fn waker_of(&self, consumer: ConsumerId, feed: FeedId) -> Option<WakerSlot> {
        self.attached.get(&(consumer, feed)).map(|attached| attached.slot)
    }

    /// A feed does not wake a consumer any more.
    pub fn forget_waker(&mut self, consumer: ConsumerId, feed: FeedId) {
        let gone = self.attached.remove(&(consumer, feed));
        if let Some(Attached { first_line, count, channel, .. }) = gone {
            self.detached(consumer, first_line..first_line + count, channel);
        }
    }

    /// A consumer reads a feed from here on, and is told. Gives the feeds that it is not told of any more.
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

    /// A consumer reads a feed no further than to where it is now, and is told. Gives the feeds that it is not told of
    /// any more.
    pub fn left(&mut self, consumer: ConsumerId, id: FeedId) -> Vec<LetGo> {
        // A feed that is gone has closed its rings: they say where they end.
        let rings = self.feeds.get(&id).map(|feed| feed.rings.as_slice()).unwrap_or_default();
        let until = rings.iter().map(Ring::frames_written).collect();
        self.left_at(consumer, id, until)
    }

    /// A feed has ended at these ordinals, though others go on writing its rings: its readers are told. Gives each with
    /// the feeds that it is not told of any more.
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

    /// A feed that had these lines and this channel does not wake the consumer any more.
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
    /// The first of `count` free lines, for a feed with this many rings.
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
