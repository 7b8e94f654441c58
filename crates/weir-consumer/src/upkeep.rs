//! Tasks of a consumer besides taking frames: it lets feeds join and leave, finds writers that are gone, and reports
//! how far it has read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_ring::RingError;

use crate::consumer::{Consumer, ConsumerError};
use crate::lanes::Rings;
use crate::merge::Merge;
use crate::source::{FeedChange, FrameSource, JoinedFeed};

/// How often a consumer that never sleeps looks for writers that are gone.
const GONE_EVERY: Duration = Duration::from_secs(1);
/// How often a consumer reports how far it has read, for programs that monitor its lag.
const POSITION_EVERY: Duration = Duration::from_millis(100);

/// A reader of feeds that join and leave.
pub(crate) trait Reads {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError>;
    fn rings(&self) -> &dyn Rings;
    fn rings_mut(&mut self) -> &mut dyn Rings;
}

impl<C: Consumer + ?Sized> Reads for C {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError> {
        Consumer::join(self, feed)
    }

    fn rings(&self) -> &dyn Rings {
        Consumer::rings(self)
    }

    fn rings_mut(&mut self) -> &mut dyn Rings {
        Consumer::rings_mut(self)
    }
}

impl Reads for Merge {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError> {
        Ok(Merge::join(self, feed)?)
    }

    fn rings(&self) -> &dyn Rings {
        Merge::rings(self)
    }

    fn rings_mut(&mut self) -> &mut dyn Rings {
        Merge::rings_mut(self)
    }
}

/// State of these tasks.
pub(crate) struct Upkeep {
    /// The error of a writer that is gone and left rings open.
    gone: Option<RingError>,
    /// Channels whose writers are gone. A feed of theirs may join after that.
    gone_channels: BTreeSet<usize>,
    /// When the consumer last looked for writers that are gone.
    looked: Instant,
    /// When the consumer last reported how far it has read.
    noted: Instant,
}

impl Upkeep {
    pub(crate) fn new() -> Upkeep {
        let now = Instant::now();
        Upkeep { gone: None, gone_channels: BTreeSet::new(), looked: now, noted: now }
    }

    /// Does the tasks that are due before frames are taken.
    ///
    /// # Errors
    /// [`ConsumerError`] if a feed cannot join.
    pub(crate) fn before_turn(
        &mut self,
        source: &mut dyn FrameSource,
        reads: &mut (impl Reads + ?Sized),
    ) -> Result<(), ConsumerError> {
        for channel in take_changes(source, reads)? {
            if self.gone_channels.contains(&channel) {
                self.end_open_rings(reads.rings_mut(), channel);
            }
        }
        if self.looked.elapsed() >= GONE_EVERY {
            self.looked = Instant::now();
            while let Some(channel) = source.sleeper().find_gone_writer() {
                self.writer_gone(reads.rings_mut(), channel);
            }
        }
        if self.noted.elapsed() >= POSITION_EVERY {
            self.noted = Instant::now();
            for (line, ordinal) in reads.rings().needed_from() {
                source.sleeper().note_position(line, ordinal);
            }
        }
        Ok(())
    }

    /// Ends the rings that the writers at this channel have left open. Other rings are still read.
    pub(crate) fn writer_gone(&mut self, rings: &mut dyn Rings, channel: usize) {
        self.gone_channels.insert(channel);
        self.end_open_rings(rings, channel);
    }

    fn end_open_rings(&mut self, rings: &mut dyn Rings, channel: usize) {
        if let Some(frames) = rings.writer_gone(channel) {
            self.gone.get_or_insert(RingError::WriterGone { frames });
        }
    }

    /// Reports once that a writer has gone and left rings open.
    pub(crate) fn take_gone(&mut self) -> Option<RingError> {
        self.gone.take()
    }
}

/// Applies the changes of the source. Returns the channels of the feeds that have joined. If one feed fails, the
/// following ones still join.
pub(crate) fn take_changes(
    source: &mut dyn FrameSource,
    reads: &mut (impl Reads + ?Sized),
) -> Result<Vec<usize>, ConsumerError> {
    let (mut taken, mut channels) = (Ok(()), Vec::new());
    for change in source.take_changes() {
        match change {
            FeedChange::Joined(feed) => {
                // The line may still have the threshold of a ring that used it before.
                let lines = feed.first_line..feed.first_line + feed.rings.len();
                lines.for_each(|line| source.sleeper().free_line(line));
                channels.extend(feed.channel);
                let joined = reads.join(feed);
                taken = taken.and(joined);
            }
            FeedChange::Left { key, until } => reads.rings_mut().leave(key, &until),
        }
    }
    taken.map(|()| channels)
}
