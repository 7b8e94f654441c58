//! Metrics that the daemon and a capture both have, with the same names.

use weir_client::protocol::Ledger;
use weir_client::status::SourceStatus;
use weir_metrics::{Labels, MetricFamily, counter, gauge, labels};

/// Returns one count of a ledger.
type Count = fn(&Ledger) -> u64;

/// Returns metrics of the sources: whether they are open, and how they are captured.
#[must_use]
pub fn of_sources(sources: &[SourceStatus]) -> Vec<MetricFamily> {
    let open = sources.iter();
    let open = open.map(|source| (labels([("source", &source.source)]), u64::from(source.is_open)));
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
    labels([
        ("source", &source.source),
        ("captures", &source.captures),
        ("engine", &source.engine),
        ("owner_kind", &owner.kind),
        ("owner", &owner.name),
        ("owner_id", owner.id.as_deref().unwrap_or_default()),
    ])
}

/// Returns the counts of these ledgers as metrics. Their names begin with `prefix`.
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
        drops.map(|(place, count)| ([&labels[..], &[("place", place.clone())]].concat(), *count))
    });
    all.push(counter(&format!("{prefix}_dropped_frames"), "Frames lost, by place", drops));
    all
}
