//! Metrics of a running capture. Metrics that a daemon also has use the same names.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weir_client::protocol::{Ledger, Owner};
use weir_client::status::SourceStatus;
use weir_consumer::Delivered;
use weir_metrics::{Labels, counter, encoded, gauge, labels, one};
use weir_serve::metrics::exposition::{of_ledgers, of_sources};
use weir_store::recorder::VolumeReport;

use crate::run_result::{ConsumerResult, FeedResult, RunResult, SourceResult};
use crate::so_far::SoFar;
use crate::source_name::Part;

/// Selects one of the counts of a consumer.
type Count = fn(&Delivered) -> u64;

/// The highest published counts of frames and bytes of each consumer. If an output fails, frames that counted as
/// delivered become lost. The published counters keep their values, because Prometheus takes a decrease for a reset to
/// 0.
#[derive(Default)]
pub struct Highest(Mutex<BTreeMap<&'static str, (u64, u64)>>);

impl Highest {
    fn keep(&self, consumers: &mut [ConsumerResult]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ConsumerResult { name, delivered, .. } in consumers {
            let (frames, bytes) = all.entry(*name).or_default();
            *frames = delivered.frames.max(*frames);
            *bytes = delivered.wire_bytes.max(*bytes);
            (delivered.frames, delivered.wire_bytes) = (*frames, *bytes);
        }
    }
}

/// Returns the current metrics of a run, as text.
pub fn text(so_far: &SoFar, highest: &Highest) -> String {
    let mut result = so_far.result(Vec::new());
    highest.keep(&mut result.consumers);
    of(&result)
}

fn of(result: &RunResult) -> String {
    let sources: Vec<SourceStatus> = result.sources.iter().map(status_of).collect();
    let mut all =
        vec![gauge("uptime_seconds", "Since the capture's start", one(result.duration.as_secs()))];
    all.extend(of_sources(&sources));
    let missed = result.sources.iter().filter_map(|source| {
        Some((labels([("source", &source.info.source)]), source.ledger.missed_before?))
    });
    all.push(counter(
        "source_missed_before_frames",
        "Frames that the NIC or its driver says it lost before the hook",
        missed,
    ));
    let ledgers: Vec<(Labels, Ledger)> = result
        .feeds
        .iter()
        .enumerate()
        // Feeds that share rings are counted once.
        .filter(|(at, feed)| feed.asked.output == *at)
        .map(|(at, feed)| (of_feed(result, at, feed), Ledger::from(&feed.ledger)))
        .collect();
    let ledgers: Vec<(Labels, &Ledger)> =
        ledgers.iter().map(|(labels, ledger)| (labels.clone(), ledger)).collect();
    all.extend(of_ledgers("feed", &ledgers));
    let consumers = &result.consumers;
    let lags = consumers.iter().filter_map(|one| Some((of_consumer(one), one.waiting?)));
    all.push(gauge("consumer_lag_frames", "Frames that the consumer has not read yet", lags));
    let ended =
        consumers.iter().map(|one| (of_consumer(one), u64::from(one.has_ended == Some(true))));
    all.push(gauge("consumer_ended", "1 once the consumer takes no more", ended));
    let failed = consumers.iter().map(|one| (of_consumer(one), u64::from(has_failed(one))));
    all.push(gauge("consumer_failed", "1 once the consumer has failed", failed));
    let counts: [(&str, &str, Count); 6] = [
        ("delivered_frames", "Frames that reached the consumer", |counts| counts.frames),
        ("delivered_bytes", "Bytes of those on the wire", |counts| counts.wire_bytes),
        ("lapped_frames", "Frames overwritten before the consumer had read them", |counts| {
            counts.lapped
        }),
        ("untriggered_frames", "Frames that no trigger asked for", |counts| counts.untriggered),
        ("after_limit_frames", "Frames that were not asked for", |counts| counts.after_limit),
        ("late_frames", "Delivered frames that are out of time order", |counts| counts.late),
    ];
    for (name, help, count) in counts {
        let values = consumers.iter().map(|one| (of_consumer(one), count(&one.delivered)));
        all.push(counter(&format!("consumer_{name}"), help, values));
    }
    let drops = consumers.iter().flat_map(|one| {
        one.drops()
            .into_iter()
            .map(|(place, count)| (labels([("consumer", one.name), ("place", place)]), count))
    });
    all.push(counter("consumer_dropped_frames", "Captured frames that it lost, by place", drops));
    if let Some(recorder) = consumers.iter().find_map(|one| one.recorder.as_ref()) {
        all.push(counter("recorder_files", "Files begun", one(recorder.files)));
        // A gauge, because the bytes of a failed write are cut off, so the value can decrease.
        all.push(gauge("recorder_bytes", "Bytes of files", one(recorder.bytes)));
        all.push(counter(
            "recorder_torn_blocks",
            "Blocks overtaken while they were written",
            one(recorder.torn_blocks),
        ));
        let volumes = |count: fn(&VolumeReport) -> u64| {
            let of = move |one: &VolumeReport| {
                (labels([("directory", &one.directory.display().to_string())]), count(one))
            };
            recorder.volumes.iter().map(of)
        };
        all.push(counter(
            "recorder_deleted_files",
            "Files that the quota deleted",
            volumes(|one| one.deleted_files),
        ));
        all.push(gauge(
            "recorder_failed",
            "1 once the directory is left out",
            volumes(|one| u64::from(one.error.is_some())),
        ));
    }
    encoded(all)
}

fn has_failed(consumer: &ConsumerResult) -> bool {
    consumer.failure.as_ref().is_some_and(|failure| !failure.wants_no_more())
}

/// Converts the result of a source to the daemon's status of a source.
fn status_of(source: &SourceResult) -> SourceStatus {
    SourceStatus {
        source: source.info.source.clone(),
        captures: source.info.source.clone(),
        is_open: source.now.is_some_and(|now| now.is_open),
        engine: source.info.engine.to_owned(),
        hook: source.info.hook.map(str::to_owned),
        notes: Vec::new(),
        owner: source.info.owner.as_ref().map(Owner::from),
        unavailable: None,
    }
}

/// Returns the labels of a feed: the source, the names of all feeds that share its rings, and the part of the source.
fn of_feed(result: &RunResult, output: usize, feed: &FeedResult) -> Labels {
    let own = result.feeds.iter().filter(|other| other.asked.output == output);
    let names: Vec<&str> = own.map(|other| other.asked.name.as_str()).collect();
    let part = match feed.asked.part {
        Part::Whole => String::new(),
        part => part.to_string().trim_start_matches('@').to_owned(),
    };
    let source = &result.sources[feed.asked.source].info.source;
    labels([("source", source), ("feed", &names.join(",")), ("part", &part)])
}

fn of_consumer(consumer: &ConsumerResult) -> Labels {
    labels([("consumer", consumer.name)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_a_failing_output_does_not_fall() {
        let highest = Highest::default();
        let published = [(7, 700), (5, 500), (9, 900)].map(|(frames, wire_bytes)| {
            let delivered = Delivered { frames, wire_bytes, ..Delivered::default() };
            let mut all =
                [ConsumerResult { name: "write", delivered, ..ConsumerResult::default() }];
            highest.keep(&mut all);
            (all[0].delivered.frames, all[0].delivered.wire_bytes)
        });
        assert_eq!(published, [(7, 700), (7, 700), (9, 900)]);
    }
}
