//! Flow records as a text table.

use std::fmt::Write;

use weir_export::json::{addresses_text, time_text};
use weir_flow::FlowRecord;
use weir_frame::flow::protocol_name;
use weir_frame::headers::Addresses;

use crate::units::grouped;

/// Returns the records in this order, one per line, with aligned columns; empty without records.
pub fn table<'a>(
    records: impl Iterator<Item = &'a FlowRecord>,
    interface: impl Fn(u32) -> Option<&'a str>,
    is_biflow: bool,
) -> String {
    let rows: Vec<Vec<String>> =
        records.map(|record| row(record, interface(record.interface), is_biflow)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut head = vec!["start (UTC)", "seconds", "on", "proto", "source", "destination"];
    head.extend(["packets", "bytes"]);
    if is_biflow {
        head.extend(["back", "bytes back"]);
    }
    let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in [&head].into_iter().chain(&rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Numbers are right-aligned.
            let _ = match column == 1 || column >= 6 {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn row(record: &FlowRecord, interface: Option<&str>, is_biflow: bool) -> Vec<String> {
    let FlowRecord { key, first_ns, last_ns, forward, reverse, icmp, vlan, .. } = record;
    let seconds = last_ns.saturating_sub(*first_ns) as f64 / 1e9;
    let on = match vlan {
        Some(vlan) => format!("{}.{vlan}", interface.unwrap_or("?")),
        None => interface.unwrap_or("?").to_owned(),
    };
    let mut name =
        protocol_name(key.protocol).map_or_else(|| key.protocol.to_string(), str::to_owned);
    if let Some((kind, code)) = icmp {
        name += &format!(" {kind}/{code}");
    }
    let [source, destination] = ends(record);
    let start = time_text(*first_ns).replace('T', " ");
    let start = start.get(..23).unwrap_or(&start).to_owned();
    let mut row = vec![start, format!("{seconds:.3}"), on, name, source, destination];
    row.extend([grouped(forward.packets), grouped(forward.bytes)]);
    if is_biflow {
        row.extend([grouped(reverse.packets), grouped(reverse.bytes)]);
    }
    row
}

/// Returns source and destination, with their ports if they have any.
fn ends(record: &FlowRecord) -> [String; 2] {
    let key = &record.key;
    let [source, destination] = addresses_text(&key.addresses);
    let is_v6 = matches!(key.addresses, Addresses::V6 { .. });
    let end = |address: String, port: u16| match (port, is_v6) {
        (0, _) => address,
        (port, true) => format!("[{address}]:{port}"),
        (port, false) => format!("{address}:{port}"),
    };
    [end(source, key.src_port), end(destination, key.dst_port)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::{EndReason, Totals};
    use weir_frame::flow::FlowKey;
    use weir_frame::headers::protocol;

    #[test]
    fn columns_are_as_wide_as_they_need_be() {
        let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 200].into() };
        let tcp = FlowRecord {
            key: FlowKey { addresses, src_port: 1000, dst_port: 80, protocol: protocol::TCP },
            vlan: None,
            interface: 0,
            first_ns: 1_500_000_000_123_456_789,
            last_ns: 1_500_000_001_623_456_789,
            forward: Totals { packets: 1_234, bytes: 80, tcp_flags: 0 },
            reverse: Totals { packets: 1, bytes: 40, tcp_flags: 0 },
            icmp: None,
            reason: EndReason::Idle,
        };
        let key = FlowKey { src_port: 0, dst_port: 0, protocol: protocol::ICMP, ..tcp.key };
        let ping = FlowRecord { key, vlan: Some(7), icmp: Some((8, 0)), ..tcp };
        let text = table([tcp, ping].iter(), |_| Some("eth0"), true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].starts_with("start (UTC)") && lines[0].ends_with("back  bytes back"),
            "{text}"
        );
        assert!(
            lines[1].starts_with(
                "2017-07-14 02:40:00.123    1.500  eth0    tcp       10.0.0.1:1000  10.0.0.200:80"
            ),
            "{text}"
        );
        assert!(lines[2].contains("eth0.7  icmp 8/0  10.0.0.1       10.0.0.200 "), "{text}");
        assert_eq!(table([].iter(), |_| None, false), "");
    }
}
