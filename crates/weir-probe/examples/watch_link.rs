//! Watches a link for some seconds: `watch_link eth0 10`, as root. One line a frame, and the ledger at the end.

use std::error::Error;
use std::time::{Duration, Instant};

use weir_capture::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::{Feed, Setup};
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_print::{Frame, Options, write_line};
use weir_probe::core::Event;
use weir_probe::{Probe, SourceSpec};
use weir_ring::{Batch, Poll, Reader, Start};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [iface, seconds] = &args[..] else {
        return Err("usage: watch_link INTERFACE SECONDS".into());
    };
    let limit = Duration::from_secs(seconds.parse()?);
    let target = Target::Interface { netns: None, iface: iface.clone() };
    let spec = SourceSpec::new(iface, move |feeds| {
        // The best engine that works here. Feeds may join while it runs.
        let setup = Setup { feeds, may_change: true, ..Setup::default() };
        EngineRequest::default().open(&target, &setup)
    });
    let (probe, events) = Probe::new()?;
    let (source, subscriptions) = probe.open(spec, vec![Feed::default().into()])?;
    let consumer = probe.add_consumer(1024)?;
    probe.attach(consumer.id, subscriptions[0])?;
    let joined = consumer.wait_for_feed(limit).ok_or("the feed has no rings")?;
    probe.start(source)?;
    // A ring for each CPU or thread that writes.
    let readers: Result<Vec<_>, _> =
        joined.rings.iter().map(|ring| Reader::new(ring, Start::Oldest)).collect();
    let (mut readers, mut batch, begin) = (readers?, Batch::new(), Instant::now());
    let mut line = Vec::new();
    while begin.elapsed() < limit {
        for reader in &mut readers {
            match reader.poll(&mut batch)? {
                Poll::Frames(_) => {
                    for record in batch.records() {
                        let frame = Frame {
                            link_type: LINKTYPE_ETHERNET,
                            data: record.frame,
                            wire_len: record.meta.wire_len,
                            flags: record.meta.flags,
                        };
                        line.clear();
                        write_line(&mut line, &frame, &Options::default());
                        println!("{}", String::from_utf8_lossy(&line));
                    }
                }
                Poll::Lapped(frames) => println!("{frames} frames were overwritten unread"),
                Poll::Empty | Poll::Closed => {}
            }
        }
        consumer.sleeper.sleep(&readers, 1, Duration::from_millis(8))?;
    }
    probe.stop();
    for event in events.try_iter() {
        if let Event::FeedClosed(_, _, Some(ledger)) = event {
            println!("offered {}, captured {}", ledger.offered, ledger.captured);
        }
    }
    Ok(())
}
