//! Measures the daemon and its clients: one capture that many processes read, beside as many captures with tcpdump.
//!
//! Consumers count frames. The compared value is the rate that the slowest consumer keeps, because each consumer must
//! receive every frame.

mod docker;
mod served;

use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_client::Connection;
use weir_client::protocol::Open;

use super::bar::{Bar, Side};
use super::child::{Child, cpu_ns};
use super::context::{Context, stopped};
use super::counted::{Counted, weir_report};
use super::row::{Frames, MPPS, Row, conclude, find, value_of};
use super::tool::Tool;
use super::wire::{Traffic, send_flows};
use crate::generator::{Flows, Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};
use docker::{Container, Image};
use served::CONTAINER;
pub(super) use served::Served;

pub(super) const SECTION: &str = "serve";
/// Name of the section for rows that are not frame rates.
pub(super) const COSTS: &str = "serve-costs";
const COUNTS: [usize; 4] = [1, 2, 4, 8];
const MANY: usize = 16;
const IN_CONTAINER: &str = "1 consumer in namespaces of its own";
const IN_DOCKER: &str = "1 consumer in a Docker container";
const SHARDED: &str = "4 consumers, a shard each";
const STOPPED: &str = "1 consumer beside one that is stopped";
const AT_1_MPPS: &str = "16 consumers at 1 Mpps";
const IDLE: &str = "CPU of the daemon and 16 idle consumers";
const JOIN: &str = "joining a feed that there is";
const NEW: &str = "a new feed";
pub(super) const READY: Duration = Duration::from_secs(20);
const OPENS: u32 = 20;

fn consumers(count: usize) -> String {
    format!("{count} consumer{}", if count == 1 { "" } else { "s" })
}

fn tcpdumps(count: usize) -> String {
    format!("{count} x tcpdump")
}

/// Measures all rows.
///
/// # Errors
/// Only if no testbed can be made or the daemon does not start. Other failures give a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let served = Served::start(context, &bed)?;
    let mut rows = rates(context, &bed, &served)?;
    rows.push(at_1_mpps(context, &bed, &served)?);
    rows.extend(opens(context, &served)?);
    rows.push(idle(context, &bed, &served)?);
    Ok(rows)
}

/// The readers of a row at full rate.
#[derive(Clone, Copy)]
enum Readers {
    Consumers(usize),
    Tcpdumps(usize),
    InContainer,
    InDocker,
    Sharded,
    BesideStopped,
}

impl Readers {
    fn name(self) -> String {
        match self {
            Readers::Consumers(count) => consumers(count),
            Readers::Tcpdumps(count) => tcpdumps(count),
            Readers::InContainer => IN_CONTAINER.to_owned(),
            Readers::InDocker => IN_DOCKER.to_owned(),
            Readers::Sharded => SHARDED.to_owned(),
            Readers::BesideStopped => STOPPED.to_owned(),
        }
    }
}

