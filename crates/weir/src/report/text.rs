//! The report as text for people.

use std::collections::BTreeSet;
use std::fmt::Write;

use weir_capture::{FilterLocation, InterfaceLedger};
use weir_consumer::Delivered;
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;
use weir_store::recorder::look_back::LookBackReport;

use super::Report;
use super::flow_lines::of_flows;
use super::source_lines::{engine_line, owner_line};
use crate::consumers::{LatencyReport, NetdevReport};
use crate::error_words::{error_text, without_number};
use crate::run_result::{ConsumerResult, FeedResult, SourceResult};
use crate::source_name::Part;
use crate::sources::Subscribed;
use crate::tagged;
use crate::units::{bit_rate, counted, grouped, packet_rate};

/// Indentation of the interfaces of a pattern.
const INDENT: &str = "  ";

impl Report<'_> {
    /// Returns the report as text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (total, main) = (self.total(), self.main());
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        for (number, source) in self.sources.iter().enumerate() {
            let info = &source.info;
            line(engine_line(info));
            info.owner
                .iter()
                .filter_map(|owner| owner_line(&info.source, owner))
                .for_each(&mut line);
            for note in &info.notes {
                line(format!("  note: {note}"));
            }
            comings(source).into_iter().for_each(&mut line);
            let own = self.feeds.iter().filter(|feed| feed.asked.source == number);
            for FeedResult { asked, location, .. } in own {
                [choice(asked, *location), sharing(asked)]
                    .into_iter()
                    .flatten()
                    .for_each(&mut line);
            }
        }
        let rates = format!(
            ", {}, {} reached the consumer",
            packet_rate(self.mpps() * 1e6),
            bit_rate(self.gbps() * 1e9)
        );
        // Rates over less than 10 ms would only show the speed of memory.
        let rates = if self.duration.as_millis() < 10 { "" } else { &rates };
        line(format!("{:.3} s{rates}", self.duration.as_secs_f64()));
        self.rates.map(|rates| rates.text()).into_iter().for_each(&mut line);
        line(String::new());
        let has_interfaces = self.feeds.iter().any(|feed| !feed.interfaces.is_empty());
        if self.sources.len() > 1 || self.feeds.len() > 1 || has_interfaces {
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
            _ if self.is_of_a_moment() => "counts of a moment; they close at the end".to_owned(),
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
        if self.consumers.len() > 1 {
            self.consumer_rows().into_iter().for_each(&mut line);
            self.ended().for_each(&mut line);
        } else {
            line(format!("  delivered  {:>15}", grouped(main.delivered.frames)));
            line(format!("  lapped     {:>15}", grouped(main.delivered.lapped)));
            for (name, count) in single_counts(main) {
                line(format!("  {name:<12} {:>13}", grouped(count)));
            }
        }
        let more = self.of_the_run();
        if self.consumers.len() > 1 && !more.is_empty() {
            line(String::new());
        }
        more.into_iter().for_each(line);
        out
    }

    /// Returns the lines below the counts of the consumers, if there is something to report.
    fn of_the_run(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let super_frames = self.total().super_frames;
        if super_frames > 0 {
            lines.push(format!("  {:<12} {:>13}", "super-frames", grouped(super_frames)));
        }
        lines.extend(self.advice());
        lines.extend(self.on_tags());
        if let Some(LatencyReport { frames, p50_us, p90_us, p99_us, p999_us, max_us, .. }) =
            self.latency()
        {
            lines.push(format!(
                "  stamp to consumer, {}: p50 {p50_us:.1} us, p90 {p90_us:.1}, p99 {p99_us:.1}, \
                 p99.9 {p999_us:.1}, max {max_us:.1}",
                counted(frames, "frame")
            ));
        }
        lines.extend(self.netdev().map(into_netdev));
        lines.extend(self.recorder().map(of_recorder).into_iter().flatten());
        lines.extend(self.flows().map(of_flows).into_iter().flatten());
        lines
    }
}

