//! Account of the frames of a feed whose caller asks for them.

use weir_consumer::Delivered;

use crate::protocol::Ledger;

/// Account of a feed's frames, at the daemon and here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// At the daemon: frames that were offered, filtered, captured, and lost, by name.
    pub ledger: Ledger,
    /// Here: frames that were read, and those that were overwritten before (lapped).
    pub delivered: Delivered,
    /// Daemons that the feed had, one after the other.
    pub lives: u64,
}

/// Of the feeds that a reader has read before.
#[derive(Clone, Default)]
pub(crate) struct Past {
    pub(crate) ledger: Ledger,
    pub(crate) delivered: Delivered,
    /// Daemons that have ended meanwhile.
    pub(crate) daemons: u64,
}

/// Both together. Numbers of a hostile daemon do not overflow.
pub(crate) fn add(one: Delivered, other: Delivered) -> Delivered {
    Delivered {
        frames: one.frames.saturating_add(other.frames),
        wire_bytes: one.wire_bytes.saturating_add(other.wire_bytes),
        lapped: one.lapped.saturating_add(other.lapped),
        untriggered: one.untriggered.saturating_add(other.untriggered),
        after_limit: one.after_limit.saturating_add(other.after_limit),
        late: one.late.saturating_add(other.late),
    }
}
