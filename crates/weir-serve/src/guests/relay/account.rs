//! What became of the frames of a guest's feed.

use std::sync::{Mutex, PoisonError};

use weir_client::protocol::Ledger;
use weir_consumer::Delivered;

use super::ending::End;

/// The drop of frames that did not come to the guest's ring.
const DROP: &str = "relay";

/// What the guest's ring has had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub frames: u64,
    pub kept_bytes: u64,
    pub wire_bytes: u64,
    pub super_frames: u64,
}

impl Copied {
    /// The ledger with the frames that are known to have come, or not to come. `host` has all that the relay was to
    /// copy, of this moment or of a later one.
    pub(super) fn account(self, delivered: Delivered, end: Option<&End>, host: Ledger) -> Ledger {
        let lost = match end {
            None => delivered.lapped,
            // Of a subscription that ended while others read on, the host's rings may have more by now.
            Some(End { failure: None, unread, .. }) => {
                let refused = delivered.frames.saturating_sub(self.frames);
                delivered.lapped.saturating_add(*unread).saturating_add(refused)
            }
            Some(End { failure: Some(_), .. }) => host.captured.saturating_sub(self.frames),
        };
        let Copied { frames, kept_bytes, wire_bytes, super_frames } = self;
        let mut own = Ledger { captured: frames, kept_bytes, wire_bytes, super_frames, ..host };
        let drop = own.drops.entry(DROP.to_owned()).or_default();
        *drop = drop.saturating_add(lost);
        own
    }
}

/// The highest counts that were shown.
#[derive(Default)]
pub(super) struct Shown(Mutex<Ledger>);

impl Shown {
    /// What is to be shown, if this is what is known: counts that were read before others that were shown are raised to
    /// those. Offered are the frames that are accounted for.
    pub(super) fn raise(&self, now: Ledger) -> Ledger {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = &mut *shown;
        let counts = [
            (&mut shown.filtered, now.filtered),
            (&mut shown.blocked, now.blocked),
            (&mut shown.sampled, now.sampled),
            (&mut shown.captured, now.captured),
            (&mut shown.kept_bytes, now.kept_bytes),
            (&mut shown.wire_bytes, now.wire_bytes),
            (&mut shown.super_frames, now.super_frames),
        ];
        counts.into_iter().for_each(|(shown, now)| *shown = now.max(*shown));
        for (name, count) in now.drops {
            let shown = shown.drops.entry(name).or_default();
            *shown = count.max(*shown);
        }
        shown.filtered_uncounted |= now.filtered_uncounted;
        shown.missed_before = shown.missed_before.max(now.missed_before);
        let fates = [shown.filtered, shown.blocked, shown.sampled, shown.captured];
        let fates = fates.iter().chain(shown.drops.values());
        shown.offered = fates.fold(0, |sum: u64, count| sum.saturating_add(*count));
        shown.clone()
    }
}
