//! The ledger of a guest's feed.

use std::sync::{Mutex, PoisonError};

use weir_client::protocol::Ledger;
use weir_consumer::Delivered;

use super::completion::Outcome;

/// The name of the drop that counts frames which did not reach the guest's ring.
const DROP: &str = "relay";

/// Counts of frames that were written to the guest's ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopiedCounts {
    pub frames: u64,
    pub kept_bytes: u64,
    pub wire_bytes: u64,
    pub super_frames: u64,
}

impl CopiedCounts {
    /// Returns the ledger of the frames that have reached the guest, or are known to be lost. `host` counts all frames
    /// that the relay had to copy, now or at a later moment.
    pub(super) fn account(
        self,
        delivered: Delivered,
        outcome: Option<&Outcome>,
        host: Ledger,
    ) -> Ledger {
        let lost = match outcome {
            None => delivered.lapped,
            // `host.captured` cannot be used: if the subscription has ended while others still read the rings, the
            // rings may contain frames that came after it.
            Some(Outcome { failure: None, unread, missing, .. }) => {
                let refused = delivered.frames.saturating_sub(self.frames);
                [*unread, refused, *missing].into_iter().fold(delivered.lapped, u64::saturating_add)
            }
            Some(Outcome { failure: Some(_), .. }) => host.captured.saturating_sub(self.frames),
        };
        let CopiedCounts { frames, kept_bytes, wire_bytes, super_frames } = self;
        let mut own = Ledger { captured: frames, kept_bytes, wire_bytes, super_frames, ..host };
        let drop = own.drops.entry(DROP.to_owned()).or_default();
        *drop = drop.saturating_add(lost);
        own
    }
}

/// Adds to the drop the frames that are neither copied nor dropped yet, so that the ledger balances. `captured` is the
/// number of frames that had to be copied. There are no such frames, except after a bug.
pub(super) fn count_missing(own: &mut Ledger, captured: u64) {
    let drop = own.drops.entry(DROP.to_owned()).or_default();
    let known = own.captured.saturating_add(*drop);
    *drop = drop.saturating_add(captured.saturating_sub(known));
    debug_assert_eq!(captured, known, "frames in no count, or in two: {own:?}");
}

/// The highest counts reported so far.
#[derive(Default)]
pub(super) struct ReportedLedger(Mutex<Ledger>);

impl ReportedLedger {
    /// Returns the ledger to report, for the current one. Counts that are lower than before are replaced by the
    /// reported ones. The offered frames are the sum of the other counts.
    pub(super) fn raise(&self, now: Ledger) -> Ledger {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = &mut *reported;
        let counts = [
            (&mut reported.filtered, now.filtered),
            (&mut reported.blocked, now.blocked),
            (&mut reported.sampled, now.sampled),
            (&mut reported.captured, now.captured),
            (&mut reported.kept_bytes, now.kept_bytes),
            (&mut reported.wire_bytes, now.wire_bytes),
            (&mut reported.super_frames, now.super_frames),
        ];
        counts.into_iter().for_each(|(reported, now)| *reported = now.max(*reported));
        for (name, count) in now.drops {
            let reported = reported.drops.entry(name).or_default();
            *reported = count.max(*reported);
        }
        reported.filtered_uncounted |= now.filtered_uncounted;
        reported.missed_before = reported.missed_before.max(now.missed_before);
        let fates = [reported.filtered, reported.blocked, reported.sampled, reported.captured];
        let fates = fates.iter().chain(reported.drops.values());
        reported.offered = fates.fold(0, |sum: u64, count| sum.saturating_add(*count));
        reported.clone()
    }
}
