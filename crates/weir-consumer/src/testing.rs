//! Rings, feeds and an output for tests.

use std::sync::{Arc, Mutex};

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Meta, Record};
use weir_ring::{Clock, Mapping, Ring, RingSpec, Writer, WriterKind, memory};

use crate::consumer::ConsumerError;
use crate::counted::Count;
use crate::sink::Sink;
use crate::source::{Begin, JoinedFeed};

/// A ring with four blocks of data that describes these interfaces.
pub(crate) fn ring_of(interfaces: Vec<Interface>) -> Ring<Mapping> {
    let spec = RingSpec {
        data_blocks: 4,
        interfaces,
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    memory::create_memfd("consumer-test", &spec).unwrap()
}

/// A writer of such a ring with one interface.
pub(crate) fn writer() -> Writer<Mapping> {
    Writer::new(ring_of(vec![Interface { link_type: 1, ..Interface::default() }]))
}

/// Writes and publishes a frame of 60 bytes.
pub(crate) fn push(writer: &mut Writer<Mapping>, ts_ns: u64) {
    writer.push(&Meta { ts_ns, wire_len: 60, ..Meta::default() }, &[0; 60]);
    writer.publish();
}

/// A feed of one ring. Its key is also the number of its output and of its line in the sleeper.
pub(crate) fn feed(key: usize, ring: &Ring<Mapping>) -> JoinedFeed {
    let (label, rings) = (String::new(), vec![ring.clone()]);
    let (key, output, first_line) = (key as u64, key, key);
    JoinedFeed { key, output, label, rings, first_line, channel: None, begin: Begin::Oldest }
}

/// Data that a [`Collect`] has received: names of interfaces with their labels; the interface number and the
/// timestamp of each frame; and the number of frames at the last flush.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) interfaces: Vec<String>,
    pub(crate) frames: Vec<(u32, u64)>,
    pub(crate) flushed: usize,
}

/// An output that keeps everything that it receives.
#[derive(Clone, Default)]
pub(crate) struct Collect(pub(crate) Arc<Mutex<Collected>>);

impl Sink for Collect {
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        label: &str,
    ) -> Result<(), ConsumerError> {
        let mut own = self.0.lock().unwrap();
        assert_eq!(own.interfaces.len(), number as usize);
        own.interfaces.push(format!("{}{label}", interface.name));
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let mut own = self.0.lock().unwrap();
        assert!((record.meta.interface_id as usize) < own.interfaces.len());
        own.frames.push((record.meta.interface_id, record.meta.ts_ns));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        let mut own = self.0.lock().unwrap();
        own.flushed = own.frames.len();
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.flush()
    }

    fn kept(&self) -> Count {
        let frames = self.0.lock().unwrap().flushed as u64;
        Count { frames, wire_bytes: frames * 60 }
    }
}
