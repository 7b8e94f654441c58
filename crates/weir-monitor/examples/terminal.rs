//! The live table of a made-up link, to look at: `cargo run -p weir-monitor --example terminal`.
//!
//! Flows come, go and change places; from time to time frames are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_export::{Counts, Origin, Owner};
use weir_flow::{Counters, EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;
use weir_monitor::{
    ExportView, FlowView, Latest, Protocol, Rates, SourceView, Talker, TrafficCounts, View,
};

/// Flows in the view, of more in the table.
const FLOWS: u64 = 2000;

pub(crate) fn main() -> std::io::Result<()> {
    let latest = Latest::default();
    let (stop, stopped) = channel();
    let publisher = thread::spawn({
        let latest = latest.clone();
        move || publish(&latest, &stopped)
    });
    let result = weir_monitor::terminal::run(&latest, || {
        let _ = stop.send(());
    });
    let _ = stop.send(());
    publisher.join().expect("the publisher does not panic");
    println!("{} views", latest.get().number);
    result
}

/// A view a second, and the first at once.
fn publish(latest: &Latest, stopped: &Receiver<()>) {
    for number in 1.. {
        latest.publish(view(number));
        match stopped.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    latest.end();
}

/// A number that looks like chance, and is the same for the same two.
fn chance(a: u64, b: u64) -> u64 {
    let mixed = (a ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(b | 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
}

fn flow(n: u64, number: u64, at_ns: u64) -> FlowView {
    let host = |n: u64| [10, (n >> 16) as u8, (n >> 8) as u8, n as u8];
    let (src, dst) = (host(chance(n, 1) % 50), host(0x0a_0000 + chance(n, 2) % 200));
    let port = [443, 443, 443, 80, 22, 5432][chance(n, 3) as usize % 6];
    let (mut protocol, mut dst_port, mut src_port) =
        (6, port, 32_768 + (chance(n, 4) % 28_000) as u16);
    let mut icmp = None;
    match n % 10 {
        7 | 8 => (protocol, dst_port) = (17, if n % 20 == 7 { 53 } else { 443 }),
        9 => (protocol, src_port, dst_port, icmp) = (1, 0, 0, Some((8, 0))),
        _ => {}
    }
    let addresses = match n % 4 {
        3 if protocol != 1 => {
            let address = |n: u64| format!("2001:db8:{:x}::{:x}", n >> 8, n & 0xff).parse();
            let src = address(chance(n, 5) % 2000).expect("an address");
            Addresses::V6 { src, dst: address(0x1_0000 + n).expect("an address") }
        }
        _ => Addresses::V4 { src: src.into(), dst: dst.into() },
    };
    let key = FlowKey { addresses, src_port, dst_port, protocol };
    // A few flows have most of the traffic, and each is sometimes faster and sometimes slower.
    let bits = 8e8 / (1 + n) as f64 * (0.5 + (chance(n, number) % 1000) as f64 / 1000.0);
    let age = (number + 10).min(60) - chance(n, 6) % 10;
    let bytes = (bits / 8.0) as u64 * age;
    let of = |bytes: u64, tcp_flags| Totals { packets: bytes / 900 + 1, bytes, tcp_flags };
    let record = FlowRecord {
        key,
        vlan: n.is_multiple_of(5).then_some(100),
        interface: (n % 3) as u32,
        first_ns: at_ns - age * 1_000_000_000 + n,
        last_ns: at_ns - n,
        forward: of(bytes, if protocol == 6 { 0b1_1010 } else { 0 }),
        reverse: of(bytes / 30, if protocol == 6 { 0b1_0010 } else { 0 }),
        icmp,
        reason: EndReason::Active,
    };
    FlowView { record, rates: Rates { packets: bits / 7200.0, bits } }
}

fn view(number: u64) -> View {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let at_ns = now.as_nanos() as u64;
    // The flows of every ten seconds are other ones.
    let mut flows: Vec<FlowView> =
        (0..FLOWS).map(|n| flow(n + number / 10, number, at_ns)).collect();
    flows.sort_by(|a, b| b.rates.bits.total_cmp(&a.rates.bits));
    let bits: f64 = flows.iter().map(|flow| flow.rates.bits).sum();
    let rates = Rates { packets: bits / 7200.0, bits };
    let is_burst = number % 20 == 15;
    let lost = number.div_ceil(20) * 1_234;
    let protocol = |number: u8| {
        let own = flows.iter().filter(|flow| flow.record.key.protocol == number);
        let bits: f64 = own.map(|flow| flow.rates.bits).sum();
        let total = TrafficCounts { packets: 1 + bits as u64 / 720, bytes: 1 + bits as u64 };
        Protocol { number, total, rates: Rates { packets: bits / 7200.0, bits } }
    };
    let mut talkers: BTreeMap<std::net::IpAddr, Talker> = BTreeMap::new();
    for flow in &flows {
        let (src, dst) = match flow.record.key.addresses {
            Addresses::V4 { src, dst } => (src.into(), dst.into()),
            Addresses::V6 { src, dst } => (src.into(), dst.into()),
        };
        for (address, is_source) in [(src, true), (dst, false)] {
            let none = Rates::default();
            let new = Talker { address, flows: 0, sent: none, received: none };
            let talker = talkers.entry(address).or_insert(new);
            talker.flows += 1;
            let rates = if is_source { &mut talker.sent } else { &mut talker.received };
            rates.bits += flow.rates.bits;
            rates.packets += flow.rates.packets;
        }
    }
    let mut talkers: Vec<Talker> = talkers.into_values().collect();
    talkers.sort_by(|a, b| {
        (b.sent.bits + b.received.bits).total_cmp(&(a.sent.bits + a.received.bits))
    });
    talkers.truncate(100);
    let owner = |kind: &str, name: &str| Owner { kind: kind.into(), name: name.into(), id: None };
    let origin = |interface: &str, owner| Origin { interface: interface.into(), owner };
    let source = |name: &str, engine: &str, captured: u64| SourceView {
        name: name.into(),
        engine: engine.into(),
        offered: captured + lost,
        captured,
        drops: BTreeMap::from([("kernel".into(), lost)]),
        missed_before: Some(0),
        ..SourceView::default()
    };
    View {
        number,
        at_ns,
        uptime: Duration::from_secs(number),
        sources: vec![
            source("eth0", "af_xdp", number * 900_000),
            SourceView {
                drops: BTreeMap::new(),
                offered: number * 9000,
                ..source("container:web", "bpf", number * 9000)
            },
        ],
        delivered: TrafficCounts { packets: number * 909_000, bytes: number * 500_000_000 },
        rates,
        lost_per_second: if is_burst { 1_234.0 } else { 0.0 },
        counters: Counters { flows: 51_234, began: 60_000 + number * 1_200, ..Counters::default() },
        capacity: 1 << 20,
        began_per_second: 1_200.0,
        records: number * 1_150,
        exports: vec![ExportView {
            name: "ipfix://collector:4739".into(),
            counts: Counts { sent: number * 1_150, unsent: 0 },
            disk_full: 0,
            has_failed: false,
        }],
        protocols: [6, 17, 1].map(protocol).into(),
        flows: Arc::new(flows),
        flows_left_out: 51_234 - FLOWS,
        talkers,
        origins: Arc::new(vec![
            origin("eth0", None),
            origin("vethb5fb1f7", Some(owner("container", "web"))),
            origin("vnet0", Some(owner("vm", "db"))),
        ]),
        news: (number > 30).then(|| "container:web is there".to_owned()).into_iter().collect(),
        ..View::default()
    }
}
