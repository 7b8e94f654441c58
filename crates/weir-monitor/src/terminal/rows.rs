//! The rows of a pane, and which one is selected.

use std::net::IpAddr;

use weir_frame::flow::FlowKey;

use super::search::{self, Query};
use super::sort::Sort;
use crate::view::{FlowView, View};

/// The subject of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// Flows that go on.
    #[default]
    Flows,
    /// Addresses.
    Talkers,
    /// Protocols above IP.
    Protocols,
    /// Account of frames and records.
    Losses,
}

impl Pane {
    /// In the order of their keys, `1` to `4`.
    pub const ALL: [Pane; 4] = [Pane::Flows, Pane::Talkers, Pane::Protocols, Pane::Losses];

    /// On its tab.
    pub const fn name(self) -> &'static str {
        match self {
            Pane::Flows => "Flows",
            Pane::Talkers => "Talkers",
            Pane::Protocols => "Protocols",
            Pane::Losses => "Losses",
        }
    }
}

/// A row, whatever its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowId {
    /// Key, VLAN, interface.
    Flow(FlowKey, Option<u16>, u32),
    /// Its address.
    Talker(IpAddr),
    /// Its number.
    Protocol(u8),
}

impl RowId {
    /// Of a flow.
    pub fn of(flow: &FlowView) -> RowId {
        RowId::Flow(flow.record.key, flow.record.vlan, flow.record.interface)
    }
}

/// A row that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place in the view.
    pub index: usize,
    /// Its identity.
    pub id: RowId,
}

/// The rows of a pane that match, in their order. [`Pane::Losses`] has lines, and no rows.
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
    /// The selected row. `None`: the place is, whatever comes there.
    id: Option<RowId>,
    place: usize,
}

impl Cursor {
    /// Its place: that of the row that was selected, or, if this is gone, where it was.
    pub fn place(&self, rows: &[Row]) -> usize {
        let found = self.id.and_then(|id| rows.iter().position(|row| row.id == id));
        found.unwrap_or(self.place.min(rows.len().saturating_sub(1)))
    }

    /// Selects the row of a place; the last one if it is beyond that.
    pub fn select(&mut self, place: usize, rows: &[Row]) {
        self.place = place.min(rows.len().saturating_sub(1));
        self.id = rows.get(self.place).map(|row| row.id);
    }

    /// Stays at the top, whatever comes there.
    pub fn release(&mut self) {
        *self = Cursor::default();
    }

    /// Remembers the place, in case the row goes.
    pub fn follow(&mut self, rows: &[Row]) {
        self.place = self.place(rows);
    }
}

/// The first of `length` rows that are shown on `height` lines: the selected one is in the middle where that can be.
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
        // Its flow ends: the place stays, as long as there are rows.
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
