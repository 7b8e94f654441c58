//! The ledger as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use weir_capture::{Direction, FilterLocation, Info, Outcome, Sampling};
use weir_consumer::{Delivered, Taken};
use weir_ring::Ledger;

use crate::latency::LatencyReport;
use crate::source_name::Part;
use crate::sources::Subscribed;
use crate::units::{bit_rate, grouped, packet_rate};

/// What a run came to.
pub struct Report<'a> {
    /// The sources.
    pub outcomes: &'a [Outcome],
    /// The feeds that were asked for.
    pub feeds: &'a [Subscribed],
    /// What the consumer took, by interface id; empty if it does not know.
    pub by_interface: &'a [Taken],
    /// What reached the consumer.
    pub delivered: Delivered,
    /// From the start of the sources to their stop, or until the last frame that reached the consumer if
    /// that was later: a consumer that lags is not the faster for it. Waiting for a disk at the end is
    /// not in it.
    pub duration: Duration,
    /// Frames that the output lost.
    pub store_drops: u64,
    /// Frames that could not be read from the rings any more.
    pub ring_drops: u64,
    /// How long frames took, if that was asked for.
    pub latency: Option<LatencyReport>,
}

/// What a ledger says, of all, of a source, of a feed.
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
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    source: String,
    engine: String,
    hook: Option<&'a str>,
    duration_s: f64,
    #[serde(flatten)]
    counts: Counts,
    missed_before: Option<u64>,
    super_frames: u64,
    lapped: u64,
    delivered: u64,
    after_limit: u64,
    late: u64,
    unexplained: i128,
    mpps: f64,
    gbps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<LatencyReport>,
    sources: Vec<JsonSource<'a>>,
    feeds: Vec<JsonFeed<'a>>,
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
    missed_before: Option<u64>,
    super_frames: u64,
    error: Option<String>,
}

#[derive(Serialize)]
struct JsonFeed<'a> {
    source: &'a str,
    feed: &'a str,
    part: Option<String>,
    shares: Option<&'a str>,
    filter: Option<&'a str>,
    changes: u64,
    home: Option<&'static str>,
    snaplen: u32,
    direction: &'static str,
    one_in: u32,
    flows_one_in: u32,
    interface_id: u32,
    #[serde(flatten)]
    counts: Counts,
    lapped: Option<u64>,
    delivered: Option<u64>,
}

