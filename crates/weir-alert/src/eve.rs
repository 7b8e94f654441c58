//! Parses lines of Suricata's EVE JSON that are alerts.
//!
//! Source: Suricata's user guide, "Eve JSON Format".

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::SystemTime;

use chrono::DateTime;
use serde::Deserialize;
use weir_filter::block::{Entry, Flow};
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, protocol};

use crate::limits::ALERT_CHARS_MAX;

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The packet's time, from the line's timestamp; `None` if the timestamp cannot be parsed.
    pub time: Option<SystemTime>,
    /// Source address and port of the packet that raised the alert.
    pub source: End,
    /// Destination address and port of this packet.
    pub destination: End,
    /// The transport protocol, if it has ports.
    pub protocol: Option<u8>,
    /// The severity; 1 is the most severe.
    pub severity: Option<u64>,
    /// The id of the signature.
    pub signature_id: Option<u64>,
    /// The signature's text, without control characters.
    pub signature: String,
    /// The signature's category, without control characters.
    pub category: String,
}

/// Address and port of one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: IpAddr,
    /// The port, if the protocol has ports.
    pub port: Option<u16>,
}

/// The entry to block because of an alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum What {
    /// The flow of the alert's packet, in both directions.
    #[default]
    Flow,
    /// The source address of the packet.
    Source,
    /// The destination address of the packet.
    Destination,
}

/// The reason why a line gives no alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAlert {
    /// The line is another kind of event, such as a flow or a DNS query.
    OtherEvent,
    /// The line is not an event, or is an alert without a required field.
    NotUnderstood,
}

/// The field that tells whether a line is an alert. Only alerts are parsed further.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    event_type: Cow<'a, str>,
}

#[derive(Deserialize)]
struct AlertLine<'a> {
    #[serde(borrow, default)]
    timestamp: Cow<'a, str>,
    src_ip: IpAddr,
    #[serde(default)]
    src_port: Option<u16>,
    dest_ip: IpAddr,
    #[serde(default)]
    dest_port: Option<u16>,
    #[serde(borrow, default)]
    proto: Cow<'a, str>,
    #[serde(borrow)]
    alert: AlertPart<'a>,
}

#[derive(Deserialize)]
struct AlertPart<'a> {
    #[serde(default)]
    severity: Option<u64>,
    #[serde(default)]
    signature_id: Option<u64>,
    #[serde(borrow, default)]
    signature: Cow<'a, str>,
    #[serde(borrow, default)]
    category: Cow<'a, str>,
}

/// Parses a line as an alert.
///
/// # Errors
/// [`NoAlert`]: the line is not an alert, or cannot be parsed.
pub fn parse(line: &[u8]) -> Result<Alert, NoAlert> {
    let wrong = |_| NoAlert::NotUnderstood;
    let event: Event = serde_json::from_slice(line).map_err(wrong)?;
    if event.event_type != "alert" {
        return Err(NoAlert::OtherEvent);
    }
    let line: AlertLine = serde_json::from_slice(line).map_err(wrong)?;
    Ok(Alert {
        time: time(&line.timestamp),
        source: End { address: line.src_ip, port: line.src_port },
        destination: End { address: line.dest_ip, port: line.dest_port },
        protocol: protocol_with_ports(&line.proto),
        severity: line.alert.severity,
        signature_id: line.alert.signature_id,
        signature: shown(&line.alert.signature),
        category: shown(&line.alert.category),
    })
}

impl Alert {
    /// Returns the entry to block because of this alert. For [`What::Flow`] it is `None` if the flow has no ports, or
    /// if one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn entry(&self, what: What) -> Option<Entry> {
        match what {
            What::Source => Some(Entry::Address(self.source.address)),
            What::Destination => Some(Entry::Address(self.destination.address)),
            What::Flow => self.flow(),
        }
    }

    fn flow(&self) -> Option<Entry> {
        let addresses = match (self.source.address, self.destination.address) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
            _ => return None,
        };
        let (src_port, dst_port) = (self.source.port?, self.destination.port?);
        let protocol = self.protocol?;
        Some(Entry::Flow(Flow::new(FlowKey { addresses, src_port, dst_port, protocol })))
    }
}

/// Returns the number of a protocol that has ports. Suricata writes the names of /etc/protocols, most of them in
/// capitals.
fn protocol_with_ports(name: &str) -> Option<u8> {
    let known = [
        ("tcp", protocol::TCP),
        ("udp", protocol::UDP),
        ("sctp", protocol::SCTP),
        ("dccp", protocol::DCCP),
        ("udplite", protocol::UDP_LITE),
    ];
    let found = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, number)| *number)
}

/// Parses a timestamp such as `2026-05-05T10:00:00.123456+0200`.
fn time(text: &str) -> Option<SystemTime> {
    let time = DateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S%.f%z");
    time.ok().map(SystemTime::from)
}

