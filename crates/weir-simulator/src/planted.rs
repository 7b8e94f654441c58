//! Bugs that can be planted, to check that the simulator finds them. Each is in code of the simulator: in its engine,
//! in the execution of effects, in the words of the rings, or between consumers and their checks. So the simulated
//! crates contain none of this.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// The engine loses a frame and counts it only in `offered`.
    DropsForgotten,
    /// The engine publishes its count of frames before the last frame of a turn.
    OfferedTooEarly,
    /// The engine pushes a frame to no feed, and counts no loss.
    FrameLost,
    /// The engine pushes a frame twice.
    FrameTwice,
    /// The engine pushes the bytes of another frame.
    BytesOfAnother,
    /// A new filter takes effect one frame too late.
    FilterLate,
    /// A change of a filter has no effect.
    FilterForgotten,
    /// Captured frames are missing in the ledger of a feed that leaves.
    LeavingShareDropped,
    /// A ledger contains the offered frames of the previous turn.
    LedgerOfBefore,
    /// Detaching a consumer also detaches the wakers of the others.
    DetachLosesWakeUp,
    /// A consumer is attached, but its feed does not wake it.
    AttachForgotten,
    /// A consumer is not told to leave a feed.
    LeftForgotten,
    /// A consumer is told twice that it reads a feed.
    JoinedTwice,
    /// A source that comes back has lost its feeds.
    BackWithoutFeeds,
    /// A feed that joins gets the slot of an existing feed.
    NumberReused,
    /// The ring of a feed that has left is kept.
    RingKept,
    /// The lines that wake a consumer are never released.
    LinesKept,
    /// A block is announced beyond its written bytes.
    AnnouncedBeforeWritten,
    /// A ring announces one frame too many.
    OrdinalAhead,
    /// A ring is closed before its last frame.
    ClosedEarly,
    /// Lapped frames are counted twice.
    LappedTwice,
    /// A frame that a full disk refuses is counted as kept.
    RefusedKept,
    /// Two frames of different rings are exchanged.
    MergeUnordered,
    /// Frames around a clock step are sorted by their timestamps.
    SortedAcrossClockStep,
    /// A frame is delivered twice.
    DeliveredTwice,
    /// A consumer ignores that it must leave a feed.
    LeaveIgnored,
    /// After frames were lapped, the unread frames are counted as 0.
    UnreadForgotten,
    /// Withdrawing a consumer does not replace the rings, so it can still read the rings of the others.
    WithdrawnReads,
}

impl Planted {
    /// All planted bugs.
    pub const ALL: [Planted; 28] = {
        use Planted::*;
        [
            DropsForgotten,
            OfferedTooEarly,
            FrameLost,
            FrameTwice,
            BytesOfAnother,
            FilterLate,
            FilterForgotten,
            LeavingShareDropped,
            LedgerOfBefore,
            DetachLosesWakeUp,
            AttachForgotten,
            LeftForgotten,
            JoinedTwice,
            BackWithoutFeeds,
            NumberReused,
            RingKept,
            LinesKept,
            AnnouncedBeforeWritten,
            OrdinalAhead,
            ClosedEarly,
            LappedTwice,
            RefusedKept,
            MergeUnordered,
            SortedAcrossClockStep,
            DeliveredTwice,
            LeaveIgnored,
            UnreadForgotten,
            WithdrawnReads,
        ]
    };
}
