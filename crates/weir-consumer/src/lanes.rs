//! The rings of a consumer, which come and go while it runs.

use std::collections::BTreeSet;

use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::{Mapping, Reader, RingError, Words};

use crate::account::Taken;
use crate::cursor::Cursor;
use crate::limits::PAST_FEEDS_MAX;
use crate::numbering::Numbering;
use crate::source::JoinedFeed;

/// The rings of a consumer, as those see them who wait for it, wake it or draw its account.
pub trait Rings<M: Words = Mapping> {
    /// A feed is read no further than to these ordinals, ring by ring; a ring without one brings nothing any more, and
    /// its present frames are read. Of the feeds of one output that have left and are still unread [`PAST_FEEDS_MAX`]
    /// are kept: of older ones, whatever is unread counts as lapped.
    fn leave(&mut self, key: u64, until: &[u64]);

    /// The writers at a channel of the sleeper have gone: rings that they left open end with their present
    /// frames. Gives the frames that such rings have had, if there are any.
    fn writer_gone(&mut self, channel: usize) -> Option<u64>;

    /// Rings that may bring more, each with its line in the sleeper.
    fn readers(&self) -> Vec<(usize, Reader<M>)>;

    /// Rings that may bring more by their lines, each with the ordinal of its next frame that is still needed: a
    /// source that waits for its consumers may overwrite frames before that.
    fn needed_from(&self) -> Vec<(usize, u64)> {
        self.readers().iter().map(|(line, reader)| (*line, reader.ordinal())).collect()
    }

    /// How far a ring of a feed was taken: the ordinal of its next frame that is still needed. `None` once it is read
    /// no more.
    fn ordinal(&self, key: u64, ring: usize) -> Option<u64>;

    /// The output's number of the first interface of a feed's `output`, if such a feed has joined.
    fn first_interface(&self, output: usize) -> Option<u32>;

    /// The output's numbers of all its interfaces, by the rings' own numbers: those that were described when the feed
    /// joined, or have had frames since.
    fn interfaces(&self, output: usize) -> Vec<u32>;

    /// Frames that these rings have had so far.
    fn written(&self) -> u64;

    /// Frames that were written and neither taken nor lapped: in the rings, or copied and held.
    fn unread(&self) -> u64;

    /// Frames among the lapped ones that were dropped unread with feeds that had left.
    fn let_go(&self) -> u64;

    /// How much of its fullest ring lies before this consumer: 0 to 1, where it is lapped.
    fn fill(&self) -> f64;

    /// Bytes of the smallest ring; 0 if there is none.
    fn ring_bytes_min(&self) -> u64;
}

/// One ring, and the consumer's data for it.
pub struct Lane<T, M: Words = Mapping> {
    /// The feed's.
    pub(crate) key: u64,
    output: usize,
    /// Number of the ring in its feed.
    ring: usize,
    line: usize,
    channel: Option<usize>,
    /// The output's number of the feed's first interface.
    first: u32,
    /// One more feed of its output that leaves unread, and it is dropped.
    pub(crate) is_next_to_go: bool,
    /// Where it is read.
    pub cursor: Cursor<M>,
    /// The consumer's own.
    pub work: T,
}

/// Rings with a consumer's data for each of them. A ring that was read to its end is released, and its
/// counts stay.
pub struct Lanes<T = (), M: Words = Mapping> {
    lanes: Vec<Lane<T, M>>,
    numbering: Numbering,
    /// The lane that the next round begins with.
    first: usize,
    /// Counts of released rings, by the number of their feed's first interface.
    gone: Vec<Taken>,
    gone_unread: u64,
    let_go: u64,
}

impl<T: Default, M: Words> Default for Lanes<T, M> {
    fn default() -> Self {
        Lanes::new()
    }
}

impl<T: Default, M: Words> Lanes<T, M> {
    /// No rings yet.
    #[must_use]
    pub fn new() -> Self {
        let numbering = Numbering::default();
        let (lanes, gone) = (Vec::new(), Vec::new());
        Lanes { lanes, numbering, first: 0, gone, gone_unread: 0, let_go: 0 }
    }

