//! The view as metrics, in the text format that Prometheus reads.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, "Text-based format".

use std::collections::BTreeMap;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::json::{not_flows, protocol_text};
use crate::view::{SourceView, View};

/// As `Content-Type` has it.
pub use prometheus::TEXT_FORMAT;

/// The metrics of this view.
#[must_use]
pub fn text(view: &View) -> String {
    let mut all = of_sources(&view.sources);
    all.extend(of_traffic(view));
    all.extend(of_table(view));
    all.extend(of_exports(view));
    all.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    // Every family has a name and a metric, and memory takes it.
    let _ = TextEncoder::new().encode(&all, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// One of a ledger's counts.
type Count = fn(&SourceView) -> Option<u64>;

fn of_sources(sources: &[SourceView]) -> Vec<MetricFamily> {
    let info = sources.iter().map(|source| {
        ([("source", source.name.as_str()), ("engine", source.engine.as_str())].into(), 1)
    });
    let mut all = vec![gauge("source_info", "Sources, and how they are captured", info)];
    let counts: [(&str, &str, Count); 6] = [
        ("offered", "Frames that came to the hook", |source| Some(source.offered)),
        ("filtered", "Frames that the filter left out", |source| Some(source.filtered)),
        ("blocked", "Frames that the block list left out", |source| Some(source.blocked)),
        ("sampled", "Frames that sampling left out", |source| Some(source.sampled)),
        ("captured", "Frames written into the rings", |source| Some(source.captured)),
        (
            "missed_before",
            "Frames that the NIC or its driver says it lost before the hook",
            |source| source.missed_before,
        ),
    ];
    for (name, help, count) in counts {
        let values = sources
            .iter()
            .filter_map(|source| Some(([("source", source.name.as_str())].into(), count(source)?)));
        all.push(counter(&format!("source_{name}_frames"), help, values));
    }
    let drops = sources.iter().flat_map(|source| {
        source.drops.iter().map(|(place, &count)| {
            ([("source", source.name.as_str()), ("place", place.as_str())].into(), count)
        })
    });
    all.push(counter("source_dropped_frames", "Frames lost, by place", drops));
    all
}

fn of_traffic(view: &View) -> Vec<MetricFamily> {
    let protocols: Vec<_> = view
        .protocols
        .iter()
        .map(|protocol| (protocol_text(protocol.number), protocol.total))
        .collect();
    let of = |count: fn(&crate::TrafficCounts) -> u64| {
        let all = protocols.iter();
        all.map(move |(name, total)| ([("protocol", name.as_str())].into(), count(total)))
    };
    vec![
        gauge("uptime_seconds", "Since the monitor's start", one(view.uptime.as_secs())),
        counter(
            "delivered_frames",
            "Frames that the monitor has counted",
            one(view.delivered.packets),
        ),
        counter("delivered_bytes", "Their bytes on the wire", one(view.delivered.bytes)),
        counter(
            "lapped_frames",
            "Frames lost because the monitor was too slow for them",
            one(view.lapped),
        ),
        counter("protocol_packets", "Packets, by protocol above IP", of(|total| total.packets)),
        counter("protocol_bytes", "Bytes of IP, by protocol above IP", of(|total| total.bytes)),
    ]
}

fn of_table(view: &View) -> Vec<MetricFamily> {
    let counters = &view.counters;
    let reasons = not_flows(&counters.not_flows);
    let reasons = reasons.iter().map(|&(reason, count)| ([("reason", reason)].into(), count));
    let fragments =
        [("known", counters.fragments_attributed), ("unknown", counters.fragments_unattributed)];
    let fragments = fragments.into_iter().map(|(ports, count)| ([("ports", ports)].into(), count));
    let steps = [("ahead", counters.clock_steps_ahead), ("back", counters.clock_steps_back)];
    let steps = steps.into_iter().map(|(way, count)| ([("direction", way)].into(), count));
    vec![
        gauge("table_flows", "Flows in the table", one(counters.flows)),
        gauge("table_capacity_flows", "Flows that fit into the table", one(view.capacity)),
        counter("table_frames", "Frames that were given to the table", one(counters.frames)),
        counter("began", "Flows that began", one(counters.began)),
        counter(
            "evicted",
            "Flows that ended early, so that another could begin",
            one(counters.evicted),
        ),
        counter("frames_without_flow", "Frames that belong to no flow, by reason", reasons),
        counter("fragments", "Later fragments, by whether their ports are known", fragments),
        counter(
            "fragments_forgotten",
            "Packets forgotten while their fragments may still have come",
            one(counters.fragments_forgotten),
        ),
        counter("clock_steps", "Steps of the frames' clock", steps),
        counter("records", "Records of flows that ended, or of parts of them", one(view.records)),
    ]
}

fn of_exports(view: &View) -> Vec<MetricFamily> {
    let of = |count: fn(&crate::ExportView) -> u64| {
        let all = view.exports.iter();
        all.map(move |export| ([("export", export.name.as_str())].into(), count(export)))
    };
    vec![
        counter("export_sent_records", "Records sent", of(|export| export.counts.sent)),
        counter(
            "export_unsent_records",
            "Records that could not be sent",
            of(|export| export.counts.unsent),
        ),
        counter(
            "export_disk_full",
            "Times that a full disk was waited for",
            of(|export| export.disk_full),
        ),
        gauge(
            "export_failed",
            "1 once the export takes no more",
            of(|export| u64::from(export.has_failed)),
        ),
    ]
}

/// Names and values of labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

fn one<'a>(value: u64) -> impl Iterator<Item = (Labels<'a>, u64)> {
    [(Vec::new(), value)].into_iter()
}

fn gauge<'a>(
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    })
}

fn counter<'a>(
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
) -> MetricFamily {
    family(&format!("{name}_total"), help, MetricType::COUNTER, values, |metric, value| {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    })
}

fn family<'a>(
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
    set: impl Fn(&mut Metric, f64),
) -> MetricFamily {
    // Two sources of the same name are one metric: a name that comes twice has Prometheus refuse all of them.
    let mut sums: BTreeMap<Labels<'a>, u64> = BTreeMap::new();
    for (labels, value) in values {
        let sum = sums.entry(labels).or_default();
        *sum = if kind == MetricType::GAUGE { value.max(*sum) } else { sum.saturating_add(value) };
    }
    let metrics = sums.into_iter().map(|(labels, value)| {
        let mut metric = Metric::from_label(labels.into_iter().map(label).collect());
        set(&mut metric, value as f64);
        metric
    });
    let mut family = MetricFamily::default();
    family.set_name(format!("weir_flows_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics.collect());
    family
}

fn label((name, value): (&str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
