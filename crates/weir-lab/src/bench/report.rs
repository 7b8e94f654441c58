//! Rows, bars, and how they are shown.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ahead::Ahead;
use super::latency::Percentiles;
use super::machine::{Disturbance, Machine};
use super::stats::{Spread, paired};
use super::table::{figure, grouped, render};

/// All that a run of the bench found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where and when.
    pub machine: Machine,
    /// How it was measured, in sentences.
    pub conditions: Vec<String>,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What is asked of it.
    pub bars: Vec<Bar>,
    /// Peers that were faster than the engine of Weir that takes frames as they do.
    pub ahead: Vec<Ahead>,
    /// Ended early by a signal: rows may have fewer rounds, or be missing.
    pub interrupted: bool,
}

/// One thing measured, over some rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The part of the bench it belongs to.
    pub section: &'static str,
    /// What was measured.
    pub what: String,
    /// Bytes of a frame on the wire, with FCS, where frames were of one size.
    pub size_on_wire: Option<u32>,
    /// Unit of the rounds' values and of `value`.
    pub unit: &'static str,
    /// Over the rounds.
    pub value: Option<Spread>,
    /// The same in Gbit/s, FCS included, where `value` is a frame rate.
    pub gbps: Option<Spread>,
    /// The row it is compared with.
    pub compared_with: Option<String>,
    /// Value over that row's, round by round.
    pub ratio: Option<Spread>,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// Why it has no rounds, or fewer than the others.
    pub absent: Option<String>,
    /// What else there is to say.
    pub note: String,
}

/// One round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Round {
    /// Its number: rows that were measured in turn share it.
    pub round: u32,
    /// In the row's unit.
    pub value: f64,
    /// What other programs did meanwhile.
    pub disturbance: Disturbance,
    /// Where frames were counted.
    pub frames: Option<Frames>,
    /// Where they were timed.
    pub latency: Option<Percentiles>,
}

/// What became of the frames of a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Frames {
    /// Frames that the generator put on the link, by the link's own count.
    pub offered: u64,
    /// Frames that reached the consumer.
    pub kept: u64,
    /// Every place where the tool says it lost some, zero or not.
    pub drops: BTreeMap<String, u64>,
    /// `offered - kept - drops`: lost where the tool does not look. Negative if it counts one twice.
    pub unaccounted: i64,
    /// From the first frame sent to the last.
    pub seconds: f64,
    /// CPU time of the tool's own process; what the kernel did for it in softirqs is on the sender's
    /// account.
    pub cpu_seconds: Option<f64>,
}

impl Frames {
    /// Fills in what nobody accounts for.
    #[must_use]
    pub fn new(offered: u64, kept: u64, drops: BTreeMap<String, u64>, seconds: f64) -> Frames {
        let known = kept + drops.values().sum::<u64>();
        let unaccounted = offered as i64 - known as i64;
        Frames { offered, kept, drops, unaccounted, seconds, cpu_seconds: None }
    }

    /// Whether all that was offered was kept, and anything was.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.offered > 0 && self.kept >= self.offered
    }

    /// Frames a second on the link.
    #[must_use]
    pub fn offered_pps(&self) -> f64 {
        if self.seconds > 0.0 { self.offered as f64 / self.seconds } else { 0.0 }
    }

    /// CPU seconds of the tool for a million frames kept.
    #[must_use]
    pub fn cpu_per_million(&self) -> Option<f64> {
        (self.kept > 0).then_some(self.cpu_seconds? / (self.kept as f64 / 1e6))
    }

    /// Million frames a second that reached the consumer.
    #[must_use]
    pub fn kept_mpps(&self) -> f64 {
        if self.seconds > 0.0 { self.kept as f64 / self.seconds / 1e6 } else { 0.0 }
    }
}

