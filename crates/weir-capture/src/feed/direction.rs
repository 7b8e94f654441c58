//! The direction of frames.

use weir_frame::record::Flags;

/// The direction of frames, as seen from the machine that captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
    /// Either.
    #[default]
    Both,
}

impl Direction {
    /// Whether received frames are wanted.
    #[must_use]
    pub fn takes_in(self) -> bool {
        self != Direction::Out
    }

    /// Whether sent frames are wanted.
    #[must_use]
    pub fn takes_out(self) -> bool {
        self != Direction::In
    }

    /// The direction that takes every frame that either of the two takes.
    #[must_use]
    pub fn and(self, other: Direction) -> Direction {
        if self == other { self } else { Direction::Both }
    }

    /// Whether a frame with these flags has this direction. A frame of unknown direction is neither `In` nor `Out`.
    #[must_use]
    #[inline]
    pub fn takes(self, flags: Option<Flags>) -> bool {
        // The direction is the low two bits: 1 in, 2 out, 0 unknown.
        let way = flags.map_or(0, |flags| flags.0 & 3);
        match self {
            Direction::Both => true,
            Direction::In => way == Flags::INBOUND.0,
            Direction::Out => way == Flags::OUTBOUND.0,
        }
    }
}
