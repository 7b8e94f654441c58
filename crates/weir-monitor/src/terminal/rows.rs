//! The rows of a pane, and the selected row.

use std::net::IpAddr;

use weir_frame::flow::FlowKey;

use super::search::{self, Query};
use super::sort::Sort;
use crate::view::{FlowView, View};

/// A pane of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// The pane with the flows in the table.
    #[default]
    Flows,
    /// The pane with the addresses.
    Talkers,
    /// The pane with the protocols above IP.
    Protocols,
    /// The pane with the ledger: counts of frames, flows and records.
    Losses,
}

impl Pane {
    /// All panes, in the order of their keys, `1` to `4`.
    pub const ALL: [Pane; 4] = [Pane::Flows, Pane::Talkers, Pane::Protocols, Pane::Losses];

    /// Returns the name of the pane.
    pub const fn name(self) -> &'static str {
        match self {
            Pane::Flows => "Flows",
            Pane::Talkers => "Talkers",
            Pane::Protocols => "Protocols",
            Pane::Losses => "Losses",
        }
    }
}

/// The identity of a row, whatever its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowId {
    /// A flow: key, VLAN, interface.
    Flow(FlowKey, Option<u16>, u32),
    /// A talker: its address.
    Talker(IpAddr),
    /// A protocol: its number.
    Protocol(u8),
}

impl RowId {
    /// Returns the identity of a flow's row.
    pub fn of(flow: &FlowView) -> RowId {
        RowId::Flow(flow.record.key, flow.record.vlan, flow.record.interface)
    }
}

/// A displayed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index in the view.
    pub index: usize,
    /// Identity of the row.
    pub id: RowId,
}

/// Returns the rows of a pane that match the search, sorted. [`Pane::Losses`] has lines instead of rows.
pub fn rows(pane: Pane, query: &Query, sort: Sort, view: &View) -> Vec<Row> {
    match pane {
        Pane::Flows => flows(query, sort, view),
        Pane::Talkers => {
            let row = |(index, talker): (usize, &crate::Talker)| {
                let is_shown = query.matches(&search::of_address(talker.address));
                is_shown.then_some(Row { index, id: RowId::Talker(talker.address) })
            };
            view.talkers.iter().enumerate().filter_map(row).collect()
        }
        Pane::Protocols => {
            let row = |(index, protocol): (usize, &crate::Protocol)| {
                let is_shown = query.matches(&search::of_protocol(protocol.number));
                is_shown.then_some(Row { index, id: RowId::Protocol(protocol.number) })
            };
            view.protocols.iter().enumerate().filter_map(row).collect()
        }
        Pane::Losses => Vec::new(),
    }
}

fn flows(query: &Query, sort: Sort, view: &View) -> Vec<Row> {
    let is_shown = |flow: &FlowView| {
        let origin = view.origins.get(flow.record.interface as usize);
        query.is_empty() || query.matches(&search::of_flow(&flow.record, origin))
    };
    let mut shown: Vec<(usize, &FlowView)> =
        view.flows.iter().enumerate().filter(|(_, flow)| is_shown(flow)).collect();
    shown.sort_by(|(_, a), (_, b)| sort.compare(a, b));
    shown.into_iter().map(|(index, flow)| Row { index, id: RowId::of(flow) }).collect()
}

/// The selected row of a pane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The selected row. `None`: the place is selected, whichever row is there.
    id: Option<RowId>,
    place: usize,
}

impl Cursor {
    /// Returns the place of the selected row, or its last place if the row is gone.
    pub fn place(&self, rows: &[Row]) -> usize {
        let found = self.id.and_then(|id| rows.iter().position(|row| row.id == id));
        found.unwrap_or(self.place.min(rows.len().saturating_sub(1)))
    }

    /// Selects the row at a place, or the last row if there are fewer.
    pub fn select(&mut self, place: usize, rows: &[Row]) {
        self.place = place.min(rows.len().saturating_sub(1));
        self.id = rows.get(self.place).map(|row| row.id);
    }

    /// Selects the top place, whichever row is there.
    pub fn release(&mut self) {
        *self = Cursor::default();
    }

    /// Records the place of the selected row, in case the row disappears.
    pub fn follow(&mut self, rows: &[Row]) {
        self.place = self.place(rows);
    }
}

/// Returns the first displayed row, if `length` rows are displayed on `height` lines. The selected row is in the
/// middle, if possible.
pub fn first_shown(place: usize, length: usize, height: usize) -> usize {
    place.saturating_sub(height / 2).min(length.saturating_sub(height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::view;

    fn all(view: &View) -> Vec<Row> {
        rows(Pane::Flows, &Query::default(), Sort::default(), view)
    }

    #[test]
    fn a_selected_row_moves_with_its_flow() {
        let mut view = view(1, 5);
        let mut cursor = Cursor::default();
        cursor.select(1, &all(&view));
        let flows = std::sync::Arc::make_mut(&mut view.flows);
        flows[1].rates.bits = 0.0;
        cursor.follow(&all(&view));
        assert_eq!(cursor.place(&all(&view)), 4, "the slowest now");
        // The flow ends: its place stays selected, as long as there are rows.
        std::sync::Arc::make_mut(&mut view.flows).remove(1);
        assert_eq!(cursor.place(&all(&view)), 3);
        assert_eq!(cursor.place(&[]), 0);
        cursor.select(100, &all(&view));
        assert_eq!(cursor.place(&all(&view)), 3);
        cursor.release();
        assert_eq!(cursor.place(&all(&view)), 0);
    }

    #[test]
    fn a_search_keeps_what_matches_in_each_pane() {
        let view = view(1, 5);
        let count = |pane, text| rows(pane, &Query::new(text), Sort::default(), &view).len();
        assert_eq!(count(Pane::Flows, "10.0.0.3:"), 1);
        assert_eq!(count(Pane::Talkers, "10.0.0.2"), 1);
        assert_eq!((count(Pane::Protocols, "udp"), count(Pane::Protocols, "!udp")), (1, 1));
        assert_eq!(count(Pane::Losses, ""), 0);
    }

    #[test]
    fn the_selected_row_is_always_shown() {
        for length in 0..12 {
            for height in 1..12 {
                for place in 0..length {
                    let first = first_shown(place, length, height);
                    assert!(first <= place && place < first + height);
                    assert!(first + height <= length || first == 0, "no empty lines");
                }
            }
        }
    }
}
