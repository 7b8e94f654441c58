//! Lists the counts of frames, flows and records, line by line.

use std::collections::BTreeMap;

use super::text::{self, grouped};
use crate::view::{ExportView, SourceView, View};

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A title of the counts after it.
    Title(String),
    /// A name, its value, and whether the value tells of losses: it counts them and is not 0.
    Count(String, String, bool),
    /// A message.
    Line(String),
    /// An empty line between two parts.
    Gap,
}

/// Creates the lines. Names are those of docs/ledger.md.
pub fn entries(view: &View) -> Vec<Entry> {
    let mut entries = Vec::new();
    for source in &view.sources {
        of_source(source, &mut entries);
    }
    let count = |name: &str, count: u64, is_loss: bool| {
        Entry::Count(name.to_owned(), grouped(count), is_loss && count > 0)
    };
    entries.push(Entry::Title("flow monitor".to_owned()));
    entries.push(count("delivered", view.delivered.packets, false));
    entries.push(count("lapped (too slow)", view.lapped, true));
    let (counters, not_flows) = (&view.counters, &view.counters.not_flows);
    entries.push(count("of no flow", not_flows.total(), false));
    for (name, frames) in [
        ("  ARP", not_flows.arp),
        ("  other protocol", not_flows.other_protocol),
        ("  cut off", not_flows.cut_off),
        ("  malformed", not_flows.malformed),
        ("  too many VLANs", not_flows.too_many_vlans),
        ("  other link type", not_flows.other_link_type),
    ] {
        if frames > 0 {
            entries.push(count(name, frames, false));
        }
    }
    entries.push(Entry::Gap);
    entries.push(Entry::Title("flows".to_owned()));
    entries.push(count("began", counters.began, false));
    entries.push(count("in the table", counters.flows, false));
    entries.push(count("evicted (table full)", counters.evicted, true));
    entries.push(count("records", view.records, false));
    for export in &view.exports {
        of_export(export, &mut entries);
    }
    if !view.news.is_empty() {
        entries.extend([Entry::Gap, Entry::Title("what happened".to_owned())]);
        // The latest message first.
        entries.extend(view.news.iter().rev().map(|line| Entry::Line(text::escaped(line))));
    }
    entries
}

fn of_source(source: &SourceView, entries: &mut Vec<Entry>) {
    let mut title = format!("source {}", text::escaped(&source.name));
    if !source.engine.is_empty() {
        title += &format!(" ({})", text::escaped(&source.engine));
    }
    entries.push(Entry::Title(title));
    let mut count = |name: &str, count: u64| {
        entries.push(Entry::Count(name.to_owned(), grouped(count), false));
    };
    count("offered", source.offered);
    count("filtered", source.filtered);
    for (name, frames) in [("blocked", source.blocked), ("sampled", source.sampled)] {
        if frames > 0 {
            count(name, frames);
        }
    }
    count("captured", source.captured);
    let lost = drops(source);
    entries.push(Entry::Count("lost".to_owned(), grouped(lost), lost > 0));
    for (place, &frames) in source.drops.iter().filter(|(_, frames)| **frames > 0) {
        entries.push(Entry::Count(format!("  {}", text::escaped(place)), grouped(frames), true));
    }
    let missed = source.missed_before;
    let shown = missed.map_or("unknown".to_owned(), grouped);
    entries.push(Entry::Count("missed before".to_owned(), shown, missed.unwrap_or(0) > 0));
    entries.push(Entry::Gap);
}

fn of_export(export: &ExportView, entries: &mut Vec<Entry>) {
    let failed = if export.has_failed { " (failed)" } else { "" };
    entries.push(Entry::Gap);
    entries.push(Entry::Title(format!("export {}{failed}", text::escaped(&export.name))));
    let (sent, unsent) = (export.counts.sent, export.counts.unsent);
    entries.push(Entry::Count("records sent".to_owned(), grouped(sent), false));
    entries.push(Entry::Count("records unsent".to_owned(), grouped(unsent), unsent > 0));
    if export.disk_full > 0 {
        entries.push(Entry::Count("disk full".to_owned(), grouped(export.disk_full), true));
    }
}

