//! `weir gen`: numbered frames out of an interface.

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::{self, GenEngine, GenOptions, GenReport, How, Rate};

use crate::cli::GenArgs;
use crate::source_name::SourceName;
use crate::units::{FrameRate, grouped};
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
    how: &'a str,
    counted_by: &'a str,
}

/// Runs the command.
pub fn run(args: &GenArgs) -> Result<u8> {
    let SourceName::Interface { netns, iface } = &args.iface else {
        bail!("{}: weir gen sends out of an interface; name one", args.iface);
    };
    if let Some(netns) = netns {
        weir_capture::iface::enter_netns(netns)?;
    }
    let options = GenOptions {
        size_on_wire: args.size,
        flows: args.flows,
        rate: match args.rate {
            FrameRate::Max => Rate::Max,
            FrameRate::Pps(rate) => Rate::Pps(rate),
            FrameRate::Bps(rate) => Rate::Bps(rate),
        },
        duration: args.duration,
        frames: args.frames,
        cpu: args.cpu,
        stamp: args.stamp,
        engine: if args.af_packet { GenEngine::AfPacket } else { GenEngine::Auto },
        ..GenOptions::default()
    };
    let stop = signals::stop_flag()?;
    let report = generator::run(iface, &options, &stop)?;
    show(args, &report);
    Ok(EXIT_RAN)
}

fn show(args: &GenArgs, report: &GenReport) {
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
            how,
            counted_by: report.counted_by,
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    println!(
        "sent {} frames of {} B in {:.3} s: {:.3} Mpps, {:.3} Gbit/s ({how}, counted by {})",
        grouped(report.sent),
        args.size,
        report.duration.as_secs_f64(),
        report.mpps(),
        report.gbps(),
        report.counted_by
    );
    if report.refused > 0 {
        println!("the link refused {} more", grouped(report.refused));
    }
}
