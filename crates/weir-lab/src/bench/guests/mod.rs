//! Measures guests that read frames captured by their host, beside virtio-net in the same guest.
//!
//! | module | contents |
//! |---|---|
//! | `host` | the daemon and the guests |
//! | `consumers` | consumers in guests, in the combinations of the papers on vPF_RING |
//! | `costs` | reading alone, opening, filtering, idling |
//!
//! Where KVM does not work, guests are emulated. Then absolute figures say nothing about guests on KVM, but both sides
//! of a ratio come from the same emulation.

mod consumers;
mod costs;
mod host;

use std::collections::BTreeMap;
use std::time::Duration;

use super::bar::{Bar, Side};
use super::child::cpu_ns;
use super::context::{Context, stopped};
use super::counted::WeirReport;
use super::machine::IdleTime;
use super::row::{Frames, MPPS, Row, conclude, find, value_of};
use super::stats::Spread;
use super::table::figure;
use super::wire::{Traffic, send_flows};
use crate::generator::{Flows, Rate, SIZE_MIN};
use crate::guests::Guest;
use crate::testbed::Testbed;
use crate::{Error, Result};
use consumers::{CONSUMED, Consumer, ONE, SHAPES, Shape};
use host::{ASKING, Host, failed};

pub(super) const SECTION: &str = "guests";
/// Name of the section for rows that are not rates of frames.
pub(super) const COSTS: &str = "guests-costs";
const LONG: &str = "1 guest, at length";
const VIRTIO: &str = "virtio-net on a tap, weir capture";
/// Row of virtio-net without a consumer in the guest, which favours virtio-net.
const VIRTIO_ALONE: &str = "virtio-net on a tap, nobody reads";
/// Length of the measurement of [`LONG`], unless `--seconds` is given.
const LONG_SECONDS: f64 = 30.0;
/// Frames that are not read this long after the last one was sent count as lost.
const READ_WITHIN: Duration = Duration::from_secs(3);
const ONE_MILLION: f64 = 1e6;

/// Measures all rows.
///
/// # Errors
/// Only if no testbed can be made. Any other failure gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let mut host = match Host::start(context, &bed) {
        Ok(host) => host,
        Err(Error::Measure { reason, .. }) => {
            let mut row = Row::new(SECTION, ONE.name, MPPS).sized(SIZE_MIN);
            row.absent = Some(reason);
            return Ok(vec![row]);
        }
        Err(error) => return Err(error),
    };
    context.say(&format!("{SECTION}: {} guests by {}", host.guests.len(), host.accelerator.name()));
    let mut rows = rates(context, &bed, &mut host)?;
    rows.extend(at_1_mpps(context, &bed, &mut host)?);
    rows.push(at_length(context, &bed, &mut host)?);
    rows.extend(costs::measure(context, &bed, &mut host)?);
    Ok(rows)
}

/// A row, and the idle time of the host in each of its rounds.
struct Measured {
    row: Row,
    idle: Vec<f64>,
}

impl Measured {
    fn new(what: impl Into<String>) -> Measured {
        Measured { row: Row::new(SECTION, what, MPPS).sized(SIZE_MIN), idle: Vec::new() }
    }

