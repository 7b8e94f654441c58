//! The report of a run: its sums and rates, as text and as JSON.

mod advice;
pub mod flow_lines;
mod json;
mod source_lines;
pub mod text;

use std::iter;
use std::time::Duration;

use weir_ring::Ledger;

use weir_store::recorder::RecorderReport;

use crate::consumers::{LatencyReport, NetdevReport};
use crate::flows::report::FlowsReport;
use crate::run_result::{ConsumerResult, FeedResult, Rates, RunResult, SourceResult};
pub use json::counts;

/// Report of a run.
pub struct Report<'a> {
    /// The sources.
    pub sources: &'a [SourceResult],
    /// The requested feeds.
    pub feeds: &'a [FeedResult],
    /// The consumers, the main one first.
    pub consumers: &'a [ConsumerResult],
    /// Time from the start of the sources to their stop, or to the last frame that reached the consumer if that was
    /// later, so that a lagging consumer does not show too high a rate. Waiting for a disk at the end is not included.
    pub duration: Duration,
    /// Current rates, while the run lasts.
    pub rates: Option<Rates>,
}

impl RunResult {
    /// Makes the report of this result.
    pub fn report(&self) -> Report<'_> {
        let RunResult { sources, feeds, consumers, duration, rates } = self;
        Report { sources, feeds, consumers, duration: *duration, rates: *rates }
    }
}

impl Report<'_> {
    /// Returns the sum over all feeds of all sources.
    pub fn total(&self) -> Ledger {
        let mut total = Ledger::default();
        self.sources.iter().for_each(|source| total.add(&source.ledger));
        total
    }

    /// Returns the requested feeds, each with its source.
    fn feeds(&self) -> impl Iterator<Item = (&FeedResult, &SourceResult)> {
        self.feeds.iter().map(|feed| (feed, &self.sources[feed.asked.source]))
    }

    /// Returns the consumer whose counts are those of the run.
    fn main(&self) -> &ConsumerResult {
        &self.consumers[0]
    }

    /// Returns the delays of frames, if a consumer measured them.
    fn latency(&self) -> Option<LatencyReport> {
        self.consumers.iter().find_map(|consumer| consumer.latency)
    }

    /// Returns the report on the interface that was fed.
    fn netdev(&self) -> Option<&NetdevReport> {
        self.consumers.iter().find_map(|consumer| consumer.netdev.as_ref())
    }

    /// Returns the report of the recorder.
    fn recorder(&self) -> Option<&RecorderReport> {
        self.consumers.iter().find_map(|consumer| consumer.recorder.as_ref())
    }

    /// Returns the report on flows.
    fn flows(&self) -> Option<&FlowsReport> {
        self.consumers.iter().find_map(|consumer| consumer.flows.as_ref())
    }

    /// Returns the number of lost frames: those that were dropped before the rings, and those that each consumer lost.
    pub fn lost(&self) -> u64 {
        self.total().dropped() + self.consumers.iter().map(ConsumerResult::lost).sum::<u64>()
    }

    /// Returns whether the run still lasts. Its counters are then not read at one instant, so the sums need not match.
    pub fn is_of_a_moment(&self) -> bool {
        self.main().waiting.is_some()
    }

    /// Returns the number of frames that the ledgers or the counters of a consumer do not account for. Any other value
    /// than 0 is a bug.
    pub fn unexplained(&self) -> i128 {
        let captured = i128::from(self.total().captured);
        let mut consumers = self.consumers.iter().map(|consumer| captured - consumer.accounted());
        // The absolute values for each feed and for each interface of a pattern are added, so that a deficit of one is
        // not balanced by a surplus of another.
        let ledgers = self.feeds.iter().flat_map(|feed| {
            let shares = feed.interfaces.iter().map(|share| &share.ledger);
            iter::once(&feed.ledger).chain(shares)
        });
        match ledgers.map(|ledger| ledger.unexplained().abs()).sum() {
            0 => consumers.find(|unexplained| *unexplained != 0).unwrap_or_default(),
            unexplained => unexplained,
        }
    }

    /// Returns the rate of frames that reached the main consumer, in millions per second.
    pub fn mpps(&self) -> f64 {
        per_second(self.main().delivered.frames as f64, self.duration) / 1e6
    }

    /// Returns the rate of frames that reached the main consumer in Gbit/s, by their length on the wire without FCS.
    pub fn gbps(&self) -> f64 {
        per_second(self.main().delivered.wire_bytes as f64 * 8.0, self.duration) / 1e9
    }
}

