//! An engine of one's own: a datagram is a frame, as from QEMU's `-netdev dgram`: `write_an_engine`. No rights are
//! needed.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use weir_capture::feed::{Fanout, Feeds, PlainEngine};
use weir_capture::{CaptureError, Feed, FeedControl, Info, Pumped, Setup, Source};
use weir_frame::record::Meta;
use weir_probe::{Probe, SourceSpec, Update};
use weir_ring::{Ledger, Poll, Reader, Start, Tally};

struct Datagrams(UnixDatagram, Info, Feeds, Fanout, Ledger);

impl Source for Datagrams {
    fn info(&self) -> &Info {
        &self.1
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.2.control()
    }

    fn pump(&mut self, _: Duration) -> Result<Pumped, CaptureError> {
        let Datagrams(socket, _, feeds, fanout, ledger) = self;
        let mut frame = [0; 65_536];
        let len = match socket.recv(&mut frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Pumped::More),
            received => received.map_err(CaptureError::os("receiving a datagram"))?,
        };
        let ts_ns = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        ledger.offered += 1;
        feeds.count(ledger.clone());
        fanout.push(&Meta { ts_ns, wire_len: len as u32, ..Meta::default() }, &frame[..len]);
        // Readers see the frame, and feeds may join or leave.
        fanout.leave();
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.2.end();
        self.3.close();
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (link, socket) = UnixDatagram::pair()?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let open = Arc::new(move |feeds| {
        let mut setup = Setup { feeds, ring_bytes: 4 << 20, promiscuous: false, may_change: true };
        let (feeds, fanout) = PlainEngine::ethernet("a socket").open_feeds(&mut setup)?;
        let info = Info { engine: "datagrams", homes: feeds.locations(), ..Info::default() };
        let socket = socket.try_clone().map_err(CaptureError::os("duplicating a socket"))?;
        Ok(Box::new(Datagrams(socket, info, feeds, fanout, Ledger::default())) as Box<dyn Source>)
    });
    let (probe, _events) = Probe::new()?;
    let spec = SourceSpec { name: "socket".into(), open, link: None, follows: false, cpus: None };
    let (source, subscriptions) = probe.open(spec, vec![Feed::default().into()])?;
    let consumer = probe.add_consumer(1)?;
    probe.attach(consumer.id, subscriptions[0])?;
    probe.start(source)?;
    let Update::Joined(joined) = consumer.updates.recv()? else { unreachable!("it has left none") };
    let (mut reader, mut tally) = (Reader::new(&joined.rings[0], Start::Oldest)?, Tally::default());
    for _ in 0..1000 {
        link.send(&[0x55; 100])?;
    }
    while tally.frames < 1000 && reader.count_in_place(&mut tally, 64)? != Poll::Closed {}
    for (_, Ledger { offered, captured, .. }) in probe.ledgers()? {
        println!("offered {offered} = captured {captured} = delivered {}", tally.frames);
    }
    Ok(())
}
