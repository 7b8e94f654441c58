//! Encodes metrics of captures, daemons and flow monitors in the text format that Prometheus reads.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, "Text-based format".

use std::collections::BTreeMap;

pub use prometheus::TEXT_FORMAT;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricType};
use prometheus::{Encoder, TextEncoder};

/// All values of one metric.
pub use prometheus::proto::MetricFamily;

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// Creates labels from these names and values.
#[must_use]
pub fn labels<const COUNT: usize>(pairs: [(&'static str, &str); COUNT]) -> Labels {
    pairs.map(|(name, value)| (name, value.to_owned())).into()
}

/// Returns one value without labels.
pub fn one(value: u64) -> impl Iterator<Item = (Labels, u64)> {
    [(Labels::new(), value)].into_iter()
}

/// Creates a gauge, whose values may fall. For equal sets of labels the highest value is kept: of truth values it is 1
/// if one of them is true.
#[must_use]
pub fn gauge(name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> MetricFamily {
    let values = combined(values, u64::max);
    family(name.to_owned(), help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    })
}

/// Creates a counter, whose values only grow; its name gets `_total`. Values with equal sets of labels are added up.
#[must_use]
pub fn counter(
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, u64)>,
) -> MetricFamily {
    let values = combined(values, u64::saturating_add);
    family(format!("{name}_total"), help, MetricType::COUNTER, values, |metric, value| {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    })
}

/// Returns one value for each set of labels. Prometheus refuses a whole scrape if a set of labels occurs twice, and two
/// sources may have the same name. A number in the labels would distinguish them, but it would depend on the order of
/// the command line: after a restart, a time series could continue with the counts of another source.
fn combined(
    values: impl Iterator<Item = (Labels, u64)>,
    combine: fn(u64, u64) -> u64,
) -> BTreeMap<Labels, u64> {
    let mut all = BTreeMap::new();
    for (labels, value) in values {
        all.entry(labels).and_modify(|known| *known = combine(*known, value)).or_insert(value);
    }
    all
}

fn family(
    name: String,
    help: &str,
    kind: MetricType,
    values: BTreeMap<Labels, u64>,
    set: impl Fn(&mut Metric, f64),
) -> MetricFamily {
    let metrics = values.into_iter().map(|(labels, value)| {
        let mut metric = Metric::from_label(labels.into_iter().map(label).collect());
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

fn label((name, value): (&str, String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}

/// Encodes all metrics as text. Metrics without a value are left out.
#[must_use]
pub fn encoded(mut all: Vec<MetricFamily>) -> String {
    all.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    // This cannot fail: every family has a name and a value, and the text is written to memory.
    let _ = TextEncoder::new().encode(&all, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_are_one_value() {
        let values = || {
            [("a", 1), ("b", 20), ("a", 3)]
                .into_iter()
                .map(|(source, value)| (labels([("source", source)]), value))
        };
        let all = vec![
            counter("frames", "Frames", values()),
            gauge("lag", "Lag", values()),
            gauge("none", "None", [].into_iter()),
            counter("most", "Most", [u64::MAX, 1].into_iter().map(|count| (Labels::new(), count))),
        ];
        assert_eq!(
            encoded(all),
            "# HELP weir_frames_total Frames\n# TYPE weir_frames_total counter\n\
             weir_frames_total{source=\"a\"} 4\nweir_frames_total{source=\"b\"} 20\n\
             # HELP weir_lag Lag\n# TYPE weir_lag gauge\n\
             weir_lag{source=\"a\"} 3\nweir_lag{source=\"b\"} 20\n\
             # HELP weir_most_total Most\n# TYPE weir_most_total counter\n\
             weir_most_total 18446744073709552000\n"
        );
    }
}
