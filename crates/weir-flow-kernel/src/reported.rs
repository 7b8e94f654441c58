//! Flows that were reported as idle and are still in the table, for user space writes nothing there.
//!
//! When such a flow leaves its slot, its program writes a record of it. Only the part that was not reported counts:
//! most often nothing. If that record was lost, the programs have counted all of it as lost, and the reported part is
//! subtracted.

use crate::layout::Slot;

/// The reported part of the flow in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// 0: nothing.
    serial: u64,
    packets: u64,
    bytes: u64,
}

/// Reported parts, by slot.
pub struct Reported {
    parts: Vec<Part>,
    /// Flows of which all was reported, as far as is known.
    pub flows: u64,
    /// Counted as lost, and was not.
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
        // Zeroes: memory that nobody touched is none.
        let parts = vec![Part::default(); slots];
        Reported { parts, flows: 0, found_records: 0, found_packets: 0, found_bytes: 0 }
    }

    /// The part of a flow in the table that was not reported yet.
    pub fn new_of(&self, place: usize, flow: &Slot) -> Option<New> {
        let part = self.parts[place];
        let part = if part.serial == flow.serial { part } else { Part::default() };
        let new = New {
            packets: flow.packets.saturating_sub(part.packets),
            bytes: flow.bytes().saturating_sub(part.bytes),
        };
        (new.packets > 0).then_some(new)
    }

    /// Whether something was reported of a flow that was in this slot before that one.
    pub fn is_of_earlier(&self, place: usize, flow: &Slot) -> bool {
        let serial = self.parts[place].serial;
        serial != 0 && serial != flow.serial
    }

    /// All of a flow in the table is reported.
    ///
    /// All records of its CPU that were written before it was read have been [taken](Self::take).
    pub fn report(&mut self, place: usize, flow: &Slot) {
        if self.is_of_earlier(place, flow) {
            self.was_found(place);
        }
        let part = &mut self.parts[place];
        self.flows += u64::from(part.serial == 0);
        *part = Part { serial: flow.serial, packets: flow.packets, bytes: flow.bytes() };
    }

    /// A program's record of a flow that has left this slot: the part that was not reported.
    pub fn take(&mut self, place: usize, flow: &Slot) -> Option<New> {
        // Records of a slot come in the order of its flows: there was none of the one that was reported.
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