fn drops(source: &SourceView) -> u64 {
    source.drops.values().fold(0, |sum, frames| sum.saturating_add(*frames))
}

/// Losses of all sources, of the monitor and of the exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lost frames, except those that were missed before the hook.
    pub frames: u64,
    /// Lost frames by place, without places that lost none.
    pub places: BTreeMap<String, u64>,
    /// Frames that the NIC or its driver lost before the hook.
    pub missed_before: u64,
    /// Records that could not be sent.
    pub unsent: u64,
    /// Exports that have failed.
    pub failed_exports: usize,
}

impl Losses {
    /// Adds up the losses in a view.
    pub fn of(view: &View) -> Losses {
        let mut losses = Losses::default();
        let drops = view.sources.iter().flat_map(|source| &source.drops);
        let drops = drops.map(|(place, frames)| (place.as_str(), *frames));
        for (place, frames) in drops.chain([("lapped", view.lapped)]).filter(|(_, n)| *n > 0) {
            let sum = losses.places.entry(text::escaped(place)).or_default();
            *sum = sum.saturating_add(frames);
            losses.frames = losses.frames.saturating_add(frames);
        }
        let missed = view.sources.iter().filter_map(|source| source.missed_before);
        losses.missed_before = missed.fold(0, u64::saturating_add);
        let unsent = view.exports.iter().map(|export| export.counts.unsent);
        losses.unsent = unsent.fold(0, u64::saturating_add);
        losses.failed_exports = view.exports.iter().filter(|export| export.has_failed).count();
        losses
    }

    /// Returns whether nothing was lost.
    pub fn is_none(&self) -> bool {
        *self == Losses::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::{view, view_with_losses};

    #[test]
    fn losses_are_summed_by_place() {
        assert!(Losses::of(&view(1, 3)).is_none());
        let mut view = view_with_losses(1);
        view.sources.push(view.sources[0].clone());
        view.sources[1].drops.insert("lapped".into(), 5);
        let places = [("kernel".to_owned(), 24_000), ("lapped".to_owned(), 350)];
        let wanted = Losses {
            frames: 24_350,
            places: places.into(),
            missed_before: 34,
            unsent: 7,
            failed_exports: 1,
        };
        assert_eq!(Losses::of(&view), wanted);
        view.lapped = u64::MAX;
        assert_eq!(Losses::of(&view).frames, u64::MAX);
    }

    #[test]
    fn what_is_zero_has_a_line_only_where_it_is_looked_for() {
        let names = |view: &View| -> Vec<String> {
            let name = |entry| match entry {
                Entry::Title(name) => name,
                Entry::Count(name, value, is_loss) => {
                    format!("{name} {value}{}", if is_loss { " !" } else { "" })
                }
                Entry::Line(line) => line,
                Entry::Gap => String::new(),
            };
            entries(view).into_iter().map(name).collect()
        };
        let mut view = view_with_losses(1);
        view.counters.not_flows.arp = 3;
        view.sources[0].missed_before = None;
        view.news = vec!["eth1 has gone".into(), "eth1 is\nback".into()];
        let wanted = [
            "source eth0 (af_xdp)",
            "offered 1,000,000",
            "filtered 0",
            "captured 1,000,000",
            "lost 12,000 !",
            "  kernel 12,000 !",
            "missed before unknown",
            "",
            "flow monitor",
            "delivered 1,000,000",
            "lapped (too slow) 345 !",
            "of no flow 3",
            "  ARP 3",
            "",
            "flows",
            "began 20,000",
            "in the table 12,345",
            "evicted (table full) 0",
            "records 7,655",
            "",
            "export ipfix://collector:4739 (failed)",
            "records sent 7,655",
            "records unsent 7 !",
            "",
            "what happened",
            "eth1 is\\nback",
            "eth1 has gone",
        ];
        assert_eq!(names(&view), wanted);
    }
}