impl Report<'_> {
    /// All feeds of all sources together.
    pub fn total(&self) -> Ledger {
        let mut total = Ledger::default();
        for outcome in self.outcomes {
            total.add(&outcome.ledger());
        }
        total
    }

    /// The feeds that were asked for, each with its ledger and where its frames were chosen.
    fn feeds(&self) -> impl Iterator<Item = (&Subscribed, &Outcome, &Ledger, FilterLocation)> {
        self.feeds.iter().filter_map(|feed| {
            let outcome = self.outcomes.get(feed.source)?;
            let home = outcome.info.homes.get(feed.feed).copied().unwrap_or_default();
            Some((feed, outcome, outcome.ledgers.get(feed.feed)?, home))
        })
    }

    fn json_feeds(&self) -> Vec<JsonFeed<'_>> {
        self.feeds()
            .map(|(feed, outcome, ledger, home)| {
                let taken = self.by_interface.get(feed.interface_id as usize);
                JsonFeed {
                    source: &outcome.info.source,
                    feed: &feed.name,
                    part: (feed.part != Part::Whole)
                        .then(|| feed.part.to_string().trim_start_matches('@').to_owned()),
                    shares: feed.shares.as_deref(),
                    filter: feed.takes.filter.as_ref().map(|filter| filter.text.as_str()),
                    changes: feed.changes,
                    home: home.name(),
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
                    interface_id: feed.interface_id,
                    counts: ledger.into(),
                    lapped: taken.map(|taken| taken.lapped),
                    delivered: taken.map(|taken| taken.frames),
                }
            })
            .collect()
    }

    /// Frames that were offered and did not reach the consumer.
    pub fn lost(&self) -> u64 {
        self.total().dropped() + self.delivered.lapped + self.store_drops + self.ring_drops
    }

    /// Frames that the ledger or the consumer's half of it does not account for; 0 unless we have a
    /// fault.
    pub fn unexplained(&self) -> i128 {
        let total = self.total();
        let Delivered { frames, lapped, after_limit, .. } = self.delivered;
        let accounted =
            [frames, lapped, after_limit, self.store_drops, self.ring_drops].map(i128::from);
        let consumer = i128::from(total.captured) - accounted.iter().sum::<i128>();
        // Of each feed: what one lacks another's surplus does not make up for.
        let ledgers = self.outcomes.iter().flat_map(|outcome| &outcome.ledgers);
        match ledgers.map(|ledger| ledger.unexplained().abs()).sum() {
            0 => consumer,
            unexplained => unexplained,
        }
    }

    /// Frames a second that reached the consumer, in millions.
    pub fn mpps(&self) -> f64 {
        per_second(self.delivered.frames as f64, self.duration) / 1e6
    }

    /// Gbit/s of frames that reached the consumer, as they were on the wire without FCS.
    pub fn gbps(&self) -> f64 {
        per_second(self.delivered.wire_bytes as f64 * 8.0, self.duration) / 1e9
    }

    /// One JSON object, on one line.
    pub fn json(&self) -> String {
        let total = self.total();
        let names = |name: fn(&Info) -> &str| {
            let mut names: Vec<&str> = Vec::new();
            for outcome in self.outcomes {
                if !names.contains(&name(&outcome.info)) {
                    names.push(name(&outcome.info));
                }
            }
            names.join(",")
        };
        let mut counts = Counts::from(&total);
        counts.drops.insert("store", self.store_drops);
        counts.drops.insert("ring", self.ring_drops);
        let sources = self.outcomes.iter().map(|outcome| {
            let ledger = outcome.ledger();
            JsonSource {
                source: &outcome.info.source,
                engine: outcome.info.engine,
                hook: outcome.info.hook,
                why: &outcome.info.why,
                notes: &outcome.info.notes,
                counts: (&ledger).into(),
                missed_before: ledger.missed_before,
                super_frames: ledger.super_frames,
                error: outcome.error.as_ref().map(|error| error_text(error)),
            }
        });
        let json = Json {
            source: names(|info| &info.source),
            engine: names(|info| info.engine),
            hook: self.outcomes.first().and_then(|outcome| outcome.info.hook),
            duration_s: self.duration.as_secs_f64(),
            counts,
            missed_before: total.missed_before,
            super_frames: total.super_frames,
            lapped: self.delivered.lapped,
            delivered: self.delivered.frames,
            after_limit: self.delivered.after_limit,
            late: self.delivered.late,
            unexplained: self.unexplained(),
            mpps: self.mpps(),
            gbps: self.gbps(),
            latency: self.latency,
            sources: sources.collect(),
            feeds: self.json_feeds(),
        };
        serde_json::to_string(&json).expect("numbers and strings serialize")
    }

    /// A few lines for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let total = self.total();
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        for (number, outcome) in self.outcomes.iter().enumerate() {
            let info = &outcome.info;
            let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
            line(format!("{}: {}{hook} ({})", info.source, info.engine, info.why));
            for note in &info.notes {
                line(format!("  note: {note}"));
            }
            let own = self.feeds().filter(|(feed, ..)| feed.source == number);
            own.filter_map(|(feed, .., home)| choice(feed, home)).for_each(&mut line);
        }
        line(format!(
            "{:.3} s, {}, {} reached the consumer",
            self.duration.as_secs_f64(),
            packet_rate(self.mpps() * 1e6),
            bit_rate(self.gbps() * 1e9)
        ));
        line(String::new());
        if self.outcomes.len() > 1 || self.feeds.len() > 1 {
            self.rows().into_iter().for_each(&mut line);
            line(String::new());
        }
        line(format!("  offered    {:>15}", grouped(total.offered)));
        line(format!("  filtered   {:>15}", left_out(total.filtered, &total)));
        for (name, count) in [("blocked", total.blocked), ("sampled", total.sampled)] {
            if count > 0 {
                line(format!("  {name:<10} {:>15}", grouped(count)));
            }
        }
        line(format!("  captured   {:>15}", grouped(total.captured)));
        for (name, count) in &total.drops {
            line(format!("  drop {name:<10}{:>11}", grouped(*count)));
        }
        if let Some(missed) = total.missed_before {
            line(format!("  (missed before the hook: {})", grouped(missed)));
        }
        let mut verdict = match self.unexplained() {
            0 if total.blocked + total.sampled > 0 => {
                "offered = filtered + blocked + sampled + captured + drops".to_owned()
            }
            0 => "offered = filtered + captured + drops".to_owned(),
            frames => format!("THE LEDGER DOES NOT CLOSE: {frames} frames unexplained"),
        };
        if total.filtered_uncounted {
            verdict.push_str(", of the frames that passed the socket's filter");
        }
        line(format!("  {verdict}"));
        line(String::new());
        line(format!("  delivered  {:>15}", grouped(self.delivered.frames)));
        line(format!("  lapped     {:>15}", grouped(self.delivered.lapped)));
        for (name, count) in [
            ("after limit", self.delivered.after_limit),
            ("late, kept", self.delivered.late),
            ("drop store", self.store_drops),
            ("drop ring", self.ring_drops),
            ("super-frames", total.super_frames),
        ] {
            if count > 0 {
                line(format!("  {name:<12} {:>13}", grouped(count)));
            }
        }
        if let Some(LatencyReport { frames, p50_us, p90_us, p99_us, p999_us, max_us, .. }) =
            self.latency
        {
            line(format!(
                "  stamp to consumer, {} frames: p50 {p50_us:.1} us, p90 {p90_us:.1}, p99 {p99_us:.1}, \
                 p99.9 {p999_us:.1}, max {max_us:.1}",
                grouped(frames)
            ));
        }
        out
    }
}

