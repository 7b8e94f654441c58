//! Collects all results of a run, and formats them as tables.

use serde::Serialize;

use super::ahead::Ahead;
use super::bar::Bar;
use super::machine::{Disturbance, Machine};
use super::row::{Frames, Row, lost};
use super::stats::Spread;
use super::table::{figure, grouped, render};

/// All results of one run of the bench.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine, the program and the time.
    pub machine: Machine,
    /// How the parts were measured, in sentences.
    pub conditions: Vec<String>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// The targets.
    pub bars: Vec<Bar>,
    /// Peers that were faster than the engine of Weir that uses the same kernel interface.
    pub ahead: Vec<Ahead>,
    /// Whether a signal ended the run early. Then rows may have fewer rounds, or be missing.
    pub interrupted: bool,
}

impl Report {
    /// Creates an empty report.
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

    /// Formats the whole report as text.
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

    /// Returns one line about how quiet the machine was.
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

    /// Formats the whole report as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings serialize")
    }
}

/// Formats the table of one section.
fn section(rows: &[Row]) -> String {
    let table = Table::of(rows);
    let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
    render(&header, &table.rows)
}

/// The cells of one section. A row that was not measured is shorter than the header.
pub(super) struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn of(rows: &[Row]) -> Table {
        let title = rows[0].section;
        let ratio = rows.iter().find_map(|row| row.compared_with.as_deref());
        let ratio = ratio.map_or_else(String::new, |to| format!("x {to}"));
        if rows.iter().any(|row| row.latency().is_some()) {
            let header = [
                title, "frame", "frames", "p50 us", "min..max", "p90", "p99", "p99.9", "max",
                "lost",
            ];
            return Table::new(&header, rows.iter().map(latency_cells));
        }
        if rows.iter().any(|row| row.rounds.iter().any(|round| round.frames.is_some())) {
            let header = [
                title,
                "frame",
                "offered",
                "kept",
                rows[0].unit,
                "min..max",
                "Gbit/s",
                &ratio,
                "",
                "CPU s/M",
                "lost",
            ];
            return Table::new(&header, rows.iter().map(frame_cells));
        }
        let header = [title, "median", "", "min..max", &ratio, "", ""];
        Table::new(&header, rows.iter().map(plain_cells))
    }

    fn new(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
        Table { header: header.iter().map(|&name| name.to_owned()).collect(), rows: rows.collect() }
    }
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
    let Some(value) = row.value else {
        return vec![row.what.clone(), size, absent(row)];
    };
    let frames = row.frames();
    let count =
        |of: fn(&Frames) -> u64| frames.as_ref().map_or_else(String::new, |it| grouped(of(it)));
    let gbps = row.gbps.map_or_else(String::new, |gbps| figure(gbps.median));
    let (ratio, ratio_range) = row.ratio.map_or_else(Default::default, |ratio| {
        (figure(ratio.median), format!("({})", range(ratio)))
    });
    vec![
        row.what.clone(),
        size,
        count(|frames| frames.offered),
        count(|frames| frames.kept),
        figure(value.median),
        range(value),
        gbps,
        ratio,
        ratio_range,
        frames.as_ref().and_then(Frames::cpu_per_million).map_or_else(String::new, figure),
        with_note(frames.as_ref().map_or_else(String::new, lost), row),
    ]
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

/// Appends the row's other remarks, and its error if it failed after some rounds.
fn with_note(text: String, row: &Row) -> String {
    let notes = [row.note.as_str(), row.absent.as_deref().unwrap_or("")];
    let parts = std::iter::once(text.as_str()).chain(notes).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::bar::Side;
    use super::super::row::{MPPS, conclude};
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
        Report { rows, ..Report::new(Machine::look("/nowhere/weir".as_ref())) }
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
