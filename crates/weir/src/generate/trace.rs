//! `weir gen --file TRACE`: sends the frames of a file out of an interface.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::replay::{self, ReplayOptions, ReplayReport};

use super::JsonTotals;
use crate::cli::GenArgs;
use crate::units::grouped;
use crate::{EXIT_LOSS, EXIT_RAN, signals};

#[derive(Serialize)]
struct Json {
    #[serde(flatten)]
    totals: JsonTotals,
    read: u64,
    segmented: u64,
    segments: u64,
    skipped: BTreeMap<&'static str, u64>,
    loops: u32,
}

pub(super) fn run(iface: &str, path: &Path, args: &GenArgs) -> Result<u8> {
    let cpus = args.cpu.clone().unwrap_or_default().0;
    if cpus.len() > 1 {
        bail!("--cpu: one thread sends a file, to keep its order; name one CPU");
    }
    let options = ReplayOptions {
        speed: args.speed,
        rate: super::rate(args),
        loops: args.loops,
        duration: args.duration,
        frames: args.frames,
        cpu: cpus.first().copied(),
        ..ReplayOptions::new(path)
    };
    let stop = signals::stop_flag()?;
    let report = replay::run(iface, &options, &stop)?;
    show(args, &report);
    if let Some(damage) = report.damage {
        bail!("{damage}; the frames before that place were sent");
    }
    if report.skipped.total() == 0 {
        return Ok(EXIT_RAN);
    }
    eprintln!("weir: {}", not_sent(iface, &report));
    Ok(EXIT_LOSS)
}

/// Returns a text with the number of frames that were not sent, and the reasons.
fn not_sent(iface: &str, report: &ReplayReport) -> String {
    let why = |name| match name {
        "too_long" => format!(
            "longer than {iface}'s MTU allows, and no TCP that can be segmented (of UDP a file does not say how long \
             the datagrams were that were merged)"
        ),
        "too_short" => "shorter than an Ethernet header".to_owned(),
        "cut" => "cut by a snaplen when they were recorded".to_owned(),
        _ => "not recorded on Ethernet".to_owned(),
    };
    let reasons = report.skipped.by_name().into_iter().filter(|(_, count)| *count > 0);
    let reasons: Vec<_> =
        reasons.map(|(name, count)| format!("{} {}", grouped(count), why(name))).collect();
    let (count, read) = (grouped(report.skipped.total()), grouped(report.read));
    format!("{count} of {read} frames were not sent: {}", reasons.join("; "))
}

fn show(args: &GenArgs, report: &ReplayReport) {
    if args.json {
        let json = Json {
            totals: JsonTotals::new(report, "af_packet"),
            read: report.read,
            segmented: report.segmented,
            segments: report.segments,
            skipped: report.skipped.by_name().into(),
            loops: report.loops,
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    super::show_totals(report, &format!(", {} B", grouped(report.bytes)), "af_packet");
    if report.segmented > 0 {
        let (frames, segments) = (grouped(report.segmented), grouped(report.segments));
        println!("segmented to the MTU: {frames} TCP super-frames, sent as {segments} frames");
    }
    for (name, count) in report.skipped.by_name() {
        if count > 0 {
            println!("not sent, {}: {}", name.replace('_', " "), grouped(count));
        }
    }
}