/// By what a feed chooses its frames, and where, if it has a filter or had one.
fn choice(feed: &Subscribed, home: FilterLocation) -> Option<String> {
    let what = match &feed.takes.filter {
        Some(filter) => format!("filter '{}'", filter.text),
        None if feed.changes > 0 => "no filter".to_owned(),
        None => return None,
    };
    let place = match home {
        FilterLocation::Nowhere => "",
        FilterLocation::Hook => ", applied in the kernel, before the copy",
        FilterLocation::Classic => ", applied in the kernel, by classic BPF, before the copy",
        FilterLocation::Compiled => ", applied in user space",
        FilterLocation::Interpreted => ", applied in user space, step by step",
    };
    let changes = match feed.changes {
        0 => String::new(),
        1 => "; changed once since the start".to_owned(),
        many => format!("; changed {many} times since the start"),
    };
    let whose = match (feed.part, feed.name.as_str()) {
        (Part::Whole, "") => String::new(),
        (Part::Whole, name) => format!("feed {name}: "),
        (part, "") => format!("{part}: "),
        (part, name) => format!("{part}, feed {name}: "),
    };
    Some(format!("  {whose}{what}{place}{changes}"))
}

impl Report<'_> {
    /// A row a feed, under what its columns are.
    fn rows(&self) -> Vec<String> {
        let name = |feed: &Subscribed, outcome: &Outcome| match feed.name.as_str() {
            "" => format!("{}{}", outcome.info.source, feed.part),
            name => format!("{}{} {name}", outcome.info.source, feed.part),
        };
        let names = self.feeds().map(|(feed, outcome, ..)| name(feed, outcome).chars().count());
        let width = names.max().unwrap_or_default();
        let row = |cells: [&str; 6]| {
            let [name, offered, filtered, captured, dropped, missed] = cells;
            format!(
                "  {name:<width$} {offered:>15} {filtered:>15} {captured:>15} {dropped:>13} {missed:>13}"
            )
        };
        let mut rows = vec![row(["", "offered", "left out", "captured", "drops", "missed before"])];
        rows.extend(self.feeds().map(|(feed, outcome, ledger, _)| {
            let missed = ledger.missed_before.map_or_else(|| "-".to_owned(), grouped);
            let filtered = ledger.filtered + ledger.blocked + ledger.sampled;
            let numbers = [ledger.offered, ledger.captured, ledger.dropped()].map(grouped);
            let [offered, captured, dropped] = &numbers;
            let filtered = left_out(filtered, ledger);
            row([&name(feed, outcome), offered, &filtered, captured, dropped, &missed])
        }));
        rows
    }
}

/// How many frames were left out, as far as somebody counted them.
fn left_out(counted: u64, ledger: &Ledger) -> String {
    match (counted, ledger.filtered_uncounted) {
        (0, true) => "uncounted".to_owned(),
        (_, true) => format!("{} or more", grouped(counted)),
        (_, false) => grouped(counted),
    }
}

/// An error and its causes on one line.
pub fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

fn per_second(amount: f64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { amount / duration.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Every name in an object, and in those within it.
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                found.push(name.clone());
                names(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_field_and_every_word_of_the_report_is_explained() {
        let explained = include_str!("../../../docs/ledger.md");
        let names_of_drops = [
            "kernel",
            "relay",
            "reentry",
            "unreadable",
            "in_parts",
            "missed",
            "errors",
            "no_mbuf",
            "at_stop",
        ];
        let drops = names_of_drops.map(|name| (name, 1)).into();
        let ledger = Ledger {
            offered: 16,
            captured: 5,
            filtered_uncounted: true,
            blocked: 1,
            sampled: 1,
            super_frames: 1,
            drops,
            ..Ledger::default()
        };
        let outcome = Outcome { info: Info::default(), ledgers: vec![ledger], error: None };
        let delivered = Delivered { frames: 1, lapped: 1, after_limit: 1, late: 1, wire_bytes: 60 };
        let (store_drops, ring_drops, duration) = (1, 1, Duration::from_secs(1));
        let outcomes = [outcome];
        let feed = Subscribed {
            source: 0,
            feed: 0,
            interface_id: 0,
            name: "web".into(),
            part: Part::Whole,
            takes: weir_capture::Feed::default(),
            changes: 0,
            shares: None,
        };
        let report = Report {
            outcomes: &outcomes,
            feeds: &[feed],
            by_interface: &[Taken::default()],
            delivered,
            duration,
            store_drops,
            ring_drops,
            latency: Some(LatencyReport::default()),
        };
        assert_eq!(report.unexplained(), 0);
        let mut fields = Vec::new();
        names(&serde_json::from_str(&report.json()).unwrap(), &mut fields);
        assert!(fields.len() > 50, "{fields:?}");
        for field in fields {
            let forms = ["`_`", "`drops._`", "`_[]`"].map(|form| form.replace('_', &field));
            assert!(forms.iter().any(|text| explained.contains(text)), "{field}");
        }
        // The rows of the text: two blanks, a name, two blanks or more, a number.
        let text = report.text();
        let rows = text.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
        let rows: Vec<&str> = rows.map(|(name, _)| name.trim()).collect();
        assert!(rows.contains(&"after limit") && rows.contains(&"drop ring"), "{rows:?}");
        for row in rows {
            assert!(explained.contains(row), "{row}");
        }
    }
}
