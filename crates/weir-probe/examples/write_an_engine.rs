//! An engine of one's own: a datagram is a frame, as from QEMU's `-netdev dgram`: `write_an_engine`. No rights are
//! needed.

use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, UNIX_EPOCH};

use weir_capture::PlainEngine;
use weir_capture::{CaptureError, Feed, Info, Pumped, Setup, Source};
use weir_frame::record::Meta;
use weir_probe::{Probe, SourceSpec};
use weir_ring::{Ledger, Poll, Reader, Start, Tally};

/// A source of datagrams. Filters, rings and ledgers of its feeds are the library's.
fn open(socket: &UnixDatagram, feeds: Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> {
    let socket = socket.try_clone().map_err(CaptureError::os("duplicating a socket"))?;
    let setup = Setup { feeds, ring_bytes: 4 << 20, may_change: true, ..Setup::default() };
    let info = Info { source: "socket".into(), engine: "datagrams", ..Info::default() };
    let mut frame = vec![0; 65_536];
    // Called again and again. It returns within some milliseconds, so that the source can be stopped.
    PlainEngine::ethernet("a socket").open(info, setup, move |input, _limit| {
        let len = match socket.recv(&mut frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Pumped::More),
            received => received.map_err(CaptureError::os("receiving a datagram"))?,
        };
        let ts_ns = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        input.push(&Meta { ts_ns, wire_len: len as u32, ..Meta::default() }, &frame[..len]);
        Ok(Pumped::More)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let (link, socket) = UnixDatagram::pair()?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (probe, _events) = Probe::new()?;
    let spec = SourceSpec::new("socket", move |feeds| open(&socket, feeds));
    let (source, subscriptions) = probe.open(spec, vec![Feed::default().into()])?;
    let consumer = probe.add_consumer(1)?;
    probe.attach(consumer.id, subscriptions[0])?;
    let joined = consumer.wait_for_feed(Duration::from_secs(1)).ok_or("the feed has no rings")?;
    probe.start(source)?;
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