fn per_second(amount: f64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { amount / duration.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_result::SourceNow;
    use crate::source_name::Part;
    use crate::sources::Subscribed;
    use serde_json::Value;
    use weir_capture::{FilterLocation, Info, InterfaceLedger};
    use weir_consumer::{Delivered, Taken};
    use weir_store::recorder::look_back::LookBackReport;

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

    /// Of a generator that nobody starts.
    fn subscription() -> weir_probe::SubscriptionId {
        let (probe, _events) = weir_probe::Probe::new().unwrap();
        let open: weir_probe::Opener = std::sync::Arc::new(|feeds| {
            let setup = weir_capture::Setup {
                feeds,
                ring_bytes: 4 << 20,
                ..weir_capture::Setup::default()
            };
            let source = weir_capture::generator::MemGen::open("frames=1".parse()?, setup, false)?;
            Ok(Box::new(source))
        });
        let (name, link, follows, cpus) = ("gen:".into(), None, false, None);
        let spec = weir_probe::SourceSpec { name, open, link, follows, cpus };
        probe.open(spec, vec![weir_capture::Feed::default().into()]).unwrap().1[0]
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
            offered: 18,
            captured: 7,
            filtered_uncounted: true,
            blocked: 1,
            sampled: 1,
            super_frames: 1,
            drops,
            ..Ledger::default()
        };
        let source = SourceResult {
            ledger: ledger.clone(),
            lives: 2,
            now: Some(SourceNow::default()),
            ..SourceResult::default()
        };
        let delivered = Delivered {
            frames: 1,
            lapped: 1,
            untriggered: 1,
            after_limit: 1,
            late: 1,
            wire_bytes: 60,
        };
        let consumer = |name| ConsumerResult {
            name,
            delivered,
            by_interface: vec![Taken::default()],
            interfaces: vec![vec![0, 1]],
            store_drops: 1,
            ring_drops: 1,
            latency: Some(LatencyReport::default()),
            netdev: Some(NetdevReport { refused: 1, ..NetdevReport::default() }),
            flows: Some(FlowsReport::default()),
            recorder: Some(RecorderReport {
                volumes: vec![weir_store::recorder::VolumeReport::default()],
                plain_bytes: 1,
                look_back: Some(LookBackReport { unwatched: 1, ..LookBackReport::default() }),
                ..RecorderReport::default()
            }),
            waiting: None,
            has_ended: Some(false),
            is_complete: false,
            failure: None,
        };
        let asked = Subscribed {
            source: 0,
            subscription: subscription(),
            output: 0,
            name: "web".into(),
            part: Part::Whole,
            takes: weir_capture::Feed::default(),
            changes: 0,
            shares: None,
        };
        let share = InterfaceLedger { id: 1, ledger: ledger.clone(), ..InterfaceLedger::default() };
        let (location, interfaces) = (FilterLocation::default(), vec![share]);
        let feed = FeedResult { asked, ledger, location, interfaces };
        let consumers = ["write", "print", "latency", "count"].map(consumer);
        let report = Report {
            sources: &[source],
            feeds: &[feed],
            consumers: &consumers,
            duration: Duration::from_secs(1),
            rates: Some(Rates::default()),
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
        // With one consumer its counts have rows, with several each has a row of them.
        let single = Report { consumers: &consumers[..1], ..report };
        let text = report.text();
        let rows = ["write", "print", "latency", "count"].map(|name| format!("  {name} "));
        let times = |row: &String| text.lines().filter(|line| line.starts_with(row)).count();
        assert_eq!(rows.each_ref().map(times), [1; 4], "{text}");
        assert!(text.contains(", 1 untriggered, 1 late, 1 drop store"), "{text}");
        assert!(!text.contains("\n  delivered"), "{text}");
        let text = text + &single.text();
        let rows = text.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
        let rows: Vec<&str> = rows.map(|(name, _)| name.trim()).collect();
        assert!(rows.contains(&"after limit") && rows.contains(&"drop ring"), "{rows:?}");
        // The feed's own row bears its name.
        for row in rows.into_iter().filter(|row| *row != "web") {
            assert!(explained.contains(row), "{row}");
        }
    }

    #[test]
    fn an_interface_of_a_pattern_whose_ledger_does_not_close_is_a_fault() {
        let asked = Subscribed {
            source: 0,
            subscription: subscription(),
            output: 0,
            name: "any".into(),
            part: Part::Whole,
            takes: weir_capture::Feed::default(),
            changes: 0,
            shares: None,
        };
        let counts = |captured| Ledger { offered: 3, captured, ..Ledger::default() };
        let unexplained = |captured| {
            let share =
                InterfaceLedger { id: 1, ledger: counts(captured), ..InterfaceLedger::default() };
            let (location, interfaces) = (FilterLocation::default(), vec![share]);
            let feed = FeedResult { asked: asked.clone(), ledger: counts(3), location, interfaces };
            let delivered = Delivered { frames: 3, ..Delivered::default() };
            let consumer = ConsumerResult { delivered, ..ConsumerResult::default() };
            let source = SourceResult { ledger: counts(3), ..SourceResult::default() };
            let (sources, consumers) = (&[source], &[consumer]);
            let duration = Duration::from_secs(1);
            Report { sources, feeds: &[feed], consumers, duration, rates: None }.unexplained()
        };
        assert_eq!((unexplained(3), unexplained(1)), (0, 2));
    }

    #[test]
    fn what_a_feed_delivered_is_of_all_link_types_that_its_source_came_back_with() {
        let taken = |frames| Taken { frames, lapped: 1, untriggered: 0 };
        let mut consumer = ConsumerResult {
            by_interface: vec![taken(1), taken(2), taken(4)],
            interfaces: vec![vec![0, 2, 3], vec![1], Vec::new()],
            ..ConsumerResult::default()
        };
        assert_eq!(consumer.taken(0), Some(Taken { frames: 5, lapped: 2, untriggered: 0 }));
        assert_eq!(consumer.taken(1), Some(taken(2)));
        assert_eq!((consumer.taken(2), consumer.taken(3)), (None, None));
        consumer.let_go(Some(0), 7);
        assert_eq!(consumer.taken(0), Some(Taken { frames: 5, lapped: 9, untriggered: 0 }));
        assert_eq!(consumer.delivered.lapped, 7);
    }

    #[test]
    fn a_source_that_was_never_there_has_a_name_and_no_engine() {
        let result = |source: &str, engine, lives| SourceResult {
            info: Info { source: source.into(), engine, ..Info::default() },
            lives,
            ..SourceResult::default()
        };
        let report = Report {
            sources: &[result("eth9", "", 0), result("eth0", "bpf", 1)],
            feeds: &[],
            consumers: &[ConsumerResult::default()],
            duration: Duration::from_secs(1),
            rates: None,
        };
        assert!(report.json().contains(r#""engine":"bpf","#), "{}", report.json());
        let text = report.text();
        assert!(text.starts_with("eth9:\n  it was never there\neth0: bpf ("), "{text}");
    }
}
