//! Rows of the report: measurements over several rounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::machine::Disturbance;
use super::percentiles::Percentiles;
use super::stats::{Spread, paired};
use super::table::grouped;

/// A measurement over several rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The part of the bench that the row belongs to.
    pub section: &'static str,
    /// The measured tool or quantity.
    pub what: String,
    /// Bytes of a frame on the wire, with FCS, if all frames had one size.
    pub size_on_wire: Option<u32>,
    /// Unit of the rounds' values and of `value`.
    pub unit: &'static str,
    /// Summary of the rounds' values.
    pub value: Option<Spread>,
    /// The summary in Gbit/s, FCS included, if `value` is a frame rate.
    pub gbps: Option<Spread>,
    /// Name of the row with which this one is compared.
    pub compared_with: Option<String>,
    /// This row's value divided by that row's, for each round.
    pub ratio: Option<Spread>,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// The reason why the row has no rounds, or fewer than others.
    pub absent: Option<String>,
    /// Further remarks.
    pub note: String,
}

/// One round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round. Rows that were measured in turn have the same numbers.
    pub round: u32,
    /// The value, in the row's unit.
    pub value: f64,
    /// Activity of other programs during the round.
    pub disturbance: Disturbance,
    /// Account of the frames, if they were counted.
    pub frames: Option<Frames>,
    /// Delays, if they were measured.
    pub latency: Option<Percentiles>,
}

/// Account of the frames of a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Frames {
    /// Frames that the generator put on the link, as counted by the link.
    pub offered: u64,
    /// Frames that reached the consumer.
    pub kept: u64,
    /// Lost frames by the place that the tool names, also if 0.
    pub drops: BTreeMap<String, u64>,
    /// `offered - kept - drops`: frames that no counter of the tool explains. Negative if the tool counts frames twice.
    pub unaccounted: i64,
    /// Time from the first sent frame to the last.
    #[serde(rename = "duration_s")]
    pub seconds: f64,
    /// CPU time of the tool's own process. The kernel's work in softirqs is charged to the sender.
    #[serde(rename = "cpu_s")]
    pub cpu_seconds: Option<f64>,
}

impl Frames {
    /// Creates the account, and computes `unaccounted`.
    #[must_use]
    pub fn new(offered: u64, kept: u64, drops: BTreeMap<String, u64>, seconds: f64) -> Frames {
        let known = kept + drops.values().sum::<u64>();
        let unaccounted = offered as i64 - known as i64;
        Frames { offered, kept, drops, unaccounted, seconds, cpu_seconds: None }
    }

    /// Returns whether frames were offered and all of them were kept.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.offered > 0 && self.kept >= self.offered
    }

    /// Returns the number of frames that were overwritten before the consumer read them.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.drops.get("lapped").copied().unwrap_or(0)
    }

    /// Returns the offered frames per second.
    #[must_use]
    pub fn offered_pps(&self) -> f64 {
        if self.seconds > 0.0 { self.offered as f64 / self.seconds } else { 0.0 }
    }

    /// Returns the CPU seconds of the tool per million kept frames.
    #[must_use]
    pub fn cpu_per_million(&self) -> Option<f64> {
        (self.kept > 0).then_some(self.cpu_seconds? / (self.kept as f64 / 1e6))
    }

    /// Returns the kept frames per second, in millions.
    #[must_use]
    pub fn kept_mpps(&self) -> f64 {
        if self.seconds > 0.0 { self.kept as f64 / self.seconds / 1e6 } else { 0.0 }
    }
}

impl Row {
    /// Creates an empty row.
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

    /// Sets the size of the row's frames on the wire.
    #[must_use]
    pub fn sized(mut self, size_on_wire: u32) -> Row {
        self.size_on_wire = Some(size_on_wire);
        self
    }

