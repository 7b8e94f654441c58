//! Counts of the frames of a feed for a caller that asks for frames.

use weir_consumer::Delivered;

use crate::protocol::Ledger;

/// Counts of a feed's frames, at the daemon and in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Counts at the daemon: frames that were offered, filtered, captured, and lost, by name.
    pub ledger: Ledger,
    /// Counts in this process: frames that were read, and frames that were overwritten before they were read (lapped).
    pub delivered: Delivered,
    /// Number of daemons from which the feed has read, one after the other.
    pub lives: u64,
}

/// Counts of the feeds that a reader has read before.
#[derive(Clone, Default)]
pub(crate) struct Past {
    pub(crate) ledger: Ledger,
    pub(crate) delivered: Delivered,
    /// Number of daemons that have ended since.
    pub(crate) daemons: u64,
}

/// Returns the sums of both counts. They saturate, because a hostile daemon may send any numbers.
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
