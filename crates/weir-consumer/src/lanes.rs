//! The rings of a consumer, which join and leave while the consumer runs.

use std::collections::BTreeSet;

use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::{Mapping, Reader, RingError, Words};

use crate::account::Taken;
use crate::cursor::Cursor;
use crate::limits::PAST_FEEDS_MAX;
use crate::numbering::Numbering;
use crate::source::JoinedFeed;

/// The rings of a consumer, for code that waits for frames, wakes the consumer or computes its counts.
pub trait Rings<M: Words = Mapping> {
    /// Limits a feed to these ordinals, ring by ring. A ring without an ordinal gets no more frames, and is read to its
    /// end. The feed is then a *past* feed. For each output, [`PAST_FEEDS_MAX`] past feeds are kept until they are
    /// read. Older ones are dropped, and their unread frames count as lapped.
    fn leave(&mut self, key: u64, until: &[u64]);

    /// Ends the rings that were left open by the writers at a channel of the sleeper: they have no frames after the
    /// present ones. Must be called when these writers are gone. Returns the number of frames that such rings have had,
    /// if there are such rings.
    fn writer_gone(&mut self, channel: usize) -> Option<u64>;

    /// Returns readers of the rings that may get more frames, each with its line in the sleeper.
    fn readers(&self) -> Vec<(usize, Reader<M>)>;

    /// Returns, for each ring that may get more frames, its line and the ordinal of the next frame that is still
    /// needed. A source that waits for its consumers may overwrite the frames before that.
    fn needed_from(&self) -> Vec<(usize, u64)> {
        self.readers().iter().map(|(line, reader)| (*line, reader.ordinal())).collect()
    }

    /// Returns the ordinal of the next frame of a feed's ring that is still needed. `None` once the ring is no longer
    /// read.
    fn ordinal(&self, key: u64, ring: usize) -> Option<u64>;

    /// Returns the number in the output of the first interface of a feed with this `output`, if such a feed has joined.
    fn first_interface(&self, output: usize) -> Option<u32>;

    /// Returns the numbers in the output of all interfaces of this `output`: those that the rings described when the
    /// feed joined, and those that have had frames since.
    fn interfaces(&self, output: usize) -> Vec<u32>;

    /// Returns the number of frames that these rings have had so far.
    fn written(&self) -> u64;

    /// Returns the number of frames that were written, and neither taken nor lapped: they are in the rings, or copied
    /// and held.
    fn unread(&self) -> u64;

    /// Returns the number of lapped frames that were dropped unread with past feeds.
    fn let_go(&self) -> u64;

    /// Returns the unread fraction of the fullest ring, from 0 to 1. At 1 the ring is lapped.
    fn fill(&self) -> f64;

    /// Returns the bytes of the smallest ring; 0 if there is none.
    fn ring_bytes_min(&self) -> u64;
}

/// A ring, and the consumer's data for it.
pub struct Lane<T, M: Words = Mapping> {
    /// Key of the feed.
    pub(crate) key: u64,
    output: usize,
    /// Number of the ring in its feed.
    ring: usize,
    line: usize,
    channel: Option<usize>,
    /// Number in the output of the feed's first interface.
    first: u32,
    /// Whether this ring is dropped when one more feed of its output leaves with unread frames.
    pub(crate) is_next_to_go: bool,
    /// The consumer's position in the ring.
    pub cursor: Cursor<M>,
    /// The consumer's data for this ring.
    pub work: T,
}

/// Rings, with a consumer's data for each of them. A ring that was read to its end is released; its counts are kept.
pub struct Lanes<T = (), M: Words = Mapping> {
    lanes: Vec<Lane<T, M>>,
    numbering: Numbering,
    /// Index of the lane with which the last round began.
    first: usize,
    /// Counts of released rings, at the index of their feed's first interface.
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
    /// Creates a value without rings.
    #[must_use]
    pub fn new() -> Self {
        let numbering = Numbering::default();
        let (lanes, gone) = (Vec::new(), Vec::new());
        Lanes { lanes, numbering, first: 0, gone, gone_unread: 0, let_go: 0 }
    }

    /// Adds the rings of a feed, which are read beginning with their oldest frames.
    ///
    /// # Errors
    /// [`RingError`] if a ring is inconsistent; then no ring is added.
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
    /// Whether this lane is that ring of the feed with this key, and its feed has not left.
    #[must_use]
    pub fn is_ring(&self, key: u64, ring: usize) -> bool {
        self.key == key && self.ring == ring && !self.cursor.has_left()
    }
}

