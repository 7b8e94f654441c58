//! What is no rate of frames off a wire: reading alone, opening, filtering, idling.

use std::fs;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::consumers::Consumer;
use super::host::{ASKING, Host, failed};
use super::COSTS;
use crate::bench::bar::{Bar, Side};
use crate::bench::context::{Context, stopped};
use crate::bench::row::{Row, conclude};
use crate::bench::switches::Switches;
use crate::bench::wire::{Traffic, send_flows};
use crate::generator::{Flows, Rate, SIZE_MIN};
use crate::reread::Reread;
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

const RESIDENT: &str = "null read of a resident ring, Mpps";
const BANDWIDTH: &str = "words of that ring, GB/s";
const ANEW: &str = "first frame, devices plugged anew, ms";
const PLUGGED: &str = "first frame, devices plugged already, ms";
const FILTERED: &str = "bytes in rings of a filter that nothing meets";
const BELLS: &str = "idle guest: interrupts of its port a second, frames flowing less not";
const BROKER: &str = "idle guest: switches a second of its broker";
const DAEMON: &str = "idle guest: switches a second of the daemon's copying threads";
/// Frames that fill the rings once, so that the reader has most of 64 MiB to read.
const FILL_SECONDS: f64 = 1.0;
/// Frames come while a feed is opened: one every 10 us.
const FLOWING: Rate = Rate::Pps(100e3);
/// Longer than a process in an emulated guest takes to start, open and end.
const OPENING: f64 = 3.0;
const IDLE: Duration = Duration::from_secs(5);
/// Of the whole of `weir lab reread`.
const READING: Duration = Duration::from_secs(60);

/// Measures all of it; what fails is a row that says so.
///
/// # Errors
/// Of the testbed only.
pub(super) fn measure(context: &Context, bed: &Testbed, host: &mut Host) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if stopped(context.stop) {
        return Ok(rows);
    }
    add(&mut rows, context, [(RESIDENT, "Mpps"), (BANDWIDTH, "GB/s")], context.rounds, || {
        resident(context, bed, host)
    })?;
    add(&mut rows, context, [(ANEW, "ms"), (PLUGGED, "ms")], context.rounds, || {
        host.wait_until_unplugged()?;
        Ok([first_frame(context, bed, host)?, first_frame(context, bed, host)?])
    })?;
    add(&mut rows, context, [(FILTERED, "B")], 1, || Ok([filtered(context, bed, host)?]))?;
    add(&mut rows, context, [(BELLS, "1/s"), (BROKER, "1/s"), (DAEMON, "1/s")], 1, || {
        host.wait_until_unplugged()?;
        idle(context, bed, host)
    })?;
    Ok(rows)
}

