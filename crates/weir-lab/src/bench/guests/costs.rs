//! Measures costs in guests other than frame rates: reading a ring that does not change, opening, filtering, idling.

use std::fs;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::COSTS;
use super::consumers::{Consumer, Program, last_object};
use super::host::{ASKING, Host, failed};
use crate::bench::bar::{Bar, Side};
use crate::bench::context::{Context, stopped};
use crate::bench::row::{Row, conclude};
use crate::bench::wire::{Traffic, send_flows};
use crate::generator::{Flows, Rate, SIZE_MIN};
use crate::reread::Reread;
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

const RESIDENT: &str = "null read of a resident ring, Mpps";
const BANDWIDTH: &str = "words of that ring, GB/s";
const ANEW: &str = "first frame, devices plugged anew, ms";
const PLUGGED: &str = "first frame, devices plugged already, ms";
/// A filter that matches no frame: all frames are UDP.
const NOTHING: &str = "tcp port 80";
const FILTERED: &str = "bytes in rings of a filter that nothing meets";
const BELLS: &str = "idle guest: interrupts of its port a second, frames flowing less not";
const BROKER: &str = "idle guest: switches a second of its broker, frames flowing";
/// This row has no target, because the consumer requests its ledger over the same port.
const SILENT: &str =
    "guest with a feed that no frame meets: interrupts of its port a second, less those of no feed";
/// Duration of sending that fills the rings once, so that the reader has most of 64 MiB to read.
const FILL_SECONDS: f64 = 1.0;
/// Rate of frames while a feed is opened: a frame every 10 us.
const FLOWING: Rate = Rate::Pps(100e3);
/// Longer than a process in an emulated guest takes to start, open a feed and end.
const OPENING: f64 = 3.0;
const IDLE: Duration = Duration::from_secs(5);
/// Time limit of `weir lab reread`.
const READING: Duration = Duration::from_secs(60);

/// Measures all costs. A failure gives a row with the reason.
///
/// # Errors
/// Only errors of the testbed.
pub(super) fn measure(context: &Context, bed: &Testbed, host: &mut Host) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if stopped(context.stop) {
        return Ok(rows);
    }
    let names = [(RESIDENT, "Mpps"), (BANDWIDTH, "GB/s")];
    add(&mut rows, context, host, names, context.rounds, |host| resident(context, bed, host))?;
    let names = [(ANEW, "ms"), (PLUGGED, "ms")];
    add(&mut rows, context, host, names, context.rounds, |host| {
        host.wait_until_unplugged()?;
        Ok([first_frame(context, bed, host)?, first_frame(context, bed, host)?])
    })?;
    add(&mut rows, context, host, [(FILTERED, "B")], 1, |host| {
        Ok([filtered(context, bed, host)?])
    })?;
    let names = [(BELLS, "1/s"), (BROKER, "1/s"), (SILENT, "1/s")];
    add(&mut rows, context, host, names, 1, |host| {
        host.wait_until_unplugged()?;
        idle(context, bed, host)
    })?;
    Ok(rows)
}

