//! The rings of one feed that the programs write, and the wakers of their readers.

use weir_frame::pcapng::Interface;
use weir_ring::geometry::WriterWord;
use weir_ring::{Mapping, Ring};

use crate::feed::wakers::Wakers;

/// The rings of one feed that the programs write. A free place has no rings.
#[derive(Default)]
pub(in crate::engines::bpf) struct HookPlace {
    pub(in crate::engines::bpf) rings: Vec<Ring<Mapping>>,
    pub(in crate::engines::bpf) wakers: Wakers,
    /// For each ring, the number of quarters that had begun at the last look.
    pub(in crate::engines::bpf) quarters: Vec<u64>,
    /// The description of the feed's interface; for a source that captures by pattern, the pattern.
    pub(in crate::engines::bpf) interface: Interface,
    /// Frames that the NIC had missed when the feed joined.
    pub(in crate::engines::bpf) missed_before: u64,
    /// The same by interface number, for a source that captures by pattern, as last read before the feed joined.
    pub(in crate::engines::bpf) missed_by_interface: Vec<Option<u64>>,
}

impl HookPlace {
    /// Wakes the readers of one CPU's ring whose thresholds are reached. If another quarter of the ring has begun, this
    /// also wakes the readers that wait for quarters. Returns the number of frames written into the ring.
    pub(super) fn wake_readers(&mut self, cpu: usize) -> u64 {
        let ring = &self.rings[cpu];
        let ordinal = ring.frames_written();
        self.wakers.published(cpu, ordinal);
        // The programs ring the doorbell when they open a quarter's first block (`ring_for_quarter` in bpf.bpf.c).
        let blocks = ring.geometry().data_blocks / 4;
        let begun = ring.writer_word(WriterWord::Opened).div_ceil(blocks);
        self.quarters.resize(self.rings.len(), 0);
        if std::mem::replace(&mut self.quarters[cpu], begun) != begun {
            self.wakers.filled_quarter(cpu);
        }
        ordinal
    }
}
