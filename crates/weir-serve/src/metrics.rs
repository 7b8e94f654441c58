//! The status as metrics, in the text format that Prometheus reads.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, "Text-based format".

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use weir_client::protocol::Ledger;
use weir_client::status::{ClientStatus, FeedStatus, SourceStatus, Status};

/// As `Content-Type` has it.
pub use prometheus::TEXT_FORMAT;

/// Counts of the daemon, beside those of open feeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Connections that there are.
    pub connections: u64,
    /// Connections that were taken.
    pub connected: u64,
    /// Connections that were refused because there were too many.
    pub connections_refused: u64,
    /// Messages that were none, and connections that ended in the middle of one.
    pub malformed: u64,
    /// Messages that waited because there were too many a second.
    pub delayed: u64,
    /// Feeds that were refused.
    pub feeds_refused: u64,
}

/// The metrics of this status, and of these counts.
#[must_use]
pub fn text(status: &Status, counts: &Counts) -> String {
    let one = |value: u64| [(Vec::new(), value)].into_iter();
    let open = status.sources.iter();
    let open = open.map(|source| (label("source", &source.source), u64::from(source.is_open)));
    let info = status.sources.iter().filter(|source| source.is_open);
    let info = info.map(|source| (about(source), 1));
    let readers = status.feeds.iter().map(|feed| (of_feed(feed), feed.readers as u64));
    let lags = status.clients.iter().filter_map(|client| Some((of_client(client), client.lag?)));
    let mut all = vec![
        gauge("connections", "Connections of clients", one(counts.connections)),
        counter("connected", "Connections that were taken", one(counts.connected)),
        counter(
            "connections_refused",
            "Connections refused: too many",
            one(counts.connections_refused),
        ),
        counter("malformed_messages", "Messages that were none", one(counts.malformed)),
        counter("delayed_messages", "Messages that waited: too many a second", one(counts.delayed)),
        counter("feeds_refused", "Feeds that clients were refused", one(counts.feeds_refused)),
        gauge("source_open", "1 while somebody reads the source", open),
        gauge(
            "source_info",
            "Open sources: how they are captured, and whose frames they are",
            info,
        ),
        gauge("feed_readers", "Clients' feeds that read these rings", readers),
        gauge("client_lag_frames", "Frames before the client's slowest consumer", lags),
    ];
    let counts: [(&str, &str, Count); 6] = [
        ("offered_frames", "Frames that came to the hook", |ledger| ledger.offered),
        ("filtered_frames", "Frames that the filter left out", |ledger| ledger.filtered),
        ("blocked_frames", "Frames that the block list left out", |ledger| ledger.blocked),
        ("sampled_frames", "Frames that sampling left out", |ledger| ledger.sampled),
        ("captured_frames", "Frames written into the rings", |ledger| ledger.captured),
        ("captured_bytes", "Bytes of those on the wire", |ledger| ledger.wire_bytes),
    ];
    for (name, help, count) in counts {
        let feeds = status.feeds.iter();
        let feeds = feeds.filter_map(|feed| Some((of_feed(feed), count(feed.ledger.as_ref()?))));
        all.push(counter(&format!("feed_{name}"), help, feeds));
        let clients = status.clients.iter();
        let clients =
            clients.filter_map(|client| Some((of_client(client), count(client.ledger.as_ref()?))));
        all.push(counter(&format!("client_{name}"), help, clients));
    }
    let feeds = status.feeds.iter().map(|feed| (of_feed(feed), feed.ledger.as_ref()));
    all.push(counter("feed_dropped_frames", "Frames lost, by place", feeds.flat_map(by_place)));
    let clients = status.clients.iter().map(|client| (of_client(client), client.ledger.as_ref()));
    all.push(counter("client_dropped_frames", "Frames lost, by place", clients.flat_map(by_place)));
    all.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    // Every family has a name and a metric, and memory takes it.
    let _ = TextEncoder::new().encode(&all, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

type Labels = Vec<LabelPair>;
/// One of a ledger's counts.
type Count = fn(&Ledger) -> u64;

fn gauge(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    })
}

fn counter(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    family(&format!("{name}_total"), help, MetricType::COUNTER, values, |metric, value| {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    })
}

fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl Iterator<Item = (Labels, u64)>,
    set: impl Fn(&mut Metric, f64),
) -> MetricFamily {
    let metrics = values.map(|(labels, value)| {
        let mut metric = Metric::from_label(labels);
        set(&mut metric, value as f64);
        metric
    });
    let mut family = MetricFamily::default();
    family.set_name(format!("weir_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics.collect());
    family
}

fn label(name: &str, value: &str) -> Labels {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    vec![pair]
}

fn about(source: &SourceStatus) -> Labels {
    let owner = source.owner.clone().unwrap_or_default();
    [
        label("source", &source.source),
        label("captures", &source.captures),
        label("engine", &source.engine),
        label("owner_kind", &owner.kind),
        label("owner", &owner.name),
        label("owner_id", owner.id.as_deref().unwrap_or_default()),
    ]
    .concat()
}

fn of_feed(feed: &FeedStatus) -> Labels {
    [label("source", &feed.source), label("feed", &feed.key.to_string())].concat()
}

fn of_client(client: &ClientStatus) -> Labels {
    [
        label("source", &client.source),
        label("feed", &client.key.to_string()),
        label("uid", &client.uid.to_string()),
        label("pid", &client.pid.to_string()),
        label("connection", &client.connection.to_string()),
        label("number", &client.number.to_string()),
    ]
    .concat()
}

fn by_place((labels, ledger): (Labels, Option<&Ledger>)) -> Vec<(Labels, u64)> {
    let drops = ledger.into_iter().flat_map(|ledger| &ledger.drops);
    drops.map(|(place, count)| ([&labels[..], &label("place", place)].concat(), *count)).collect()
}
