//! `weir gen`: sends numbered frames, or those of a file, out of an interface.

mod addresses;
mod trace;

use anyhow::{Result, bail};
use serde::Serialize;
use weir_lab::generator::sizes::Sizes;
use weir_lab::generator::{self, GenEngine, GenOptions, GenReport, How, Rate, Totals};

use addresses::JsonAddresses;

use crate::cli::GenArgs;
use crate::source_name::{Part, SourceName};
use crate::units::{FrameRate, bit_rate, counted, grouped, packet_rate};
use crate::{EXIT_RAN, signals};

/// The part of the report that both generators share.
#[derive(Serialize)]
struct JsonTotals {
    sent: u64,
    bytes: u64,
    duration_s: f64,
    mpps: f64,
    gbps: f64,
    attempted: u64,
    refused: u64,
    given_up_s: f64,
    how: &'static str,
    counted_by: &'static str,
}

impl JsonTotals {
    fn new(totals: &Totals, how: &'static str) -> JsonTotals {
        JsonTotals {
            sent: totals.sent,
            bytes: totals.bytes,
            duration_s: totals.duration.as_secs_f64(),
            mpps: totals.mpps(),
            gbps: totals.gbps(),
            attempted: totals.attempted,
            refused: totals.refused,
            given_up_s: totals.given_up.as_secs_f64(),
            how,
            counted_by: totals.counted_by,
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    totals: JsonTotals,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mix: Option<&'a [(u32, u32)]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<JsonAddresses>,
}

/// Runs the command.
pub fn run(args: &GenArgs) -> Result<u8> {
    let SourceName::Interface { netns, iface, part: Part::Whole } = &args.iface else {
        bail!("{}: weir gen sends out of an interface; name one", args.iface);
    };
    if let Some(netns) = netns {
        weir_capture::kernel::netns::enter_netns(netns)?;
    }
    if let Some(path) = &args.file {
        return trace::run(iface, path, args);
    }
    let cpus = args.cpu.clone().unwrap_or_default().0;
    let addressing = addresses::addressing(iface, &args.addresses, args.size.is_some())?;
    let least = addressing
        .as_ref()
        .map_or(generator::SIZE_MIN, |addressing| generator::size_min(addressing, args.stamp));
    let options = GenOptions {
        sizes: args.size.clone().unwrap_or(least.into()),
        addressing,
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
    if args.duration.is_none() && args.frames.is_none() {
        eprintln!("weir: {}", without_end(&args.iface, args.rate));
    }
    let report = generator::run(iface, &options, &stop)?;
    show(args, &options, &report);
    Ok(EXIT_RAN)
}

/// Returns the warning that frames are sent until the user stops the command.
fn without_end(iface: &SourceName, rate: FrameRate) -> String {
    let speed = if rate == FrameRate::Max { " at full speed" } else { "" };
    format!("{iface}: sends{speed} until Ctrl-C; --duration 10s or --frames 1M ends it by itself")
}

fn rate(args: &GenArgs) -> Rate {
    match args.rate {
        FrameRate::Max => Rate::Max,
        FrameRate::Pps(rate) => Rate::Pps(rate),
        FrameRate::Bps(rate) => Rate::Bps(rate),
    }
}

/// Prints the totals as text for people. `what` describes the frames.
fn show_totals(totals: &Totals, what: &str, how: &str) {
    println!(
        "sent {}{what} in {:.3} s: {}, {} ({how}, counted by {})",
        counted(totals.sent, "frame"),
        totals.duration.as_secs_f64(),
        packet_rate(totals.mpps() * 1e6),
        bit_rate(totals.gbps() * 1e9),
        totals.counted_by
    );
    if totals.refused > 0 {
        println!("the link refused {} more", grouped(totals.refused));
    }
    let held_up = totals.given_up.as_secs_f64();
    // Less than a frame is the rest of a division.
    let sending = totals.duration.as_secs_f64() - held_up;
    if held_up > 0.0 && held_up * totals.attempted as f64 >= sending {
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
            totals: JsonTotals::new(report, how),
            threads: options.threads,
            mix: (!options.sizes.is_one()).then(|| options.sizes.shares()),
            addresses: options.addressing.as_ref().map(JsonAddresses::new),
        };
        println!("{}", serde_json::to_string(&json).expect("numbers and strings serialize"));
        return;
    }
    show_totals(report, &format!(" of {}", sizes_text(&options.sizes)), how);
}

/// Returns the sizes as text: `64 B`, or `64:7,594:4,1518:1 B (mean 361.8)`.
fn sizes_text(sizes: &Sizes) -> String {
    if sizes.is_one() {
        return format!("{} B", sizes.largest());
    }
    let shares: Vec<_> = sizes.shares().iter().map(|(size, n)| format!("{size}:{n}")).collect();
    format!("{} B (mean {:.1})", shares.join(","), sizes.mean())
}