impl<T, M: Words> Lanes<T, M> {
    /// Iterates over the rings that are being read.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Lane<T, M>> {
        self.lanes.iter()
    }

    /// Iterates over the rings that are being read, and allows changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane<T, M>> {
        self.lanes.iter_mut()
    }

    /// Iterates over the rings, beginning with another ring in each call, because a busy ring that always came first
    /// would starve the others.
    pub fn round(&mut self) -> impl Iterator<Item = &mut Lane<T, M>> {
        self.first = (self.first + 1) % self.lanes.len().max(1);
        let (later, sooner) = self.lanes.split_at_mut(self.first);
        sooner.iter_mut().chain(later)
    }

    pub(crate) fn parts(&mut self) -> (&mut [Lane<T, M>], &mut Numbering) {
        (&mut self.lanes, &mut self.numbering)
    }

    /// Whether no ring is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Releases rings that were read to their end.
    pub fn retire(&mut self) {
        if !self.lanes.iter().any(|lane| lane.cursor.has_ended()) {
            return;
        }
        let Lanes { lanes, gone, gone_unread, .. } = self;
        let (mut keys, mut outputs) = (Vec::new(), BTreeSet::new());
        lanes.retain(|lane| {
            if lane.cursor.has_ended() {
                add(gone, lane);
                // Saturating, because a hostile ring may claim more frames than could ever be read.
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

    /// Returns the keys of the past feeds of this output that have unread frames, oldest first. Past feeds that were
    /// read are released at the end of the turn.
    fn past(&self, output: usize) -> Vec<u64> {
        let unread = |lane: &&Lane<T, M>| lane.cursor.has_left() && !lane.cursor.is_read();
        let past = self.lanes.iter().filter(|lane| lane.output == output).filter(unread);
        // The rings of a feed are adjacent.
        let mut keys: Vec<u64> = past.map(|lane| lane.key).collect();
        keys.dedup();
        keys
    }

    /// Marks the feed that will be dropped when one more feed of this output leaves with unread frames, if there is
    /// one.
    fn mark_next_to_go(&mut self, output: usize) {
        let past = self.past(output);
        let next = past.first().filter(|_| past.len() >= PAST_FEEDS_MAX);
        for lane in self.lanes.iter_mut().filter(|lane| lane.output == output) {
            lane.is_next_to_go = next == Some(&lane.key) && lane.cursor.has_left();
        }
    }

    /// Drops the oldest unread past feeds of this output, if they are too many, because each holds the memory of its
    /// rings.
    fn let_oldest_go(&mut self, output: usize) {
        let keys = self.past(output);
        let Lanes { lanes, gone, let_go, numbering, .. } = self;
        let surplus = keys.len().saturating_sub(PAST_FEEDS_MAX);
        for key in &keys[..surplus] {
            // Lanes with this key that have not left are those of the same feed after it joined again.
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

    /// Returns the numbers of the interfaces in the output.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// Returns, for each ring of a feed that is being read, the ordinal of the next frame that was not taken.
    #[must_use]
    pub fn positions(&self, key: u64) -> Vec<u64> {
        let own = self.lanes.iter().filter(|lane| lane.key == key);
        own.map(|lane| lane.cursor.ordinal()).collect()
    }

    /// Returns the counts of frames so far, at the index of their feed's first interface. Includes released rings.
    #[must_use]
    pub fn by_interface(&self) -> Vec<Taken> {
        let mut all = self.gone.clone();
        self.lanes.iter().for_each(|lane| add(&mut all, lane));
        all
    }

    /// Returns the sum of these counts over all feeds.
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

/// Adds with saturation, because hostile rings may claim any number of frames.
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
            // `written` is the limit of a ring without an ordinal. If a source's stop fails, it may leave such a ring
            // open.
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
            // A ring that was closed before its writer went is complete. A ring whose feed has left is read to its
            // limit.
            if !ring.is_closed() && !lane.cursor.has_left() {
                frames = Some(ring.frames_written().saturating_add(frames.unwrap_or_default()));
                lane.cursor.abandon();
            }
        }
        frames
    }

    fn readers(&self) -> Vec<(usize, Reader<M>)> {
        // A ring whose feed has left gets no more frames, and another ring may have its line by now.
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
