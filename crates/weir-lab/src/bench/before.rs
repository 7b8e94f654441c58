//! Compares this build of Weir with another one, in every row of Weir that `wire` has.
//!
//! The two builds are measured one right after the other. Which of them is first changes from round to round, so that
//! effects of the order are the same for both.

use std::path::Path;

use super::bar::{Bar, Side};
use super::context::{Context, Section, stopped};
use super::row::{MPPS, Row};
use super::tool::Tool;
use super::wire::{self, Traffic};
use crate::generator::Rate;
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(super) const SECTION: &str = "before";
/// Suffix of the name of a row of the other build.
const BEFORE: &str = ", before";
/// Share of the other build's rate that this build must keep.
pub(super) const LEAST: f64 = 0.97;

/// An engine in this build and in the other one, with their rows.
struct Pair([(Tool, Row); 2]);

impl Pair {
    fn new((now, before): (Tool, Tool), size: u32) -> Pair {
        let row = |name: String| Row::new(SECTION, name, MPPS).sized(size);
        let rows = [row(now.name.to_owned()), row(format!("{}{BEFORE}", now.name))];
        let [ours, theirs] = rows;
        Pair([(now, ours), (before, theirs)])
    }

    /// Returns the row of this build, compared with that of the other build, and the other build's row.
    fn conclude(self) -> [Row; 2] {
        let [(_, mut now), (_, mut before)] = self.0;
        before.summarize();
        now.summarize();
        now.compare(&before);
        // Each pair of rows has its own base, so the header names the part.
        now.compared_with = Some(SECTION.to_owned());
        [now, before]
    }
}

/// Measures both builds. Returns no rows if there is no other build and the part was not requested.
///
/// # Errors
/// Only if no testbed can be made. A build that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let Some(before) = &context.options.before else {
        let mut row = Row::new(SECTION, "another build", MPPS);
        row.absent = Some("none was named: --before PROGRAM".to_owned());
        let is_asked = context.options.only == Some(Section(SECTION));
        return Ok(if is_asked { vec![row] } else { Vec::new() });
    };
    let bed = Testbed::builder().gro(true).build()?;
    let mut all = Vec::new();
    for &size in wire::sizes(context) {
        let mut pairs = pairs(&context.options.weir, before, size);
        for round in 0..context.rounds {
            for pair in &mut pairs {
                // The order alternates from round to round.
                let first = round as usize % 2;
                for index in [first, 1 - first] {
                    one(context, &bed, round, size, &mut pair.0[index])?;
                }
            }
        }
        all.extend(pairs.into_iter().flat_map(Pair::conclude));
    }
    Ok(all)
}

/// Returns every engine of this build, paired with the same engine of the other build.
fn pairs(now: &Path, before: &Path, size: u32) -> Vec<Pair> {
    let both = Tool::every_weir(now).into_iter().zip(Tool::every_weir(before));
    both.map(|both| Pair::new(both, size)).collect()
}

fn one(
    context: &Context,
    bed: &Testbed,
    round: u32,
    size: u32,
    (tool, row): &mut (Tool, Row),
) -> Result<()> {
    if stopped(context.stop) || row.absent.is_some() {
        return Ok(());
    }
    let neighbours = context.calm();
    let traffic = Traffic { size, rate: Rate::Max, seconds: context.seconds, stamp: false };
    match wire::one(context, bed, tool, traffic) {
        Ok(frames) => {
            let round_of = format!("{SECTION}, {size} B, round {}", round + 1);
            context.say(&format!("{round_of}: {} {:.2}", row.what, frames.kept_mpps()));
            row.add_frames(round, frames, neighbours.done());
        }
        Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    let before = context.options.before.as_ref();
    before.map_or_else(String::new, |before| {
        format!(
            "before: {} beside this build, as wire, one right after the other, taking turns in being first",
            before.display()
        )
    })
}

/// Returns a target for every row that at least one of the two builds has.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let of_this = |row: &&Row| row.section == SECTION && !row.what.ends_with(BEFORE);
    let other = |row: &Row| {
        let is = |other: &&Row| {
            other.section == SECTION
                && other.size_on_wire == row.size_on_wire
                && other.what.strip_suffix(BEFORE) == Some(&row.what)
        };
        rows.iter().find(is)
    };
    let has_run = |row: &&Row| {
        !row.rounds.is_empty() || other(row).is_some_and(|other| !other.rounds.is_empty())
    };
    let bar = |row: &Row| {
        let what = format!("{} B: {} / before", row.size_on_wire.unwrap_or(0), row.what);
        Bar::new(what, row.ratio.map(|ratio| ratio.median), Side::AtLeast, LEAST)
    };
    rows.iter().filter(of_this).filter(has_run).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::Frames;
    use super::*;

    /// The rows of a pair that kept these numbers of frames a second, now and before, in each
    /// round.
    fn rows(rounds: &[(u64, u64)]) -> Vec<Row> {
        let mut pair = pairs("now".as_ref(), "before".as_ref(), 64).swap_remove(0);
        for (round, &(now, before)) in (0..).zip(rounds) {
            for ((_, row), kept) in pair.0.iter_mut().zip([now, before]) {
                row.add_frames(round, Frames::new(kept, kept, [].into(), 1.0), Default::default());
            }
        }
        pair.conclude().into()
    }

    #[test]
    fn a_row_is_held_against_the_same_row_of_the_other_build_round_by_round() {
        let rows = rows(&[(1_000_000, 1_000_000), (4_800_000, 5_000_000), (950_000, 1_000_000)]);
        let ratio = rows[0].ratio.unwrap();
        assert!((ratio.median - 0.96).abs() < 1e-9 && (ratio.min - 0.95).abs() < 1e-9);
        assert_eq!(rows[1].ratio, None);
        let bars = bars(&rows);
        assert_eq!((bars.len(), bars[0].met), (1, Some(false)));
        assert_eq!(bars[0].what, "64 B: weir --consume / before");
    }

    #[test]
    fn an_engine_that_neither_build_has_is_no_bar_and_one_that_was_lost_is_not_measured() {
        assert!(bars(&rows(&[])).is_empty());
        let mut lost = rows(&[(1_000_000, 1_000_000)]);
        (lost[0].rounds, lost[0].ratio) = (Vec::new(), None);
        assert_eq!(bars(&lost)[0].met, None);
        assert!(bars(&[Row::new(SECTION, "another build", MPPS)]).is_empty());
    }

    #[test]
    fn the_two_builds_are_started_alike() {
        let pairs = pairs("/now/weir".as_ref(), "/before/weir".as_ref(), 64);
        assert_eq!(pairs.len(), Tool::every_weir("weir".as_ref()).len());
        for Pair([(now, _), (before, row)]) in &pairs {
            assert_eq!(now.command_line("wrx0", 1)[1..], before.command_line("wrx0", 1)[1..]);
            assert_eq!(before.command_line("wrx0", 1)[0], "/before/weir");
            assert!(row.what.ends_with(BEFORE));
        }
    }
}
