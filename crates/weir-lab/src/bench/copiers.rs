//! Measures how the copying part of `af_xdp` scales: several copiers share one RX ring that is never empty.

use serde::Deserialize;

use super::bar::{Bar, Side};
use super::child;
use super::context::{Context, stopped};
use super::row::{Frames, MPPS, Row, conclude, ratio_of};
use crate::{Error, Result};

pub(super) const SECTION: &str = "copiers";
pub(super) const ONE: &str = "1 copier";
pub(super) const TWO: &str = "2 copiers";
const SIZES: [u32; 3] = [64, 512, 1518];

/// Final output of `weir lab copiers --json`.
#[derive(Debug, Deserialize)]
struct Copied {
    frames: u64,
    seconds: f64,
}

/// Measures 1, 2, 4 and 8 copiers, as long as there are CPUs for them.
///
/// # Errors
/// Errors other than [`Error::Measure`]. A program that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut counts = vec![1, 2, 4, 8];
    counts.retain(|&count| count == 1 || count <= context.cpus.all);
    let name = |count: usize| if count == 1 { ONE.to_owned() } else { format!("{count} copiers") };
    let mut cases = Vec::new();
    for size in SIZES {
        for &count in &counts {
            cases.push((size, count, Row::new(SECTION, name(count), MPPS).sized(size)));
        }
    }
    for round in 0..context.rounds {
        for (size, count, row) in &mut cases {
            if stopped(context.stop) {
                break;
            }
            if row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match one(context, *size, *count) {
                Ok(copied) => {
                    let frames =
                        Frames::new(copied.frames, copied.frames, [].into(), copied.seconds);
                    row.add_frames(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
        context.say(&format!("copiers, round {}", round + 1));
    }
    let mut rows: Vec<Row> = cases.into_iter().map(|(.., row)| row).collect();
    conclude(&mut rows, ONE);
    Ok(rows)
}

fn one(context: &Context, size: u32, copiers: usize) -> Result<Copied> {
    let (size, copiers) = (size.to_string(), copiers.to_string());
    let seconds = context.seconds.min(1.0).to_string();
    let args = ["--size", &size, "--copiers", &copiers, "--seconds", &seconds];
    child::lab(&context.options.weir, "copiers", &args)
}

/// Describes how this part is measured.
pub(super) fn condition(_context: &Context) -> String {
    "copiers: a synthetic RX ring of 4096 slots that is always full; every frame is stamped and copied \
     into its copier's ring; the longest frames are bound by memory"
        .to_owned()
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let bar = |size| {
        let found = ratio_of(rows, SECTION, TWO, Some(size));
        let what = format!("{size} B off a synthetic RX ring: 2 copiers / 1");
        Bar::new(what, found, Side::AtLeast, 1.6)
    };
    [64, 512].into_iter().map(bar).collect()
}
