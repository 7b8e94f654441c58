//! Views of a network that does not exist: two sources, and 66 flows whose rates rise and fall.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_export::{Origin, Owner};
use weir_flow::{Counters, EndReason, FlowRecord, NotFlows, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;
use weir_monitor::{
    ExportView, FlowView, Protocol, Rates, SourceView, Talker, TrafficCounts, View,
};

/// Makes a view for each second.
pub struct Network {
    view: View,
    flows: Vec<Made>,
    /// Whether frames are lost now and then.
    is_lossy: bool,
}

struct Made {
    record: FlowRecord,
    /// Mean of the packets per second.
    packets: f64,
    /// Share of packets in the direction of the key.
    forward_share: f64,
    packet_bytes: f64,
    /// Seconds of one rise and fall of the rate.
    period: f64,
}

/// Client, server, the server's port, IP protocol, packets per second, the client's share of them, bytes of a packet.
type Kind = (&'static str, &'static str, u16, u8, f64, f64, f64);

const KINDS: [Kind; 22] = [
    ("10.20.0.11", "10.20.4.2", 443, 6, 21_000.0, 0.34, 940.0),
    ("10.20.0.12", "10.20.4.2", 443, 6, 12_500.0, 0.30, 1010.0),
    ("10.20.0.13", "10.20.4.3", 5432, 6, 9_400.0, 0.45, 420.0),
    ("10.20.0.14", "10.20.4.3", 5432, 6, 5_200.0, 0.47, 380.0),
    ("2001:db8:20::15", "2001:db8:40::5", 443, 17, 8_800.0, 0.28, 1120.0),
    ("10.20.0.16", "203.0.113.80", 443, 17, 4_100.0, 0.25, 1180.0),
    ("10.20.0.11", "10.20.4.9", 6379, 6, 6_600.0, 0.50, 160.0),
    ("10.20.0.17", "10.20.4.7", 2049, 6, 3_900.0, 0.70, 1300.0),
    ("10.20.0.18", "198.51.100.23", 22, 6, 610.0, 0.48, 210.0),
    ("10.20.0.12", "10.20.4.53", 53, 17, 1_450.0, 0.50, 118.0),
    ("10.20.0.13", "10.20.4.53", 53, 17, 1_100.0, 0.50, 122.0),
    ("10.20.0.16", "10.20.4.53", 53, 17, 720.0, 0.50, 120.0),
    ("10.20.0.19", "10.20.4.10", 9092, 6, 2_700.0, 0.80, 760.0),
    ("10.20.0.20", "10.20.4.10", 9092, 6, 2_050.0, 0.78, 740.0),
    ("2001:db8:20::21", "2001:db8:40::5", 443, 6, 1_900.0, 0.33, 900.0),
    ("10.20.0.22", "10.20.4.11", 4789, 17, 3_300.0, 0.52, 880.0),
    ("10.20.0.23", "192.0.2.33", 0, 47, 870.0, 0.55, 640.0),
    ("10.20.0.24", "10.20.4.1", 0, 1, 25.0, 0.50, 84.0),
    ("10.20.0.25", "10.20.4.12", 3868, 132, 480.0, 0.5, 300.0),
    ("10.20.0.26", "203.0.113.9", 123, 17, 6.0, 0.5, 76.0),
    ("10.20.0.27", "10.20.4.2", 443, 6, 1_280.0, 0.32, 870.0),
    ("10.20.0.28", "10.20.4.7", 2049, 6, 990.0, 0.66, 1250.0),
];

impl Network {
    /// The first view is one second after `at_ns`, which is in nanoseconds since the Unix epoch.
    pub fn new(at_ns: u64, is_lossy: bool) -> Network {
        let flows = (0..66).map(|index| {
            let (client, server, port, protocol, packets, forward_share, packet_bytes) =
                KINDS[index % KINDS.len()];
            let round = (index / KINDS.len()) as f64;
            let has_ports = !matches!(protocol, 1 | 47);
            let key = FlowKey {
                addresses: addresses(client, server),
                src_port: if has_ports { 40_000 + 97 * index as u16 } else { 0 },
                dst_port: port,
                protocol,
            };
            let record = FlowRecord {
                key,
                vlan: (index % 7 == 3).then_some(120),
                interface: index as u32 % 3,
                first_ns: at_ns + index as u64 * 1_000_000,
                last_ns: at_ns,
                forward: Totals::default(),
                reverse: Totals::default(),
                icmp: (protocol == 1).then_some((8, 0)),
                reason: EndReason::Active,
            };
            let packets = packets * 0.4_f64.powf(round);
            let period = 17.0 + (index * 13 % 41) as f64;
            Made { record, packets, forward_share, packet_bytes, period }
        });
        let owner = Owner { kind: "vm".into(), name: "web-1".into(), id: None };
        let origin = |interface: &str, owner| Origin { interface: interface.into(), owner };
        let origins = vec![
            origin("eth0", None),
            origin("vnet3", Some(owner)),
            origin("<b id=\"hostile\">eth</b>", None),
        ];
        let source = |name: &str, engine: &str| SourceView {
            name: name.into(),
            engine: engine.into(),
            drops: ["nic_drops", "hook_drops", "ring_lapped_frames"].map(|n| (n.into(), 0)).into(),
            missed_before: (engine == "bpf").then_some(0),
            ..SourceView::default()
        };
        let view = View {
            at_ns,
            sources: vec![source("host:eth0", "bpf"), source("vnet*", "af_packet")],
            capacity: 65_536,
            origins: Arc::new(origins),
            exports: ["ipfix://collector:4739", "flows.parquet"]
                .map(|name| ExportView { name: name.into(), ..ExportView::default() })
                .into(),
            ..View::default()
        };
        Network { view, flows: flows.collect(), is_lossy }
    }

    /// The view one second later.
    pub fn next(&mut self) -> View {
        let view = &mut self.view;
        view.number += 1;
        view.at_ns += 1_000_000_000;
        view.uptime += Duration::from_secs(1);
        let second = view.number as f64;
        let mut shown: Vec<FlowView> = Vec::new();
        for made in &mut self.flows {
            let wave = (second / made.period * std::f64::consts::TAU).sin();
            let packets = made.packets * (1.0 + 0.45 * wave) + 0.5;
            let add = |totals: &mut Totals, share: f64| {
                totals.packets += (packets * share) as u64;
                totals.bytes += (packets * share * made.packet_bytes) as u64;
            };
            add(&mut made.record.forward, made.forward_share);
            add(&mut made.record.reverse, 1.0 - made.forward_share);
            made.record.last_ns = view.at_ns;
            let rates = Rates { packets, bits: packets * made.packet_bytes * 8.0 };
            shown.push(FlowView { record: made.record, rates });
        }
        shown.sort_by(|a, b| b.rates.bits.total_cmp(&a.rates.bits));
        let sum = shown.iter().fold(Rates::default(), |sum, flow| sum + flow.rates);
        view.rates = sum;
        view.delivered = plus_a_second(view.delivered, sum);
        view.talkers = talkers(&shown);
        view.protocols = protocols(&view.protocols, &shown);
        view.began_per_second = 212.0 + 40.0 * (second / 9.0).sin();
        view.records += 205;
        let in_table = (4_300.0 + 600.0 * (second / 31.0).sin()) as u64;
        view.flows_left_out = in_table - shown.len() as u64;
        let not_flows = NotFlows { arp: view.number * 3, malformed: 2, ..NotFlows::default() };
        view.counters = Counters {
            frames: view.delivered.packets,
            not_flows,
            flows: in_table,
            began: view.counters.began + view.began_per_second as u64,
            evicted: if self.is_lossy { view.number * 2 } else { 0 },
            fragments_attributed: view.number,
            ..view.counters
        };
        let loses = self.is_lossy && view.number % 40 > 33;
        let lost = if loses { 180 + view.number % 7 * 31 } else { 0 };
        view.lost_per_second = lost as f64;
        for (share, source) in [(3, 0), (1, 1)] {
            let source = &mut view.sources[source];
            let captured = sum.packets as u64 * share / 4;
            source.captured += captured;
            source.filtered += captured / 50;
            let dropped = if share == 3 { lost } else { 0 };
            *source.drops.entry("nic_drops".into()).or_default() += dropped;
            source.offered += captured + captured / 50 + dropped;
        }
        for export in &mut view.exports {
            export.counts.sent += 205;
        }
        if self.is_lossy {
            view.exports[0].counts.unsent += 1;
        }
        view.flows = Arc::new(shown);
        view.clone()
    }
}

fn addresses(src: &str, dst: &str) -> Addresses {
    match (src.parse().expect("an address"), dst.parse().expect("an address")) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
        _ => panic!("{src} and {dst} are of different IP versions"),
    }
}

