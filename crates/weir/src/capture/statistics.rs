//! The statistics blocks at the end of a file: what became of the frames of each of its interfaces.

use weir_consumer::Rings;
use weir_frame::pcapng::Statistics;
use weir_ring::Ledger;

use crate::run_result::FeedResult;

/// Of a run from `start_ns` to `end_ns`, for an output that numbers its interfaces as `rings` does and keeps
/// `delivered` frames.
pub(super) fn of(
    feeds: &[FeedResult],
    rings: &dyn Rings,
    delivered: u64,
    (start_ns, end_ns): (u64, u64),
) -> Vec<Statistics> {
    let none = || Statistics {
        interface_id: 0,
        ts_ns: end_ns,
        start_ns: Some(start_ns),
        end_ns: Some(end_ns),
        received: None,
        interface_drops: None,
        filter_accepted: None,
        os_drops: None,
        delivered: None,
    };
    let counts = |interface_id: u32, ledger: &Ledger| Statistics {
        interface_id,
        received: (!ledger.filtered_uncounted).then_some(ledger.offered),
        interface_drops: ledger.missed_before,
        filter_accepted: Some(ledger.accepted()),
        ..none()
    };
    // Feeds that share their rings are one in the file.
    let outputs: Vec<(usize, &FeedResult)> =
        feeds.iter().enumerate().filter(|(at, feed)| feed.asked.output == *at).collect();
    let mut all = Vec::new();
    for (output, FeedResult { ledger, interfaces, .. }) in &outputs {
        let numbers = rings.interfaces(*output);
        // Of a source that was never there no file knows.
        let Some(&first) = numbers.first() else { continue };
        let os_drops = Some(ledger.dropped());
        let delivered = (outputs.len() == 1).then_some(delivered);
        if interfaces.is_empty() {
            all.push(Statistics { os_drops, delivered, ..counts(first, ledger) });
            continue;
        }
        // The pattern itself has what is no single interface's.
        all.push(Statistics { interface_id: first, os_drops, delivered, ..none() });
        for share in interfaces {
            if let Some(&number) = numbers.get(share.id as usize) {
                all.push(counts(number, &share.ledger));
            }
        }
    }
    all
}
