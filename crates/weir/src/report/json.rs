//! The report as one JSON object.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_capture::{Direction, Info, InterfaceLedger, Sampling};
use weir_client::protocol;
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;
use weir_store::recorder::look_back::LookBackReport;

use super::Report;
use crate::consumers::{LatencyReport, NetdevReport};
use crate::error_words::{error_text, without_number};
use crate::flows::report::FlowsReport;
use crate::run_result::{ConsumerResult, FeedResult, Rates};
use crate::source_name::Part;

/// The counts of a ledger: that of the whole run, of a source, or of a feed.
#[derive(Serialize)]
struct Counts {
    offered: u64,
    filtered: u64,
    filtered_uncounted: bool,
    blocked: u64,
    sampled: u64,
    captured: u64,
    bytes: u64,
    drops: BTreeMap<&'static str, u64>,
    missed_before: Option<u64>,
    super_frames: u64,
}

impl From<&Ledger> for Counts {
    fn from(ledger: &Ledger) -> Self {
        Counts {
            offered: ledger.offered,
            filtered: ledger.filtered,
            filtered_uncounted: ledger.filtered_uncounted,
            blocked: ledger.blocked,
            sampled: ledger.sampled,
            captured: ledger.captured,
            bytes: ledger.wire_bytes,
            drops: ledger.drops.clone(),
            missed_before: ledger.missed_before,
            super_frames: ledger.super_frames,
        }
    }
}

/// Returns the counts of a ledger as JSON, in the form of reports.
pub fn counts(ledger: &Ledger) -> serde_json::Value {
    serde_json::to_value(Counts::from(ledger)).expect("numbers and names")
}

#[derive(Serialize)]
struct Json<'a> {
    source: String,
    engine: String,
    hook: Option<&'a str>,
    duration_s: f64,
    #[serde(flatten)]
    counts: Counts,
    lapped: u64,
    delivered: u64,
    untriggered: u64,
    after_limit: u64,
    /// Present only while the run lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    late: u64,
    unexplained: Option<i128>,
    mpps: f64,
    gbps: f64,
    /// Present only while the run lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<LatencyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev: Option<&'a NetdevReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flows: Option<&'a FlowsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorder: Option<JsonRecorder<'a>>,
    consumers: Vec<JsonConsumer>,
    sources: Vec<JsonSource<'a>>,
    feeds: Vec<JsonFeed<'a>>,
}

#[derive(Serialize)]
struct JsonRecorder<'a> {
    files: u64,
    bytes: u64,
    torn_blocks: u64,
    copied_blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<JsonCompression>,
    #[serde(skip_serializing_if = "Option::is_none")]
    look_back: Option<JsonLookBack>,
    note: Option<&'a str>,
    volumes: Vec<JsonVolume<'a>>,
}

#[derive(Serialize)]
struct JsonCompression {
    plain_bytes: u64,
    stored_blocks: u64,
}

#[derive(Serialize)]
struct JsonLookBack {
    is_saving: bool,
    saves: u64,
    signal: u64,
    command: u64,
    filter: u64,
    rate: u64,
    unwatched: u64,
}

impl From<LookBackReport> for JsonLookBack {
    fn from(report: LookBackReport) -> JsonLookBack {
        let LookBackReport { is_saving, saves, signal, command, filter, rate, unwatched } = report;
        JsonLookBack { is_saving, saves, signal, command, filter, rate, unwatched }
    }
}

#[derive(Serialize)]
struct JsonVolume<'a> {
    directory: std::borrow::Cow<'a, str>,
    bytes: u64,
    deleted_files: u64,
    deleted_bytes: u64,
    error: Option<String>,
}

impl<'a> From<&'a RecorderReport> for JsonRecorder<'a> {
    fn from(report: &'a RecorderReport) -> JsonRecorder<'a> {
        let volumes = report.volumes.iter().map(|volume| JsonVolume {
            directory: volume.directory.to_string_lossy(),
            bytes: volume.bytes,
            deleted_files: volume.deleted_files,
            deleted_bytes: volume.deleted_bytes,
            error: volume.error.as_deref().map(without_number),
        });
        let RecorderReport { files, bytes, torn_blocks, copied_blocks, .. } = *report;
        let look_back = report.look_back.map(JsonLookBack::from);
        let volumes = volumes.collect();
        let RecorderReport { plain_bytes, stored_blocks, .. } = *report;
        let compression =
            (plain_bytes > 0).then_some(JsonCompression { plain_bytes, stored_blocks });
        let note = report.note.as_deref();
        JsonRecorder {
            files,
            bytes,
            torn_blocks,
            copied_blocks,
            compression,
            look_back,
            note,
            volumes,
        }
    }
}

#[derive(Serialize)]
struct JsonConsumer {
    name: &'static str,
    delivered: u64,
    lapped: u64,
    untriggered: u64,
    after_limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    late: u64,
    drops: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<bool>,
    error: Option<String>,
}

impl From<&ConsumerResult> for JsonConsumer {
    fn from(consumer: &ConsumerResult) -> Self {
        JsonConsumer {
            name: consumer.name,
            delivered: consumer.delivered.frames,
            lapped: consumer.delivered.lapped,
            untriggered: consumer.delivered.untriggered,
            after_limit: consumer.delivered.after_limit,
            waiting: consumer.waiting,
            late: consumer.delivered.late,
            drops: consumer.drops(),
            ended: consumer.has_ended,
            error: consumer.failure.as_ref().map(|error| error_text(error)),
        }
    }
}

#[derive(Serialize)]
struct JsonSource<'a> {
    source: &'a str,
    engine: &'a str,
    hook: Option<&'a str>,
    why: &'a str,
    notes: &'a [String],
    #[serde(flatten)]
    counts: Counts,
    lives: u64,
    downs: u64,
    /// This and `ended` are present only while the run lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_open: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<bool>,
    error: Option<String>,
    owner: Option<protocol::Owner>,
}

