//! Helpers for the tests of all engines.

use std::time::{Duration, Instant};

use weir_capture::{CaptureError, Feed, FilterLocation, Pumped, Setup, Source};
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::{Batch, Ledger, Mapping, Poll, Reader, Ring, Start};

/// Duration of one call of `pump` in these tests.
pub const TURN: Duration = Duration::from_millis(20);
/// Deadline for steps that should take milliseconds.
pub const LIMIT: Duration = Duration::from_secs(10);

pub fn setup(ring_mib: u64) -> Setup {
    Setup {
        feeds: vec![Feed {
            interface: Interface { name: "test".into(), link_type: 1, ..Interface::default() },
            ..Feed::default()
        }],
        ring_bytes: ring_mib << 20,
        promiscuous: true,
        ..Setup::default()
    }
}

/// A frame as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub meta: Meta,
    pub frame: Vec<u8>,
}

/// Reads all remaining frames of a closed ring.
pub fn read_closed(reader: &mut Reader<Mapping>) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut batch = Batch::new();
    loop {
        match reader.poll(&mut batch).expect("the ring is sound") {
            Poll::Frames(_) => {
                seen.extend(batch.records().map(|r| Seen { meta: r.meta, frame: r.frame.to_vec() }))
            }
            Poll::Closed => return seen,
            other => panic!("{other:?} in a closed ring that was large enough"),
        }
    }
}

pub fn reader_of(source: &dyn Source) -> Reader<Mapping> {
    let ring: &Ring<Mapping> = &source.rings()[0];
    Reader::new(ring, Start::Oldest).expect("a fresh ring")
}

/// The place where each feed's filter runs.
pub fn locations(source: &dyn Source) -> Vec<FilterLocation> {
    source.control().feeds().iter().map(|feed| feed.location).collect()
}

/// Pumps until `frames` frames are captured, the source ends, or there is an error.
pub fn pump_until(source: &mut dyn Source, frames: u64) -> Result<Pumped, CaptureError> {
    let begin = Instant::now();
    loop {
        match source.pump(TURN) {
            Ok(Pumped::More) => {}
            other => return other,
        }
        if source.ledger()?.captured >= frames {
            return Ok(Pumped::More);
        }
        assert!(begin.elapsed() < LIMIT, "{} instead of {frames} frames", source.ledger()?);
    }
}

/// Pumps to the end. Returns all frames, the final ledger and the result.
pub fn run_to_end(source: &mut dyn Source) -> (Vec<Seen>, Ledger, Result<(), CaptureError>) {
    let mut reader = reader_of(source);
    source.start().expect("it starts");
    let result = match pump_until(source, u64::MAX) {
        Ok(ended) => {
            assert_eq!(ended, Pumped::Ended);
            Ok(())
        }
        Err(error) => Err(error),
    };
    let ledger = source.finish().expect("it stops");
    assert!(ledger.closes(), "{ledger}");
    (read_closed(&mut reader), ledger, result)
}
