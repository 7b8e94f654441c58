//! Feeds, consumers and sources that come and go leave no descriptor behind: in a process of its own, because descriptors are
//! counted.

mod common;

use weir_capture::generator::{GenSpec, MemGen, Rate};
use weir_capture::{Feed, Setup};
use weir_probe::core::Event;
use weir_probe::{Probe, SourceSpec, Wants};

use common::{LIMIT, wait_for};

fn snaplen(snaplen: u32) -> Wants {
    Feed { snaplen, ..Feed::default() }.into()
}

fn generator() -> SourceSpec {
    SourceSpec::new("gen:", |feeds| {
        let setup = Setup {
            feeds,
            ring_bytes: 8 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let spec = GenSpec { rate: Rate::Pps(50_000.0), ..GenSpec::default() };
        Ok(Box::new(MemGen::open(spec, setup, false)?))
    })
}

#[test]
fn hundreds_of_feeds_and_consumers_and_some_sources_leave_nothing_behind() {
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (probe, events) = Probe::new().unwrap();
    let (source, _) = probe.open(generator(), vec![snaplen(64)]).unwrap();
    probe.start(source).unwrap();
    let before = open_files();
    for round in 0..200 {
        let subscription = probe.subscribe(source, snaplen(100 + round)).unwrap();
        let consumer = probe.add_consumer(2).unwrap();
        probe.attach(consumer.id, subscription).unwrap();
        let feed = consumer.wait_for_feed(LIMIT).expect("it joins").feed;
        if round % 2 == 0 {
            drop(consumer);
            probe.unsubscribe(subscription).unwrap();
        } else {
            probe.unsubscribe(subscription).unwrap();
            drop(consumer);
        }
        let ledger = wait_for(&events, |event| match event {
            Event::FeedClosed(_, closed, ledger) if closed == feed => ledger,
            _ => None,
        });
        assert!(ledger.closes(), "{ledger:?}");
    }
    // Sources that come and go leave the first alone.
    for _ in 0..20 {
        let (other, own) = probe.open(generator(), vec![snaplen(64), snaplen(65)]).unwrap();
        let consumer = probe.add_consumer(4).unwrap();
        own.iter().for_each(|&own| probe.attach(consumer.id, own).unwrap());
        probe.start(other).unwrap();
        probe.close(other).unwrap();
        assert_eq!(probe.info_of(other).expect("its last words").engine, "gen");
    }
    assert_eq!(open_files(), before, "descriptors are left behind");
    assert_eq!(probe.ledgers().unwrap().len(), 1);
}