    /// Reads the rings of this feed, too, from their oldest frames on.
    ///
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself; nothing has joined then.
    pub fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), RingError> {
        let JoinedFeed { key, output, label, rings, first_line, channel, begin } = feed;
        let cursors = rings.iter().enumerate().map(|(at, ring)| Cursor::new(ring, &begin, at));
        let cursors: Vec<_> = cursors.collect::<Result<_, _>>()?;
        let Some(ring) = rings.first() else { return Ok(()) };
        let first = self.numbering.join(key, output, label, ring)?;
        self.lanes.extend(cursors.into_iter().enumerate().map(|(ring, cursor)| Lane {
            key,
            output,
            ring,
            line: first_line + ring,
            channel,
            first,
            is_next_to_go: false,
            cursor,
            work: T::default(),
        }));
        Ok(())
    }
}

impl<T, M: Words> Lane<T, M> {
    /// Whether it is this ring of the feed of this key, and is read on.
    #[must_use]
    pub fn is_ring(&self, key: u64, ring: usize) -> bool {
        self.key == key && self.ring == ring && !self.cursor.has_left()
    }
}

impl<T, M: Words> Lanes<T, M> {
    /// The rings that are read.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Lane<T, M>> {
        self.lanes.iter()
    }

    /// The same, to read them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane<T, M>> {
        self.lanes.iter_mut()
    }

    /// The same, beginning with another one each time: a busy ring would starve the others if it always came first.
    pub fn round(&mut self) -> impl Iterator<Item = &mut Lane<T, M>> {
        self.first = (self.first + 1) % self.lanes.len().max(1);
        let (later, sooner) = self.lanes.split_at_mut(self.first);
        sooner.iter_mut().chain(later)
    }

    pub(crate) fn parts(&mut self) -> (&mut [Lane<T, M>], &mut Numbering) {
        (&mut self.lanes, &mut self.numbering)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Lets rings go that were read to their end.
    pub fn retire(&mut self) {
        if !self.lanes.iter().any(|lane| lane.cursor.has_ended()) {
            return;
        }
        let Lanes { lanes, gone, gone_unread, .. } = self;
        let (mut keys, mut outputs) = (Vec::new(), BTreeSet::new());
        lanes.retain(|lane| {
            if lane.cursor.has_ended() {
                add(gone, lane);
                // Of a ring that claims more frames than it gave.
                *gone_unread = gone_unread.saturating_add(lane.cursor.unread());
                keys.push(lane.key);
                outputs.insert(lane.output);
            }
            !lane.cursor.has_ended()
        });
        keys.retain(|key| !lanes.iter().any(|lane| lane.key == *key));
        keys.iter().for_each(|key| self.numbering.leave(*key));
        outputs.into_iter().for_each(|output| self.mark_next_to_go(output));
    }

    /// The feeds that have left this output and are unread, oldest first. One that was read since goes with the end of
    /// the turn.
    fn past(&self, output: usize) -> Vec<u64> {
        let unread = |lane: &&Lane<T, M>| lane.cursor.has_left() && !lane.cursor.is_read();
        let past = self.lanes.iter().filter(|lane| lane.output == output).filter(unread);
        // The rings of a feed are side by side.
        let mut keys: Vec<u64> = past.map(|lane| lane.key).collect();
        keys.dedup();
        keys
    }

    /// Marks the feed that goes when one more leaves this output unread, if there is one.
    fn mark_next_to_go(&mut self, output: usize) {
        let past = self.past(output);
        let next = past.first().filter(|_| past.len() >= PAST_FEEDS_MAX);
        for lane in self.lanes.iter_mut().filter(|lane| lane.output == output) {
            lane.is_next_to_go = next == Some(&lane.key) && lane.cursor.has_left();
        }
    }

    /// Lets the oldest feeds go that have left this output and are unread: each holds the memory of its rings.
    fn let_oldest_go(&mut self, output: usize) {
        let keys = self.past(output);
        let Lanes { lanes, gone, let_go, numbering, .. } = self;
        let surplus = keys.len().saturating_sub(PAST_FEEDS_MAX);
        for key in &keys[..surplus] {
            // Not the frames that it reads since it joined such a feed again.
            let is_past = |lane: &mut Lane<T, M>| lane.key == *key && lane.cursor.has_left();
            for lane in lanes.extract_if(.., is_past) {
                add(gone, &lane);
                let unread = lane.cursor.unread();
                let own = &mut gone[lane.first as usize];
                own.lapped = own.lapped.saturating_add(unread);
                *let_go = let_go.saturating_add(unread);
            }
            if !lanes.iter().any(|lane| lane.key == *key) {
                numbering.leave(*key);
            }
        }
        self.mark_next_to_go(output);
    }

    /// Numbers of the interfaces in the output.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// The ordinals of the next frames of a feed that were not taken, ring by ring, as far as they are read.
    #[must_use]
    pub fn positions(&self, key: u64) -> Vec<u64> {
        let own = self.lanes.iter().filter(|lane| lane.key == key);
        own.map(|lane| lane.cursor.ordinal()).collect()
    }

    /// Frames taken and lapped so far, by the number of their feed's first interface, including released rings.
    #[must_use]
    pub fn by_interface(&self) -> Vec<Taken> {
        let mut all = self.gone.clone();
        self.lanes.iter().for_each(|lane| add(&mut all, lane));
        all
    }

    /// The same of all together.
    #[must_use]
    pub fn taken(&self) -> Taken {
        let mut all = Taken::default();
        for one in self.by_interface() {
            all.frames = all.frames.saturating_add(one.frames);
            all.lapped = all.lapped.saturating_add(one.lapped);
            all.untriggered = all.untriggered.saturating_add(one.untriggered);
        }
        all
    }
}