fn rates(context: &Context, bed: &Testbed, served: &Served) -> Result<Vec<Row>> {
    let mut all: Vec<Readers> = COUNTS.into_iter().chain([MANY]).map(Readers::Consumers).collect();
    all.extend([Readers::InContainer, Readers::InDocker, Readers::Sharded, Readers::BesideStopped]);
    all.extend(COUNTS.map(Readers::Tcpdumps));
    let mut rows: Vec<Row> =
        all.iter().map(|of| Row::new(SECTION, of.name(), MPPS).sized(SIZE_MIN)).collect();
    for round in 0..context.rounds {
        for (of, row) in all.iter().zip(&mut rows) {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match at_full_rate(context, bed, served, *of) {
                Ok(frames) => {
                    let (name, mpps) = (of.name(), frames.kept_mpps());
                    context.say(&format!("{SECTION}, round {}: {name} {mpps:.2}", round + 1));
                    row.add_frames(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
    }
    conclude(&mut rows, &consumers(1));
    Ok(rows)
}

fn at_full_rate(
    context: &Context,
    bed: &Testbed,
    served: &Served,
    readers: Readers,
) -> Result<Frames> {
    let rate = Rate::Max;
    let rx = &bed.rx;
    match readers {
        Readers::Consumers(count) => {
            let children = served.consumers(context, rx, count)?;
            slowest(context, bed, children, &[served.daemon.id()], rate)
        }
        Readers::InContainer => {
            let child = served.consumer(context, rx, &CONTAINER, "")?;
            slowest(context, bed, vec![child], &[served.daemon.id()], rate)
        }
        Readers::InDocker => {
            let image = Image::new(&context.options.weir)?;
            let container = image.consumer(rx, context.cpus.tool, served.folder.path())?;
            let others = [served.daemon.id(), container.pid];
            let frames = slowest(context, bed, vec![container.child], &others, rate);
            Container::wait_until_removed();
            frames
        }
        Readers::BesideStopped => {
            let mut still = served.consumer(context, rx, &[], "")?;
            still.signal(libc::SIGSTOP);
            let child = served.consumer(context, rx, &[], "")?;
            let frames = slowest(context, bed, vec![child], &[served.daemon.id()], rate);
            still.signal(libc::SIGKILL);
            frames
        }
        Readers::Sharded => {
            let parts = ["@1/4", "@2/4", "@3/4", "@4/4"];
            let children = parts.map(|part| served.consumer(context, rx, &[], part));
            let children = children.into_iter().collect::<Result<Vec<_>>>()?;
            let (sent, seconds, counted, cpu) =
                run(context, bed, children, &[served.daemon.id()], rate)?;
            // Each frame is in exactly one shard.
            let kept = counted.iter().map(|one| one.kept).sum();
            let lapped = counted.iter().filter_map(|one| one.drops.get("lapped")).sum();
            let drops = [("lapped".to_owned(), lapped)].into();
            Ok(Frames { cpu_seconds: cpu, ..Frames::new(sent, kept, drops, seconds) })
        }
        Readers::Tcpdumps(count) => {
            let tool = Tool::tcpdump();
            let all = (0..count).map(|_| tool.start(rx, context.cpus.tool));
            let all = all.collect::<Result<Vec<_>>>()?;
            let ids: Vec<u32> = all.iter().map(|capturing| capturing.child.id()).collect();
            let before: u64 = ids.iter().filter_map(|id| cpu_ns(*id)).sum();
            let traffic = traffic(context, rate);
            let sent = send_flows(context, &bed.tx, traffic, Flows::N(1000))?;
            sleep(tool.flush_time());
            let used = ids.iter().filter_map(|id| cpu_ns(*id)).sum::<u64>().saturating_sub(before);
            let counted = all.into_iter().map(super::tool::Capturing::finish);
            let counted = counted.collect::<Result<Vec<_>>>()?;
            let worst = counted.into_iter().min_by_key(|one| one.kept).unwrap_or_default();
            let frames =
                Frames::new(sent.sent, worst.kept, worst.drops, sent.duration.as_secs_f64());
            Ok(Frames { cpu_seconds: Some(used as f64 / 1e9), ..frames })
        }
    }
}

fn traffic(context: &Context, rate: Rate) -> Traffic {
    Traffic { size: SIZE_MIN, rate, seconds: context.seconds, stamp: false }
}

/// Sends traffic. Returns the number of sent frames, the seconds, each consumer's counts, and the CPU time of all
/// processes.
fn run(
    context: &Context,
    bed: &Testbed,
    children: Vec<Child>,
    others: &[u32],
    rate: Rate,
) -> Result<(u64, f64, Vec<Counted>, Option<f64>)> {
    let ids: Vec<u32> = children.iter().map(Child::id).chain(others.iter().copied()).collect();
    let cpu = || ids.iter().filter_map(|id| cpu_ns(*id)).sum::<u64>();
    let before = cpu();
    let sent = send_flows(context, &bed.tx, traffic(context, rate), Flows::N(1000))?;
    sleep(Duration::from_millis(200));
    let used = cpu().saturating_sub(before);
    let mut counted = Vec::new();
    for child in children {
        let lines = child.interrupt()?;
        let report = weir_report(&lines).ok_or_else(|| {
            let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
            let reason = last.map_or("it said nothing", |line| line.text.trim()).to_owned();
            Error::Measure { what: "weir capture host:".to_owned(), reason }
        })?;
        counted.push(report.counted());
    }
    Ok((sent.sent, sent.duration.as_secs_f64(), counted, Some(used as f64 / 1e9)))
}

/// Sends traffic. Returns the account of the consumer that kept the fewest frames.
fn slowest(
    context: &Context,
    bed: &Testbed,
    children: Vec<Child>,
    others: &[u32],
    rate: Rate,
) -> Result<Frames> {
    let (sent, seconds, counted, cpu_seconds) = run(context, bed, children, others, rate)?;
    let worst = counted.into_iter().min_by_key(|one| one.kept).unwrap_or_default();
    Ok(Frames { cpu_seconds, ..Frames::new(sent, worst.kept, worst.drops, seconds) })
}

fn at_1_mpps(context: &Context, bed: &Testbed, served: &Served) -> Result<Row> {
    let mut row = Row::new(SECTION, AT_1_MPPS, MPPS).sized(SIZE_MIN);
    for round in 0..context.rounds {
        if stopped(context.stop) {
            break;
        }
        let neighbours = context.calm();
        let children = served.consumers(context, &bed.rx, MANY)?;
        let (sent, seconds, counted, cpu_seconds) =
            run(context, bed, children, &[served.daemon.id()], Rate::Pps(1e6))?;
        let kept: u64 = counted.iter().map(|one| one.kept).sum();
        let lapped = counted.iter().filter_map(|one| one.drops.get("lapped")).sum();
        let drops = [("lapped".to_owned(), lapped)].into();
        let frames = Frames::new(sent * MANY as u64, kept, drops, seconds * MANY as f64);
        row.add_frames(round, Frames { cpu_seconds, ..frames }, neighbours.done());
        context.say(&format!("{AT_1_MPPS}: {lapped} lapped"));
    }
    row.note = "frames of all sixteen, by their time together".to_owned();
    conclude(std::slice::from_mut(&mut row), "");
    Ok(row)
}

/// Measures the duration of `capture.open`, called without a consumer program.
fn opens(context: &Context, served: &Served) -> Result<Vec<Row>> {
    let failed = |error: weir_client::ClientError| Error::Measure {
        what: "capture.open".to_owned(),
        reason: weir_client::error_text(&error),
    };
    let connection = Connection::open(&served.socket()).map_err(failed)?;
    let mut rows = [JOIN, NEW].map(|what| Row::new(COSTS, what, "ms"));
    let open = Open { source: "lan".to_owned(), ..Open::default() };
    let _stays = connection.open_feed(&open).map_err(failed)?;
    for round in 0..OPENS {
        for (own, row) in [false, true].into_iter().zip(&mut rows) {
            let neighbours = context.calm();
            let begin = Instant::now();
            let feed = connection.open_feed(&Open { own, ..open.clone() }).map_err(failed)?;
            let took = begin.elapsed();
            drop(feed);
            row.add(round, took.as_secs_f64() * 1e3, neighbours.done());
        }
    }
    conclude(&mut rows, "");
    Ok(rows.into())
}

fn idle(context: &Context, bed: &Testbed, served: &Served) -> Result<Row> {
    const WAIT: Duration = Duration::from_secs(5);
    let mut row = Row::new(COSTS, IDLE, "%");
    let children = served.consumers(context, &bed.rx, MANY)?;
    let ids: Vec<u32> = children.iter().map(Child::id).chain([served.daemon.id()]).collect();
    let cpu = || ids.iter().filter_map(|id| cpu_ns(*id)).sum::<u64>();
    sleep(Duration::from_secs(1));
    let neighbours = context.calm();
    let (begin, before) = (Instant::now(), cpu());
    sleep(WAIT);
    let used = cpu().saturating_sub(before) as f64;
    row.add(0, 100.0 * used / begin.elapsed().as_nanos() as f64, neighbours.done());
    for child in children {
        child.interrupt()?;
    }
    conclude(std::slice::from_mut(&mut row), "");
    Ok(row)
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "serve: one veth pair, generator and all softirq work on CPU {}, all consumers on CPU {}; 1,000 flows of 64 B; \
         the rate is that of the consumer which kept least, and CPU time is that of all processes; rings and buffers \
         of 64 MiB",
        context.cpus.generator, context.cpus.tool
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let size = Some(SIZE_MIN);
    let over = |what: &str, base: &str| {
        find(rows, SECTION, what, size)
            .zip(find(rows, SECTION, base, size))?
            .0
            .over(find(rows, SECTION, base, size)?)
    };
    let one = consumers(1);
    let lapped = find(rows, SECTION, AT_1_MPPS, size).and_then(Row::frames);
    let lapped = lapped.map(|frames| frames.lapped() as f64);
    let captured = |what: &str| {
        let frames = find(rows, SECTION, what, size)?.frames()?;
        Some((frames.kept + frames.lapped()) as f64 / frames.seconds)
    };
    let sixteen = captured(&consumers(MANY)).zip(captured(&one)).map(|(many, one)| many / one);
    let value = |what: &str| value_of(rows, COSTS, what, None);
    let mut bars = vec![
        Bar::new(
            format!("64 B: {IN_CONTAINER} / {one}"),
            over(IN_CONTAINER, &one),
            Side::AtLeast,
            0.95,
        ),
        Bar::new(format!("64 B: {IN_DOCKER} / {one}"), over(IN_DOCKER, &one), Side::AtLeast, 0.95),
        Bar::new("64 B: captured with 16 consumers / with 1", sixteen, Side::AtLeast, 0.95),
        Bar::new(format!("64 B: {STOPPED} / {one}"), over(STOPPED, &one), Side::AtLeast, 0.95),
        Bar::new(format!("{AT_1_MPPS}, frames lapped"), lapped, Side::AtMost, 0.0),
        Bar::new(format!("{JOIN}, ms"), value(JOIN), Side::AtMost, 20.0),
        Bar::new(format!("{NEW}, ms"), value(NEW), Side::AtMost, 100.0),
        Bar::new(format!("{IDLE}, %"), value(IDLE), Side::Below, 1.5),
    ];
    bars.extend(COUNTS.map(|count| {
        let ratio = over(&consumers(count), &tcpdumps(count));
        Bar::new(
            format!("64 B: {} / {}", consumers(count), tcpdumps(count)),
            ratio,
            Side::AtLeast,
            1.0,
        )
    }));
    bars
}