/// Returns the counts of a consumer that are shown only if they are not 0.
fn single_counts(consumer: &ConsumerResult) -> Vec<(&'static str, u64)> {
    let Delivered { untriggered, after_limit, late, .. } = consumer.delivered;
    let all = [
        ("untriggered", untriggered),
        ("after limit", after_limit),
        ("waiting", consumer.waiting.unwrap_or(0)),
        ("late", late),
        ("drop store", consumer.store_drops),
        ("drop ring", consumer.ring_drops),
        ("drop netdev", consumer.netdev_drops()),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Returns lines about recorded and deleted files.
fn of_recorder(recorder: &RecorderReport) -> Vec<String> {
    let RecorderReport { files, bytes, torn_blocks, .. } = *recorder;
    let mut lines =
        vec![format!("  recorded   {:>15} bytes, {}", grouped(bytes), counted(files, "file"))];
    if let Some(LookBackReport { saves, signal, command, filter, rate, unwatched, .. }) =
        recorder.look_back
    {
        lines.push(format!(
            "  triggers: {}, {}, {} of the filter, {} of the rate; recorded {}",
            counted(signal, "signal"),
            counted(command, "command"),
            counted(filter, "frame"),
            grouped(rate),
            counted(saves, "time")
        ));
        if unwatched > 0 {
            lines.push(format!(
                "  overwritten before a trigger was looked for: {}",
                grouped(unwatched)
            ));
        }
    }
    let RecorderReport { plain_bytes, stored_blocks, .. } = *recorder;
    if plain_bytes > 0 {
        lines.push(format!(
            "  before compression {}; {} stored as is: no CPU was free",
            counted(plain_bytes, "byte"),
            counted(stored_blocks, "block")
        ));
    }
    if torn_blocks > 0 {
        lines.push(format!("  overtaken while written: {}", counted(torn_blocks, "block")));
    }
    if let Some(note) = &recorder.note {
        lines.push(format!("  {note}"));
    }
    for volume in &recorder.volumes {
        let directory = volume.directory.display();
        if volume.deleted_files > 0 {
            lines.push(format!(
                "  {directory}: the quota deleted {} of {}",
                counted(volume.deleted_files, "file"),
                counted(volume.deleted_bytes, "byte")
            ));
        }
        if let Some(error) = &volume.error {
            lines.push(format!("  {directory}: left out: {}", without_number(error)));
        }
    }
    lines
}

/// Returns a line about frames that the interface received, and frames that were sent into it.
fn into_netdev(netdev: &NetdevReport) -> String {
    let NetdevReport { name, received, segmented, unsegmented, cut, sent_into, .. } = netdev;
    let mut text = format!("  {name} received {}", grouped(*received));
    for (count, what) in [
        (segmented, "were segmented"),
        (unsegmented, "could not be segmented and were fed whole"),
        (cut, "were cut by the capture"),
    ] {
        if *count > 0 {
            let _ = write!(text, "; {} {what}", grouped(*count));
        }
    }
    let _ = write!(text, "; {} sent into it were dropped", grouped(*sent_into));
    text
}

/// Returns a line on how often a source was opened and how often its interface went down, if there is something to
/// report.
fn comings(source: &SourceResult) -> Option<String> {
    let times = |count: u64| match count {
        1 => "once".to_owned(),
        many => format!("{many} times"),
    };
    match (source.lives, source.downs) {
        (0, _) => Some("  it was never there".to_owned()),
        (1, 0) => None,
        (1, downs) => Some(format!("  it went down {}", times(downs))),
        (lives, 0) => Some(format!("  it was opened {}", times(lives))),
        (lives, downs) => {
            Some(format!("  it was opened {}, and went down {}", times(lives), times(downs)))
        }
    }
}

/// Returns a line with the part, the filter and its location of a feed that is a part, or has or had a filter.
fn choice(feed: &Subscribed, location: FilterLocation) -> Option<String> {
    let what = match &feed.takes.filter {
        Some(filter) => format!("filter '{}'", filter.text),
        None if feed.changes > 0 => "no filter".to_owned(),
        None if feed.part != Part::Whole => "all frames of this part".to_owned(),
        None => return None,
    };
    let place = match location {
        _ if feed.takes.filter.is_none() => "",
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
    Some(format!("  {}{what}{place}{changes}", whose(feed)))
}

/// Returns a line about the feed with which a feed shares its rings. The rows then add up to more than the totals.
fn sharing(feed: &Subscribed) -> Option<String> {
    let other = match feed.shares.as_deref()? {
        "" => "what was named before".to_owned(),
        name => format!("feed {name}"),
    };
    Some(format!(
        "  {}the same as {other}, so they share rings and are in the totals once",
        whose(feed)
    ))
}

/// Returns the beginning of a feed's lines: its part and its name.
fn whose(feed: &Subscribed) -> String {
    match (feed.part, feed.name.as_str()) {
        (Part::Whole, "") => String::new(),
        (Part::Whole, name) => format!("feed {name}: "),
        (part, "") => format!("{part}: "),
        (part, name) => format!("{part}, feed {name}: "),
    }
}

impl Report<'_> {
    /// Returns a note for each filter that no frame has passed, if frames with VLAN tags cannot pass the filter.
    fn on_tags(&self) -> Vec<String> {
        let note = |feed: &FeedResult| {
            let Ledger { offered, filtered, filtered_uncounted, .. } = feed.ledger;
            let none_passed = offered == filtered && (offered > 0 || filtered_uncounted);
            let filter = feed.asked.takes.filter.as_deref().filter(|_| none_passed)?;
            tagged::note(filter).map(|note| format!("  {note}"))
        };
        match self.is_of_a_moment() {
            true => Vec::new(),
            // The set removes duplicates: feeds may have the same filter.
            false => {
                self.feeds.iter().filter_map(note).collect::<BTreeSet<_>>().into_iter().collect()
            }
        }
    }

    /// Returns a heading, and one row per consumer.
    fn consumer_rows(&self) -> Vec<String> {
        let row = |cells: [&str; 5]| {
            let [name, delivered, lapped, after_limit, drops] = cells;
            format!("  {name:<10} {delivered:>15} {lapped:>15} {after_limit:>15} {drops:>13}")
        };
        let mut rows = vec![row(["consumer", "delivered", "lapped", "after limit", "drops"])];
        rows.extend(self.consumers.iter().map(|consumer| {
            let Delivered { frames, lapped, after_limit, .. } = consumer.delivered;
            let drops = consumer.drops().values().sum();
            let [frames, lapped, after_limit, drops] =
                [frames, lapped, after_limit, drops].map(grouped);
            let line = row([consumer.name, &frames, &lapped, &after_limit, &drops]);
            // Counts without a column, and each kind of drop, follow the columns.
            let more =
                single_counts(consumer).into_iter().filter(|(name, _)| *name != "after limit");
            more.fold(line, |line, (name, count)| format!("{line}, {} {name}", grouped(count)))
        }));
        rows
    }

    /// Returns a line for each consumer that has ended while the others go on.
    fn ended(&self) -> impl Iterator<Item = String> {
        let ended = self.consumers.iter().filter(|consumer| consumer.has_ended == Some(true));
        ended.map(|consumer| match consumer.failure.as_deref() {
            Some(why) => format!("  {} has ended: {}", consumer.name, error_text(why)),
            None => format!("  {} has ended", consumer.name),
        })
    }

    /// Returns a heading, and one row per feed.
    fn rows(&self) -> Vec<String> {
        let name = |FeedResult { asked, .. }: &FeedResult, source: &SourceResult| {
            let space = if asked.name.is_empty() { "" } else { " " };
            format!("{}{}{space}{}", source.info.source, asked.part, asked.name)
        };
        let names = self.feeds().map(|(feed, source)| name(feed, source).chars().count());
        let of_interfaces = self.feeds.iter().flat_map(|feed| &feed.interfaces);
        let indented = of_interfaces.map(|share| share.name.chars().count() + INDENT.len());
        let width = names.chain(indented).max().unwrap_or_default();
        let row = |cells: [&str; 6]| {
            let [name, offered, filtered, captured, dropped, missed] = cells;
            format!(
                "  {name:<width$} {offered:>15} {filtered:>15} {captured:>15} {dropped:>13} {missed:>13}"
            )
        };
        let mut rows = vec![row(["", "offered", "left out", "captured", "drops", "missed before"])];
        for (feed, source) in self.feeds() {
            let ledger = &feed.ledger;
            let missed = ledger.missed_before.map_or_else(|| "-".to_owned(), grouped);
            let filtered = ledger.filtered + ledger.blocked + ledger.sampled;
            let numbers = [ledger.offered, ledger.captured, ledger.dropped()].map(grouped);
            let [offered, captured, dropped] = &numbers;
            let filtered = left_out(filtered, ledger);
            rows.push(row([&name(feed, source), offered, &filtered, captured, dropped, &missed]));
            let (busy, silent): (Vec<_>, Vec<_>) =
                feed.interfaces.iter().partition(|share| share.ledger.offered > 0);
            let none_had_frames = busy.is_empty();
            for InterfaceLedger { name, owner, ledger, .. } in busy {
                let missed = ledger.missed_before.map_or_else(|| "-".to_owned(), grouped);
                let filtered = ledger.filtered + ledger.blocked + ledger.sampled;
                let [offered, filtered, captured] =
                    [ledger.offered, filtered, ledger.captured].map(grouped);
                let name = format!("{INDENT}{name}");
                // Drops in a buffer that interfaces share are not counted for any of them.
                let dropped = match ledger.drops.is_empty() {
                    true => String::new(),
                    false => grouped(ledger.dropped()),
                };
                let mut row = row([&name, &offered, &filtered, &captured, &dropped, &missed]);
                if let Some(owner) = owner {
                    // The peer of the veth is in that network namespace; the interface itself is not.
                    let other_end = if owner.kind == "netns" { "other end in " } else { "" };
                    let _ = write!(row, "  {other_end}{owner}");
                }
                rows.push(row);
            }
            let more = if none_had_frames { "" } else { " more" };
            match silent.len() {
                0 => {}
                1 => rows.push(format!("  {INDENT}one{more} had no frames")),
                many => rows.push(format!("  {INDENT}{many}{more} had no frames")),
            }
        }
        rows
    }
}

/// Returns the number of filtered frames as text. Some filters run at a place where filtered frames are not counted.
fn left_out(counted: u64, ledger: &Ledger) -> String {
    match (counted, ledger.filtered_uncounted) {
        (0, true) => "uncounted".to_owned(),
        (_, true) => format!("{} or more", grouped(counted)),
        (_, false) => grouped(counted),
    }
}
