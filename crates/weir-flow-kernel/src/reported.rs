//! Flows that were reported as idle but are still in the table, because user space does not write there.
//!
//! When such a flow leaves its slot, its program writes a record of the whole flow. Only the part that was not yet
//! reported counts; most often this part is empty. If the record was lost, the programs have counted the whole flow
//! as lost, and the reported part is subtracted from that count.

use crate::layout::Slot;

/// The reported part of the flow in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Serial number of the flow; 0: no part was reported.
    serial: u64,
    packets: u64,
    bytes: u64,
}

/// Reported parts, by slot.
pub struct Reported {
    parts: Vec<Part>,
    /// Flows that were reported completely, as of the last look at them.
    pub flows: u64,
    /// Records that the programs counted as lost although their flows had been reported; their packets and bytes.
    pub found_records: u64,
    pub found_packets: u64,
    pub found_bytes: u64,
}

/// Packets and bytes that were not reported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    pub packets: u64,
    pub bytes: u64,
}

impl Reported {
    pub fn new(slots: usize) -> Reported {
        // Zeroes: the allocator takes such memory from the kernel, which provides a page only when it is first
        // touched.
        let parts = vec![Part::default(); slots];
        Reported { parts, flows: 0, found_records: 0, found_packets: 0, found_bytes: 0 }
    }

    /// Returns the part of a flow in the table that was not reported yet.
    pub fn new_of(&self, place: usize, flow: &Slot) -> Option<New> {
        let part = self.parts[place];
        let part = if part.serial == flow.serial { part } else { Part::default() };
        let new = New {
            packets: flow.packets.saturating_sub(part.packets),
            bytes: flow.bytes().saturating_sub(part.bytes),
        };
        (new.packets > 0).then_some(new)
    }

    /// Returns whether a part was reported of a flow that was in this slot before `flow`.
    pub fn is_of_earlier(&self, place: usize, flow: &Slot) -> bool {
        let serial = self.parts[place].serial;
        serial != 0 && serial != flow.serial
    }

    /// Notes that the whole of a flow in the table is reported.
    ///
    /// The caller has [taken](Self::take) all records that the CPU had written before the flow was read.
    pub fn report(&mut self, place: usize, flow: &Slot) {
        if self.is_of_earlier(place, flow) {
            self.was_found(place);
        }
        let part = &mut self.parts[place];
        self.flows += u64::from(part.serial == 0);
        *part = Part { serial: flow.serial, packets: flow.packets, bytes: flow.bytes() };
    }

    /// Takes a program's record of a flow that has left this slot, and returns the part that was not reported.
    pub fn take(&mut self, place: usize, flow: &Slot) -> Option<New> {
        // The records of a slot come in the order of its flows: the record of the flow that was reported has been
        // lost.
        if self.is_of_earlier(place, flow) {
            self.was_found(place);
        }
        let new = self.new_of(place, flow);
        self.forget(place);
        new
    }

    fn was_found(&mut self, place: usize) {
        let part = self.parts[place];
        self.found_records += 1;
        self.found_packets += part.packets;
        self.found_bytes += part.bytes;
        self.forget(place);
    }

    fn forget(&mut self, place: usize) {
        self.flows -= u64::from(self.parts[place].serial != 0);
        self.parts[place] = Part::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(serial: u64, packets: u64) -> Slot {
        Slot::test(serial, packets, packets * 46)
    }

    fn new(packets: u64) -> Option<New> {
        Some(New { packets, bytes: packets * 46 })
    }

    #[test]
    fn what_was_reported_is_not_reported_again() {
        let mut reported = Reported::new(8);
        assert_eq!(reported.new_of(3, &flow(1, 10)), new(10));
        reported.report(3, &flow(1, 10));
        assert_eq!((reported.new_of(3, &flow(1, 10)), reported.flows), (None, 1));
        // A program was held up, and has added to the flow since.
        assert_eq!(reported.new_of(3, &flow(1, 12)), new(2));
        assert_eq!(reported.take(3, &flow(1, 12)), new(2));
        assert_eq!((reported.flows, reported.found_records), (0, 0));
        assert_eq!(reported.take(3, &flow(2, 5)), new(5));
    }

    #[test]
    fn a_lost_record_of_a_flow_that_was_reported_is_found() {
        let mut reported = Reported::new(8);
        reported.report(3, &flow(1, 10));
        // The record of flow 1 had no room: the next one of its slot is of flow 2.
        assert_eq!(reported.take(3, &flow(2, 5)), new(5));
        let found = |reported: &Reported| {
            (reported.found_records, reported.found_packets, reported.found_bytes, reported.flows)
        };
        assert_eq!(found(&reported), (1, 10, 460, 0));
        reported.report(3, &flow(3, 4));
        // Nor is there one of flow 3; flow 4 is seen in its place.
        assert!(reported.is_of_earlier(3, &flow(4, 1)));
        reported.report(3, &flow(4, 1));
        assert_eq!(found(&reported), (2, 14, 644, 1));
    }
}