/// Adds rows that are measured together, over several rounds.
fn add<const N: usize>(
    rows: &mut Vec<Row>,
    context: &Context,
    host: &mut Host,
    names: [(&str, &'static str); N],
    rounds: u32,
    mut measure: impl FnMut(&mut Host) -> Result<[f64; N]>,
) -> Result<()> {
    let mut own = names.map(|(what, unit)| Row::new(COSTS, what, unit));
    for round in 0..rounds {
        if stopped(context.stop) {
            break;
        }
        let neighbours = context.calm();
        match measure(host) {
            Ok(values) => {
                let disturbance = neighbours.done();
                for (row, value) in own.iter_mut().zip(values) {
                    context.say(&format!("{COSTS}, round {}: {} {value:.2}", round + 1, row.what));
                    row.add(round, value, disturbance);
                }
            }
            Err(Error::Measure { reason, .. }) => {
                own.iter_mut().for_each(|row| row.absent = Some(reason.clone()));
                host.clear();
                break;
            }
            Err(error) => return Err(error),
        }
    }
    conclude(&mut own, "");
    rows.extend(own);
    Ok(())
}

fn traffic(rate: Rate, seconds: f64) -> Traffic {
    Traffic { size: SIZE_MIN, rate, seconds, stamp: false }
}

/// Returns the number of frames that an interface has received.
fn received(end: &End) -> Result<u64> {
    let text = end.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?.map_err(failed)?;
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{}:", end.iface)));
    // The fields are bytes, then packets. Source: net/core/net-procfs.c.
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| failed(format!("no counter of {}", end.iface)))
}

/// Runs `work` while frames are sent. `work` begins when the first frame has arrived.
fn while_sending<T>(
    context: &Context,
    bed: &Testbed,
    traffic: Traffic,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let before = received(&bed.rx)?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| send_flows(context, &bed.tx, traffic, Flows::N(1000)));
        while received(&bed.rx)? == before && !sending.is_finished() {
            sleep(Duration::from_millis(1));
        }
        let done = work();
        match sending.join() {
            Ok(sent) => sent.and(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn reread_command(seconds: f64) -> String {
    format!("weir lab reread lan --json --seconds {seconds}s")
}

/// Measures how fast a guest reads rings that no longer change. They are filled after the reader has opened its feed.
fn resident(context: &Context, bed: &Testbed, host: &mut Host) -> Result<[f64; 2]> {
    let program = Program::start(host, 0, 0, &reread_command(context.seconds))?;
    host.wait_for_feeds(1)?;
    send_flows(context, &bed.tx, traffic(Rate::Max, FILL_SECONDS), Flows::N(1000))?;
    let found: Reread = last_object(&program.wait(host, READING)?)?;
    Ok([found.mpps, found.bytes_per_second / 1e9])
}

fn first_frame(context: &Context, bed: &Testbed, host: &mut Host) -> Result<f64> {
    let found: Reread = while_sending(context, bed, traffic(FLOWING, OPENING), || {
        last_object(&host.guests[0].run(&reread_command(0.0), READING)?)
    })?;
    Ok(found.first_ms)
}

/// Returns the bytes in the rings of the host and of the guest, with a filter that no frame passes.
fn filtered(context: &Context, bed: &Testbed, host: &mut Host) -> Result<f64> {
    let consumer = Consumer::start(host, 0, 0, &format!("host:lan --filter '{NOTHING}'"))?;
    let sent = send_flows(context, &bed.tx, traffic(Rate::Max, context.seconds), Flows::N(1000))?;
    let status = host.status()?;
    let report = consumer.finish(host)?;
    if report.filtered < sent.sent {
        return Err(failed(format!(
            "{} of {} frames were left out at the host",
            report.filtered, sent.sent
        )));
    }
    let is_own = |filter: &str| filter.contains(NOTHING);
    let of_feeds = status.feeds.iter().filter(|feed| is_own(&feed.filter));
    let of_feeds = of_feeds.filter_map(|feed| feed.ledger.as_ref());
    let of_guests = status.clients.iter().filter(|client| is_own(&client.filter));
    let of_guests = of_guests.filter_map(|client| client.ledger.as_ref());
    if of_feeds.clone().next().is_none() || of_guests.clone().next().is_none() {
        return Err(failed("the daemon has no feed with that filter"));
    }
    let bytes: u64 = of_feeds.chain(of_guests).map(|ledger| ledger.kept_bytes).sum();
    Ok((bytes + report.delivered) as f64)
}

/// Returns counts in the first guest: the interrupts of its port, and the voluntary context switches of its broker.
fn seen_in_guest(host: &mut Host) -> Result<[f64; 2]> {
    // The port is on the first of the guest's virtio devices.
    let interrupts = "awk '/virtio0-/ {sum += $2} END {print sum + 0}' /proc/interrupts";
    let switches = "cat /proc/$(cat /tmp/guest.pid)/task/*/status | awk '/^voluntary/ {sum += $2} END {print sum + 0}'";
    let mut number = |command: &str| -> Result<f64> {
        let text = host.guests[0].run(command, ASKING)?;
        text.trim().parse().map_err(|_| failed(format!("not a count: {text}")))
    };
    Ok([number(interrupts)?, number(switches)?])
}

/// Returns the same counts per second, averaged over some seconds.
fn per_second_in_guest(host: &mut Host) -> Result<[f64; 2]> {
    let (begin, before) = (Instant::now(), seen_in_guest(host)?);
    sleep(IDLE);
    let (seconds, after) = (begin.elapsed().as_secs_f64(), seen_in_guest(host)?);
    Ok([0, 1].map(|index| (after[index] - before[index]) / seconds))
}

/// Measures the activity of the first guest: without any feeds, then while a consumer in another guest gets frames, and
/// then also with a feed of its own that gets no frames.
fn idle(context: &Context, bed: &Testbed, host: &mut Host) -> Result<[f64; 3]> {
    let [still, _] = per_second_in_guest(host)?;
    let consumer = Consumer::start(host, 1, 0, "host:lan")?;
    // The measured time includes the requests to the guest.
    let seconds = IDLE.as_secs_f64() + 2.0;
    let [flowing, broker] =
        while_sending(context, bed, traffic(FLOWING, seconds), || per_second_in_guest(host))?;
    let waiting = Consumer::start(host, 0, 0, &format!("host:lan --filter '{NOTHING}'"))?;
    let [waited, _] =
        while_sending(context, bed, traffic(FLOWING, seconds), || per_second_in_guest(host))?;
    waiting.finish(host)?;
    consumer.finish(host)?;
    Ok([(flowing - still).max(0.0), broker, (waited - still).max(0.0)])
}

/// Returns the targets for these measurements.
pub(super) fn bars(value: &dyn Fn(&str) -> Option<f64>) -> Vec<Bar> {
    vec![
        Bar::new(RESIDENT, value(RESIDENT), Side::AtLeast, 40.0),
        Bar::new(ANEW, value(ANEW), Side::AtMost, 500.0),
        Bar::new(PLUGGED, value(PLUGGED), Side::AtMost, 500.0),
        Bar::new(FILTERED, value(FILTERED), Side::AtMost, 0.0),
        Bar::new(BELLS, value(BELLS), Side::Below, 0.5),
    ]
}
