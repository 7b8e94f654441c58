//! Counts of a consumer: frames delivered, lapped, and left in the rings.

/// Counts of frames that reached a consumer, and of frames that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames that the consumer took.
    pub frames: u64,
    /// Bytes of these frames on the wire. Both counts include frames that the output refused.
    pub wire_bytes: u64,
    /// Frames that the writers overtook, or that were dropped unread with feeds that had left
    /// ([`Rings::let_go`](crate::Rings::let_go)).
    pub lapped: u64,
    /// Frames that were kept in the rings for a trigger, and that no trigger selected.
    pub untriggered: u64,
    /// Frames left in the rings because a limit of frames was reached.
    pub after_limit: u64,
    /// Frames that came too late to be in order.
    pub late: u64,
}

/// Counts of the frames of one feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Frames that the consumer took.
    pub frames: u64,
    /// Frames that the writers overwrote before they were read.
    pub lapped: u64,
    /// See [`Delivered::untriggered`].
    pub untriggered: u64,
}
