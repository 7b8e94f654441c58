//! Measures capture from a link: every tool in turn on the same veth pair, at the highest rate that the generator
//! reaches.
//!
//! The kernel half of a capture runs in the generator's softirq, on the generator's CPU. So a slow tool lowers the
//! offered rate. For this reason the value is the rate of kept frames, not the loss.

use std::thread::sleep;
use std::time::Duration;

use super::bar::{Bar, Side};
use super::child::cpu_ns;
use super::context::{Context, Cpus, stopped};
use super::row::{Frames, MPPS, Row, conclude, ratio_of, value_of};
use super::tool::{DPDK_AF_XDP, TCPDUMP, Tool};
use crate::generator::{self, Flows, GenEngine, GenOptions, GenReport, Rate};
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "wire";
/// Frame sizes on the wire: the smallest, and the largest of plain Ethernet.
pub(super) const SIZES: [u32; 2] = [64, 1518];
/// Sizes of a full run: those of RFC 2544 without 1280.
const SIZES_FULL: [u32; 6] = [64, 128, 256, 512, 1024, 1518];

/// Traffic to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) size: u32,
    pub(super) rate: Rate,
    pub(super) seconds: f64,
    /// Whether each frame contains the time at which it was generated.
    pub(super) stamp: bool,
}

/// Returns the frame sizes of this run.
pub(super) fn sizes(context: &Context) -> &'static [u32] {
    if context.options.full { &SIZES_FULL } else { &SIZES }
}

/// Measures all tools at each size.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let tools = Tool::all(&context.options.weir);
    let (sizes, rounds) = (sizes(context), context.rounds);
    let turns = Turns { section: SECTION, sizes, rounds, tools: &tools };
    let mut rows = in_turn(context, turns, |bed, tool, size| {
        let traffic = Traffic { size, rate: Rate::Max, seconds: context.seconds, stamp: false };
        Ok((one(context, bed, tool, traffic)?, String::new()))
    })?;
    conclude(&mut rows, TCPDUMP);
    Ok(rows)
}

/// Parameters of [`in_turn`].
#[derive(Clone, Copy)]
pub(super) struct Turns<'a> {
    pub(super) section: &'static str,
    pub(super) sizes: &'a [u32],
    pub(super) rounds: u32,
    pub(super) tools: &'a [Tool],
}

/// Runs every tool in turn, round by round, at each size. `take` makes one measurement and returns it with a note. The
/// medians and ratios of the rows are not computed yet.
///
/// # Errors
/// As [`measure`].
pub(super) fn in_turn(
    context: &Context,
    Turns { section, sizes, rounds, tools }: Turns<'_>,
    take: impl Fn(&Testbed, &Tool, u32) -> Result<(Frames, String)>,
) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    let bed = Testbed::builder().gro(true).build()?;
    for &size in sizes {
        let row = |tool: &Tool| Row::new(section, tool.name, MPPS).sized(size);
        let mut rows: Vec<Row> = tools.iter().map(row).collect();
        for round in 0..rounds {
            for (tool, row) in tools.iter().zip(&mut rows) {
                // A tool that failed is not started again, because it would use up its time-outs in
                // every round.
                if stopped(context.stop) || row.absent.is_some() {
                    continue;
                }
                let neighbours = context.calm();
                match take(&bed, tool, size) {
                    Ok((frames, note)) => {
                        let (name, mpps) = (tool.name, frames.kept_mpps());
                        let round_of = format!("{section}, {size} B, round {}", round + 1);
                        context.say(&format!("{round_of}: {name} {mpps:.2}"));
                        row.note = note;
                        row.add_frames(round, frames, neighbours.done());
                    }
                    Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                    Err(error) => return Err(error),
                }
            }
        }
        all.extend(rows);
    }
    Ok(all)
}

/// Runs a tool once. Combines the sent frames with the tool's own counts.
///
/// # Errors
/// [`Error::Measure`] if the tool fails.
pub(super) fn one(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    traffic: Traffic,
) -> Result<Frames> {
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let id = capturing.child.id();
    let before = cpu_ns(id);
    let sent = send(context, &bed.tx, traffic)?;
    sleep(tool.flush_time());
    let used = cpu_ns(id).zip(before).map(|(after, before)| after.saturating_sub(before));
    let counted = capturing.finish()?;
    let frames = Frames::new(sent.sent, counted.kept, counted.drops, sent.duration.as_secs_f64());
    Ok(Frames { cpu_seconds: used.map(|ns| ns as f64 / 1e9), ..frames })
}

/// Sends one flow from `end`, on the generator's CPU.
pub(super) fn send(context: &Context, end: &End, traffic: Traffic) -> Result<GenReport> {
    send_flows(context, end, traffic, Flows::Single)
}

/// Sends these flows from `end`, on the generator's CPU.
pub(super) fn send_flows(
    context: &Context,
    end: &End,
    traffic: Traffic,
    flows: Flows,
) -> Result<GenReport> {
    let options = GenOptions {
        sizes: traffic.size.into(),
        flows,
        rate: traffic.rate,
        duration: Some(Duration::from_secs_f64(traffic.seconds)),
        stamp: traffic.stamp,
        cpus: vec![context.cpus.generator],
        engine: GenEngine::LiveFrames,
        ..GenOptions::default()
    };
    end.run(|| generator::run(&end.iface, &options, context.stop))?
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    let Cpus { generator, tool, .. } = context.cpus;
    format!(
        "wire: one veth pair, generator and all softirq work on CPU {generator}, the tool on CPU \
         {tool}; Mpps = frames kept / the generator's time, Gbit/s with FCS; 64 MiB of buffer each"
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (size, what, limit) in [
        (64, "weir --consume", 1.7),
        (64, "weir, passive tc", 1.1),
        (64, "weir af_packet", 1.0),
        (1518, "weir --consume", 1.5),
    ] {
        let found = ratio_of(rows, SECTION, what, Some(size));
        let what = format!("{size} B: {what} / tcpdump");
        bars.push(Bar::new(what, found, Side::AtLeast, limit));
    }
    let value = |what| value_of(rows, SECTION, what, Some(64));
    let found = value("weir af_xdp").zip(value(DPDK_AF_XDP));
    let found = found.map(|(ours, dpdk)| ours / dpdk);
    bars.push(Bar::new("64 B: weir af_xdp / DPDK af_xdp", found, Side::AtLeast, 1.4));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_held_to_the_ratio_of_their_own_size() {
        let mut rows = Vec::new();
        for (size, ours) in [(64, 1_800_000), (1518, 1_400_000)] {
            for (what, kept) in [("weir --consume", ours), ("tcpdump", 1_000_000)] {
                let mut row = Row::new(SECTION, what, MPPS).sized(size);
                row.add_frames(0, Frames::new(kept, kept, [].into(), 1.0), Default::default());
                rows.push(row);
            }
        }
        conclude(&mut rows, "tcpdump");
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), None, None, Some(false), None]);
    }
}
