//! Frames of one consumer for each feed, compared with those that it should have.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weir_probe::FeedId;

use crate::broken::{broken, hold};
use crate::frame::Frame;
use crate::sink::Got;
use crate::truth::FeedTruth;

/// Fewer bytes than this were never enough to overtake a reader of the smallest ring.
const LAP_BYTES_MIN: u64 = 1 << 20;

/// All that is offered and all that should come of it.
pub struct Facts<'a> {
    /// Frames by their numbers.
    pub frames: &'a [Frame],
    /// Feeds, those that are gone included.
    pub feeds: &'a BTreeMap<FeedId, FeedTruth>,
    /// The event that is under way.
    pub step: usize,
}

/// Frames that a consumer had of a feed, from when it joined it.
#[derive(Debug)]
struct Read {
    feed: FeedId,
    /// Ordinal behind the last frame that was delivered.
    next: u64,
    /// Ordinal of the first frame that it is not to have.
    until: Option<u64>,
    delivered: u64,
    /// Where in the log it joined, or its last frame stands.
    logged: usize,
}

/// A frame that was delivered, for the order.
#[derive(Clone, Copy, Debug)]
struct Logged {
    ts_ns: u64,
    step: usize,
}

/// The account of one consumer.
#[derive(Default)]
pub struct Account {
    /// In the order of joining. A consumer that leaves a feed and joins it again reads it from its oldest
    /// frames on again.
    reads: Vec<Read>,
    log: Vec<Logged>,
}

impl Account {
    /// It reads a feed from now on.
    pub fn join(&mut self, feed: FeedId) {
        hold!(self.live(feed).is_none(), "a consumer joins what it does not read: {feed:?}");
        self.reads.push(Read { feed, next: 0, until: None, delivered: 0, logged: self.log.len() });
    }

    /// It reads a feed no further than this.
    pub fn leave(&mut self, feed: FeedId, until: u64) {
        let Some(at) = self.live(feed) else {
            broken(format!("a consumer leaves only what it reads: {feed:?}"))
        };
        self.reads[at].until = Some(until);
    }

    fn live(&self, feed: FeedId) -> Option<usize> {
        self.reads.iter().position(|read| read.feed == feed && read.until.is_none())
    }

    /// Feeds that it was told to leave and may not have read to their end.
    #[must_use]
    pub fn past(&self) -> usize {
        self.reads.iter().filter(|read| read.until.is_some_and(|until| read.next < until)).count()
    }

    /// Frames that it should come to, and their bytes on the wire.
    #[must_use]
    pub fn expected(&self, facts: &Facts<'_>) -> (u64, u64) {
        let each = self.reads.iter().map(|read| {
            let truth = &facts.feeds[&read.feed];
            let frames = truth.frames().min(read.until.unwrap_or(u64::MAX));
            (frames, truth.wire_until(frames))
        });
        each.fold((0, 0), |(frames, bytes), (more, wire)| (frames + more, bytes + wire))
    }

