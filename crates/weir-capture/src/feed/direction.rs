//! The direction of frames.

use weir_frame::pcapng::{LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2};
use weir_frame::record::Flags;

/// The direction of frames, as seen from the machine that captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Received frames.
    In,
    /// Sent frames.
    Out,
    /// Frames of either direction.
    #[default]
    Both,
}

impl Direction {
    /// Returns whether received frames are wanted.
    #[must_use]
    pub fn takes_in(self) -> bool {
        self != Direction::Out
    }

    /// Returns whether sent frames are wanted.
    #[must_use]
    pub fn takes_out(self) -> bool {
        self != Direction::In
    }

    /// Returns the direction that takes every frame that either of the two takes.
    #[must_use]
    pub fn and(self, other: Direction) -> Direction {
        if self == other { self } else { Direction::Both }
    }

    /// Returns whether a feed of this direction takes a frame with these flags. `In` and `Out` take no frame of unknown
    /// direction.
    #[must_use]
    #[inline]
    pub fn takes(self, flags: Option<Flags>) -> bool {
        // The direction is the low two bits: 1 in, 2 out, 0 unknown.
        let bits = flags.map_or(0, |flags| flags.0 & 3);
        match self {
            Direction::Both => true,
            Direction::In => bits == Flags::INBOUND.0,
            Direction::Out => bits == Flags::OUTBOUND.0,
        }
    }

    /// As [`takes`](Direction::takes), also for frames of files: if the flags do not contain the direction, a Linux
    /// cooked header may.
    #[must_use]
    #[inline]
    pub fn takes_frame(self, flags: Option<Flags>, link_type: u16, frame: &[u8]) -> bool {
        if self == Direction::Both || flags.is_some_and(|flags| flags.0 & 3 != 0) {
            return self.takes(flags);
        }
        self.takes(cooked_direction(link_type, frame))
    }
}

/// Returns the direction in the header of a Linux cooked frame: 4 is sent by this machine, lower values are received.
///
/// Source: tcpdump.org/linktypes, LINKTYPE_LINUX_SLL and LINKTYPE_LINUX_SLL2.
fn cooked_direction(link_type: u16, frame: &[u8]) -> Option<Flags> {
    let kind = match link_type {
        LINKTYPE_LINUX_SLL => u16::from_be_bytes(*frame.first_chunk()?),
        LINKTYPE_LINUX_SLL2 => u16::from(*frame.get(10)?),
        _ => return None,
    };
    match kind {
        0..=3 => Some(Flags::INBOUND),
        4 => Some(Flags::OUTBOUND),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cooked_header_says_the_direction_where_the_flags_do_not() {
        let taken = |flags, link_type, frame: &[u8]| {
            [Direction::In, Direction::Out, Direction::Both]
                .map(|direction| direction.takes_frame(flags, link_type, frame))
        };
        for (kind, expected) in
            [(0, [true, false, true]), (3, [true, false, true]), (4, [false, true, true])]
        {
            assert_eq!(taken(None, LINKTYPE_LINUX_SLL, &[0, kind, 0, 1]), expected, "{kind}");
            let sll2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, kind, 6];
            assert_eq!(taken(Some(Flags(0)), LINKTYPE_LINUX_SLL2, &sll2), expected, "{kind}");
        }
        let neither = [false, false, true];
        assert_eq!(taken(None, LINKTYPE_LINUX_SLL, &[0, 9]), neither);
        assert_eq!(taken(None, LINKTYPE_LINUX_SLL, &[0]), neither, "cut off");
        assert_eq!(taken(None, 1, &[0, 4, 0, 1]), neither, "Ethernet");
        let sent = taken(Some(Flags::OUTBOUND), LINKTYPE_LINUX_SLL, &[0, 0, 0, 1]);
        assert_eq!(sent, [false, true, true], "the flags come first");
    }
}
