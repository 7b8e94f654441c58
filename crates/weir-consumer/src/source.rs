//! The feeds that a consumer reads, and how they change while it runs.

use std::os::unix::net::UnixStream;

use weir_ring::memory::Trust;
use weir_ring::wake::Sleeper;
use weir_ring::{Clock, Mapping, Ring, RingError, Words, pass};

/// The feeds that a consumer reads, and how they change while it runs.
pub trait FrameSource: Send {
    /// Returns the changes since the last call. Called before each turn, so it must be cheap if there are none.
    fn take_changes(&mut self) -> Vec<FeedChange>;

    /// Returns the consumer's sleeper. A thread that makes a change must wake it.
    fn sleeper(&self) -> &Sleeper;

    /// Whether no more feeds will join. If so, the consumer ends once all rings are closed and read. Earlier changes
    /// may not have been taken yet.
    fn is_complete(&self) -> bool;
}

/// A change of the feeds that a consumer reads.
#[derive(Debug)]
pub enum FeedChange {
    /// The consumer reads this feed, beginning with its oldest frames or as [`JoinedFeed::begin`] says.
    Joined(JoinedFeed),
    /// The consumer reads a feed only up to these ordinals.
    Left {
        /// The feed's key.
        key: u64,
        /// Ordinals of the first frames that are no longer read, ring by ring. A ring without an ordinal gets no more
        /// frames, and is read to its end.
        until: Vec<u64>,
    },
}

/// A feed that a consumer reads.
pub struct JoinedFeed<M: Words = Mapping> {
    /// Key of the feed, unique in the run.
    pub key: u64,
    /// Number of the output. Feeds with the same number share interfaces in the output: those of a feed that ended and
    /// was opened again.
    pub output: usize,
    /// Name in lines of text: that of the feed, or of its subscribers; may be empty.
    pub label: String,
    /// The rings: one for each thread or CPU that writes.
    pub rings: Vec<Ring<M>>,
    /// The line of the first ring in the consumer's sleeper; the others follow.
    pub first_line: usize,
    /// The sleeper's channel to the feed's writers, if they are in another process, which can end at any time. If that
    /// process leaves rings open, they are read to their last frame; then the consumer fails with
    /// [`weir_ring::RingError::WriterGone`].
    pub channel: Option<usize>,
    /// At which frames the consumer begins to read and to count.
    pub begin: Begin,
}

impl<M: Words> JoinedFeed<M> {
    /// Returns whether frames of the feed are not stamped by this machine's clock: frames of a file, or generated ones.
    ///
    /// # Errors
    /// A ring is inconsistent.
    pub fn has_foreign_clock(&self) -> Result<bool, RingError> {
        for ring in &self.rings {
            if ring.identity()?.clock == Clock::Foreign {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// At which frames a consumer begins to read the rings of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// At the oldest frames that the rings have.
    #[default]
    Oldest,
    /// At the first frames of the rings: frames that were overwritten before the consumer joined count as lapped.
    First,
    /// At the frames with these ordinals, ring by ring: frames that were overwritten since count as lapped.
    At(Vec<u64>),
}

impl JoinedFeed {
    /// Creates feeds that never change: their keys and outputs are numbered from 0, and the rings use the lines of a
    /// sleeper in order.
    #[must_use]
    pub fn in_order(feeds: Vec<Vec<Ring<Mapping>>>) -> Vec<JoinedFeed> {
        let mut lines = 0;
        let joined = feeds.into_iter().enumerate().map(|(number, rings)| {
            let first_line = lines;
            lines += rings.len();
            let (key, label) = (number as u64, String::new());
            JoinedFeed {
                key,
                output: number,
                label,
                rings,
                first_line,
                channel: None,
                begin: Begin::default(),
            }
        });
        joined.collect()
    }
}

impl<M: Words> Clone for JoinedFeed<M> {
    fn clone(&self) -> Self {
        let (label, rings, begin) = (self.label.clone(), self.rings.clone(), self.begin.clone());
        JoinedFeed { label, rings, begin, ..*self }
    }
}

impl<M: Words> std::fmt::Debug for JoinedFeed<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JoinedFeed { key, output, label, rings, first_line, channel, begin } = self;
        f.debug_struct("JoinedFeed")
            .field("key", key)
            .field("output", output)
            .field("label", label)
            .field("rings", &rings.len())
            .field("first_line", first_line)
            .field("channel", channel)
            .field("begin", begin)
            .finish()
    }
}

/// Feeds that never change: for tests and benches, or from another process.
#[derive(Debug)]
pub struct Static {
    sleeper: Sleeper,
    feeds: Vec<JoinedFeed>,
}

impl Static {
    /// Creates a source whose feeds join at the consumer's start. `sleeper` has their lines.
    #[must_use]
    pub fn new(sleeper: Sleeper, feeds: Vec<JoinedFeed>) -> Static {
        Static { sleeper, feeds }
    }

    /// Receives the feed that another process sends by [`pass::send_feed`], with at most `rings_max` rings. If that
    /// process ends without closing the rings, the consumer reads the present frames and then fails with
    /// [`RingError::WriterGone`].
    ///
    /// # Errors
    /// As [`pass::receive_feed`].
    ///
    /// # Panics
    /// If `rings_max` is 0 or above [`RINGS_MAX`](weir_ring::wake::RINGS_MAX).
    pub fn receive(
        stream: &UnixStream,
        rings_max: usize,
        trust: Trust,
    ) -> Result<Static, RingError> {
        let (rings, sleeper) = pass::receive_feed(stream, rings_max, trust)?;
        let mut feeds = JoinedFeed::in_order(vec![rings]);
        feeds[0].channel = Some(0);
        Ok(Static::new(sleeper, feeds))
    }
}

impl FrameSource for Static {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        std::mem::take(&mut self.feeds).into_iter().map(FeedChange::Joined).collect()
    }

    fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    fn is_complete(&self) -> bool {
        true
    }
}