#[derive(Serialize)]
struct JsonFeed<'a> {
    source: &'a str,
    feed: &'a str,
    part: Option<String>,
    shares: Option<&'a str>,
    filter: Option<&'a str>,
    changes: u64,
    filter_location: Option<&'static str>,
    snaplen: u32,
    direction: &'static str,
    one_in: u32,
    flows_one_in: u32,
    interface_id: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<JsonInterface<'a>>,
    #[serde(flatten)]
    counts: Counts,
    lapped: Option<u64>,
    delivered: Option<u64>,
    untriggered: Option<u64>,
}

/// An interface of a pattern. It has no drops if drops are counted only for the whole feed.
#[derive(Serialize)]
struct JsonInterface<'a> {
    name: &'a str,
    owner: Option<protocol::Owner>,
    is_member: bool,
    interface_id: Option<u32>,
    offered: u64,
    filtered: u64,
    blocked: u64,
    sampled: u64,
    captured: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    drops: &'a BTreeMap<&'static str, u64>,
    missed_before: Option<u64>,
    super_frames: u64,
}

impl<'a> JsonInterface<'a> {
    fn new(share: &'a InterfaceLedger, interface_id: Option<u32>) -> JsonInterface<'a> {
        let InterfaceLedger { name, owner, is_member, ledger, .. } = share;
        JsonInterface {
            name,
            owner: owner.as_ref().map(protocol::Owner::from),
            is_member: *is_member,
            interface_id,
            offered: ledger.offered,
            filtered: ledger.filtered,
            blocked: ledger.blocked,
            sampled: ledger.sampled,
            captured: ledger.captured,
            bytes: ledger.wire_bytes,
            drops: &ledger.drops,
            missed_before: ledger.missed_before,
            super_frames: ledger.super_frames,
        }
    }
}

impl Report<'_> {
    /// Returns the report as one JSON object, on one line.
    pub fn json(&self) -> String {
        let (total, main) = (self.total(), self.main());
        let names = |name: fn(&Info) -> &str| {
            let mut names: Vec<&str> = Vec::new();
            for source in self.sources {
                let name = name(&source.info);
                // A source whose interface was never there has no engine.
                if !name.is_empty() && !names.contains(&name) {
                    names.push(name);
                }
            }
            names.join(",")
        };
        let mut counts = Counts::from(&total);
        counts.drops.extend(main.drops());
        let sources = self.sources.iter().map(|source| JsonSource {
            source: &source.info.source,
            engine: source.info.engine,
            hook: source.info.hook,
            why: &source.info.why,
            notes: &source.info.notes,
            counts: (&source.ledger).into(),
            lives: source.lives,
            downs: source.downs,
            is_open: source.now.map(|now| now.is_open),
            ended: source.now.map(|now| now.has_ended),
            error: source.error.clone(),
            owner: source.info.owner.as_ref().map(protocol::Owner::from),
        });
        let json = Json {
            source: names(|info| &info.source),
            engine: names(|info| info.engine),
            hook: self.sources.first().and_then(|source| source.info.hook),
            duration_s: self.duration.as_secs_f64(),
            counts,
            lapped: main.delivered.lapped,
            delivered: main.delivered.frames,
            untriggered: main.delivered.untriggered,
            after_limit: main.delivered.after_limit,
            waiting: main.waiting,
            late: main.delivered.late,
            unexplained: (!self.is_of_a_moment()).then(|| self.unexplained()),
            mpps: self.mpps(),
            gbps: self.gbps(),
            rates: self.rates,
            latency: self.latency(),
            netdev: self.netdev(),
            flows: self.flows(),
            recorder: self.recorder().map(JsonRecorder::from),
            consumers: self.consumers.iter().map(JsonConsumer::from).collect(),
            sources: sources.collect(),
            feeds: self.json_feeds(),
        };
        serde_json::to_string(&json).expect("numbers and strings serialize")
    }

    fn json_feeds(&self) -> Vec<JsonFeed<'_>> {
        self.feeds()
            .map(|(FeedResult { asked: feed, ledger, location, interfaces }, source)| {
                let number = |id| self.main().interface(feed.output, id);
                let first = number(0);
                let taken = self.main().taken(feed.output);
                let shares = interfaces.iter();
                let interfaces = shares.map(|share| JsonInterface::new(share, number(share.id)));
                JsonFeed {
                    source: &source.info.source,
                    feed: &feed.name,
                    part: (feed.part != Part::Whole)
                        .then(|| feed.part.to_string().trim_start_matches('@').to_owned()),
                    shares: feed.shares.as_deref(),
                    filter: feed.takes.filter.as_ref().map(|filter| filter.text.as_str()),
                    changes: feed.changes,
                    filter_location: location.name(),
                    snaplen: feed.takes.snaplen,
                    direction: match feed.takes.direction {
                        Direction::In => "in",
                        Direction::Out => "out",
                        Direction::Both => "both",
                    },
                    one_in: match feed.takes.sampling {
                        Sampling::All | Sampling::FlowsOneIn(_) => 1,
                        Sampling::OneIn(count) => count,
                    },
                    flows_one_in: match feed.takes.sampling {
                        Sampling::FlowsOneIn(count) => count.get(),
                        Sampling::All | Sampling::OneIn(_) => 1,
                    },
                    interface_id: first,
                    interfaces: interfaces.collect(),
                    counts: ledger.into(),
                    lapped: taken.map(|taken| taken.lapped),
                    delivered: taken.map(|taken| taken.frames),
                    untriggered: taken.map(|taken| taken.untriggered),
                }
            })
            .collect()
    }
}
