//! The expected result for every frame that is offered to a feed. It shares no code with the fan-out.

use weir_probe::core::SourceId;
use weir_ring::Ledger;

use crate::broken::hold;
use crate::frame::Frame;
use crate::meaning::Meaning;

/// The expected state of a feed.
#[derive(Clone, Debug)]
pub struct FeedTruth {
    /// The source of the feed.
    pub source: SourceId,
    /// The current wishes of its subscribers.
    pub meaning: Meaning,
    /// Number of frames that had been offered to its source when the feed joined.
    pub joined_at: u64,
    /// Number of frames that had been offered to its source when the feed left; `None`: it has not left.
    pub left_at: Option<u64>,
    /// The name of its interface. A feed that replaces another feed has the name of that feed.
    pub name: String,
    /// Frames in its ring, in order.
    pub captured: Vec<Captured>,
    /// Frames that were offered to the feed, including lost ones.
    pub offered: u64,
    filtered: u64,
    blocked: u64,
    sampled: u64,
    lost: u64,
    /// Number of frames that sampling still skips before the next frame that it keeps.
    left_out: u32,
}

/// A frame in a ring.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// Number of the frame.
    pub number: u64,
    /// Number of the event in which the frame was published.
    pub step: usize,
    /// Bytes kept of all frames in the ring up to and including this one.
    pub kept_until: u64,
    /// Bytes on the wire of all frames in the ring up to and including this one.
    pub wire_until: u64,
}

impl FeedTruth {
    /// Creates the expected state of a feed that joins.
    #[must_use]
    pub fn new(source: SourceId, meaning: Meaning, name: String, joined_at: u64) -> FeedTruth {
        FeedTruth {
            source,
            meaning,
            joined_at,
            left_at: None,
            name,
            captured: Vec::new(),
            offered: 0,
            filtered: 0,
            blocked: 0,
            sampled: 0,
            lost: 0,
            left_out: 0,
        }
    }

    /// Records that a frame is offered.
    pub fn offer(&mut self, frame: &Frame, step: usize) {
        self.offered += 1;
        if !self.meaning.passes(frame) {
            self.filtered += 1;
        } else if self.meaning.blocks(frame) {
            self.blocked += 1;
        } else if self.left_out > 0 {
            self.left_out -= 1;
            self.sampled += 1;
        } else {
            self.left_out = self.meaning.one_in - 1;
            let kept_until =
                self.bytes_until(u64::MAX) + u64::from(frame.bytes.min(self.meaning.snaplen));
            let wire_until = self.wire_until(u64::MAX) + u64::from(frame.wire_len);
            self.captured.push(Captured { number: frame.number, step, kept_until, wire_until });
        }
    }

    /// Records that the engine loses a frame before any feed could select it.
    pub fn lose(&mut self) {
        self.offered += 1;
        self.lost += 1;
    }

    /// Returns the number of frames in the ring so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.captured.len() as u64
    }

    /// Returns the bytes kept of the first `ordinal` frames.
    #[must_use]
    pub fn bytes_until(&self, ordinal: u64) -> u64 {
        self.last_of(ordinal).map_or(0, |last| last.kept_until)
    }

    /// Returns the bytes on the wire of the first `ordinal` frames.
    #[must_use]
    pub fn wire_until(&self, ordinal: u64) -> u64 {
        self.last_of(ordinal).map_or(0, |last| last.wire_until)
    }

    fn last_of(&self, ordinal: u64) -> Option<&Captured> {
        let count = ordinal.min(self.frames()) as usize;
        self.captured[..count].last()
    }

    /// Checks that a ledger agrees with this state.
    pub fn check(&self, ledger: &Ledger) {
        hold!(ledger.closes(), "a ledger closes: {ledger}");
        let said = (
            [ledger.offered, ledger.filtered, ledger.blocked, ledger.sampled, ledger.captured],
            [ledger.kept_bytes, ledger.wire_bytes, ledger.dropped()],
        );
        let FeedTruth { offered, filtered, blocked, sampled, lost, .. } = *self;
        let (kept, wire) = (self.bytes_until(u64::MAX), self.wire_until(u64::MAX));
        let true_one = ([offered, filtered, blocked, sampled, self.frames()], [kept, wire, lost]);
        hold!(
            said == true_one,
            "a ledger is true (offered, filtered, blocked, sampled, captured, bytes, drops): {said:?}, not {true_one:?}"
        );
    }
}
