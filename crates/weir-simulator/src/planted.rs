//! Bugs that can be planted, to see that they are found. Each stands where the simulator itself is at work: in its
//! engine, in the way effects are carried out, in the rings' words, between consumers and their checks. So nothing of
//! it is in the crates that are simulated.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// The engine loses a frame and counts it nowhere but in `offered`.
    DropsForgotten,
    /// The engine counts its frames before the last one of a turn.
    OfferedTooEarly,
    /// The engine loses a frame, and nobody knows.
    FrameLost,
    /// The engine pushes a frame twice.
    FrameTwice,
    /// The engine pushes the bytes of another frame.
    BytesOfAnother,
    /// A new filter holds one frame too late.
    FilterLate,
    /// A filter that is to change does not.
    FilterForgotten,
    /// Captured frames are missing in the ledger of a feed that leaves.
    LeavingShareDropped,
    /// A ledger has the offered frames of the turn before.
    LedgerOfBefore,
    /// A consumer that is detached takes the wakers of the others with it.
    DetachLosesWakeUp,
    /// A consumer is attached, and its feed does not wake it.
    AttachForgotten,
    /// A consumer is not told that it is to read no further.
    LeftForgotten,
    /// A consumer is told twice that it reads a feed.
    JoinedTwice,
    /// A source that comes back has none of its feeds.
    BackWithoutFeeds,
    /// A feed that joins gets the number of one that is there.
    NumberReused,
    /// Somebody keeps the ring of a feed that is gone.
    RingKept,
    /// The lines that wake a consumer are never free again.
    LinesKept,
    /// A block is announced further than it is written.
    AnnouncedBeforeWritten,
    /// A ring says that it has a frame more.
    OrdinalAhead,
    /// A ring is closed before its last frame.
    ClosedEarly,
    /// Lapped frames count twice.
    LappedTwice,
    /// A frame that a full disk refuses counts as kept.
    RefusedKept,
    /// Frames of two rings are exchanged.
    MergeUnordered,
    /// Frames around a step of the clock are sorted by their stamps.
    SortedAcrossClockStep,
    /// A frame is delivered twice.
    DeliveredTwice,
    /// A consumer does not heed that it is to read no further.
    LeaveIgnored,
    /// Once frames were lapped, those that are unread are none.
    UnreadForgotten,
    /// A consumer that is withdrawn keeps the rings that the others read.
    WithdrawnReads,
}

impl Planted {
    /// All of them.
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