    /// Sets the row's note.
    #[must_use]
    pub fn noted(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// Adds a round.
    pub fn add(&mut self, round: u32, value: f64, disturbance: Disturbance) {
        self.rounds.push(Round { round, value, disturbance, ..Round::default() });
    }

    /// Adds a round whose value is the rate of kept frames in Mpps.
    pub fn add_frames(&mut self, round: u32, frames: Frames, disturbance: Disturbance) {
        let value = frames.kept_mpps();
        let frames = Some(frames);
        self.rounds.push(Round { round, value, disturbance, frames, latency: None });
    }

    /// Adds a round with frames and a value of another kind.
    pub fn add_counted(
        &mut self,
        round: u32,
        value: f64,
        frames: Frames,
        disturbance: Disturbance,
    ) {
        let frames = Some(frames);
        self.rounds.push(Round { round, value, disturbance, frames, latency: None });
    }

    /// Adds a round whose value is the rate of offered frames in Mpps.
    pub fn add_offered(&mut self, round: u32, frames: Frames, disturbance: Disturbance) {
        let value = frames.offered_pps() / 1e6;
        let frames = Some(frames);
        self.rounds.push(Round { round, value, disturbance, frames, latency: None });
    }

    /// Adds a round whose value is the median delay in microseconds.
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

    /// Returns the delays of all rounds combined.
    #[must_use]
    pub fn latency(&self) -> Option<Percentiles> {
        let rounds: Vec<_> = self.rounds.iter().filter_map(|round| round.latency).collect();
        Percentiles::over(&rounds)
    }

    pub(super) fn values(&self) -> Vec<(u32, f64)> {
        self.rounds.iter().map(|round| (round.round, round.value)).collect()
    }

    /// Computes the summary of the rounds.
    pub(super) fn summarize(&mut self) {
        let values = self.values();
        self.value = Spread::of(values.iter().map(|(_, value)| *value));
        if self.unit == MPPS
            && let Some(size) = self.size_on_wire
        {
            let gbps = values.iter().map(|(_, mpps)| mpps * f64::from(size) * 8.0 / 1e3);
            self.gbps = Spread::of(gbps);
        }
    }

    /// Computes the ratio to another row.
    pub(super) fn compare(&mut self, base: &Row) {
        self.compared_with = Some(base.what.clone());
        self.ratio = paired(&self.values(), &base.values());
    }

    /// Returns the median of the ratios of this row's values to those of another row, paired by round.
    #[must_use]
    pub fn over(&self, base: &Row) -> Option<f64> {
        Some(paired(&self.values(), &base.values())?.median)
    }

    /// Returns the sum of the frames of all rounds.
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

/// Summarizes each row, and compares it with the row named `baseline` that has the same frame size.
pub fn conclude(rows: &mut [Row], baseline: &str) {
    let bases: Vec<Row> = rows.iter().filter(|row| row.what == baseline).cloned().collect();
    for row in rows {
        row.summarize();
        if let Some(base) = bases.iter().find(|base| base.size_on_wire == row.size_on_wire) {
            row.compare(base);
        }
    }
}

/// The unit of frame rates.
pub const MPPS: &str = "Mpps";

/// Formats the losses by name, without those that are 0. Unaccounted frames are included.
pub fn lost(frames: &Frames) -> String {
    let named = frames.drops.iter().filter(|(_, count)| **count > 0);
    let mut parts: Vec<String> =
        named.map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    if frames.unaccounted != 0 {
        parts.push(format!("UNACCOUNTED {}", frames.unaccounted));
    }
    if parts.is_empty() { "0".to_owned() } else { parts.join(", ") }
}

/// Returns the row with this section, name and size.
#[must_use]
pub fn find<'a>(rows: &'a [Row], section: &str, what: &str, size: Option<u32>) -> Option<&'a Row> {
    let is = |row: &&Row| row.section == section && row.what == what && row.size_on_wire == size;
    rows.iter().find(is)
}

/// Returns the median ratio of the row found by [`find`].
#[must_use]
pub fn ratio_of(rows: &[Row], section: &str, what: &str, size: Option<u32>) -> Option<f64> {
    Some(find(rows, section, what, size)?.ratio?.median)
}

/// Returns the median value of the row found by [`find`].
#[must_use]
pub fn value_of(rows: &[Row], section: &str, what: &str, size: Option<u32>) -> Option<f64> {
    Some(find(rows, section, what, size)?.value?.median)
}
