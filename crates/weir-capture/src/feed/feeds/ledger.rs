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
        let sum = |count: fn(&BranchCounts) -> &AtomicU64| {
            let counts = entry.counts.iter().map(|own| count(own).load(Ordering::Acquire));
            counts.sum::<u64>()
        };
        ledger.filtered += sum(|own| &own.filtered);
        ledger.blocked += sum(|own| &own.blocked);
        ledger.sampled += sum(|own| &own.sampled);
        count_written(&mut ledger, &entry.rings);
        // The engine sets its count at the end of each turn. Until then, frames of the turn may be in the other counts.
        if !self.has_ended.load(Ordering::Acquire) {
            let Ledger { filtered, blocked, sampled, captured, .. } = ledger;
            let known = filtered + blocked + sampled + captured + ledger.dropped();
            ledger.offered = ledger.offered.max(known);
        }
        ledger
    }
}