impl Row {
    /// A row to be filled.
    #[must_use]
    pub fn new(section: &'static str, what: impl Into<String>, unit: &'static str) -> Row {
        Row {
            section,
            what: what.into(),
            size_on_wire: None,
            unit,
            value: None,
            gbps: None,
            compared_with: None,
            ratio: None,
            rounds: Vec::new(),
            absent: None,
            note: String::new(),
        }
    }

    /// With the size of its frames on the wire.
    #[must_use]
    pub fn sized(mut self, size_on_wire: u32) -> Row {
        self.size_on_wire = Some(size_on_wire);
        self
    }

    /// With a note.
    #[must_use]
    pub fn noted(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// A round more.
    pub fn add(&mut self, round: u32, value: f64, disturbance: Disturbance) {
        self.rounds.push(Round { round, value, disturbance, ..Round::default() });
    }

    /// A round more, of frames: its value is the kept rate in Mpps.
    pub fn add_frames(&mut self, round: u32, frames: Frames, disturbance: Disturbance) {
        let value = frames.kept_mpps();
        let frames = Some(frames);
        self.rounds.push(Round { round, value, disturbance, frames, latency: None });
    }

    /// A round more, of frames of which those sent count: its value is their rate in Mpps.
    pub fn add_offered(&mut self, round: u32, frames: Frames, disturbance: Disturbance) {
        let value = frames.offered_pps() / 1e6;
        let frames = Some(frames);
        self.rounds.push(Round { round, value, disturbance, frames, latency: None });
    }

    /// A round more, of frames that were timed: its value is the median in microseconds.
    pub fn add_latency(
        &mut self,
        round: u32,
        frames: Frames,
        latency: Percentiles,
        disturbance: Disturbance,
    ) {
        let (value, frames) = (latency.p50_us, Some(frames));
        self.rounds.push(Round { round, value, disturbance, frames, latency: Some(latency) });
    }

    /// Delays over all rounds.
    #[must_use]
    pub fn latency(&self) -> Option<Percentiles> {
        let rounds: Vec<_> = self.rounds.iter().filter_map(|round| round.latency).collect();
        Percentiles::over(&rounds)
    }

    pub(super) fn values(&self) -> Vec<(u32, f64)> {
        self.rounds.iter().map(|round| (round.round, round.value)).collect()
    }

    /// All rounds' frames together.
    #[must_use]
    pub fn frames(&self) -> Option<Frames> {
        let mut total: Option<Frames> = None;
        for frames in self.rounds.iter().filter_map(|round| round.frames.as_ref()) {
            let total = total.get_or_insert_default();
            total.offered += frames.offered;
            total.kept += frames.kept;
            total.unaccounted += frames.unaccounted;
            total.seconds += frames.seconds;
            total.cpu_seconds = match (total.cpu_seconds, frames.cpu_seconds) {
                (Some(total), Some(more)) => Some(total + more),
                (total, more) => total.or(more),
            };
            for (name, count) in &frames.drops {
                *total.drops.entry(name.clone()).or_default() += count;
            }
        }
        total
    }
}

/// Works out medians, and each row's ratio to the one called `baseline` of the same frame size.
pub fn conclude(rows: &mut [Row], baseline: &str) {
    let bases: Vec<Row> = rows.iter().filter(|row| row.what == baseline).cloned().collect();
    for row in rows {
        let values = row.values();
        row.value = Spread::of(values.iter().map(|(_, value)| *value));
        if row.unit == MPPS
            && let Some(size) = row.size_on_wire
        {
            let gbps = values.iter().map(|(_, mpps)| mpps * f64::from(size) * 8.0 / 1e3);
            row.gbps = Spread::of(gbps);
        }
        if let Some(base) = bases.iter().find(|base| base.size_on_wire == row.size_on_wire) {
            row.compared_with = Some(baseline.to_owned());
            row.ratio = paired(&values, &base.values());
        }
    }
}

/// The unit of frame rates.
pub const MPPS: &str = "Mpps";

/// Something asked of a result.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// What is asked, in words.
    pub what: String,
    /// The median that was found; `None` if it was not measured.
    pub value: Option<f64>,
    /// The limit.
    pub limit: f64,
    /// On which side of the limit it is to be.
    pub side: Side,
    /// Whether it is; `None` if it was not measured.
    pub met: Option<bool>,
}

