//! A flow as a line of JSON.

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use weir_flow::{FlowRecord, Totals, community_id};
use weir_frame::flow::has_ports;
use weir_frame::headers::{Addresses, protocol};

/// A flow that has ended. Names are those of docs/flows.md.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    start: String,
    end: String,
    interface: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    src_ip: String,
    dst_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    proto: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    #[serde(flatten)]
    forward: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    reverse: Option<Counts>,
    end_reason: &'static str,
    community_id: String,
}

/// Counts of one direction.
#[derive(Serialize)]
struct Counts {
    packets: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_flags: Option<String>,
}

impl Counts {
    fn new(totals: &Totals, is_tcp: bool) -> Counts {
        let Totals { packets, bytes, tcp_flags } = *totals;
        Counts { packets, bytes, tcp_flags: is_tcp.then(|| flags_text(tcp_flags)) }
    }
}

/// The flags as tools write them, `CEUAPRSF`, those that were never set left out.
fn flags_text(flags: u8) -> String {
    let letters = (0..8).rev().zip("CEUAPRSF".chars());
    letters.filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, letter)| letter).collect()
}

/// RFC 3339, in UTC, to the nanosecond.
pub fn time_text(ns: u64) -> String {
    DateTime::from_timestamp_nanos(ns.try_into().unwrap_or(i64::MAX))
        .to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// Source and destination of a flow.
pub fn addresses_text(addresses: &Addresses) -> [String; 2] {
    match addresses {
        Addresses::V4 { src, dst } => [src.to_string(), dst.to_string()],
        Addresses::V6 { src, dst } => [src.to_string(), dst.to_string()],
    }
}

/// The line, with its end.
pub fn line(record: &FlowRecord, interface: Option<&str>, is_biflow: bool) -> String {
    let FlowRecord { key, vlan, first_ns, last_ns, forward, reverse, icmp, reason, .. } = record;
    let is_tcp = key.protocol == protocol::TCP;
    let has_ports = has_ports(key.protocol);
    let [src_ip, dst_ip] = addresses_text(&key.addresses);
    let line = Line {
        event: "flow",
        start: time_text(*first_ns),
        end: time_text(*last_ns),
        interface,
        vlan: *vlan,
        src_ip,
        dst_ip,
        src_port: has_ports.then_some(key.src_port),
        dst_port: has_ports.then_some(key.dst_port),
        proto: key.protocol,
        icmp_type: icmp.map(|(kind, _)| kind),
        icmp_code: icmp.map(|(_, code)| code),
        forward: Counts::new(forward, is_tcp),
        reverse: is_biflow.then(|| Counts::new(reverse, is_tcp)),
        end_reason: reason.name(),
        community_id: community_id(key, *icmp),
    };
    serde_json::to_string(&line).expect("numbers and strings serialize") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::EndReason;
    use weir_frame::flow::FlowKey;

    #[test]
    fn a_line_has_what_its_flow_has_and_nothing_else() {
        let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let record = FlowRecord {
            key: FlowKey { addresses, src_port: 1000, dst_port: 80, protocol: protocol::TCP },
            vlan: None,
            interface: 0,
            first_ns: 1_500_000_000_000_000_001,
            last_ns: 1_500_000_001_000_000_000,
            forward: Totals { packets: 2, bytes: 80, tcp_flags: 0b1_0010 },
            reverse: Totals { packets: 1, bytes: 40, tcp_flags: 0b1_0001 },
            icmp: None,
            reason: EndReason::Idle,
        };
        let shown: serde_json::Value =
            serde_json::from_str(&line(&record, Some("eth0"), true)).unwrap();
        let wanted = serde_json::json!({
            "event": "flow", "start": "2017-07-14T02:40:00.000000001Z", "end": "2017-07-14T02:40:01.000000000Z",
            "interface": "eth0", "src_ip": "10.0.0.1", "dst_ip": "10.0.0.2", "src_port": 1000, "dst_port": 80,
            "proto": 6, "packets": 2, "bytes": 80, "tcp_flags": "AS",
            "reverse": {"packets": 1, "bytes": 40, "tcp_flags": "AF"}, "end_reason": "idle",
            "community_id": community_id(&record.key, None),
        });
        assert_eq!(shown, wanted);
        let key = FlowKey { protocol: protocol::UDP_LITE, ..record.key };
        let shown = line(&FlowRecord { key, ..record }, None, false);
        assert!(shown.contains("\"src_port\":1000,\"dst_port\":80"), "{shown}");
        let icmp = FlowKey { protocol: protocol::ICMP, src_port: 0, dst_port: 0, ..record.key };
        let record = FlowRecord { key: icmp, icmp: Some((8, 0)), ..record };
        let shown: serde_json::Value = serde_json::from_str(&line(&record, None, false)).unwrap();
        assert!(shown.get("reverse").is_none() && shown.get("src_port").is_none(), "{shown}");
        assert_eq!(
            (&shown["icmp_type"], &shown["interface"]),
            (&8.into(), &serde_json::Value::Null)
        );
    }
}
