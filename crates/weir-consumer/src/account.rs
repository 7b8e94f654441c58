//! The account of a consumer: frames delivered, lapped, left in the rings.

/// Frames that reached a consumer, and those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire. A frame that the output refuses is in both.
    pub wire_bytes: u64,
    /// Frames that the writers overtook, or that were dropped unread with feeds that had left
    /// ([`Rings::let_go`](crate::Rings::let_go)).
    pub lapped: u64,
    /// Frames that were kept in the rings for the case that something happened, and nothing did.
    pub untriggered: u64,
    /// Frames left in the rings because a limit of frames was reached.
    pub after_limit: u64,
    /// Frames that came too late to stand in order.
    pub late: u64,
}

/// The same of one feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Frames.
    pub frames: u64,
    /// Frames that the writers overtook.
    pub lapped: u64,
    /// See [`Delivered::untriggered`].
    pub untriggered: u64,
}
