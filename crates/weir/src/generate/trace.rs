//! `weir gen --file TRACE`: the frames of a file out of an interface.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::replay::{self, ReplayOptions, ReplayReport};

use super::JsonTotals;
use crate::cli::GenArgs;
use crate::units::grouped;
use crate::{EXIT_RAN, signals};

#[derive(Serialize)]
struct Json {
    #[serde(flatten)]
    totals: JsonTotals,
    read: u64,
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
    Ok(EXIT_RAN)
}

fn show(args: &GenArgs, report: &ReplayReport) {
    if args.json {
        let json = Json {
            totals: JsonTotals::new(report, "af_packet"),
            read: report.read,
            skipped: report.skipped.by_name().into(),
            loops: report.loops,
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    super::show_totals(report, &format!(", {} B", grouped(report.bytes)), "af_packet");
    for (name, count) in report.skipped.by_name() {
        if count > 0 {
            println!("not sent, {}: {}", name.replace('_', " "), grouped(count));
        }
    }
}