/// Removes control characters, and cuts long texts. The text is shown on terminals, and a sender of packets may control
/// a part of it.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(ALERT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// As Suricata 7 writes it, but for the packet and the payload.
    const LINE: &str = r#"{"timestamp":"2026-11-24T16:23:50.500000+0100","flow_id":1234567890123456,
        "in_iface":"host:eth0","event_type":"alert","src_ip":"10.0.0.1","src_port":4711,"dest_ip":"10.0.0.2",
        "dest_port":80,"proto":"TCP","pkt_src":"wire/pcap","alert":{"action":"allowed","gid":1,
        "signature_id":2001219,"rev":20,"signature":"ET SCAN Potential SSH Scan","category":
        "Attempted Information Leak","severity":2},"direction":"to_server","flow":{"pkts_toserver":1,
        "start":"2026-11-24T16:23:50.400000+0100","src_ip":"10.0.0.1"}}"#;

    fn entry(line: &str, what: What) -> Option<String> {
        parse(line.as_bytes()).unwrap().entry(what).map(|entry| entry.to_string())
    }

    #[test]
    fn an_alert_is_read_with_its_flow_and_what_the_rules_ask() {
        let alert = parse(LINE.as_bytes()).unwrap();
        assert_eq!((alert.severity, alert.signature_id), (Some(2), Some(2_001_219)));
        assert_eq!(alert.signature, "ET SCAN Potential SSH Scan");
        assert_eq!(alert.category, "Attempted Information Leak");
        let since = alert.time.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since, Duration::from_millis(1_795_533_830_500));
        let flow: Entry = "tcp 10.0.0.1:4711 10.0.0.2:80".parse().unwrap();
        assert_eq!(alert.entry(What::Flow), Some(flow));
        assert_eq!(entry(LINE, What::Source).as_deref(), Some("10.0.0.1"));
        assert_eq!(entry(LINE, What::Destination).as_deref(), Some("10.0.0.2"));
        // The answer raises it as well: the same flow.
        let answer = LINE.replace("10.0.0.1\",\"src_port\":4711", "10.0.0.2\",\"src_port\":80");
        let answer = answer.replace("\"dest_ip\":\"10.0.0.2\"", "\"dest_ip\":\"10.0.0.1\"");
        let answer = answer.replace("\"dest_port\":80", "\"dest_port\":4711");
        assert_eq!(parse(answer.as_bytes()).unwrap().entry(What::Flow), Some(flow));
    }

    #[test]
    fn a_flow_of_ipv6_is_one_and_one_without_ports_is_none() {
        let six = r#"{"event_type":"alert","src_ip":"2001:0db8:0000:0000:0000:0000:0000:0001","src_port":53,
            "dest_ip":"2001:db8::2","dest_port":4444,"proto":"UDP","alert":{"signature_id":1}}"#;
        assert_eq!(
            entry(six, What::Flow).as_deref(),
            Some("udp [2001:db8::1]:53 [2001:db8::2]:4444")
        );
        let ping = r#"{"event_type":"alert","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"ICMP",
            "icmp_type":8,"icmp_code":0,"alert":{"signature_id":1}}"#;
        assert_eq!(entry(ping, What::Flow), None);
        assert_eq!(entry(ping, What::Source).as_deref(), Some("10.0.0.1"));
        let mixed = LINE.replace("\"dest_ip\":\"10.0.0.2\"", "\"dest_ip\":\"2001:db8::2\"");
        assert_eq!(entry(&mixed, What::Flow), None);
    }

    #[test]
    fn what_is_no_alert_says_so_and_hostile_lines_harm_nothing() {
        let other = |line: &str| assert_eq!(parse(line.as_bytes()), Err(NoAlert::OtherEvent));
        other(r#"{"event_type":"flow","src_ip":"10.0.0.1","alert":7}"#);
        other(r#"{"event_type":"stats","stats":{"uptime":8}}"#);
        let deep = |open: &str, close: &str| {
            let inner = open.repeat(100_000) + "1" + &close.repeat(100_000);
            format!(r#"{{"x":{inner},"event_type":"alert","src_ip":"10.0.0.1"}}"#)
        };
        let long = LINE.replace("ET SCAN", &"x".repeat(1 << 20));
        assert_eq!(parse(long.as_bytes()).unwrap().signature.len(), ALERT_CHARS_MAX);
        for line in [
            String::new(),
            "\0\0\0".into(),
            "{".into(),
            "[]".into(),
            r#"{"event_type":7}"#.into(),
            r#"{"event_type":"alert"}"#.into(),
            deep("[", "]"),
            deep("{\"y\":", "}"),
            "[".repeat(1 << 20),
            LINE.replace("4711", "65536"),
            LINE.replace("4711", "-1"),
            LINE.replace("10.0.0.1", "10.0.0.1.1"),
            LINE.replace("\"severity\":2", "\"severity\":\"two\""),
            LINE.replace("\"dest_port\":80", "\"dest_port\":80,\"dest_port\":81"),
        ] {
            let told = parse(line.as_bytes());
            assert_eq!(told, Err(NoAlert::NotUnderstood), "{}", &line[..line.len().min(80)]);
        }
        assert_eq!(parse(b"\xff\xfe{\x00"), Err(NoAlert::NotUnderstood));
        // A packet may choose a part of the text.
        let colored = LINE.replace("ET SCAN", "a\\u001b[2J\\n\\u0000b");
        assert!(parse(colored.as_bytes()).unwrap().signature.starts_with("a[2Jb"));
        assert_eq!(parse(LINE.replace("2026-", "x").as_bytes()).unwrap().time, None);
    }
}
