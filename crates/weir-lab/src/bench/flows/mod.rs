//! Measures the flow monitor beside the null monitor, softflowd and Suricata's flow log. The 64 B frames belong to one
//! flow, to a thousand flows, or each to a flow of its own.
//!
//! Each round measures all monitors in turn with one kind of traffic; every other round has the reverse order. The
//! reason is drift: the rate of a machine changes by more than the 5 % that the target allows.

mod softflowd;

use std::collections::BTreeMap;
use std::thread::sleep;

use super::bar::{Bar, Side};
use super::child::{Line, cpu_ns};
use super::context::{Context, stopped};
use super::counted::Counted;
use super::row::{Frames, MPPS, Row, find, ratio_of};
use super::suricata::program::{self, Input, Installed, Task};
use super::table::grouped;
use super::tool::Tool;
use super::wire::{Traffic, send_flows};
use crate::generator::{Flows, GenReport, Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};
use softflowd::Softflowd;

pub(super) const SECTION: &str = "flows";
/// Address to which the exports are sent. Nothing listens there.
const COLLECTOR: &str = "127.0.0.1:9995";

/// The name of the base rows.
const NULL: &str = "the null monitor";

/// The number of flows that the frames belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    Thousand,
    New,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::One, Shape::Thousand, Shape::New];

    fn name(self) -> &'static str {
        match self {
            Shape::One => "one flow",
            Shape::Thousand => "1,000 flows",
            Shape::New => "every frame a new flow",
        }
    }

    fn flows(self) -> Flows {
        match self {
            Shape::One => Flows::Single,
            Shape::Thousand => Flows::N(1000),
            Shape::New => Flows::Multi,
        }
    }
}

/// The program that receives the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Monitor {
    Null,
    Flow,
    NullConsume,
    FlowConsume,
    Json,
    Ipfix,
    Softflowd,
    Suricata,
}

impl Monitor {
    const ALL: [Monitor; 8] = [
        Monitor::Null,
        Monitor::Flow,
        Monitor::NullConsume,
        Monitor::FlowConsume,
        Monitor::Json,
        Monitor::Ipfix,
        Monitor::Softflowd,
        Monitor::Suricata,
    ];

    fn name(self) -> &'static str {
        match self {
            Monitor::Null => "null monitor, passive tc",
            Monitor::Flow => "flow monitor, passive tc",
            Monitor::NullConsume => "null monitor --consume",
            Monitor::FlowConsume => "flow monitor --consume",
            Monitor::Json => "flow monitor --consume, JSON to /dev/null",
            Monitor::Ipfix => "flow monitor --consume, IPFIX to nobody",
            Monitor::Softflowd => "softflowd, NetFlow to nobody",
            Monitor::Suricata => "Suricata, flow log to /dev/null",
        }
    }

    /// Returns the null monitor that this monitor is compared with.
    fn base(self) -> Monitor {
        match self {
            Monitor::Null | Monitor::Flow | Monitor::Softflowd | Monitor::Suricata => Monitor::Null,
            _ => Monitor::NullConsume,
        }
    }

    /// Returns whether the monitor is measured with this traffic. Exports are measured only if flows end while frames
    /// arrive; within two seconds, flows end only to make room for new ones.
    fn is_measured(self, shape: Shape) -> bool {
        shape == Shape::New || !matches!(self, Monitor::Json | Monitor::Ipfix)
    }

    fn take(self, context: &Context, bed: &Testbed, shape: Shape) -> Result<Taken> {
        let weir = &context.options.weir;
        let flows = |args: &[&str]| Tool::weir_flows(weir, self.name(), "bpf", args);
        let ipfix = format!("ipfix://{COLLECTOR}");
        let tool = match self {
            Monitor::Null => Tool::weir(weir, self.name(), "bpf", &[]),
            Monitor::NullConsume => Tool::weir(weir, self.name(), "bpf", &["--consume"]),
            Monitor::Flow => flows(&[]),
            Monitor::FlowConsume => flows(&["--consume"]),
            Monitor::Json => flows(&["--consume", "--export", "json:/dev/null"]),
            Monitor::Ipfix => flows(&["--consume", "--export", &ipfix]),
            Monitor::Softflowd => return by_softflowd(context, bed, shape),
            Monitor::Suricata => return by_suricata(context, bed, shape),
        };
        by_weir(context, bed, &tool, shape)
    }
}