    /// Frames that were skipped before one that was delivered.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.reads.iter().map(|read| read.next - read.delivered).sum()
    }

    /// Frames that were delivered under an interface of this name.
    #[must_use]
    pub fn delivered(&self, name: &str, facts: &Facts<'_>) -> u64 {
        let own = self.reads.iter().filter(|read| facts.feeds[&read.feed].name == name);
        own.map(|read| read.delivered).sum()
    }

    /// A frame was delivered under an interface of this name. `waits`: nothing was to pass a ring that is empty.
    pub fn deliver(&mut self, got: &Got, name: &str, waits: bool, facts: &Facts<'_>) {
        let Some(frame) = facts.frames.get(got.number as usize) else {
            broken(format!("a delivered frame was offered: number {}", got.number))
        };
        let (at, ordinal) = self.find(frame.number, name, facts);
        let feed = self.reads[at].feed;
        let truth = &facts.feeds[&feed];
        let caplen = frame.bytes.min(truth.meaning.snaplen);
        let is_whole = got.is_whole
            && (got.meta.ts_ns, got.meta.wire_len, got.caplen)
                == (frame.ts_ns, frame.wire_len, caplen);
        hold!(is_whole, "a delivered frame is whole: {got:?} of {frame:?}");
        let read = &self.reads[at];
        hold!(
            ordinal >= read.next,
            "once and in order: frame {ordinal} of {feed:?} after {read:?}"
        );
        hold!(
            read.until.is_none_or(|until| ordinal < until),
            "nothing after it was detached: frame {ordinal} of {feed:?}, {read:?}"
        );
        let passed = truth.bytes_until(u64::MAX) - truth.bytes_until(read.next);
        hold!(
            ordinal == read.next || passed >= LAP_BYTES_MIN,
            "frames are lapped only by a ring's length: {} to {ordinal} of {feed:?}, {passed} bytes",
            read.next
        );
        // Nobody can tell which of two readings of one feed a frame is of, and so not which one had to wait for it.
        if !self.is_read_twice(feed) {
            self.check_order(at, ordinal, frame, facts);
        }
        if waits {
            self.check_waiting(at, facts);
        }
        self.log.push(Logged { ts_ns: frame.ts_ns, step: facts.step });
        let logged = self.log.len();
        let read = &mut self.reads[at];
        (read.next, read.delivered, read.logged) = (ordinal + 1, read.delivered + 1, logged);
    }

    /// Where the frame is read: of a feed and its successors, each frame is in one. That may be read twice, by who left
    /// it and came back; then the frame is of the reading that stands at it, or else soonest comes to it.
    fn find(&self, number: u64, name: &str, facts: &Facts<'_>) -> (usize, u64) {
        let own = self.reads.iter().enumerate();
        let own = own.filter(|(_, read)| facts.feeds[&read.feed].name == name);
        let place = |(at, read): (usize, &Read)| {
            let captured = &facts.feeds[&read.feed].captured;
            let ordinal = captured.binary_search_by_key(&number, |one| one.number).ok()? as u64;
            Some((at, ordinal))
        };
        let found = own.filter_map(place).min_by_key(|&(at, ordinal)| {
            let Read { next, until, .. } = self.reads[at];
            let is_over = ordinal < next || until.is_some_and(|until| ordinal >= until);
            // Of two that stand at it, that which reads on: the other one may have it next.
            (is_over, ordinal.abs_diff(next), Reverse(until.unwrap_or(u64::MAX)))
        });
        found.unwrap_or_else(|| {
            broken(format!("a delivered frame was chosen: {number} of {name:?}"))
        })
    }

    fn is_read_twice(&self, feed: FeedId) -> bool {
        self.reads.iter().filter(|read| read.feed == feed).count() > 1
    }

    /// Whatever was delivered of other feeds while this frame was the next one of its own is not younger.
    fn check_order(&self, at: usize, ordinal: u64, frame: &Frame, facts: &Facts<'_>) {
        let Read { feed, logged: from, .. } = self.reads[at];
        let published = facts.feeds[&feed].captured[ordinal as usize].step;
        let since = self.log[from..].iter().rev().take_while(|logged| logged.step > published);
        for logged in since {
            hold!(
                logged.ts_ns <= frame.ts_ns,
                "the oldest frame comes first: {logged:?} before frame {ordinal} of {feed:?}, {frame:?}"
            );
        }
    }

    /// No ring that may bring something is empty while a frame passes.
    fn check_waiting(&self, at: usize, facts: &Facts<'_>) {
        for (_, read) in self.reads.iter().enumerate().filter(|(other, _)| *other != at) {
            let truth = &facts.feeds[&read.feed];
            let is_known = !self.is_read_twice(read.feed);
            let may_come = is_known && read.until.is_none() && truth.left_at.is_none();
            hold!(
                !may_come || read.next < truth.frames(),
                "a frame waits for empty rings: one of {:?} passed {:?}",
                self.reads[at].feed,
                read.feed
            );
        }
    }
}
