//! The text format that Prometheus reads, and what a daemon and a capture both tell in it: under the same names.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, "Text-based format".

pub use prometheus::TEXT_FORMAT;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use weir_client::protocol::Ledger;
use weir_client::status::SourceStatus;

/// Names and values of labels.
pub type Labels = Vec<LabelPair>;
/// One of a ledger's counts.
type Count = fn(&Ledger) -> u64;

/// A value that may fall.
#[must_use]
pub fn gauge(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    })
}

/// A value that only grows; its name gets `_total`.
#[must_use]
pub fn counter(
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, u64)>,
) -> MetricFamily {
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

/// One label.
#[must_use]
pub fn label(name: &str, value: &str) -> Labels {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    vec![pair]
}

/// A value without labels.
pub fn one(value: u64) -> impl Iterator<Item = (Labels, u64)> {
    [(Labels::new(), value)].into_iter()
}

/// All of them as text; those without a value are left out.
#[must_use]
pub fn encoded(mut all: Vec<MetricFamily>) -> String {
    all.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    // Every family has a name and a metric, and memory takes it.
    let _ = TextEncoder::new().encode(&all, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Which sources are open, and how they are captured.
#[must_use]
pub fn of_sources(sources: &[SourceStatus]) -> Vec<MetricFamily> {
    let open = sources.iter();
    let open = open.map(|source| (label("source", &source.source), u64::from(source.is_open)));
    let info = sources.iter().filter(|source| source.is_open);
    let info = info.map(|source| (about(source), 1));
    vec![
        gauge("source_open", "1 while the source is captured", open),
        gauge(
            "source_info",
            "Open sources: how they are captured, and whose frames they are",
            info,
        ),
    ]
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

/// The counts of these ledgers, whose names begin with `prefix`.
#[must_use]
pub fn of_ledgers(prefix: &str, ledgers: &[(Labels, &Ledger)]) -> Vec<MetricFamily> {
    let counts: [(&str, &str, Count); 6] = [
        ("offered_frames", "Frames that came to the hook", |ledger| ledger.offered),
        ("filtered_frames", "Frames that the filter left out", |ledger| ledger.filtered),
        ("blocked_frames", "Frames that the block list left out", |ledger| ledger.blocked),
        ("sampled_frames", "Frames that sampling left out", |ledger| ledger.sampled),
        ("captured_frames", "Frames written into the rings", |ledger| ledger.captured),
        ("captured_bytes", "Bytes of those on the wire", |ledger| ledger.wire_bytes),
    ];
    let of = |(name, help, count): (&str, &str, Count)| {
        let values = ledgers.iter().map(|(labels, ledger)| (labels.clone(), count(ledger)));
        counter(&format!("{prefix}_{name}"), help, values)
    };
    let mut all: Vec<MetricFamily> = counts.into_iter().map(of).collect();
    let drops = ledgers.iter().flat_map(|(labels, ledger)| {
        let drops = ledger.drops.iter();
        drops.map(|(place, count)| ([&labels[..], &label("place", place)].concat(), *count))
    });
    all.push(counter(&format!("{prefix}_dropped_frames"), "Frames lost, by place", drops));
    all
}
