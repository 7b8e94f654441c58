//! Flows that were reported as idle and are still in the table, for user space writes nothing there.
//!
//! When such a flow leaves its slot, its program writes a record of it, and of that only what was not reported counts:
//! most often nothing. If that record was lost, the programs have counted all of it as lost, and what was reported is
//! taken off.

use crate::layout::Slot;

/// What was reported of the flow in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// 0: nothing.
    serial: u64,
    packets: u64,
    bytes: u64,
}

/// What was reported, by slot.
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

    /// What of a flow in the table was not reported.
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

    /// A program's record of a flow that has left this slot: what of it was not reported.
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