/// A measurement, with remarks.
struct Taken {
    frames: Frames,
    note: String,
}

/// Measures all monitors with all kinds of traffic.
///
/// # Errors
/// Only if no testbed can be made. Any other failure gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    bed.rx.set_loopback_up()?;
    let mut all = Vec::new();
    for shape in Shape::ALL {
        let monitors: Vec<Monitor> =
            Monitor::ALL.into_iter().filter(|monitor| monitor.is_measured(shape)).collect();
        let mut rows: Vec<Row> = monitors.iter().map(|monitor| row_of(shape, *monitor)).collect();
        for round in 0..context.rounds {
            for at in 0..monitors.len() {
                let at = if round % 2 == 0 { at } else { monitors.len() - 1 - at };
                let (monitor, row) = (monitors[at], &mut rows[at]);
                // A monitor that failed is not started again, because it could use up its time-outs in every round.
                if stopped(context.stop) || row.absent.is_some() {
                    continue;
                }
                let neighbours = context.calm();
                match monitor.take(context, &bed, shape) {
                    Ok(Taken { frames, note }) => {
                        let (name, mpps) = (&row.what, frames.kept_mpps());
                        context.say(&format!("{SECTION}, round {}: {name} {mpps:.2}", round + 1));
                        row.note = note;
                        row.add_frames(round, frames, neighbours.done());
                    }
                    Err(Error::Measure { reason, .. }) => {
                        context.say(&format!("{SECTION}: {}: {reason}", row.what));
                        row.absent = Some(reason);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        conclude(shape, &monitors, &mut rows);
        all.extend(rows);
    }
    Ok(all)
}

fn what(shape: Shape, monitor: Monitor) -> String {
    format!("{}: {}", shape.name(), monitor.name())
}

fn row_of(shape: Shape, monitor: Monitor) -> Row {
    Row::new(SECTION, what(shape, monitor), MPPS).sized(SIZE_MIN)
}

/// Computes the medians, and each row's ratio to its null monitor.
fn conclude(shape: Shape, monitors: &[Monitor], rows: &mut [Row]) {
    rows.iter_mut().for_each(Row::summarize);
    let bases = rows.to_vec();
    for (monitor, row) in monitors.iter().zip(rows) {
        let base = find(&bases, SECTION, &what(shape, monitor.base()), Some(SIZE_MIN));
        if let Some(base) = base {
            row.compare(base);
            // Each kind of traffic and each hook has its own base, but the column has only one heading.
            row.compared_with = Some(NULL.to_owned());
        }
    }
}

fn send(context: &Context, bed: &Testbed, shape: Shape) -> Result<GenReport> {
    let traffic =
        Traffic { size: SIZE_MIN, rate: Rate::Max, seconds: context.seconds, stamp: false };
    send_flows(context, &bed.tx, traffic, shape.flows())
}

/// Returns the account of the frames. `cpu` is the CPU time of the process before and after, in nanoseconds.
fn frames_of(sent: &GenReport, counted: Counted, cpu: [Option<u64>; 2]) -> Frames {
    let Counted { kept, drops } = counted;
    let [before, after] = cpu;
    let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
    let frames = Frames::new(sent.sent, kept, drops, sent.duration.as_secs_f64());
    Frames { cpu_seconds: used.map(|ns| ns as f64 / 1e9), ..frames }
}

fn by_weir(context: &Context, bed: &Testbed, tool: &Tool, shape: Shape) -> Result<Taken> {
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let id = capturing.child.id();
    let before = cpu_ns(id);
    let sent = send(context, bed, shape)?;
    sleep(tool.flush_time());
    let after = cpu_ns(id);
    let (counted, lines) = capturing.finish_with_lines()?;
    Ok(Taken { frames: frames_of(&sent, counted, [before, after]), note: flows_told(&lines) })
}

/// Returns the flow monitor's counts of flows and exports; empty for the null monitor.
fn flows_told(lines: &[Line]) -> String {
    let told = lines.iter().filter(|line| line.data).map(|line| line.text.trim());
    let is_told = |line: &&str| line.contains(" record");
    told.filter(is_told).filter(|line| !line.starts_with('{')).collect::<Vec<_>>().join("; ")
}

fn by_softflowd(context: &Context, bed: &Testbed, shape: Shape) -> Result<Taken> {
    let running = Softflowd::start(context, &bed.rx, COLLECTOR)?;
    let id = running.child.id();
    let before = cpu_ns(id);
    let sent = send(context, bed, shape)?;
    sleep(softflowd::GRACE);
    let after = cpu_ns(id);
    let found = running.finish()?;
    let note = format!(
        "{} flows kept and {} ended, {} of them early; {} datagrams not sent",
        grouped(found.active),
        grouped(found.expired),
        grouped(found.forced),
        grouped(found.failures)
    );
    Ok(Taken { frames: frames_of(&sent, found.counted, [before, after]), note })
}

fn by_suricata(context: &Context, bed: &Testbed, shape: Shape) -> Result<Taken> {
    let installed = Installed::find(context)?;
    let input = Input::AfPacket(bed.rx.iface.clone());
    let running = installed.start(context, &bed.rx, &input, Task::FlowLog)?;
    let id = running.child.id();
    let before = cpu_ns(id);
    let sent = send(context, bed, shape)?;
    sleep(program::GRACE);
    let after = cpu_ns(id);
    let counts = running.finish()?;
    let drops: BTreeMap<String, u64> = counts.drops();
    let counted = Counted { kept: counts.decoded, drops };
    let mut note = format!("{} flows", grouped(counts.flows));
    if counts.without_flow > 0 {
        note += &format!("; {} frames got none, for lack of memory", grouped(counts.without_flow));
    }
    Ok(Taken { frames: frames_of(&sent, counted, [before, after]), note })
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "flows: one veth pair, generator and all softirq work on CPU {}, the monitor on CPU {}; 64 B, UDP; 64 MiB of \
         ring or buffer each; room for a million flows (weir, softflowd), for 1 GiB of them (Suricata 7, one thread, \
         no rules). Mpps = frames kept / the generator's time; CPU time is that of the monitor's process, without its \
         end",
        context.cpus.generator, context.cpus.tool
    )
}

/// Returns the targets of this part: counting by flow costs at most 5 % of the rate of the null monitor.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for shape in Shape::ALL {
        for monitor in [Monitor::Flow, Monitor::FlowConsume] {
            let found = ratio_of(rows, SECTION, &what(shape, monitor), Some(SIZE_MIN));
            let what = format!("64 B, {} / {}", what(shape, monitor), monitor.base().name());
            bars.push(Bar::new(what, found, Side::AtLeast, 0.95));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::counted::tests::lines;

    #[test]
    fn each_is_compared_with_the_null_monitor_of_its_hook() {
        let monitors = Monitor::ALL;
        let kept =
            [2_000_000, 1_900_000, 4_000_000, 3_000_000, 2_800_000, 2_600_000, 500_000, 400_000];
        let mut rows = monitors.map(|monitor| row_of(Shape::New, monitor));
        for (row, kept) in rows.iter_mut().zip(kept) {
            row.add_frames(0, Frames::new(kept, kept, [].into(), 1.0), Default::default());
        }
        conclude(Shape::New, &monitors, &mut rows);
        let ratios = rows.each_ref().map(|row| row.ratio.unwrap().median);
        assert_eq!(ratios, [1.0, 0.95, 1.0, 0.75, 0.7, 0.65, 0.25, 0.2]);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [None, None, None, None, Some(true), Some(false)]);
    }

    #[test]
    fn what_is_told_of_flows_is_told_on() {
        let text = "  lapped                   0\n\
            \x20 10 flows, 12 records; 2 flows ended early for lack of room (--flows-max)\n\
            \x20 json:/dev/null: 12 records sent\n\nstart (UTC)  seconds  on\n";
        assert_eq!(
            flows_told(&lines(text)),
            "10 flows, 12 records; 2 flows ended early for lack of room (--flows-max); json:/dev/null: 12 records sent"
        );
        assert_eq!(flows_told(&lines("{\"lapped\":0,\"flows\":{\"x records\":1}}\n")), "");
    }
}
