//! The statistics blocks at the end of a file, with the counts of each interface.

use std::time::{SystemTime, UNIX_EPOCH};

use weir_consumer::{Delivered, Rings};
use weir_frame::pcapng::Statistics;
use weir_ring::Ledger;

use crate::run_result::FeedResult;

/// Returns the wall-clock time in nanoseconds since the Unix epoch; 0 if the clock is before the epoch.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The statistics of a run from `start_ns` to `end_ns`, for an output that numbers its interfaces as `rings` does and
/// has these frames. Frames that were lapped count as dropped behind the filter, like those that the source dropped.
pub(super) fn of(
    feeds: &[FeedResult],
    rings: &dyn Rings,
    taken: Delivered,
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
    // Feeds that share rings are one interface in the file.
    let outputs: Vec<(usize, &FeedResult)> =
        feeds.iter().enumerate().filter(|(at, feed)| feed.asked.output == *at).collect();
    let mut all = Vec::new();
    for (output, FeedResult { ledger, interfaces, .. }) in &outputs {
        let numbers = rings.interfaces(*output);
        // A source that was never open has no interface in the file.
        let Some(&first) = numbers.first() else { continue };
        // Of several feeds, nobody knows whose frames these are.
        let own = (outputs.len() == 1).then_some(taken);
        let delivered = own.map(|taken| taken.frames);
        let lapped = own.map_or(0, |taken| taken.lapped);
        if interfaces.is_empty() {
            let os_drops = Some(ledger.dropped() + lapped);
            all.push(Statistics { os_drops, delivered, ..counts(first, ledger) });
            continue;
        }
        // Drops that are counted for no single interface are those of the pattern itself.
        let own: Vec<Statistics> = interfaces
            .iter()
            .filter_map(|share| {
                let number = *numbers.get(share.id as usize)?;
                // Drops in a buffer that interfaces share are not counted for any of them.
                let is_counted = !share.ledger.drops.is_empty();
                let os_drops = is_counted.then(|| share.ledger.dropped());
                Some(Statistics { os_drops, ..counts(number, &share.ledger) })
            })
            .collect();
        let theirs: u64 = own.iter().filter_map(|one| one.os_drops).sum();
        let os_drops = Some(ledger.dropped().saturating_sub(theirs) + lapped);
        all.push(Statistics { interface_id: first, os_drops, delivered, ..none() });
        all.extend(own);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Subscriptions;
    use weir_capture::generator::MemGen;
    use weir_capture::{Feed, FilterLocation, InterfaceLedger, Setup};
    use weir_consumer::{Consumer, JoinedFeed, Null};
    use weir_frame::pcapng::Interface;
    use weir_probe::{Probe, SourceSpec};
    use weir_ring::{Clock, RingSpec, WriterKind, memory};

    const LAPPED: u64 = 100;

    #[test]
    fn drops_that_are_counted_by_interface_are_not_the_patterns_too() {
        let (probe, _events) = Probe::new().unwrap();
        let spec = SourceSpec::new("gen:", |feeds| {
            let setup = Setup { feeds, ring_bytes: 4 << 20, ..Setup::default() };
            Ok(Box::new(MemGen::open("frames=1".parse()?, setup, false)?))
        });
        let (id, own) = probe.open(spec, vec![Feed::default().into()]).unwrap();
        let asked = Subscriptions::of_one(id, own[0]).feeds.remove(0);
        let named = |name: &str| Interface { name: name.into(), ..Interface::default() };
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: ["any", "a", "b"].map(named).into(),
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        let ring = memory::create_memfd("statistics-test", &spec).unwrap();
        let mut consumer = Null::new();
        for feed in JoinedFeed::in_order(vec![vec![ring]]) {
            consumer.join(feed).unwrap();
        }
        let of_drops = |feed: Ledger, shares: [Ledger; 3]| {
            let share = |(id, ledger)| InterfaceLedger { id, ledger, ..InterfaceLedger::default() };
            let interfaces = (1..).zip(shares).map(share).collect();
            let location = FilterLocation::default();
            let feed = FeedResult { asked: asked.clone(), ledger: feed, location, interfaces };
            let taken = Delivered { lapped: LAPPED, ..Delivered::default() };
            let all = of(&[feed], consumer.rings(), taken, (0, 1));
            all.iter().map(|one| (one.interface_id, one.os_drops)).collect::<Vec<_>>()
        };
        let ledger = |name: &'static str, frames| Ledger {
            drops: [(name, frames)].into(),
            ..Ledger::default()
        };
        // The third one has had no frame, so the file does not know it.
        let shares = [2, 0, 1].map(|frames| ledger("unreadable", frames));
        let by_interface = of_drops(ledger("unreadable", 3), shares);
        assert_eq!(by_interface, [(0, Some(1 + LAPPED)), (1, Some(2)), (2, Some(0))]);
        let of_the_socket = of_drops(ledger("kernel", 3), Default::default());
        assert_eq!(of_the_socket, [(0, Some(3 + LAPPED)), (1, None), (2, None)]);
    }
}