/// Rows that are measured together, over some rounds.
fn add<const N: usize>(
    rows: &mut Vec<Row>,
    context: &Context,
    names: [(&str, &'static str); N],
    rounds: u32,
    mut measure: impl FnMut() -> Result<[f64; N]>,
) -> Result<()> {
    let mut own = names.map(|(what, unit)| Row::new(COSTS, what, unit));
    for round in 0..rounds {
        if stopped(context.stop) {
            break;
        }
        let neighbours = context.calm();
        match measure() {
            Ok(values) => {
                let disturbance = neighbours.done();
                for (row, value) in own.iter_mut().zip(values) {
                    context.say(&format!("{COSTS}, round {}: {} {value:.2}", round + 1, row.what));
                    row.add(round, value, disturbance);
                }
            }
            Err(Error::Measure { reason, .. }) => {
                own.iter_mut().for_each(|row| row.absent = Some(reason.clone()));
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

/// Frames that an interface has received.
fn received(end: &End) -> Result<u64> {
    let text = end.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?.map_err(failed)?;
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{}:", end.iface)));
    // Bytes, then packets. Source: net/core/net-procfs.c.
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| failed(format!("no counter of {}", end.iface)))
}

/// Runs a part while frames flow, from the first one on.
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

fn reread(host: &mut Host, seconds: f64) -> Result<Reread> {
    let text =
        host.guests[0].run(&format!("weir lab reread lan --json --seconds {seconds}s"), READING)?;
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    line.and_then(|line| serde_json::from_str(line).ok()).ok_or_else(|| failed(text.clone()))
}

fn resident(context: &Context, bed: &Testbed, host: &mut Host) -> Result<[f64; 2]> {
    let traffic = traffic(Rate::Max, FILL_SECONDS);
    let found = while_sending(context, bed, traffic, || reread(host, context.seconds))?;
    Ok([found.mpps, found.bytes_per_second / 1e9])
}

fn first_frame(context: &Context, bed: &Testbed, host: &mut Host) -> Result<f64> {
    let found = while_sending(context, bed, traffic(FLOWING, OPENING), || reread(host, 0.0))?;
    Ok(found.first_ms)
}

/// Bytes in the host's rings and the guest's, of a filter that no frame meets.
fn filtered(context: &Context, bed: &Testbed, host: &mut Host) -> Result<f64> {
    let consumer = Consumer::start(host, 0, 0, "host:lan --filter 'tcp port 80'")?;
    let sent = send_flows(context, &bed.tx, traffic(Rate::Max, context.seconds), Flows::N(1000))?;
    let status = host.status()?;
    let report = consumer.finish(host)?;
    if report.filtered < sent.sent {
        return Err(failed(format!(
            "{} of {} frames were left out at the host",
            report.filtered, sent.sent
        )));
    }
    let of_feeds = status.feeds.iter().filter_map(|feed| feed.ledger.as_ref());
    let of_guests = status.clients.iter().filter_map(|client| client.ledger.as_ref());
    let bytes: u64 = of_feeds.chain(of_guests).map(|ledger| ledger.kept_bytes).sum();
    Ok((bytes + report.delivered) as f64)
}

/// Interrupts of the guest's port, and of its broker's threads the times that they went to sleep.
fn seen_in_guest(host: &mut Host) -> Result<[f64; 2]> {
    let interrupts =
        "awk '/virtio.-input|virtio.-virtqueues/ {sum += $2} END {print sum + 0}' /proc/interrupts";
    let switches = "cat /proc/$(cat /tmp/guest.pid)/task/*/status | awk '/^voluntary/ {sum += $2} END {print sum + 0}'";
    let mut number = |command: &str| -> Result<f64> {
        let text = host.guests[0].run(command, ASKING)?;
        text.trim().parse().map_err(|_| failed(format!("not a count: {text}")))
    };
    Ok([number(interrupts)?, number(switches)?])
}

/// Of a guest without feeds, while a consumer in another one has frames.
fn idle(context: &Context, bed: &Testbed, host: &mut Host) -> Result<[f64; 3]> {
    let per_second = |host: &mut Host| -> Result<[f64; 2]> {
        let (begin, before) = (Instant::now(), seen_in_guest(host)?);
        sleep(IDLE);
        let (seconds, after) = (begin.elapsed().as_secs_f64(), seen_in_guest(host)?);
        Ok([0, 1].map(|index| (after[index] - before[index]) / seconds))
    };
    let [silent, _] = per_second(host)?;
    let consumer = Consumer::start(host, 1, 0, "host:lan")?;
    let id = host.daemon.id();
    let seconds = IDLE.as_secs_f64() + 2.0;
    let found = while_sending(context, bed, traffic(FLOWING, seconds), || {
        let daemon = Switches::look(id);
        let [flowing, broker] = per_second(host)?;
        let copying = daemon.zip(Switches::look(id)).map_or(0.0, |(before, after)| {
            let rates = after.per_second_since(&before);
            rates.consumer
        });
        Ok([(flowing - silent).max(0.0), broker, copying])
    });
    consumer.finish(host)?;
    found
}

/// What is asked of them.
pub(super) fn bars(value: &dyn Fn(&str) -> Option<f64>) -> Vec<Bar> {
    vec![
        Bar::new(RESIDENT, value(RESIDENT), Side::AtLeast, 40.0),
        Bar::new(ANEW, value(ANEW), Side::AtMost, 500.0),
        Bar::new(PLUGGED, value(PLUGGED), Side::AtMost, 500.0),
        Bar::new(FILTERED, value(FILTERED), Side::AtMost, 0.0),
        Bar::new(BELLS, value(BELLS), Side::Below, 0.5),
    ]
}