/// A side of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The limit or more.
    AtLeast,
    /// Less than the limit.
    Below,
    /// The limit or less.
    AtMost,
}

impl Bar {
    /// Holds a value to a limit.
    #[must_use]
    pub fn new(what: impl Into<String>, value: Option<f64>, side: Side, limit: f64) -> Bar {
        let met = value.map(|value| match side {
            Side::AtLeast => value >= limit,
            Side::Below => value < limit,
            Side::AtMost => value <= limit,
        });
        Bar { what: what.into(), value, limit, side, met }
    }

    /// What, found, asked, verdict.
    pub(super) fn cells(&self) -> [String; 4] {
        let sign = match self.side {
            Side::AtLeast => ">=",
            Side::Below => "<",
            Side::AtMost => "<=",
        };
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "FALLS SHORT",
            None => "not measured",
        };
        let value = self.value.map_or_else(|| "-".to_owned(), figure);
        [self.what.clone(), value, format!("{sign} {}", figure(self.limit)), verdict.to_owned()]
    }
}

impl Report {
    /// A report to be filled.
    #[must_use]
    pub fn new(machine: Machine) -> Report {
        Report {
            machine,
            conditions: Vec::new(),
            rows: Vec::new(),
            bars: Vec::new(),
            ahead: Vec::new(),
            interrupted: false,
        }
    }

    /// The row of that section, name and size.
    #[must_use]
    pub fn row(&self, section: &str, what: &str, size: Option<u32>) -> Option<&Row> {
        let is = |row: &&Row| row.section == section && row.what == what;
        self.rows.iter().filter(is).find(|row| row.size_on_wire == size)
    }

    /// Everything, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.machine.text();
        for condition in &self.conditions {
            text += &format!("note     {condition}\n");
        }
        text += &self.disturbance();
        if self.interrupted {
            text += "note     INTERRUPTED: not every row has all its rounds\n";
        }
        let mut from = 0;
        while let Some(first) = self.rows.get(from) {
            let same = |row: &&Row| row.section == first.section;
            let count = self.rows[from..].iter().take_while(same).count();
            text.push('\n');
            text += &section(&self.rows[from..from + count]);
            from += count;
        }
        if !self.bars.is_empty() {
            let bars: Vec<_> = self.bars.iter().map(|bar| bar.cells().to_vec()).collect();
            text.push('\n');
            text += &render(&["bar (median)", "found", "asked", ""], &bars);
        }
        if !self.ahead.is_empty() {
            let ahead: Vec<_> = self.ahead.iter().map(|ahead| ahead.cells().to_vec()).collect();
            text.push('\n');
            let header = ["PEER AHEAD in", "frame", "peer", "of", "x", "min..max"];
            text += &render(&header, &ahead);
        }
        text
    }

    /// One line on how quiet the machine was.
    pub(super) fn disturbance(&self) -> String {
        let over = |what: fn(&Disturbance) -> f64| {
            let rounds = self.rows.iter().flat_map(|row| &row.rounds);
            Spread::of(rounds.map(|round| what(&round.disturbance)))
        };
        let (Some(others), Some(waited)) =
            (over(|round| round.others_percent), over(|round| round.waited_percent))
        else {
            return String::new();
        };
        format!(
            "note     other programs' user time {:.0} % of a CPU (median round; at most {:.0} %); \
             somebody waited for a CPU {:.0} % of the time (at most {:.0} %)\n",
            others.median, others.max, waited.median, waited.max
        )
    }

    /// Everything, for machines.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings serialize")
    }
}

