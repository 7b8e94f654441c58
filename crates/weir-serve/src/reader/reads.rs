//! The rings that a feed reads, and the counts of their frames.

use weir_client::protocol;
use weir_probe::FeedId;
use weir_ring::{Ledger, Mapping, Ring};

/// The rings that a feed reads.
pub struct Reads {
    /// The probe's id of the rings.
    pub feed: FeedId,
    /// The rings.
    pub rings: Vec<Ring<Mapping>>,
    /// Ordinal of the feed's first frame in each ring.
    pub from: Vec<u64>,
    /// The ledger of the rings when the feed began to read them.
    base: Ledger,
    /// The counts of the feed's frames in the rings that it read before.
    past: protocol::Ledger,
    /// Whether these counts are exact, because no other feed went on reading those rings.
    is_past_exact: bool,
}

impl Reads {
    /// Creates the first rings of a feed. Its counts begin at the ordinals `from`, with the ledger `base`.
    pub(super) fn new(
        feed: FeedId,
        rings: Vec<Ring<Mapping>>,
        from: Vec<u64>,
        base: Ledger,
    ) -> Reads {
        // The number of frames in the rings is exact. The counts of the ledger are from a slightly different moment.
        let captured = from.iter().sum();
        let base = Ledger { captured, ..base };
        Reads { feed, rings, from, base, past: protocol::Ledger::default(), is_past_exact: true }
    }

    /// Returns the next rings of the feed, whose frames all belong to it. `ledger` is the last ledger of the current
    /// rings.
    pub(super) fn followed_by(
        &self,
        feed: FeedId,
        rings: Vec<Ring<Mapping>>,
        ledger: Option<&Ledger>,
        is_exact: bool,
    ) -> Reads {
        // The number of frames in the rings is known even if the other counts could not be read.
        let past = self.account(ledger.unwrap_or(&self.base), &self.written());
        let (from, is_past_exact) = (vec![0; rings.len()], is_exact && self.are_all_closed());
        Reads { feed, from, rings, base: Ledger::default(), past, is_past_exact }
    }

    /// Returns the number of frames that were written to each ring so far.
    pub(super) fn written(&self) -> Vec<u64> {
        self.rings.iter().map(Ring::frames_written).collect()
    }

    /// Tells whether no more frames can come into these rings, and none came into the previous rings after the feed had
    /// left them.
    pub(super) fn are_all_closed(&self) -> bool {
        self.is_past_exact && self.rings.iter().all(Ring::is_closed)
    }

    /// Returns the counts of the feed's frames up to the ordinals `until`, computed from the current ledger of the
    /// rings.
    pub(super) fn account(&self, ledger: &Ledger, until: &[u64]) -> protocol::Ledger {
        let captured = until.iter().sum();
        let now = Ledger { captured, ..ledger.clone() };
        let mut own = protocol::Ledger::from(&now.since(&self.base));
        own += &self.past;
        own
    }
}
