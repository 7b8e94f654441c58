//! The view as JSON, for the page and for programs.
//!
//! Fields of flows have the names of docs/flows.md, "What a flow has", but the times are `start_ms` and `end_ms`, in
//! milliseconds since the Unix epoch, and `owner` is only a name. Rates are packets and bits per second.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_flow::{NotFlows, Totals};
use weir_frame::flow::protocol_name;
use weir_frame::headers::Addresses;

use crate::view::{FlowView, Rates, SourceView, Talker, TrafficCounts, View};

/// The most flows in the JSON text, those with the highest rates.
const FLOWS_MAX: usize = 200;
/// The most talkers in the JSON text.
const TALKERS_MAX: usize = 50;

/// Formats the view as a JSON object. `is_over` tells that no other view will follow.
#[must_use]
pub fn text(view: &View, is_over: bool) -> String {
    // Numbers and strings can always be serialized.
    serde_json::to_string(&Shape::new(view, is_over)).unwrap_or_default()
}

/// Returns the rate, or 0 for NaN and infinities, which JSON cannot express.
pub(super) fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate } else { 0.0 }
}

/// Returns the name of a protocol, or its number if it has no usual name.
pub(super) fn protocol_text(number: u8) -> String {
    protocol_name(number).map_or_else(|| number.to_string(), str::to_owned)
}

/// Converts nanoseconds to milliseconds.
pub(super) fn milliseconds(ns: u64) -> u64 {
    ns / 1_000_000
}

#[derive(Serialize)]
struct Shape<'a> {
    number: u64,
    at_ms: u64,
    uptime_s: f64,
    is_over: bool,
    sources: Vec<Source<'a>>,
    delivered: Counts,
    rates: Speed,
    lapped: u64,
    lost_per_second: f64,
    table: Table,
    records: u64,
    exports: Vec<Export<'a>>,
    protocols: Vec<Protocol>,
    flows: Vec<Flow<'a>>,
    flows_left_out: u64,
    talkers: Vec<OneTalker>,
}

#[derive(Serialize)]
struct Source<'a> {
    name: &'a str,
    engine: &'a str,
    offered: u64,
    filtered: u64,
    blocked: u64,
    sampled: u64,
    captured: u64,
    drops: &'a BTreeMap<String, u64>,
    missed_before: Option<u64>,
}

#[derive(Serialize)]
struct Counts {
    packets: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Speed {
    packets: f64,
    bits: f64,
}

#[derive(Serialize)]
struct Table {
    flows: u64,
    capacity: u64,
    began: u64,
    began_per_second: f64,
    evicted: u64,
    not_flows: BTreeMap<&'static str, u64>,
    fragments_attributed: u64,
    fragments_unattributed: u64,
    fragments_forgotten: u64,
    clock_steps_ahead: u64,
    clock_steps_back: u64,
}

#[derive(Serialize)]
struct Export<'a> {
    name: &'a str,
    sent: u64,
    unsent: u64,
    disk_full: u64,
    has_failed: bool,
}

#[derive(Serialize)]
struct Protocol {
    proto: u8,
    name: String,
    #[serde(flatten)]
    total: Counts,
    rates: Speed,
}

#[derive(Serialize)]
struct Flow<'a> {
    start_ms: u64,
    end_ms: u64,
    interface: Option<&'a str>,
    owner: Option<&'a str>,
    vlan: Option<u16>,
    src_ip: String,
    dst_ip: String,
    src_port: Option<u16>,
    dst_port: Option<u16>,
    proto: u8,
    proto_name: String,
    #[serde(flatten)]
    forward: Counts,
    reverse: Counts,
    rates: Speed,
}

#[derive(Serialize)]
struct OneTalker {
    address: String,
    flows: u64,
    sent: Speed,
    received: Speed,
}

