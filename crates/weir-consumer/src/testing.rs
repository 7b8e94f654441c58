//! Rings for tests.

use weir_frame::pcapng::Interface;
use weir_ring::{Clock, Mapping, Ring, RingSpec, WriterKind, memory};

/// A small ring that describes these interfaces.
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
