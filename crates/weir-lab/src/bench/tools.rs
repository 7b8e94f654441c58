//! Measures unmodified tools on a daemon's feed: tcpdump with libweirpcap preloaded, and tcpdump on an interface that
//! `weir attach` feeds.

use std::process::Command;
use std::thread::sleep;

use super::bar::{Bar, Side};
use super::child::{Child, cpu_ns, pinned};
use super::context::{Context, stopped};
use super::counted::weir_report;
use super::row::{Frames, MPPS, Row, conclude, find};
use super::serve::{READY, Served};
use super::tool::{TCPDUMP, Tool};
use super::wire::{Traffic, send_flows};
use crate::generator::{Flows, Rate, SIZE_MIN};
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "tools";
const PASSIVE: &str = "weir, passive";
const CONSUMER: &str = "weir capture host:lan";
const PRELOADED: &str = "tcpdump on host:lan (libweirpcap)";
const ATTACHED: &str = "tcpdump on weir0 (weir attach)";
/// The interface that `weir attach` feeds.
const NETDEV: &str = "weir0";

/// How a program gets the frames.
#[derive(Clone, Copy)]
enum Way {
    Passive,
    Consumer,
    Preloaded,
    Attached,
    Own,
}

impl Way {
    const ALL: [Way; 5] = [Way::Passive, Way::Consumer, Way::Preloaded, Way::Attached, Way::Own];

    fn name(self) -> &'static str {
        match self {
            Way::Passive => PASSIVE,
            Way::Consumer => CONSUMER,
            Way::Preloaded => PRELOADED,
            Way::Attached => ATTACHED,
            Way::Own => TCPDUMP,
        }
    }

    /// Returns the tool, and the helper programs that were started for it.
    fn tool(self, context: &Context, served: &Served, rx: &End) -> Result<(Tool, Vec<Child>)> {
        let weir = &context.options.weir;
        let socket = served.socket().display().to_string();
        Ok(match self {
            Way::Passive => (Tool::weir(weir, PASSIVE, "bpf", &[]), Vec::new()),
            Way::Consumer => {
                let tool = Tool::weir(weir, CONSUMER, "host", &["--socket", &socket]);
                (tool.without_ring().with_source("host:lan"), Vec::new())
            }
            Way::Preloaded => {
                let run = ["run", "--socket", &socket, "--"];
                let tool = Tool::tcpdump().on("host:lan").behind(weir, &run);
                (tool.named(PRELOADED), Vec::new())
            }
            Way::Attached => {
                let words =
                    ["attach", "host:lan", "--netdev", NETDEV, "--socket", &socket, "--json"];
                let words = words.map(str::to_owned);
                let command: Command = pinned(context.cpus.tool, &weir.to_string_lossy(), &words);
                let mut attached = Child::start("weir attach", rx, command)?;
                attached.wait_for_line(READY, |line| line.contains(NETDEV))?;
                (Tool::tcpdump().on(NETDEV).named(ATTACHED), vec![attached])
            }
            Way::Own => (Tool::tcpdump(), Vec::new()),
        })
    }
}

/// Measures all ways in turn.
///
/// # Errors
/// Only if no testbed can be made. Any other failure gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let row = |way: Way| Row::new(SECTION, way.name(), MPPS).sized(SIZE_MIN);
    let mut rows = Way::ALL.map(row);
    for round in 0..context.rounds {
        for (way, row) in Way::ALL.into_iter().zip(&mut rows) {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match at_full_rate(context, &bed, way) {
                Ok(frames) => {
                    let (name, mpps) = (way.name(), frames.kept_mpps());
                    context.say(&format!("{SECTION}, round {}: {name} {mpps:.2}", round + 1));
                    row.add_frames(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
    }
    conclude(&mut rows, TCPDUMP);
    Ok(rows.into())
}

/// Makes one run, with a daemon that has no other clients.
fn at_full_rate(context: &Context, bed: &Testbed, way: Way) -> Result<Frames> {
    let served = Served::start(context, bed)?;
    let (tool, helpers) = way.tool(context, &served, &bed.rx)?;
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    if matches!(way, Way::Consumer | Way::Preloaded | Way::Attached) {
        served.wait_for_client()?;
    }
    let ids = [capturing.child.id(), served.daemon.id()];
    let ids: Vec<u32> = ids.into_iter().chain(helpers.iter().map(Child::id)).collect();
    let cpu = || ids.iter().filter_map(|id| cpu_ns(*id)).sum::<u64>();
    let before = cpu();
    let traffic =
        Traffic { size: SIZE_MIN, rate: Rate::Max, seconds: context.seconds, stamp: false };
    let sent = send_flows(context, &bed.tx, traffic, Flows::N(1000))?;
    sleep(tool.flush_time());
    let used = cpu().saturating_sub(before);
    let mut counted = capturing.finish()?;
    for helper in helpers {
        // `weir attach`, which feeds the interface, may also lose frames.
        if let Some(report) = weir_report(&helper.interrupt()?) {
            counted.drops.extend(report.counted().drops);
        }
    }
    let frames = Frames::new(sent.sent, counted.kept, counted.drops, sent.duration.as_secs_f64());
    Ok(Frames { cpu_seconds: Some(used as f64 / 1e9), ..frames })
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "tools: one veth pair, generator and all softirq work on CPU {}, tools and what feeds their interface on CPU \
         {}; 1,000 flows of 64 B; a daemon serves host:lan; tcpdump writes to /dev/null; CPU time is that of all \
         processes; rings and buffers of 64 MiB",
        context.cpus.generator, context.cpus.tool
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let size = Some(SIZE_MIN);
    let over = |what: &str, base: &str| {
        find(rows, SECTION, what, size)?.over(find(rows, SECTION, base, size)?)
    };
    let bar = |what: &str, base: &str, side: Side, limit: f64| {
        Bar::new(format!("64 B: {what} / {base}"), over(what, base), side, limit)
    };
    vec![
        bar(PRELOADED, PASSIVE, Side::AtLeast, 0.95),
        bar(PRELOADED, TCPDUMP, Side::AtLeast, 1.0),
        bar(ATTACHED, TCPDUMP, Side::AtLeast, 0.5),
    ]
}
