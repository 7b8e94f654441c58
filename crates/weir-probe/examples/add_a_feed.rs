//! Adds a feed to a probe that runs, and takes it away again: `add_a_feed`. Frames are made in memory, so no rights are
//! needed.

use std::error::Error;
use std::time::Duration;

use weir_capture::generator::{GenSpec, MemGen, Rate};
use weir_capture::{Feed, Sampling, Setup};
use weir_probe::core::Event;
use weir_probe::{Probe, SourceSpec};

fn main() -> Result<(), Box<dyn Error>> {
    let spec = SourceSpec::new("gen:", |feeds| {
        let setup = Setup { feeds, ring_bytes: 8 << 20, may_change: true, ..Setup::default() };
        let spec = GenSpec { rate: Rate::Pps(100_000.0), ..GenSpec::default() };
        Ok(Box::new(MemGen::open(spec, setup, false)?))
    });
    let (probe, events) = Probe::new()?;
    let (source, _) = probe.open(spec, vec![Feed::default().into()])?;
    probe.start(source)?;
    std::thread::sleep(Duration::from_millis(100));

    // The first 64 bytes of one frame in ten. Its ledger begins with the frame at which it joins.
    let sampled = Feed { snaplen: 64, sampling: Sampling::OneIn(10), ..Feed::default() };
    let subscription = probe.subscribe(source, sampled.into())?;
    std::thread::sleep(Duration::from_millis(100));
    for (feed, ledger) in probe.ledgers()? {
        println!("{feed:?} so far: offered {}, captured {}", ledger.offered, ledger.captured);
    }
    // Its last subscriber leaves, so the feed ends: its ledger is told as an event.
    probe.unsubscribe(subscription)?;
    probe.stop();
    for event in events.try_iter() {
        if let Event::FeedClosed(_, feed, Some(ledger)) = event {
            let sum = ledger.captured + ledger.filtered + ledger.sampled + ledger.dropped();
            println!(
                "{feed:?} at its end: offered {} = captured {} + sampled out {} + others",
                ledger.offered, ledger.captured, ledger.sampled
            );
            assert_eq!(ledger.offered, sum, "the ledger closes");
        }
    }
    Ok(())
}