/// The table of one section.
fn section(rows: &[Row]) -> String {
    let title = rows[0].section;
    let ratio = rows.iter().find_map(|row| row.compared_with.as_deref());
    let ratio = ratio.map_or_else(String::new, |to| format!("x {to}"));
    if rows.iter().any(|row| row.latency().is_some()) {
        let header =
            [title, "frame", "frames", "p50 us", "min..max", "p90", "p99", "p99.9", "max", "lost"];
        return render(&header, &rows.iter().map(latency_cells).collect::<Vec<_>>());
    }
    if rows.iter().any(|row| row.rounds.iter().any(|round| round.frames.is_some())) {
        let header = [
            title, "frame", "offered", "kept", "Mpps", "min..max", "Gbit/s", &ratio, "", "CPU s/M",
            "lost",
        ];
        return render(&header, &rows.iter().map(frame_cells).collect::<Vec<_>>());
    }
    let header = [title, "median", "", "min..max", &ratio, "", ""];
    render(&header, &rows.iter().map(plain_cells).collect::<Vec<_>>())
}

fn range(spread: Spread) -> String {
    format!("{}..{}", figure(spread.min), figure(spread.max))
}

fn latency_cells(row: &Row) -> Vec<String> {
    let size = row.size_on_wire.map_or_else(String::new, |size| format!("{size} B"));
    let (Some(latency), Some(frames), Some(value)) = (row.latency(), row.frames(), row.value)
    else {
        return vec![row.what.clone(), size, absent(row)];
    };
    let [p50, p90, p99, p999, max] = latency.all_us().map(figure);
    let (timed, lost) = (grouped(latency.frames), with_note(lost(&frames), row));
    vec![row.what.clone(), size, timed, p50, range(value), p90, p99, p999, max, lost]
}

fn frame_cells(row: &Row) -> Vec<String> {
    let size = row.size_on_wire.map_or_else(String::new, |size| format!("{size} B"));
    let (Some(frames), Some(value)) = (row.frames(), row.value) else {
        return vec![row.what.clone(), size, absent(row)];
    };
    let gbps = row.gbps.map_or_else(String::new, |gbps| figure(gbps.median));
    let (ratio, ratio_range) = row.ratio.map_or_else(Default::default, |ratio| {
        (figure(ratio.median), format!("({})", range(ratio)))
    });
    vec![
        row.what.clone(),
        size,
        grouped(frames.offered),
        grouped(frames.kept),
        figure(value.median),
        range(value),
        gbps,
        ratio,
        ratio_range,
        frames.cpu_per_million().map_or_else(String::new, figure),
        with_note(lost(&frames), row),
    ]
}

/// Losses by name; those that are zero only in the JSON.
pub(super) fn lost(frames: &Frames) -> String {
    let named = frames.drops.iter().filter(|(_, count)| **count > 0);
    let mut parts: Vec<String> =
        named.map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    if frames.unaccounted != 0 {
        parts.push(format!("UNACCOUNTED {}", frames.unaccounted));
    }
    if parts.is_empty() { "0".to_owned() } else { parts.join(", ") }
}

fn plain_cells(row: &Row) -> Vec<String> {
    let Some(value) = row.value else { return vec![row.what.clone(), absent(row)] };
    let (ratio, ratio_range) = row.ratio.map_or_else(Default::default, |ratio| {
        (figure(ratio.median), format!("({})", range(ratio)))
    });
    vec![
        row.what.clone(),
        figure(value.median),
        row.unit.to_owned(),
        range(value),
        ratio,
        ratio_range,
        with_note(String::new(), row),
    ]
}

fn absent(row: &Row) -> String {
    format!("n/a: {}", row.absent.as_deref().unwrap_or("not reached"))
}

