//! `weir gen --file TRACE`: the frames of a file out of an interface.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::replay::{self, ReplayOptions, ReplayReport};

use crate::cli::GenArgs;
use crate::units::{bit_rate, grouped, packet_rate};
use crate::{EXIT_RAN, signals};

#[derive(Serialize)]
struct Json<'a> {
    sent: u64,
    bytes: u64,
    duration_s: f64,
    mpps: f64,
    gbps: f64,
    attempted: u64,
    refused: u64,
    given_up_s: f64,
    how: &'a str,
    counted_by: &'a str,
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
            sent: report.sent,
            bytes: report.bytes,
            duration_s: report.duration.as_secs_f64(),
            mpps: report.mpps(),
            gbps: report.gbps(),
            attempted: report.attempted,
            refused: report.refused,
            given_up_s: report.given_up.as_secs_f64(),
            how: "af_packet",
            counted_by: report.counted_by,
            read: report.read,
            skipped: report.skipped.by_name().into(),
            loops: report.loops,
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    println!(
        "sent {} frames, {} B in {:.3} s: {}, {} (af_packet, counted by {})",
        grouped(report.sent),
        grouped(report.bytes),
        report.duration.as_secs_f64(),
        packet_rate(report.mpps() * 1e6),
        bit_rate(report.gbps() * 1e9),
        report.counted_by
    );
    if report.refused > 0 {
        println!("the link refused {} more", grouped(report.refused));
    }
    super::show_given_up(report.given_up);
    for (name, count) in report.skipped.by_name() {
        if count > 0 {
            println!("not sent, {}: {}", name.replace('_', " "), grouped(count));
        }
    }
}