/// Hostile rings may claim any number of frames: sums of theirs end at the highest.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn add<T, M: Words>(all: &mut Vec<Taken>, lane: &Lane<T, M>) {
    let id = lane.first as usize;
    all.resize(all.len().max(id + 1), Taken::default());
    let own = &mut all[id];
    own.frames = own.frames.saturating_add(lane.cursor.taken());
    own.lapped = own.lapped.saturating_add(lane.cursor.lapped());
    own.untriggered = own.untriggered.saturating_add(lane.cursor.untriggered());
}

impl<T, M: Words> Rings<M> for Lanes<T, M> {
    fn leave(&mut self, key: u64, until: &[u64]) {
        let mut output = None;
        for lane in self.lanes.iter_mut().filter(|lane| lane.key == key) {
            // Also of one that its writer left open: a source whose stop fails does so.
            let written = lane.cursor.reader().ring().frames_written();
            lane.cursor.leave(until.get(lane.ring).copied().unwrap_or(written));
            lane.cursor.end_if_read();
            output = Some(lane.output);
        }
        if let Some(output) = output {
            self.retire();
            self.let_oldest_go(output);
        }
    }

    fn writer_gone(&mut self, channel: usize) -> Option<u64> {
        let mut frames: Option<u64> = None;
        for lane in self.lanes.iter_mut().filter(|lane| lane.channel == Some(channel)) {
            let ring = lane.cursor.reader().ring();
            // A ring that was closed before its writer went is whole, and a ring that has left was read as
            // far as it is to be.
            if !ring.is_closed() && !lane.cursor.has_left() {
                frames = Some(ring.frames_written().saturating_add(frames.unwrap_or_default()));
                lane.cursor.abandon();
            }
        }
        frames
    }

    fn readers(&self) -> Vec<(usize, Reader<M>)> {
        // One that has left has everything that it will bring, and its line may be another's by now.
        let live = self.lanes.iter().filter(|lane| !lane.cursor.has_left());
        live.map(|lane| (lane.line, lane.cursor.reader().clone())).collect()
    }

    fn needed_from(&self) -> Vec<(usize, u64)> {
        let live = self.lanes.iter().filter(|lane| !lane.cursor.has_left());
        live.map(|lane| (lane.line, lane.cursor.ordinal())).collect()
    }

    fn ordinal(&self, key: u64, ring: usize) -> Option<u64> {
        let mut lanes = self.lanes.iter();
        let lane = lanes.find(|lane| lane.key == key && lane.ring == ring)?;
        Some(lane.cursor.ordinal())
    }

    fn first_interface(&self, output: usize) -> Option<u32> {
        self.numbering.first_interface(output)
    }

    fn interfaces(&self, output: usize) -> Vec<u32> {
        self.numbering.interfaces_of(output).to_vec()
    }

    fn written(&self) -> u64 {
        sum(self.lanes.iter().map(|lane| lane.cursor.reader().ring().frames_written()))
    }

    fn unread(&self) -> u64 {
        let unread = self.lanes.iter().map(|lane| lane.cursor.unread());
        sum(unread.chain([self.gone_unread]))
    }

    fn let_go(&self) -> u64 {
        self.let_go
    }

    fn fill(&self) -> f64 {
        self.lanes.iter().map(|lane| lane.cursor.reader().fill()).fold(0.0, f64::max)
    }

    fn ring_bytes_min(&self) -> u64 {
        let blocks =
            self.lanes.iter().map(|lane| lane.cursor.reader().ring().geometry().data_blocks);
        blocks.min().unwrap_or_default() * u64::from(BLOCK_BYTES)
    }
}
