//! Compares the frames that a consumer gets of each feed with the frames that it should get.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weir_probe::FeedId;

use crate::broken::{broken, hold};
use crate::frame::Frame;
use crate::sink::Got;
use crate::truth::FeedTruth;

/// A reader of the smallest ring is never overtaken by fewer bytes than this.
const LAP_BYTES_MIN: u64 = 1 << 20;

/// The frames and feeds of a run, with which a consumer's frames are compared.
pub struct Facts<'a> {
    /// All offered frames, by their numbers.
    pub frames: &'a [Frame],
    /// All feeds, including those that have left.
    pub feeds: &'a BTreeMap<FeedId, FeedTruth>,
    /// The number of the current event.
    pub step: usize,
}

/// The frames that a consumer has got of a feed since it joined the feed.
#[derive(Debug)]
struct Read {
    feed: FeedId,
    /// Ordinal after the last frame that was delivered.
    next: u64,
    /// Ordinal of the first frame that must not be delivered any more.
    until: Option<u64>,
    delivered: u64,
    /// Length of the log when the consumer joined the feed, or after the feed's last frame was logged.
    logged: usize,
}

/// A delivered frame, for the check of the order.
#[derive(Clone, Copy, Debug)]
struct Logged {
    ts_ns: u64,
    step: usize,
}

/// The account of one consumer.
#[derive(Default)]
pub struct Account {
    /// The feeds in the order of joining. A consumer that leaves a feed and joins it again reads the feed from its
    /// oldest frames again.
    reads: Vec<Read>,
    log: Vec<Logged>,
}

impl Account {
    /// Records that the consumer reads a feed from now on.
    pub fn join(&mut self, feed: FeedId) {
        hold!(self.live(feed).is_none(), "a consumer joins what it does not read: {feed:?}");
        self.reads.push(Read { feed, next: 0, until: None, delivered: 0, logged: self.log.len() });
    }

    /// Records that the consumer reads a feed only up to this ordinal.
    pub fn leave(&mut self, feed: FeedId, until: u64) {
        let Some(at) = self.live(feed) else {
            broken(format!("a consumer leaves only what it reads: {feed:?}"))
        };
        self.reads[at].until = Some(until);
    }

    fn live(&self, feed: FeedId) -> Option<usize> {
        self.reads.iter().position(|read| read.feed == feed && read.until.is_none())
    }

    /// Returns the number of feeds that the consumer was told to leave and may not have read to their end.
    #[must_use]
    pub fn past(&self) -> usize {
        self.reads.iter().filter(|read| read.until.is_some_and(|until| read.next < until)).count()
    }

    /// Returns the number of frames that the consumer should reach, and their bytes on the wire.
    #[must_use]
    pub fn expected(&self, facts: &Facts<'_>) -> (u64, u64) {
        let each = self.reads.iter().map(|read| {
            let truth = &facts.feeds[&read.feed];
            let frames = truth.frames().min(read.until.unwrap_or(u64::MAX));
            (frames, truth.wire_until(frames))
        });
        each.fold((0, 0), |(frames, bytes), (more, wire)| (frames + more, bytes + wire))
    }

    /// Returns the number of frames that were skipped before a delivered frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.reads.iter().map(|read| read.next - read.delivered).sum()
    }

    /// Returns the number of frames that were delivered under an interface of this name.
    #[must_use]
    pub fn delivered(&self, name: &str, facts: &Facts<'_>) -> u64 {
        let own = self.reads.iter().filter(|read| facts.feeds[&read.feed].name == name);
        own.map(|read| read.delivered).sum()
    }

    /// Checks and records a frame that was delivered under an interface of this name. `waits`: the consumer must not
    /// deliver frames while another ring is empty.
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
        // If a feed is read twice, it is unknown to which reading a frame belongs, and so which reading had to wait
        // for it.
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

    /// Returns the reading and the ordinal of a frame: each frame is in only one of the feeds with this name. If a
    /// consumer left the feed and joined it again, the feed is read twice; then the frame belongs to the reading
    /// whose next frame it is, or else to the nearest one.
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
            // If both readings are at this frame, choose the one that reads on: the other one may get the frame
            // later.
            (is_over, ordinal.abs_diff(next), Reverse(until.unwrap_or(u64::MAX)))
        });
        found.unwrap_or_else(|| {
            broken(format!("a delivered frame was chosen: {number} of {name:?}"))
        })
    }

    fn is_read_twice(&self, feed: FeedId) -> bool {
        self.reads.iter().filter(|read| read.feed == feed).count() > 1
    }

    /// Checks that no younger frame of another feed was delivered while this frame was the next one of its own feed.
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

    /// Checks that no ring that may still get frames is empty while a frame is delivered.
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
