//! The view as metrics, in the text format that Prometheus reads.

use weir_metrics::{Labels, MetricFamily, encoded, labels, one};

use super::json::{not_flows, protocol_text};
use crate::view::{SourceView, View};

/// The `Content-Type` of the text.
pub use weir_metrics::TEXT_FORMAT;

/// Returns the metrics of this view as text.
#[must_use]
pub fn text(view: &View) -> String {
    let mut all = of_sources(&view.sources);
    all.extend(of_traffic(view));
    all.extend(of_table(view));
    all.extend(of_exports(view));
    encoded(all)
}

/// A function that reads a count from the ledger of a source.
type Count = fn(&SourceView) -> Option<u64>;

fn of_sources(sources: &[SourceView]) -> Vec<MetricFamily> {
    let info = sources
        .iter()
        .map(|source| (labels([("source", &source.name), ("engine", &source.engine)]), 1));
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
            .filter_map(|source| Some((labels([("source", &source.name)]), count(source)?)));
        all.push(counter(&format!("source_{name}_frames"), help, values));
    }
    let drops = sources.iter().flat_map(|source| {
        source
            .drops
            .iter()
            .map(|(place, &count)| (labels([("source", &source.name), ("place", place)]), count))
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
        all.map(move |(name, total)| (labels([("protocol", name)]), count(total)))
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
    let reasons = reasons.iter().map(|&(reason, count)| (labels([("reason", reason)]), count));
    let fragments =
        [("known", counters.fragments_attributed), ("unknown", counters.fragments_unattributed)];
    let fragments = fragments.into_iter().map(|(ports, count)| (labels([("ports", ports)]), count));
    let steps = [("ahead", counters.clock_steps_ahead), ("back", counters.clock_steps_back)];
    let steps = steps.into_iter().map(|(way, count)| (labels([("direction", way)]), count));
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
        all.map(move |export| (labels([("export", &export.name)]), count(export)))
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

fn gauge(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    weir_metrics::gauge(&format!("flows_{name}"), help, values)
}

fn counter(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    weir_metrics::counter(&format!("flows_{name}"), help, values)
}
