//! Sample views for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_export::{Counts, Origin, Owner};
use weir_flow::{Counters, EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

use crate::view::{ExportView, FlowView, Protocol, Rates, SourceView, Talker, TrafficCounts, View};

/// 2017-07-14 02:40:00 UTC.
pub const NOW_NS: u64 = 1_500_000_000_000_000_000;

/// Returns TCP flow `n`. A larger `n` means more packets and an earlier start.
pub fn flow(n: u8) -> FlowView {
    let addresses = Addresses::V4 { src: [10, 0, 0, n].into(), dst: [192, 0, 2, n].into() };
    let key = FlowKey { addresses, src_port: 40_000 + u16::from(n), dst_port: 443, protocol: 6 };
    let count = u64::from(n);
    let record = FlowRecord {
        key,
        vlan: None,
        interface: 0,
        first_ns: NOW_NS - count * 1_000_000_000,
        last_ns: NOW_NS,
        forward: Totals { packets: count * 100, bytes: count * 100_000, tcp_flags: 0b1_0010 },
        reverse: Totals { packets: count, bytes: count * 60, tcp_flags: 0b1_0000 },
        icmp: None,
        reason: EndReason::Active,
    };
    let rates = Rates { packets: f64::from(n) * 10.0, bits: f64::from(n) * 1e6 };
    FlowView { record, rates }
}

/// Returns `flow` over IPv6 and UDP, on the second interface.
pub fn flow_v6(n: u8) -> FlowView {
    let mut flow = flow(n);
    let address = |text: &str| format!("{text}{n:x}").parse().expect("an address");
    let addresses = Addresses::V6 { src: address("2001:db8::a"), dst: address("2001:db8::b") };
    flow.record.key.addresses = addresses;
    (flow.record.key.protocol, flow.record.interface) = (17, 1);
    flow
}

/// Returns `eth0` of a container, and an interface whose name tries to clear the screen.
pub fn origins() -> Vec<Origin> {
    let owner = Owner { kind: "container".into(), name: "web".into(), id: Some("5f3a".into()) };
    vec![
        Origin { interface: "eth0".into(), owner: Some(owner) },
        Origin { interface: "eth1\x1b[2J".into(), owner: None },
    ]
}

/// Returns a view with this number and the flows 1 to `flows`.
pub fn view(number: u64, flows: u8) -> View {
    let rates = Rates { packets: 1_230_000.0, bits: 4.56e9 };
    let source = SourceView {
        name: "eth0".into(),
        engine: "af_xdp".into(),
        offered: 1_000_000,
        captured: 1_000_000,
        missed_before: Some(0),
        ..SourceView::default()
    };
    let protocol = |number, share| Protocol {
        number,
        total: TrafficCounts { packets: 1000, bytes: 1_000_000 },
        rates: Rates { packets: rates.packets * share, bits: rates.bits * share },
    };
    let talker = |n: u8| Talker {
        address: [10, 0, 0, n].into(),
        flows: n.into(),
        sent: Rates { packets: 10.0, bits: 1e6 },
        received: Rates { packets: 1.0, bits: 1e3 },
    };
    View {
        number,
        at_ns: NOW_NS,
        uptime: Duration::from_secs(number),
        sources: vec![source],
        delivered: TrafficCounts { packets: 1_000_000, bytes: 500_000_000 },
        rates,
        counters: Counters { flows: 12_345, began: 20_000, ..Counters::default() },
        capacity: 1_048_576,
        began_per_second: 1234.0,
        records: 7_655,
        exports: vec![ExportView {
            name: "ipfix://collector:4739".into(),
            counts: Counts { sent: 7_655, unsent: 0 },
            disk_full: 0,
            has_failed: false,
        }],
        protocols: vec![protocol(6, 0.75), protocol(17, 0.25)],
        flows: Arc::new((1..=flows).rev().map(flow).collect()),
        flows_left_out: 12_345 - u64::from(flows),
        talkers: vec![talker(1), talker(2)],
        origins: Arc::new(origins()),
        ..View::default()
    }
}

/// Returns `view` with losses at every place.
pub fn view_with_losses(number: u64) -> View {
    let mut view = view(number, 3);
    view.sources[0].drops = BTreeMap::from([("kernel".into(), 12_000), ("relay".into(), 0)]);
    view.sources[0].missed_before = Some(17);
    (view.lapped, view.lost_per_second) = (345, 12.0);
    view.exports[0].counts.unsent = 7;
    view.exports[0].has_failed = true;
    view
}