/// Adds what else there is to say, and of a row that failed half way, that it did.
fn with_note(text: String, row: &Row) -> String {
    let notes = [row.note.as_str(), row.absent.as_deref().unwrap_or("")];
    let parts = std::iter::once(text.as_str()).chain(notes).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(offered: u64, kept: u64, lapped: u64) -> Frames {
        Frames::new(offered, kept, [("lapped".to_owned(), lapped)].into(), 2.0)
    }

    fn rows() -> Vec<Row> {
        let mut tc = Row::new("wire", "tc", MPPS).sized(64);
        tc.add_frames(0, frames(6_000_000, 6_000_000, 0), Disturbance::default());
        tc.add_frames(1, frames(4_000_000, 3_999_000, 1000), Disturbance::default());
        let mut tcpdump = Row::new("wire", "tcpdump", MPPS).sized(64);
        tcpdump.add_frames(0, frames(4_000_000, 4_000_000, 0), Disturbance::default());
        tcpdump.add_frames(1, frames(2_000_000, 1_999_999, 0), Disturbance::default());
        let mut missing = Row::new("wire", "dumpcap", MPPS).sized(64);
        missing.absent = Some("not installed".to_owned());
        vec![tc, tcpdump, missing]
    }

    fn report(rows: Vec<Row>) -> Report {
        Report { rows, ..Report::new(Machine::look()) }
    }

    #[test]
    fn rates_are_of_kept_frames_and_ratios_of_one_round() {
        let mut rows = rows();
        conclude(&mut rows, "tcpdump");
        let value = rows[0].value.unwrap();
        assert!((value.max - 3.0).abs() < 1e-9 && (value.min - 1.9995).abs() < 1e-9);
        let ratio = rows[0].ratio.unwrap();
        assert!((ratio.min - 1.5).abs() < 1e-6 && (ratio.max - 1.9995).abs() < 1e-4);
        assert!((rows[0].gbps.unwrap().max - 3.0 * 64.0 * 8.0 / 1e3).abs() < 1e-9);
        assert_eq!(rows[0].frames().unwrap().drops["lapped"], 1000);
    }

    #[test]
    fn what_nobody_accounts_for_is_shouted_and_what_is_missing_is_named() {
        let mut rows = rows();
        conclude(&mut rows, "tcpdump");
        let text = report(rows).text();
        assert!(text.contains("lapped 1 000\n"), "{text}");
        assert!(text.contains("UNACCOUNTED 1\n"), "{text}");
        assert!(text.contains("n/a: not installed"), "{text}");
    }

    #[test]
    fn losses_line_up_behind_the_columns() {
        let mut rows = rows();
        conclude(&mut rows, "tcpdump");
        let text = section(&rows);
        let lines: Vec<&str> = text.lines().collect();
        let at = |line: usize, word: &str| lines[line].find(word).unwrap();
        assert_eq!(at(0, "lost"), at(1, "lapped"), "{text}");
        assert_eq!(at(0, "lost"), at(2, "UNACCOUNTED"), "{text}");
        assert_eq!(at(0, "Mpps") + 4, at(1, "2.50") + 4, "{text}");
    }

    #[test]
    fn a_bar_is_met_missed_or_not_measured() {
        let bar = |value, side| Bar::new("x", value, side, 1.1);
        assert_eq!(bar(Some(1.1), Side::AtLeast).met, Some(true));
        assert_eq!(bar(Some(1.1), Side::Below).met, Some(false));
        assert_eq!(bar(Some(1.1), Side::AtMost).met, Some(true));
        assert_eq!(bar(None, Side::AtLeast).met, None);
        let mut report = report(Vec::new());
        report.bars = vec![bar(Some(1.0), Side::AtLeast), bar(None, Side::AtLeast)];
        let text = report.text();
        assert!(text.contains("FALLS SHORT") && text.contains("not measured"), "{text}");
    }

    #[test]
    fn the_json_holds_every_round_and_every_counter() {
        let mut rows = rows();
        conclude(&mut rows, "tcpdump");
        let json: serde_json::Value = serde_json::from_str(&report(rows).json()).unwrap();
        assert_eq!(json["rows"][0]["rounds"][1]["frames"]["drops"]["lapped"], 1000);
        assert_eq!(json["rows"][1]["rounds"][1]["frames"]["drops"]["lapped"], 0);
        assert_eq!(json["rows"][2]["absent"], "not installed");
        assert!(json["machine"]["kernel"].is_string());
    }
}
