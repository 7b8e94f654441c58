//! `weir gen`: numbered frames, or those of a file, out of an interface.

mod trace;

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::sizes::Sizes;
use weir_lab::generator::{self, GenEngine, GenOptions, GenReport, How, Rate};

use crate::cli::GenArgs;
use crate::source_name::{Part, SourceName};
use crate::units::{FrameRate, bit_rate, grouped, packet_rate};
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
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mix: Option<&'a [(u32, u32)]>,
}

/// Runs the command.
pub fn run(args: &GenArgs) -> Result<u8> {
    let SourceName::Interface { netns, iface, part: Part::Whole } = &args.iface else {
        bail!("{}: weir gen sends out of an interface; name one", args.iface);
    };
    if let Some(netns) = netns {
        weir_capture::iface::enter_netns(netns)?;
    }
    if let Some(path) = &args.file {
        return trace::run(iface, path, args);
    }
    let cpus = args.cpu.clone().unwrap_or_default().0;
    let options = GenOptions {
        sizes: args.size.clone(),
        flows: args.flows,
        rate: rate(args),
        duration: args.duration,
        frames: args.frames,
        threads: args.threads.unwrap_or(cpus.len().max(1)),
        cpus,
        stamp: args.stamp,
        engine: if args.af_packet { GenEngine::AfPacket } else { GenEngine::Auto },
        ..GenOptions::default()
    };
    let stop = signals::stop_flag()?;
    let report = generator::run(iface, &options, &stop)?;
    show(args, &options, &report);
    Ok(EXIT_RAN)
}

fn rate(args: &GenArgs) -> Rate {
    match args.rate {
        FrameRate::Max => Rate::Max,
        FrameRate::Pps(rate) => Rate::Pps(rate),
        FrameRate::Bps(rate) => Rate::Bps(rate),
    }
}

/// A line on what the rate asked for and nobody sent, if there is any.
fn show_given_up(given_up: Duration) {
    if !given_up.is_zero() {
        let held_up = given_up.as_secs_f64();
        println!("the frames of {held_up:.3} s are missing: the sender could not keep the rate");
    }
}

fn show(args: &GenArgs, options: &GenOptions, report: &GenReport) {
    let how = match report.how {
        How::LiveFrames => "live frames",
        How::AfPacket => "af_packet",
    };
    if let Some(why) = &report.why {
        eprintln!("weir: sent through {how}: {why}");
    }
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
            how,
            counted_by: report.counted_by,
            threads: options.threads,
            mix: (!args.size.is_one()).then(|| args.size.shares()),
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    println!(
        "sent {} frames of {} in {:.3} s: {}, {} ({how}, counted by {})",
        grouped(report.sent),
        sizes_text(&args.size),
        report.duration.as_secs_f64(),
        packet_rate(report.mpps() * 1e6),
        bit_rate(report.gbps() * 1e9),
        report.counted_by
    );
    if report.refused > 0 {
        println!("the link refused {} more", grouped(report.refused));
    }
    show_given_up(report.given_up);
}

/// `64 B`, or `64:7,594:4,1518:1 B (mean 361.8)`.
fn sizes_text(sizes: &Sizes) -> String {
    if sizes.is_one() {
        return format!("{} B", sizes.largest());
    }
    let shares: Vec<_> = sizes.shares().iter().map(|(size, n)| format!("{size}:{n}")).collect();
    format!("{} B (mean {:.1})", shares.join(","), sizes.mean())
}
