//! The ledger of a feed: the counts of all fan-outs and of the engine.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_ring::Ledger;

use super::{Entry, Shared};
use crate::feed::counts::count_written;
use crate::feed::fanout::BranchCounts;

impl Shared {
    pub(super) fn engine(&self) -> Ledger {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn ledger(&self, entry: &Entry) -> Ledger {
        // Read before the engine's count of offered frames, so that while frames come no more of them are captured or
        // filtered than offered.
        let mut fanned = Ledger::default();
        let sum = |count: fn(&BranchCounts) -> &AtomicU64| {
            let counts = entry.counts.iter().map(|own| count(own).load(Ordering::Acquire));
            counts.sum::<u64>()
        };
        fanned.filtered = sum(|own| &own.filtered);
        fanned.blocked = sum(|own| &own.blocked);
        fanned.sampled = sum(|own| &own.sampled);
        count_written(&mut fanned, &entry.rings);
        let engine = self.engine();
        let mut ledger = engine.clone();
        ledger.filtered = engine.filtered.saturating_sub(entry.before.filtered);
        for (name, count) in &mut ledger.drops {
            let before = entry.before.drops.get(name).copied().unwrap_or(0);
            *count = count.saturating_sub(before);
        }
        if let (Some(now), Some(before)) = (ledger.missed_before, entry.before.missed_before) {
            ledger.missed_before = Some(now.saturating_sub(before));
        }
        let (mut before, mut came, mut has_left) = (0, 0, true);
        for (counts, seen) in entry.counts.iter().zip(&self.seen) {
            let now = seen.load(Ordering::Acquire);
            let joined = counts.joined_at().unwrap_or(now);
            has_left &= counts.left_at().is_some();
            before += joined;
            came += counts.left_at().unwrap_or(now).saturating_sub(joined);
        }
        ledger.offered = match has_left {
            true => came + ledger.filtered + ledger.dropped(),
            false => engine.offered.saturating_sub(before + entry.before.offered),
        };
        ledger.filtered += fanned.filtered;
        ledger.blocked += fanned.blocked;
        ledger.sampled += fanned.sampled;
        // An engine's own counts of written frames are of other rings.
        let Ledger { captured, kept_bytes, wire_bytes, super_frames, .. } = fanned;
        Ledger { captured, kept_bytes, wire_bytes, super_frames, ..ledger }
    }
}
