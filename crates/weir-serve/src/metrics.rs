//! The status as metrics, in the text format of OpenMetrics that Prometheus reads.
//!
//! Source: OpenMetrics 1.0, <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use weir_client::protocol::Ledger;
use weir_client::status::{ClientStatus, FeedStatus, Status};

/// The metrics of this status, and of the connections that there are.
#[must_use]
pub fn text(status: Status, connections: u64) -> String {
    let mut registry = Registry::with_prefix("weir");
    registry.register_collector(Box::new(Told { status, connections }));
    let mut text = String::new();
    // Into memory: nothing can fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Told {
    status: Status,
    connections: u64,
}

type Labels = Vec<(&'static str, String)>;
type Counts = Vec<(Labels, u64)>;

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Told { status, connections } = self;
        let mut gauge = |name: &str, help: &str, values: Counts| {
            let gauges = values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value as i64)));
            family(&mut encoder, name, help, gauges)
        };
        gauge("connections", "Connections of clients", vec![(Vec::new(), *connections)])?;
        let open = |source: &weir_client::status::SourceStatus| {
            (vec![("source", source.source.clone())], u64::from(source.is_open))
        };
        gauge("source_open", "1 while somebody reads the source", status.sources.iter().map(open).collect())?;
        let readers = |feed: &FeedStatus| (of_feed(feed), feed.readers as u64);
        gauge("feed_readers", "Clients' feeds that read these rings", status.feeds.iter().map(readers).collect())?;
        let lags = status.clients.iter().filter_map(|client| Some((of_client(client), client.lag?)));
        gauge("client_lag_frames", "Frames before the client's slowest consumer", lags.collect())?;
        let mut counter = |name: &str, help: &str, values: Counts| {
            let counters = values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
            family(&mut encoder, name, help, counters)
        };
        let counts: [(&str, &str, fn(&Ledger) -> u64); 6] = [
            ("offered_frames", "Frames that came to the hook", |ledger| ledger.offered),
            ("filtered_frames", "Frames that the filter left out", |ledger| ledger.filtered),
            ("blocked_frames", "Frames that the block list left out", |ledger| ledger.blocked),
            ("sampled_frames", "Frames that sampling left out", |ledger| ledger.sampled),
            ("captured_frames", "Frames written into the rings", |ledger| ledger.captured),
            ("captured_bytes", "Bytes of those on the wire", |ledger| ledger.wire_bytes),
        ];
        for (name, help, count) in counts {
            let of_feeds = status.feeds.iter();
            let of_feeds = of_feeds.filter_map(|feed| Some((of_feed(feed), count(feed.ledger.as_ref()?))));
            counter(&format!("feed_{name}"), help, of_feeds.collect())?;
            let clients = status.clients.iter();
            let clients = clients.filter_map(|client| Some((of_client(client), count(client.ledger.as_ref()?))));
            counter(&format!("client_{name}"), help, clients.collect())?;
        }
        let drops = status.feeds.iter().flat_map(|feed| {
            let drops = feed.ledger.iter().flat_map(|ledger| &ledger.drops);
            drops.map(|(place, count)| {
                let mut labels = of_feed(feed);
                labels.push(("place", place.clone()));
                (labels, *count)
            })
        });
        counter("feed_dropped_frames", "Frames lost, by place", drops.collect())
    }
}

fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, M)>,
) -> Result<(), fmt::Error> {
    let mut values = values.peekable();
    let Some((_, first)) = values.peek() else { return Ok(()) };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (labels, value) in values {
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn of_feed(feed: &FeedStatus) -> Labels {
    vec![("source", feed.source.clone()), ("feed", feed.key.to_string())]
}

fn of_client(client: &ClientStatus) -> Labels {
    vec![
        ("source", client.source.clone()),
        ("feed", client.key.to_string()),
        ("uid", client.uid.to_string()),
        ("pid", client.pid.to_string()),
    ]
}
