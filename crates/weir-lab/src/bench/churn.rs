//! Measures a thousand feeds and a thousand consumers that come and go while a source runs at full rate.

use serde::Deserialize;

use super::bar::{Bar, Side};
use super::child;
use super::context::{Context, stopped};
use super::row::{Row, value_of};
use super::table::grouped;
use crate::{Error, Result};

pub(super) const SECTION: &str = "churn";
const ADD: &str = "a feed is added";
const ATTACH: &str = "a consumer is attached";
const LONGEST: &str = ", longest";
const LEDGERS: &str = "feeds whose ledger does not close";
const WITHOUT: &str = "feeds and consumers that got no frame";
const MISSING: &str = "frames that the feed beside them lost";
const DESCRIPTORS: &str = "descriptors more than before";
const KIB: &str = "KiB more than before";
const SOURCES: [&str; 2] = ["gen", "bpf"];
/// Number of feeds and of consumers; fewer with `--quick`.
const COUNT: u64 = 1000;
const COUNT_QUICK: u64 = 20;
/// The limit is not 0, because an allocator keeps some freed memory. With 1000 feeds, a leak of 1 KiB for each would
/// reach the limit.
const KIB_MAX: f64 = 1000.0;

#[derive(Debug, Default, Deserialize)]
struct Times {
    median_ms: f64,
    max_ms: f64,
}

/// Final output of `weir lab churn --json`.
#[derive(Debug, Default, Deserialize)]
struct Churned {
    add: Times,
    remove: Times,
    attach: Times,
    open_ledgers: u64,
    without_frames: u64,
    offered: u64,
    missing: i64,
    descriptors_more: i64,
    kib_more: i64,
    duration_s: f64,
}

/// Measures a generator in memory, and `bpf` on a veth pair.
///
/// # Errors
/// Errors other than [`Error::Measure`]. A program that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for source in SOURCES {
        if stopped(context.stop) {
            break;
        }
        let neighbours = context.calm();
        let found = match one(context, source) {
            Ok(found) => found,
            Err(Error::Measure { reason, .. }) => {
                let mut row = Row::new(SECTION, source, "");
                row.absent = Some(reason);
                rows.push(row);
                continue;
            }
            Err(error) => return Err(error),
        };
        let disturbance = neighbours.done();
        context.say(&format!("{SECTION}: {source}"));
        for (what, unit, value, note) in values(&found) {
            let mut row = Row::new(SECTION, name(source, &what), unit).noted(note);
            row.add(0, value, disturbance);
            row.summarize();
            rows.push(row);
        }
    }
    Ok(rows)
}

fn name(source: &str, what: &str) -> String {
    format!("{source}: {what}")
}

/// Returns the values of a run as displayed: name, unit, value, note.
fn values(found: &Churned) -> Vec<(String, &'static str, f64, String)> {
    let mpps = found.offered as f64 / found.duration_s.max(f64::EPSILON) / 1e6;
    let of = format!("of {}, {mpps:.2} Mpps", grouped(found.offered));
    let removed =
        format!("removed in {:.2}, at most {:.2}", found.remove.median_ms, found.remove.max_ms);
    let plain = |what: &str, unit, value: f64| (what.to_owned(), unit, value, String::new());
    vec![
        (ADD.to_owned(), "ms", found.add.median_ms, removed),
        plain(&format!("{ADD}{LONGEST}"), "ms", found.add.max_ms),
        plain(ATTACH, "ms", found.attach.median_ms),
        plain(&format!("{ATTACH}{LONGEST}"), "ms", found.attach.max_ms),
        plain(LEDGERS, "", found.open_ledgers as f64),
        plain(WITHOUT, "", found.without_frames as f64),
        (MISSING.to_owned(), "", found.missing.unsigned_abs() as f64, of),
        plain(DESCRIPTORS, "", found.descriptors_more as f64),
        plain(KIB, "KiB", found.kib_more as f64),
    ]
}

fn one(context: &Context, source: &str) -> Result<Churned> {
    let count = if context.options.quick { COUNT_QUICK } else { COUNT }.to_string();
    let args = ["--source", source, "--feeds", &count, "--consumers", &count];
    child::lab(&context.options.weir, "churn", &args)
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    let count = if context.options.quick { COUNT_QUICK } else { COUNT };
    format!(
        "churn: {count} feeds of 16 MiB added and removed, four at a time, and {count} consumers attached to a feed \
         that stays and takes all; the generator in memory waits for that feed's reader, the one on the wire for nobody"
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let add = format!("{ADD}{LONGEST}");
    let attach = format!("{ATTACH}{LONGEST}");
    let asked = [
        (add.as_str(), ", ms", 100.0),
        (&attach, ", ms", 20.0),
        (LEDGERS, "", 0.0),
        (WITHOUT, "", 0.0),
        (MISSING, "", 0.0),
        (DESCRIPTORS, "", 0.0),
        (KIB, "", KIB_MAX),
    ];
    let bar = |source, (what, unit, limit): (&str, &str, f64)| {
        let found = value_of(rows, SECTION, &name(source, what), None);
        Bar::new(format!("{}{unit}", name(source, what)), found, Side::AtMost, limit)
    };
    SOURCES.iter().flat_map(|source| asked.map(|asked| bar(source, asked))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_frame_lost_or_doubled_is_too_many() {
        let found = |missing| Churned {
            add: Times { median_ms: 40.0, max_ms: 101.0 },
            missing,
            ..Churned::default()
        };
        for missing in [-1, 1] {
            let rows = values(&found(missing)).into_iter().map(|(what, unit, value, _)| {
                let mut row = Row::new(SECTION, name("gen", &what), unit);
                row.add(0, value, Default::default());
                row.summarize();
                row
            });
            let bars = bars(&rows.collect::<Vec<_>>());
            let met: Vec<_> = bars.iter().take(7).map(|bar| bar.met).collect();
            let good = Some(true);
            assert_eq!(met, [Some(false), good, good, good, Some(false), good, good]);
            assert!(bars[7..].iter().all(|bar| bar.met.is_none()));
        }
    }
}
