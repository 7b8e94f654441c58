//! Draws the panes that are tables: flows, talkers, protocols.

use ratatui::Frame;
use ratatui::layout::Rect;

use super::grid::{Column, Grid};
use super::look::Look;
use super::rows::{Pane, Row, first_shown};
use super::sort;
use super::state::State;
use super::text::{bit_rate, bytes, clock, ends, escaped, grouped, packet_rate, protocol, span};
use crate::view::{FlowView, View};

/// Width of a full bar in cells.
const BAR_WIDTH: usize = 30;

/// Draws the open pane.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, rows: &[Row], view: &View) {
    let height = usize::from(area.height.saturating_sub(1));
    let place = state.place(rows);
    let first = first_shown(place, rows.len(), height);
    let shown = &rows[first..rows.len().min(first + height)];
    let selected = (!rows.is_empty()).then_some(place - first);
    let indexes = shown.iter().map(|row| row.index);
    let (columns, rows) = match state.pane {
        Pane::Flows => {
            let flows = indexes.filter_map(|index| view.flows.get(index));
            (flow_columns(state, view), flows.map(|flow| flow_cells(flow, view)).collect())
        }
        Pane::Talkers => (talker_columns(), talker_rows(indexes, view)),
        Pane::Protocols => (protocol_columns(), protocol_rows(indexes, view, state.look)),
        Pane::Losses => return,
    };
    Grid { columns, rows, selected }.draw(area, frame.buffer_mut(), state.look);
}

fn flow_columns(state: &State, view: &View) -> Vec<Column> {
    use sort::Column::*;
    let column = |column: sort::Column| {
        // The three values: least width, whether the column is elastic, rank. The widths are enough for nearly all
        // values, so that columns do not appear and disappear as rows change.
        let (width_min, is_elastic, rank) = match column {
            Bits => (9, false, 0),
            Packets => (9, false, 5),
            TotalBytes => (7, false, 2),
            TotalPackets => (11, false, 6),
            Start => (8, false, 7),
            Duration => (6, false, 3),
            Protocol => (8, false, 1),
            Source | Destination => (19, true, 0),
            Interface => (8, true, if view.origins.len() > 1 { 4 } else { 8 }),
        };
        let is_sorted = state.sort.column == column;
        let order = state.look.order(state.sort.is_descending());
        let head = match is_sorted {
            true => format!("{}{order}", column.name()),
            false => column.name().to_owned(),
        };
        let is_number = !matches!(column, Protocol | Source | Destination | Interface);
        // The sorted column is always shown: an order by a hidden column would be confusing.
        let rank = if is_sorted { 0 } else { rank };
        self::Column { head, is_number, width_min, is_elastic, rank }
    };
    sort::Column::ALL.map(column).into()
}

fn flow_cells(flow: &FlowView, view: &View) -> Vec<String> {
    let record = &flow.record;
    let [source, destination] = ends(&record.key);
    let mut name = protocol(record.key.protocol);
    if let Some((kind, code)) = record.icmp {
        name += &format!(" {kind}/{code}");
    }
    let origin = view.origins.get(record.interface as usize);
    let mut on = origin.map_or("?".to_owned(), |origin| escaped(&origin.interface));
    if let Some(vlan) = record.vlan {
        on += &format!(".{vlan}");
    }
    if let Some(owner) = origin.and_then(|origin| origin.owner.as_ref()) {
        on += &format!(" {}", escaped(&owner.name));
    }
    vec![
        bit_rate(flow.rates.bits),
        packet_rate(flow.rates.packets),
        bytes(record.bytes()),
        grouped(record.packets()),
        clock(record.first_ns),
        span(record.last_ns.saturating_sub(record.first_ns)),
        name,
        source,
        destination,
        on,
    ]
}

fn talker_columns() -> Vec<Column> {
    let number = |head: &str, rank| Column {
        head: head.to_owned(),
        is_number: true,
        width_min: 10,
        is_elastic: false,
        rank,
    };
    let address =
        Column { is_number: false, width_min: 15, is_elastic: true, ..number("address", 0) };
    vec![
        address,
        number("sends", 0),
        number("packets/s", 2),
        number("receives", 0),
        number("packets/s", 2),
        number("flows", 1),
    ]
}

fn talker_rows(indexes: impl Iterator<Item = usize>, view: &View) -> Vec<Vec<String>> {
    let cells = |talker: &crate::view::Talker| {
        vec![
            talker.address.to_string(),
            bit_rate(talker.sent.bits),
            packet_rate(talker.sent.packets),
            bit_rate(talker.received.bits),
            packet_rate(talker.received.packets),
            grouped(talker.flows),
        ]
    };
    indexes.filter_map(|index| view.talkers.get(index)).map(cells).collect()
}

fn protocol_columns() -> Vec<Column> {
    let number = |head: &str, width_min, rank| Column {
        head: head.to_owned(),
        is_number: true,
        width_min,
        is_elastic: false,
        rank,
    };
    vec![
        Column { is_number: false, ..number("protocol", 8, 0) },
        number("rate", 9, 0),
        number("packets/s", 9, 3),
        number("bytes", 8, 2),
        number("packets", 9, 4),
        number("share", 6, 1),
        Column { is_number: false, ..number("of the rate", BAR_WIDTH, 5) },
    ]
}

fn protocol_rows(
    indexes: impl Iterator<Item = usize>,
    view: &View,
    look: Look,
) -> Vec<Vec<String>> {
    let sum: f64 = view.protocols.iter().map(|protocol| protocol.rates.bits.max(0.0)).sum();
    let cells = |one: &crate::view::Protocol| {
        // If nothing is sent, the share would be 0 / 0.
        let share = one.rates.bits.max(0.0) / sum;
        let share = if share.is_finite() { share } else { 0.0 };
        let blocks = (share * BAR_WIDTH as f64).round() as usize;
        vec![
            protocol(one.number),
            bit_rate(one.rates.bits),
            packet_rate(one.rates.packets),
            bytes(one.total.bytes),
            grouped(one.total.packets),
            format!("{:.1} %", share * 100.0),
            look.block().repeat(blocks.min(BAR_WIDTH)),
        ]
    };
    indexes.filter_map(|index| view.protocols.get(index)).map(cells).collect()
}
