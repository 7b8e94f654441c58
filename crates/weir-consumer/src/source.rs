//! The feeds that a consumer reads, and how they change while it runs.

use std::os::unix::net::UnixStream;

use weir_ring::memory::Trust;
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring, RingError, Words, pass};

/// The feeds that a consumer reads, and how they change while it runs.
pub trait FrameSource: Send {
    /// The changes since the last call. Called before each turn, so it must be cheap if there are none.
    fn take_changes(&mut self) -> Vec<FeedChange>;

    /// The sleeper of the consumer. A thread that makes a change wakes it.
    fn sleeper(&self) -> &Sleeper;

    /// Whether no feed will join any more. Then the consumer ends once all rings are closed and read. Earlier
    /// changes may not have been taken yet.
    fn is_complete(&self) -> bool;
}

/// A change of the feeds that a consumer reads.
#[derive(Debug)]
pub enum FeedChange {
    /// The consumer reads this feed from its oldest frames on.
    Joined(JoinedFeed),
    /// The consumer reads a feed only to these ordinals.
    Left {
        /// The feed's key.
        key: u64,
        /// Ordinals of the first frames that are not read any more, ring by ring. A ring without an ordinal gets no
        /// more frames, and is read to its end.
        until: Vec<u64>,
    },
}

/// A feed that a consumer reads.
pub struct JoinedFeed<M: Words = Mapping> {
    /// Unique in the run.
    pub key: u64,
    /// Feeds with the same number share interfaces in the output: the lives of a feed that ended and came back.
    pub output: usize,
    /// A name for lines of text: that of the feed, or of its subscribers; may be empty.
    pub label: String,
    /// The rings: one for each thread or CPU that writes.
    pub rings: Vec<Ring<M>>,
    /// The line of the first ring in the consumer's sleeper; the others follow.
    pub first_line: usize,
    /// The sleeper's channel to the feed's writers, if they are in another process, which can end at any time.
    /// Rings that it leaves open are read to their last frame; then the consumer fails with
    /// [`weir_ring::RingError::WriterGone`].
    pub channel: Option<usize>,
    /// Where the consumer begins to read, and where its account begins.
    pub begin: Begin,
}

/// Where a consumer begins to read the rings of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With the oldest frames that are there.
    #[default]
    Oldest,
    /// With the first frames of the rings: frames that were overwritten before the consumer joined are lapped.
    First,
    /// With the frames of these ordinals, ring by ring: frames that were overwritten since are lapped.
    At(Vec<u64>),
}

impl JoinedFeed {
    /// Makes feeds that never change: keys and outputs are numbered, and the rings have the lines of a sleeper in
    /// order.
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

/// Feeds that never change: for tests and benches, or received from another process.
#[derive(Debug)]
pub struct Static {
    sleeper: Sleeper,
    feeds: Vec<JoinedFeed>,
}

impl Static {
    /// These feeds join at the consumer's start; `sleeper` has their lines.
    #[must_use]
    pub fn new(sleeper: Sleeper, feeds: Vec<JoinedFeed>) -> Static {
        Static { sleeper, feeds }
    }

    /// Receives the feed that another process sends by [`pass::send_feed`], with at most `rings_max` rings. If that
    /// process ends without closing them, the consumer reads the present frames and then fails with
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
