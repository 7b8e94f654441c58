//! Measures a ring that the command line fills and reads, `weir capture gen:`, beside the bench's own writer and
//! reader.
//!
//! The command line adds the generator in user space, the source's thread, its feeds, and a consumer that must keep up,
//! because the writer does not wait for readers.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::bar::{Bar, Side};
use super::child::Child;
use super::context::{Context, stopped};
use super::counted::weir_report;
use super::memory::{self, IN_C, Peer};
use super::row::{Frames, MPPS, Row, conclude, find, ratio_of};
use crate::{Error, Result};

pub(super) const SECTION: &str = "command";
const BENCH: &str = "the bench, one reader counts";
const WEIR: &str = "weir capture gen:";
const SIZES: [u32; 2] = [64, 1518];
/// Longest time from the end of the duration to the end of the program.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Measures both in turn.
///
/// # Errors
/// [`Error::Measure`] if there is no memory for the bench's own ring.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    let peer = Peer::build();
    for size in SIZES {
        let mut rows = [BENCH, WEIR].map(|what| Row::new(SECTION, what, MPPS).sized(size));
        let mut in_c = Row::new(SECTION, IN_C, MPPS).sized(size);
        for round in 0..context.rounds {
            // The order alternates from round to round.
            let first = round as usize % 2;
            for index in [first, 1 - first] {
                let row = &mut rows[index];
                if stopped(context.stop) || row.absent.is_some() {
                    continue;
                }
                let neighbours = context.calm();
                let frames = match index {
                    0 => memory::counted_in_place(context, size),
                    _ => by_command(context, size),
                };
                match frames {
                    Ok(frames) => row.add_frames(round, frames, neighbours.done()),
                    Err(Error::Measure { reason, .. }) if index == 1 => row.absent = Some(reason),
                    Err(error) => return Err(error),
                }
            }
            Peer::add_round(&peer, context, round, context.seconds, &mut in_c);
            context.say(&format!("{SECTION}, {size} B, round {}", round + 1));
        }
        let [bench, weir] = rows;
        let mut rows = [bench, weir, in_c];
        conclude(&mut rows, BENCH);
        all.extend(rows);
    }
    Ok(all)
}

/// Runs the command as a user would, on CPUs that the scheduler selects.
fn by_command(context: &Context, size: u32) -> Result<Frames> {
    let mut command = Command::new(&context.options.weir);
    let seconds = format!("{}s", context.seconds);
    command
        .args(["capture", &format!("gen:size={size}"), "--json"])
        .args(["--duration", &seconds])
        .stdin(Stdio::null());
    let child = Child::start_here(WEIR, command)?;
    let lines = child.wait(Duration::from_secs_f64(context.seconds) + END_LIMIT)?;
    let report = weir_report(&lines).ok_or_else(|| {
        let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
        let reason = last.map_or("it said nothing", |line| line.text.trim()).to_owned();
        Error::Measure { what: WEIR.to_owned(), reason }
    })?;
    let counted = report.counted();
    Ok(Frames::new(report.offered, counted.kept, counted.drops, report.duration_s))
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "command: weir capture gen: for {} s by its own clock, on CPUs of its own choice and with its own rings of \
         256 MiB; the bench's writer is on CPU {}, has 64 MiB, and waits where its reader is half a ring behind",
        context.seconds, context.cpus.generator
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let weir = find(rows, SECTION, WEIR, Some(64));
    let lapped = weir.and_then(Row::frames).map(|frames| frames.lapped() as f64);
    let ratio = ratio_of(rows, SECTION, WEIR, Some(64));
    let in_c = SIZES.map(|size| {
        let both = [WEIR, IN_C].map(|what| find(rows, SECTION, what, Some(size)));
        let ratio = both[0].zip(both[1]).and_then(|(ours, in_c)| ours.over(in_c));
        Bar::new(format!("{size} B: {WEIR} / {IN_C}"), ratio, Side::AtLeast, 0.75)
    });
    let mut bars = vec![
        Bar::new(format!("64 B: {WEIR} / the bench's own ring"), ratio, Side::AtLeast, 0.95),
        Bar::new(format!("64 B: {WEIR}, frames lapped"), lapped, Side::AtMost, 0.0),
    ];
    bars.extend(in_c);
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_not_enough_where_frames_were_lapped() {
        let row = |what, kept, lapped| {
            let mut row = Row::new(SECTION, what, MPPS).sized(64);
            let drops = [("lapped".to_owned(), lapped)].into();
            row.add_frames(0, Frames::new(kept + lapped, kept, drops, 1.0), Default::default());
            row
        };
        let mut rows = vec![row(BENCH, 60_000_000, 0), row(WEIR, 58_000_000, 3)];
        conclude(&mut rows, BENCH);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), Some(false), None, None]);
        assert!(bars(&[]).iter().all(|bar| bar.met.is_none()));
    }
}