/// Adds what comes in a second at these rates.
fn plus_a_second(counts: TrafficCounts, rates: Rates) -> TrafficCounts {
    TrafficCounts {
        packets: counts.packets + rates.packets as u64,
        bytes: counts.bytes + (rates.bits / 8.0) as u64,
    }
}

fn talkers(flows: &[FlowView]) -> Vec<Talker> {
    let none = Rates::default();
    let mut all: BTreeMap<IpAddr, Talker> = BTreeMap::new();
    for flow in flows {
        let [src, dst] = match flow.record.key.addresses {
            Addresses::V4 { src, dst } => [IpAddr::V4(src), IpAddr::V4(dst)],
            Addresses::V6 { src, dst } => [IpAddr::V6(src), IpAddr::V6(dst)],
        };
        let total = flow.record.packets().max(1) as f64;
        let share = flow.record.forward.packets as f64 / total;
        let part = |share: f64| Rates {
            packets: flow.rates.packets * share,
            bits: flow.rates.bits * share,
        };
        for (address, sent, received) in [(src, share, 1.0 - share), (dst, 1.0 - share, share)] {
            let new = Talker { address, flows: 0, sent: none, received: none };
            let talker = all.entry(address).or_insert(new);
            talker.flows += 1;
            talker.sent = talker.sent + part(sent);
            talker.received = talker.received + part(received);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by(|a, b| (b.sent.bits + b.received.bits).total_cmp(&(a.sent.bits + a.received.bits)));
    all
}

fn protocols(before: &[Protocol], flows: &[FlowView]) -> Vec<Protocol> {
    let mut all: BTreeMap<u8, Protocol> = before
        .iter()
        .map(|protocol| (protocol.number, Protocol { rates: Rates::default(), ..*protocol }))
        .collect();
    for flow in flows {
        let number = flow.record.key.protocol;
        let protocol = all.entry(number).or_insert(Protocol { number, ..Protocol::default() });
        protocol.rates = protocol.rates + flow.rates;
        protocol.total = plus_a_second(protocol.total, flow.rates);
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|protocol| std::cmp::Reverse(protocol.total.bytes));
    all
}