impl<'a> Shape<'a> {
    fn new(view: &'a View, is_over: bool) -> Shape<'a> {
        let counters = &view.counters;
        let exports = view.exports.iter().map(|export| Export {
            name: &export.name,
            sent: export.counts.sent,
            unsent: export.counts.unsent,
            disk_full: export.disk_full,
            has_failed: export.has_failed,
        });
        let protocols = view.protocols.iter().map(|protocol| Protocol {
            proto: protocol.number,
            name: protocol_text(protocol.number),
            total: protocol.total.into(),
            rates: protocol.rates.into(),
        });
        let beyond = view.flows.len().saturating_sub(FLOWS_MAX) as u64;
        Shape {
            number: view.number,
            at_ms: milliseconds(view.at_ns),
            uptime_s: view.uptime.as_secs_f64(),
            is_over,
            sources: view.sources.iter().map(Source::new).collect(),
            delivered: view.delivered.into(),
            rates: view.rates.into(),
            lapped: view.lapped,
            lost_per_second: finite(view.lost_per_second),
            table: Table {
                flows: counters.flows,
                capacity: view.capacity,
                began: counters.began,
                began_per_second: finite(view.began_per_second),
                evicted: counters.evicted,
                not_flows: not_flows(&counters.not_flows).into(),
                fragments_attributed: counters.fragments_attributed,
                fragments_unattributed: counters.fragments_unattributed,
                fragments_forgotten: counters.fragments_forgotten,
                clock_steps_ahead: counters.clock_steps_ahead,
                clock_steps_back: counters.clock_steps_back,
            },
            records: view.records,
            exports: exports.collect(),
            protocols: protocols.collect(),
            flows: view.flows.iter().take(FLOWS_MAX).map(|flow| Flow::new(flow, view)).collect(),
            flows_left_out: view.flows_left_out + beyond,
            talkers: view.talkers.iter().take(TALKERS_MAX).map(OneTalker::new).collect(),
        }
    }
}

impl<'a> Source<'a> {
    fn new(source: &'a SourceView) -> Source<'a> {
        Source {
            name: &source.name,
            engine: &source.engine,
            offered: source.offered,
            filtered: source.filtered,
            blocked: source.blocked,
            sampled: source.sampled,
            captured: source.captured,
            drops: &source.drops,
            missed_before: source.missed_before,
        }
    }
}

impl<'a> Flow<'a> {
    fn new(flow: &FlowView, view: &'a View) -> Flow<'a> {
        let record = &flow.record;
        let key = &record.key;
        let [src_ip, dst_ip] = match &key.addresses {
            Addresses::V4 { src, dst } => [src.to_string(), dst.to_string()],
            Addresses::V6 { src, dst } => [src.to_string(), dst.to_string()],
        };
        let has_ports = key.has_known_ports();
        let origin = view.origins.get(record.interface as usize);
        Flow {
            start_ms: milliseconds(record.first_ns),
            end_ms: milliseconds(record.last_ns),
            interface: origin.map(|origin| origin.interface.as_str()),
            owner: origin.and_then(|origin| Some(origin.owner.as_ref()?.name.as_str())),
            vlan: record.vlan,
            src_ip,
            dst_ip,
            src_port: has_ports.then_some(key.src_port),
            dst_port: has_ports.then_some(key.dst_port),
            proto: key.protocol,
            proto_name: protocol_text(key.protocol),
            forward: record.forward.into(),
            reverse: record.reverse.into(),
            rates: flow.rates.into(),
        }
    }
}

impl OneTalker {
    fn new(talker: &Talker) -> OneTalker {
        OneTalker {
            address: talker.address.to_string(),
            flows: talker.flows,
            sent: talker.sent.into(),
            received: talker.received.into(),
        }
    }
}

impl From<TrafficCounts> for Counts {
    fn from(counts: TrafficCounts) -> Counts {
        Counts { packets: counts.packets, bytes: counts.bytes }
    }
}

impl From<Totals> for Counts {
    fn from(totals: Totals) -> Counts {
        Counts { packets: totals.packets, bytes: totals.bytes }
    }
}

impl From<Rates> for Speed {
    fn from(rates: Rates) -> Speed {
        Speed { packets: finite(rates.packets), bits: finite(rates.bits) }
    }
}

/// Returns counts of frames without a flow, by reason.
pub(super) fn not_flows(counts: &NotFlows) -> [(&'static str, u64); 6] {
    let NotFlows { arp, other_protocol, cut_off, malformed, too_many_vlans, other_link_type } =
        *counts;
    [
        ("arp", arp),
        ("other_protocol", other_protocol),
        ("cut_off", cut_off),
        ("malformed", malformed),
        ("too_many_vlans", too_many_vlans),
        ("other_link_type", other_link_type),
    ]
}
