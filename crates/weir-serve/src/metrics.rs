//! The status as metrics, in the text format that Prometheus reads.

pub mod exposition;

use weir_client::status::{ClientStatus, FeedStatus, Status};
use weir_metrics::{Labels, counter, encoded, gauge, labels, one};

use exposition::{of_ledgers, of_sources};

/// Counts of the daemon that do not belong to an open feed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of current connections.
    pub connections: u64,
    /// Number of accepted connections.
    pub connected: u64,
    /// Number of connections that were refused because there were too many.
    pub connections_refused: u64,
    /// Number of messages that could not be parsed, and of connections that ended within a message.
    pub malformed: u64,
    /// Number of messages that were delayed because too many came in a second.
    pub delayed: u64,
    /// Number of refused feeds.
    pub feeds_refused: u64,
}

/// Returns the metrics of this status and these counts, as text.
#[must_use]
pub fn text(status: &Status, counts: &Counts) -> String {
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
        gauge("feed_readers", "Clients' feeds that read these rings", readers),
        gauge("client_lag_frames", "Frames before the client's slowest consumer", lags),
    ];
    all.extend(of_sources(&status.sources));
    let feeds = status.feeds.iter();
    let feeds = feeds.filter_map(|feed| Some((of_feed(feed), feed.ledger.as_ref()?)));
    all.extend(of_ledgers("feed", &feeds.collect::<Vec<_>>()));
    let clients = status.clients.iter();
    let clients = clients.filter_map(|client| Some((of_client(client), client.ledger.as_ref()?)));
    all.extend(of_ledgers("client", &clients.collect::<Vec<_>>()));
    encoded(all)
}

fn of_feed(feed: &FeedStatus) -> Labels {
    labels([("source", &feed.source), ("feed", &feed.key.to_string())])
}

fn of_client(client: &ClientStatus) -> Labels {
    labels([
        ("source", &client.source),
        ("feed", &client.key.to_string()),
        ("uid", &client.uid.to_string()),
        ("pid", &client.pid.to_string()),
        ("connection", &client.connection.to_string()),
        ("number", &client.number.to_string()),
    ])
}
