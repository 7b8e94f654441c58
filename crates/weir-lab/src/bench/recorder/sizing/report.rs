//! The result of `weir lab disk`, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::computed::{Link, Need};
use crate::bench::machine::Machine;
use crate::bench::row::Row;
use crate::bench::table::{figure, render};

/// Sections of the table.
pub(super) const DISK: &str = "disk only";
pub(super) const CAPTURE: &str = "capture only";
pub(super) const BOTH: &str = "both";
pub(super) const GUEST: &str = "in a guest";

/// Measurements, and values computed from them.
#[derive(Debug, Serialize)]
pub struct Sizing {
    /// The machine, the program and the time.
    pub machine: Machine,
    /// File system, device and mount options.
    pub file_system: String,
    /// The guest, its kernel and its disk, if one was booted.
    pub guest: Option<String>,
    /// Seconds of every measurement.
    #[serde(rename = "duration_s")]
    pub seconds: f64,
    /// Whether it was stopped before the last round.
    pub interrupted: bool,
    /// The measured rows, with all rounds.
    pub rows: Vec<Row>,
    /// Needs of fully loaded links. Computed, not measured.
    #[serde(rename = "computed_needs")]
    pub needs: Vec<Need>,
    /// Links that drives can record. Computed, not measured.
    #[serde(rename = "computed_links")]
    pub links: Vec<Link>,
}

impl Sizing {
    /// Formats the result as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("rows are plain values")
    }

    /// Formats the result as tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.machine.text();
        _ = writeln!(text, "disk     {}", self.file_system);
        if let Some(guest) = &self.guest {
            _ = writeln!(text, "guest    {guest}");
        }
        let with_rounds = self.rows.iter().filter_map(|row| Some(row.value?.rounds)).max();
        let rounds = with_rounds.unwrap_or(0);
        let ended = if self.interrupted { "; interrupted" } else { "" };
        _ = writeln!(text, "rounds   {rounds} of {} s each, in turn{ended}\n", self.seconds);
        text += "Measured: median, least and most. GB/s of the recorder are bytes of pcapng records kept, index on.\n";
        let header = ["part", "what", "frame B", "unit", "median", "min..max", "remarks"];
        let rows: Vec<_> = self.rows.iter().map(line).collect();
        text += &render(&header, &rows);
        text += "\nWhat it would take (computed from the medians above, not measured; drives that do not slow each \
                 other down):\n";
        if self.needs.is_empty() {
            text += "nothing to compute from: the recorder has no round\n";
            return text;
        }
        let header = [
            "link Gbit/s",
            "frame B",
            "Mpps",
            "records GB/s",
            "drives",
            "CPU cores",
            "capture holds",
        ];
        let rows: Vec<_> = self.needs.iter().map(|need| self.need_line(need)).collect();
        text += &render(&header, &rows);
        if !self.links.is_empty() {
            text += "\nWhat so many drives would hold (computed, not measured):\n";
            let row = |link: &Link| {
                vec![link.drives.to_string(), link.size_on_wire.to_string(), figure(link.link_gbps)]
            };
            let rows: Vec<_> = self.links.iter().map(row).collect();
            text += &render(&["drives", "frame B", "link Gbit/s"], &rows);
        }
        text
    }

    /// Returns the row of a need, with the share of the link's frames that the capture to one ring and a counting
    /// consumer kept on this machine.
    fn need_line(&self, need: &Need) -> Vec<String> {
        let size = Some(need.size_on_wire);
        let held = self.rows.iter().find(|row| row.section == CAPTURE && row.size_on_wire == size);
        let held = held.and_then(|row| row.value).map(|value| value.median / need.mpps);
        vec![
            need.link_gbps.to_string(),
            need.size_on_wire.to_string(),
            figure(need.mpps),
            figure(need.records_gbytes_per_second),
            need.drives.to_string(),
            figure(need.cpu_cores),
            held.map_or("-".to_owned(), |share| format!("{} x", figure(share))),
        ]
    }
}

fn line(row: &Row) -> Vec<String> {
    let (median, range) = row.value.map_or(("-".to_owned(), "-".to_owned()), |value| {
        (figure(value.median), format!("{}..{}", figure(value.min), figure(value.max)))
    });
    let size = row.size_on_wire.map_or("-".to_owned(), |size| size.to_string());
    let mut remarks = row.absent.clone().unwrap_or_else(|| row.note.clone());
    if row.section == BOTH && row.rounds.is_empty() && remarks.is_empty() {
        remarks = "no round".to_owned();
    }
    vec![
        row.section.to_owned(),
        row.what.clone(),
        size,
        row.unit.to_owned(),
        median,
        range,
        remarks,
    ]
}
