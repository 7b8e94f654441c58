//! Parses Suricata's counts: the last line with statistics of its `eve.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Counts since Suricata's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::bench) struct Counts {
    /// Frames that Suricata has decoded.
    pub(in crate::bench) decoded: u64,
    /// Frames for which its socket had no space, or that libpcap reports as dropped.
    pub(in crate::bench) kernel_drops: u64,
    /// Frames that libpcap reports as dropped by the interface.
    pub(in crate::bench) interface_drops: u64,
    /// Number of alerts.
    pub(in crate::bench) alerts: u64,
    /// Number of flows.
    pub(in crate::bench) flows: u64,
    /// Frames for which Suricata had no memory for a flow.
    pub(in crate::bench) without_flow: u64,
}

#[derive(Deserialize)]
struct Event {
    event_type: String,
    stats: Option<Stats>,
}

#[derive(Deserialize)]
struct Stats {
    decoder: Decoder,
    #[serde(default)]
    capture: Capture,
    #[serde(default)]
    detect: Detect,
    #[serde(default)]
    flow: Flow,
}

#[derive(Deserialize)]
struct Decoder {
    pkts: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Capture {
    kernel_drops: u64,
    kernel_ifdrops: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Detect {
    alert: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Flow {
    total: u64,
    memcap: u64,
}

/// Parses the last statistics in the text of an `eve.json`. `None` if there are none.
pub(in crate::bench) fn last(eve: &str) -> Option<Counts> {
    let events = eve.lines().rev().filter_map(|line| serde_json::from_str::<Event>(line).ok());
    let mut stats = events.filter(|event| event.event_type == "stats").filter_map(|it| it.stats);
    stats.next().map(|Stats { decoder, capture, detect, flow }| Counts {
        decoded: decoder.pkts,
        kernel_drops: capture.kernel_drops,
        interface_drops: capture.kernel_ifdrops,
        alerts: detect.alert,
        flows: flow.total,
        without_flow: flow.memcap,
    })
}

impl Counts {
    /// Returns the frames lost by Suricata's socket or by libpcap, by place.
    pub(in crate::bench) fn drops(&self) -> BTreeMap<String, u64> {
        [("kernel", self.kernel_drops), ("interface", self.interface_drops)]
            .map(|(name, count)| (name.to_owned(), count))
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Output of Suricata 7.0.10, shortened.
    const AF_PACKET: &str = concat!(
        r#"{"timestamp":"2026-11-24T17:00:01.0+0000","event_type":"stats","stats":{"uptime":1,"#,
        r#""capture":{"kernel_packets":10,"kernel_drops":0,"errors":0},"#,
        r#""decoder":{"pkts":8,"bytes":5000},"detect":{"alert":0}}}"#
    );
    const AT_THE_END: &str = concat!(
        r#"{"timestamp":"2026-11-24T17:00:04.0+0000","event_type":"stats","stats":{"uptime":4,"#,
        r#""capture":{"kernel_packets":1000,"kernel_drops":40,"errors":0},"#,
        r#""decoder":{"pkts":960,"bytes":500000},"detect":{"alert":3}}}"#
    );
    const BY_PCAP: &str = concat!(
        r#"{"event_type":"stats","stats":{"decoder":{"pkts":993},"#,
        r#""capture":{"kernel_packets":1000,"kernel_drops":7,"kernel_ifdrops":2}}}"#
    );

    #[test]
    fn the_last_counts_are_read() {
        let alert = r#"{"event_type":"alert","alert":{"signature_id":1000001}}"#;
        let text = format!("{AF_PACKET}\n{AT_THE_END}\n{alert}\n{{\"event_type\":\"stats\",\"st");
        let counts = last(&text).unwrap();
        assert_eq!((counts.decoded, counts.kernel_drops, counts.alerts), (960, 40, 3));
        assert_eq!(counts.drops()["kernel"], 40);
    }

    #[test]
    fn what_libpcap_dropped_at_the_interface_has_a_name_of_its_own() {
        let counts = last(BY_PCAP).unwrap();
        assert_eq!((counts.decoded, counts.alerts), (993, 0));
        assert_eq!((counts.drops()["kernel"], counts.drops()["interface"]), (7, 2));
    }

    #[test]
    fn flows_are_counted() {
        // Output of Suricata 7.0.10, shortened.
        let text = concat!(
            r#"{"timestamp":"2026-11-26T04:02:14.119954+0000","event_type":"stats","stats":{"uptime":7,"#,
            r#""capture":{"kernel_packets":200000,"kernel_drops":0,"errors":0,"afpacket":{"polls":19037}},"#,
            r#""decoder":{"pkts":200000,"bytes":12000000,"udp":200000},"#,
            r#""flow":{"memcap":3,"total":199997,"active":0,"tcp":0,"udp":200000},"detect":{"alert":0}}}"#
        );
        let counts = last(text).unwrap();
        assert_eq!((counts.decoded, counts.flows, counts.without_flow), (200_000, 199_997, 3));
    }

    #[test]
    fn a_file_without_counts_has_none() {
        for text in ["", "\n", r#"{"event_type":"stats"}"#, r#"{"event_type":"flow"}"#, "{"] {
            assert_eq!(last(text), None, "{text}");
        }
    }
}