    /// Measures a round, unless the row has failed before.
    fn round(
        &mut self,
        context: &Context,
        round: u32,
        host: &mut Host,
        measure: impl FnOnce(&mut Host) -> Result<(Frames, f64)>,
    ) -> Result<()> {
        if stopped(context.stop) || self.row.absent.is_some() {
            return Ok(());
        }
        let neighbours = context.calm();
        match measure(host) {
            Ok((frames, idle)) => {
                let (what, mpps) = (&self.row.what, frames.kept_mpps());
                context.say(&format!("{SECTION}, round {}: {what} {mpps:.2}", round + 1));
                self.row.add_frames(round, frames, neighbours.done());
                self.idle.push(idle);
            }
            Err(Error::Measure { reason, .. }) => {
                self.row.absent = Some(reason);
                host.clear();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn row(mut self) -> Row {
        if let Some(Spread { median, min, max, .. }) = Spread::of(self.idle) {
            let [median, min, max] = [median, min, max].map(figure);
            self.row.note = format!("host idle {median} % ({min}..{max})");
        }
        self.row
    }
}

fn rates(context: &Context, bed: &Testbed, host: &mut Host) -> Result<Vec<Row>> {
    let mut shapes = SHAPES.map(|shape| Measured::new(shape.name));
    let mut consumed = Measured::new(CONSUMED.name);
    let (mut virtio, mut alone) = (Measured::new(VIRTIO), Measured::new(VIRTIO_ALONE));
    for round in 0..context.rounds {
        for (shape, measured) in SHAPES.iter().zip(&mut shapes) {
            measured.round(context, round, host, |host| {
                let sent = run(context, bed, host, shape, Rate::Max, context.seconds)?;
                Ok((sent.frames(shape), sent.idle))
            })?;
        }
        consumed.round(context, round, host, |host| {
            let sent = run(context, bed, host, &CONSUMED, Rate::Max, context.seconds)?;
            Ok((sent.frames(&CONSUMED), sent.idle))
        })?;
        virtio.round(context, round, host, |host| {
            let consumer = Consumer::start(host, 0, 0, "eth0")?;
            let (frames, idle, reached) = by_virtio(context, bed, host)?;
            let report = consumer.finish(host)?;
            let mut drops = frames.drops.clone();
            let behind = reached.saturating_sub(report.delivered);
            drops.insert("guest".to_owned(), behind);
            let kept = report.delivered.min(reached);
            let cpu_seconds = frames.cpu_seconds;
            let frames = Frames::new(frames.offered, kept, drops, frames.seconds);
            Ok((Frames { cpu_seconds, ..frames }, idle))
        })?;
        alone.round(context, round, host, |host| {
            let (frames, idle, _) = by_virtio(context, bed, host)?;
            Ok((frames, idle))
        })?;
    }
    let mut rows: Vec<Row> =
        shapes.into_iter().chain([consumed, virtio, alone]).map(Measured::row).collect();
    conclude(&mut rows, ONE.name);
    Ok(rows)
}

fn at_1_mpps(context: &Context, bed: &Testbed, host: &mut Host) -> Result<Vec<Row>> {
    let mut shapes = SHAPES.map(|shape| Measured::new(name_at_1_mpps(&shape)));
    for round in 0..context.rounds {
        for (shape, measured) in SHAPES.iter().zip(&mut shapes) {
            measured.round(context, round, host, |host| {
                let rate = Rate::Pps(ONE_MILLION);
                let sent = run(context, bed, host, shape, rate, context.seconds)?;
                let frames = shape.all_frames(sent.frames, sent.seconds, &sent.reports);
                Ok((Frames { cpu_seconds: sent.cpu_seconds, ..frames }, sent.idle))
            })?;
        }
    }
    let mut rows: Vec<Row> = shapes.into_iter().map(Measured::row).collect();
    conclude(&mut rows, "");
    Ok(rows)
}

/// Returns whether the generator offered 1 Mpps. A shortfall of 1/32 is allowed, as in `zero_loss`.
fn is_1_mpps(frames: &Frames) -> bool {
    frames.offered_pps() >= ONE_MILLION * (1.0 - 1.0 / 32.0)
}

fn name_at_1_mpps(shape: &Shape) -> String {
    format!("{} at 1 Mpps", shape.name)
}

fn at_length(context: &Context, bed: &Testbed, host: &mut Host) -> Result<Row> {
    let seconds = match context.options.quick {
        true => context.seconds,
        false => context.options.seconds.unwrap_or(LONG_SECONDS),
    };
    let mut measured = Measured::new(LONG);
    measured.round(context, 0, host, |host| {
        let sent = run(context, bed, host, &ONE, Rate::Max, seconds)?;
        Ok((sent.frames(&ONE), sent.idle))
    })?;
    let mut row = measured.row();
    conclude(std::slice::from_mut(&mut row), "");
    Ok(row)
}

/// Sent frames, and the reports of the consumers.
struct Sent {
    frames: u64,
    seconds: f64,
    reports: Vec<WeirReport>,
    cpu_seconds: Option<f64>,
    idle: f64,
}

impl Sent {
    fn frames(&self, shape: &Shape) -> Frames {
        let frames = shape.frames(self.frames, self.seconds, &self.reports);
        Frames { cpu_seconds: self.cpu_seconds, ..frames }
    }
}

/// Returns the CPU time of the daemon and of all guests.
fn cpu(host: &Host) -> u64 {
    let ids = host.guests.iter().map(Guest::id).chain([host.daemon.id()]);
    ids.filter_map(cpu_ns).sum()
}

fn run(
    context: &Context,
    bed: &Testbed,
    host: &mut Host,
    shape: &Shape,
    rate: Rate,
    seconds: f64,
) -> Result<Sent> {
    let consumers = shape.start(host)?;
    let (before, idle) = (cpu(host), IdleTime::look());
    let traffic = Traffic { size: SIZE_MIN, rate, seconds, stamp: false };
    let sent = send_flows(context, &bed.tx, traffic, Flows::N(1000))?;
    let idle = idle.percent();
    host.wait_until_read(sent.sent, READ_WITHIN)?;
    let used = cpu(host).saturating_sub(before);
    let reports = consumers.iter().map(|consumer| consumer.finish(host)).collect::<Result<_>>()?;
    let cpu_seconds = Some(used as f64 / 1e9);
    let seconds = sent.duration.as_secs_f64();
    Ok(Sent { frames: sent.sent, seconds, reports, cpu_seconds, idle })
}

/// Measures virtio-net: the kept frames are those that the guest's interface counts. Also returns the host's idle time,
/// and that count.
fn by_virtio(context: &Context, bed: &Testbed, host: &mut Host) -> Result<(Frames, f64, u64)> {
    let received = |host: &mut Host| -> Result<u64> {
        let text = host.guests[0].run("cat /sys/class/net/eth0/statistics/rx_packets", ASKING)?;
        text.trim().parse().map_err(|_| failed(format!("not a count: {text}")))
    };
    host.set_bridged(true)?;
    let measured = (|| {
        let before = received(host)?;
        let (used, idle) = (cpu(host), IdleTime::look());
        let traffic =
            Traffic { size: SIZE_MIN, rate: Rate::Max, seconds: context.seconds, stamp: false };
        let sent = send_flows(context, &bed.tx, traffic, Flows::N(1000))?;
        let idle = idle.percent();
        let used = cpu(host).saturating_sub(used);
        // Wait for the frames in the tap's queue.
        let mut kept = received(host)?;
        loop {
            let now = received(host)?;
            if now == kept {
                break;
            }
            kept = now;
        }
        let kept = kept - before;
        // The tap loses frames at its queue, which no counter of this run shows.
        let drops: BTreeMap<String, u64> =
            [("tap".to_owned(), sent.sent.saturating_sub(kept))].into();
        let frames = Frames::new(sent.sent, kept, drops, sent.duration.as_secs_f64());
        Ok((Frames { cpu_seconds: Some(used as f64 / 1e9), ..frames }, idle, kept))
    })();
    host.set_bridged(false)?;
    measured
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "guests: Debian's kernel with 1 vCPU, by KVM where it boots a guest, else emulated; generator and all softirq \
         work on CPU {}, daemon and guests from CPU {} on; 1,000 flows of 64 B; weir capture counts in the guest, and \
         the rate is that of the consumer which kept least; of virtio-net it is also what the guest's interface counts \
         while nobody reads it; CPU time is that of the daemon and all {} guests",
        context.cpus.generator,
        context.cpus.tool,
        host::GUESTS
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let size = Some(SIZE_MIN);
    let row = |what: &str| find(rows, SECTION, what, size);
    let lost = |what: &str| {
        let frames = row(what)?.frames()?;
        Some(frames.offered.saturating_sub(frames.kept) as f64)
    };
    let over = |shape: Shape| row(shape.name)?.over(row(VIRTIO)?);
    let captured = |what: &str| {
        let frames = row(what)?.frames()?;
        Some(captured(&frames) as f64 / frames.seconds)
    };
    let mut bars = vec![
        Bar::new(format!("64 B: {LONG}, frames lost"), lost(LONG), Side::AtMost, 0.0),
        Bar::new(format!("64 B: {} / {VIRTIO}", ONE.name), over(ONE), Side::AtLeast, 30.0),
        Bar::new(
            format!("64 B: {} / {VIRTIO}", CONSUMED.name),
            over(CONSUMED),
            Side::AtLeast,
            30.0,
        ),
    ];
    for shape in &SHAPES {
        let what = name_at_1_mpps(shape);
        // If the rate was not offered, the target counts as not measured.
        let is_offered = row(&what).and_then(Row::frames).is_some_and(|frames| is_1_mpps(&frames));
        let lost = lost(&what).filter(|_| is_offered);
        bars.push(Bar::new(format!("{what}, frames lost"), lost, Side::AtMost, 0.0));
    }
    for shape in &SHAPES[1..] {
        let ratio = captured(shape.name).zip(captured(ONE.name)).map(|(many, one)| many / one);
        let what = format!("64 B: captured with {} / with {}", shape.name, ONE.name);
        bars.push(Bar::new(what, ratio, Side::AtLeast, 0.9));
    }
    bars.extend(costs::bars(&|what| value_of(rows, COSTS, what, None)));
    bars
}

/// Returns the number of frames that the host captured, including those that were lost after its rings.
fn captured(frames: &Frames) -> u64 {
    frames.kept + frames.lapped() + frames.drops.get("relay").copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: impl Into<String>, kept: u64, lapped: u64, relay: u64) -> Row {
        let mut row = Row::new(SECTION, what, MPPS).sized(SIZE_MIN);
        let drops = [("lapped".to_owned(), lapped), ("relay".to_owned(), relay)].into();
        row.add_frames(0, Frames::new(kept + lapped + relay, kept, drops, 1.0), Default::default());
        row.summarize();
        row
    }

    fn met(bars: &[Bar], what: &str) -> Option<bool> {
        let found = bars.iter().find(|bar| bar.what.contains(what));
        found.unwrap_or_else(|| panic!("{what}")).met
    }

    #[test]
    fn what_the_relay_lost_was_captured_and_did_not_arrive() {
        let rows = [
            row(ONE.name, 1000, 0, 0),
            row(LONG, 999, 0, 1),
            row("4 guests", 100, 50, 800),
            row("2 guests", 800, 0, 0),
            row("1 guest at 1 Mpps", 1_000_000, 0, 0),
            row("4 guests at 1 Mpps", 999_999, 1, 0),
            row("2 guests at 1 Mpps", 900_000, 0, 0),
            row(VIRTIO, 30, 0, 0),
        ];
        let bars = bars(&rows);
        assert_eq!(met(&bars, LONG), Some(false));
        assert_eq!(met(&bars, VIRTIO), Some(true));
        assert_eq!(met(&bars, "1 guest at 1 Mpps, frames lost"), Some(true));
        assert_eq!(met(&bars, "4 guests at 1 Mpps, frames lost"), Some(false));
        assert_eq!(met(&bars, "2 guests at 1 Mpps, frames lost"), None, "it was not offered");
        assert_eq!(met(&bars, "captured with 4 guests / with 1 guest"), Some(true));
        assert_eq!(met(&bars, "captured with 2 guests / with 1 guest"), Some(false));
        assert_eq!(met(&bars, "captured with 2 consumers in 1 guest"), None);
    }

    #[test]
    fn nothing_measured_is_no_bar_met() {
        assert!(bars(&[]).iter().all(|bar| bar.met.is_none()));
    }
}
