//! Formats the report as Markdown, for docs/figures.md, which has one run with its date and commit.

use super::page::words;
use super::report::{Report, Table};

/// Returns the whole report. Its headings are of the third level, because docs/figures.md has the report below a
/// heading of its own.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut text = format!("```text\n{}{}```\n", report.machine.text(), report.disturbance());
    if report.interrupted {
        text += "\n**Interrupted: not every row has all its rounds.**\n";
    }
    if !report.conditions.is_empty() {
        text.push('\n');
        text.extend(report.conditions.iter().map(|condition| format!("- {condition}\n")));
    }
    if !report.bars.is_empty() {
        let bars: Vec<_> = report.bars.iter().map(|bar| bar.cells().to_vec()).collect();
        text += &section("Bars", "", &["median", "found", "asked", ""], &bars);
    }
    if !report.ahead.is_empty() {
        let ahead: Vec<_> = report.ahead.iter().map(|ahead| ahead.cells().to_vec()).collect();
        let header = ["part", "frame", "peer", "of", "x", "min..max"];
        text += &section("Where a peer was ahead", "", &header, &ahead);
    }
    for rows in report.rows.chunk_by(|one, next| one.section == next.section) {
        let title = rows[0].section;
        let Table { header, rows } = Table::of(rows);
        // The heading shows the section's name.
        let header: Vec<&str> =
            std::iter::once("").chain(header[1..].iter().map(String::as_str)).collect();
        text += &section(title, words::of_section(title), &header, &rows);
    }
    text
}

fn section(title: &str, about: &str, header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("\n### {title}\n\n");
    if !about.is_empty() {
        text += &format!("{about}\n\n");
    }
    text += &line(header.iter().copied());
    text += &line(header.iter().map(|_| "---"));
    for row in rows {
        text += &line(row.iter().map(String::as_str));
    }
    text
}

/// Returns a line of a table. Markdown viewers pad a row that has fewer cells than the header.
fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::bar::{Bar, Side};
    use super::super::machine::{Disturbance, Machine};
    use super::super::row::{MPPS, Row, conclude};
    use super::*;

    #[test]
    fn every_row_is_a_line_of_its_sections_table() {
        let mut absent = Row::new("wire", "dumpcap", MPPS).sized(64);
        absent.absent = Some("not | installed".to_owned());
        let mut ring = Row::new("memory", "ring", MPPS);
        ring.add(0, 2.0, Disturbance::default());
        let mut report = Report::new(Machine::look("/nowhere/weir".as_ref()));
        report.rows = vec![absent.clone(), absent, ring];
        conclude(&mut report.rows, "none");
        report.bars = vec![Bar::new("ring", Some(2.0), Side::AtLeast, 1.0)];
        let text = markdown(&report);
        assert_eq!(text.matches("\n### ").count(), 3, "{text}");
        assert_eq!(text.matches("n/a: not \\| installed").count(), 2, "{text}");
        assert!(text.contains("\n| ring | 2.00 | >= 1.00 | met |\n"), "{text}");
        assert!(text.contains("\n| ring | 2.00 | Mpps | 2.00..2.00 |"), "{text}");
        assert!(text.contains("\n### memory\n\nThe ring alone"), "{text}");
        assert!(text.contains(report.machine.date.as_str()), "{text}");
    }
}
