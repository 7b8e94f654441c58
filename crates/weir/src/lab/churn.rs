//! `weir lab churn`: adds and removes feeds, and attaches and detaches consumers, while a source runs at full rate.
//!
//! One feed without a filter stays open all the time, and must lose nothing. Each other feed is read to its end, and
//! the number of its frames is compared with its ledger.

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use weir_capture::bpf::{Bpf, BpfOptions};
use weir_capture::generator::MemGen;
use weir_capture::{Feed, FeedControl, FeedHandle, Filter, Pumped, Setup, Source};
use weir_filter::Program;
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_lab::Testbed;
use weir_lab::bench::Footprint;
use weir_lab::generator::{self, Flows, GenEngine, GenOptions};
use weir_lab::testbed::End;
use weir_ring::wake::Sleeper;
use weir_ring::{Ledger, Mapping, Poll, Reader, Ring, Start, Tally};

use crate::cli::{ChurnArgs, ChurnSource};

/// Size of the rings of one feed: small, because up to a thousand feeds are created.
const RING_BYTES: u64 = 16 << 20;
/// Number of feeds that are open at the same time, in addition to the one that stays open.
const TOGETHER: usize = 4;
/// Number of feeds and consumers that are added and removed before descriptors and memory are counted, so that
/// one-time allocations are not counted.
const WARM_UP: u64 = 8;
/// The filter of the other feeds, `ip proto 17`: all generated frames pass.
const FILTER: &str = "6,40 0 0 12,21 0 3 2048,48 0 0 23,21 0 1 17,6 0 0 262144,6 0 0 0";
const SNAPLEN: u32 = 128;
/// The longest time in which a feed or a consumer must receive a frame.
const FIRST_FRAME: Duration = Duration::from_secs(2);
/// How long after a detach descriptors may take to be closed. Descriptors that are open after this time are counted as
/// leaked.
const LET_GO_LIMIT: Duration = Duration::from_secs(2);
/// Number of frames after which a sleeping consumer is woken.
const WAKE_FRAMES: u64 = 256;
const PAUSE: Duration = Duration::from_micros(50);

/// Durations of one kind of call, in milliseconds.
#[derive(Debug, Default, Serialize)]
struct Times {
    calls: usize,
    median_ms: f64,
    max_ms: f64,
}

/// Final output of `weir lab churn --json`.
#[derive(Debug, Default, Serialize)]
pub struct Churned {
    add: Times,
    remove: Times,
    attach: Times,
    /// Feeds whose ledger does not close, or differs from the number of frames in their rings.
    open_ledgers: u64,
    /// Feeds that received no frame for two seconds, and consumers that slept for as long.
    without_frames: u64,
    /// Counts of the feed that stays open.
    offered: u64,
    captured: u64,
    /// Number of offered frames (or, with a generator, of sent frames) minus number of captured frames.
    missing: i64,
    descriptors_more: i64,
    kib_more: i64,
    duration_s: f64,
}

/// Runs the command.
///
/// # Errors
/// The source fails, or a feed is refused.
pub fn run(args: &ChurnArgs) -> Result<Churned> {
    let (text, link_type) = (FILTER.to_owned(), LINKTYPE_ETHERNET);
    let filter = Arc::new(Filter { text, link_type, program: Program::parse(FILTER)? });
    match args.source {
        ChurnSource::Gen => {
            let source = MemGen::open("size=64".parse()?, setup(), true)?;
            let stop = AtomicBool::new(false);
            Ok(churn(args, &filter, (Box::new(source), None), &stop, || {})?.0)
        }
        ChurnSource::Bpf => {
            let bed = Testbed::builder().gro(true).build()?;
            let source =
                bed.rx.run(|| Bpf::open(&bed.rx.iface, setup(), BpfOptions::default()))??;
            let stop = AtomicBool::new(false);
            let options = GenOptions {
                flows: Flows::Single,
                engine: GenEngine::LiveFrames,
                duration: None,
                ..GenOptions::default()
            };
            let (tell, told) = channel();
            thread::scope(|scope| {
                // The generator must not send before the source has started, because such frames are not counted.
                let sending = scope.spawn(|| -> Result<u64> {
                    match told.into_iter().next() {
                        None => Ok(0),
                        Some(()) => {
                            let run = || generator::run(&bed.tx.iface, &options, &stop);
                            Ok(bed.tx.run(run)??.sent)
                        }
                    }
                });
                let started = move || tell.send(()).expect("the generator waits for it");
                let opened: Opened = (Box::new(source), Some(&bed.rx));
                let churned = churn(args, &filter, opened, &stop, started);
                stop.store(true, Ordering::Release);
                let sent = sending.join().expect("the generator does not panic")?;
                let (mut churned, ledger) = churned?;
                churned.missing = sent as i64 - ledger.captured as i64;
                Ok(churned)
            })
        }
    }
}

fn setup() -> Setup {
    let feeds = vec![feed("all", None, 65_535)];
    Setup { feeds, ring_bytes: RING_BYTES, promiscuous: true, may_change: true, ..Setup::default() }
}

fn feed(name: &str, filter: Option<Arc<Filter>>, snaplen: u32) -> Feed {
    let interface = Interface { snaplen, ..Interface::default() };
    Feed { name: name.to_owned(), interface, filter, snaplen, ..Feed::default() }
}

/// A source, and the end of the testbed in whose network namespace it was opened.
type Opened<'a> = (Box<dyn Source>, Option<&'a End>);

/// Runs the source on a separate thread, and adds, removes, attaches and detaches on this one. Sets `generating` to
/// stop the generator. Calls `started` once frames are captured.
fn churn(
    args: &ChurnArgs,
    filter: &Arc<Filter>,
    (mut source, end): Opened<'_>,
    generating: &AtomicBool,
    started: impl FnOnce() + Send,
) -> Result<(Churned, Ledger)> {
    let stays = source.control().feeds().swap_remove(0);
    let control = source.control();
    let stop = AtomicBool::new(false);
    let progress = stays.pace.as_ref().map(|pace| pace.join(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            read(&stays.rings, |ordinal| progress.iter().for_each(|own| own.reached(ordinal)))
        });
        let stop = &stop;
        let pump = move || -> Result<()> {
            source.start()?;
            started();
            while !stop.load(Ordering::Acquire) {
                if source.pump(Duration::from_millis(20))? == Pumped::Ended {
                    bail!("the source ended by itself");
                }
            }
            Ok(source.stop()?)
        };
        let pumping = scope.spawn(move || match end {
            Some(end) => end.run(pump)?,
            None => pump(),
        });
        let mut churned = Churned::default();
        let worked = come_and_go(args, filter, &*control, &stays, &mut churned);
        generating.store(true, Ordering::Release);
        // Wait for the frames that are still on the link.
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Release);
        pumping.join().expect("a source does not panic")?;
        let read = reading.join().expect("a reader does not panic")?;
        worked?;
        let ledger = control.ledger(stays.slot)?;
        (churned.offered, churned.captured) = (ledger.offered, ledger.captured);
        churned.missing = ledger.offered as i64 - ledger.captured as i64;
        churned.open_ledgers += u64::from(!ledger.closes() || read != ledger.captured);
        churned.duration_s = begin.elapsed().as_secs_f64();
        Ok((churned, ledger))
    })
}

/// Reads rings to their ends. Returns the number of frames that were ever written to them, read or not.
fn read(rings: &[Ring<Mapping>], mut progress: impl FnMut(u64)) -> Result<u64> {
    let readers = rings.iter().map(|ring| Reader::new(ring, Start::Oldest));
    let mut readers = readers.collect::<Result<Vec<_>, _>>()?;
    let mut tally = Tally::default();
    loop {
        let (mut moved, mut closed) = (false, 0);
        for reader in &mut readers {
            match reader.count_in_place(&mut tally, 4096)? {
                Poll::Frames(_) | Poll::Lapped(_) => moved = true,
                Poll::Empty => {}
                Poll::Closed => closed += 1,
            }
            progress(reader.ordinal());
        }
        if closed == readers.len() {
            // `joined_at` is the number of frames that were overwritten before the reader joined.
            let held = |reader: &Reader<Mapping>| {
                reader.joined_at() + reader.delivered() + reader.lapped()
            };
            return Ok(readers.iter().map(held).sum());
        }
        if !moved {
            thread::sleep(PAUSE);
        }
    }
}

fn come_and_go(
    args: &ChurnArgs,
    filter: &Arc<Filter>,
    control: &dyn FeedControl,
    stays: &FeedHandle,
    churned: &mut Churned,
) -> Result<()> {
    let mut warm_up = Churned::default();
    feeds(WARM_UP, filter, control, &mut warm_up)?;
    consumers(WARM_UP, control, stays, &mut warm_up)?;
    thread::sleep(LET_GO_LIMIT / 10);
    let before = held()?;
    feeds(args.feeds, filter, control, churned)?;
    consumers(args.consumers, control, stays, churned)?;
    // The thread of the source releases a waker a moment after its consumer was detached.
    let begin = Instant::now();
    let mut after = held()?;
    while after.0 != before.0 && begin.elapsed() < LET_GO_LIMIT {
        thread::sleep(Duration::from_millis(10));
        after = held()?;
    }
    churned.descriptors_more = after.0 - before.0;
    churned.kib_more = after.1 - before.1;
    Ok(())
}

/// Returns the number of open descriptors of this process, and its memory in KiB.
fn held() -> Result<(i64, i64)> {
    let descriptors = fs::read_dir("/proc/self/fd").context("counting descriptors")?.count();
    let footprint = Footprint::of(std::process::id()).context("reading /proc/self/smaps")?;
    Ok((descriptors as i64, footprint.kib() as i64))
}

fn feeds(
    count: u64,
    filter: &Arc<Filter>,
    control: &dyn FeedControl,
    churned: &mut Churned,
) -> Result<()> {
    let (mut adding, mut removing) = (Vec::new(), Vec::new());
    let mut there: VecDeque<FeedHandle> = VecDeque::new();
    for number in 0..count {
        let wanted = feed(&format!("f{number}"), Some(Arc::clone(filter)), SNAPLEN);
        let begin = Instant::now();
        let handle = control.add(wanted).with_context(|| format!("adding feed {number}"))?;
        adding.push(begin.elapsed());
        churned.without_frames += u64::from(!gets_frames(&handle)?);
        there.push_back(handle);
        if there.len() == TOGETHER {
            remove(there.pop_front(), control, &mut removing, churned)?;
        }
    }
    while !there.is_empty() {
        remove(there.pop_front(), control, &mut removing, churned)?;
    }
    (churned.add, churned.remove) = (Times::of(adding), Times::of(removing));
    Ok(())
}

fn gets_frames(handle: &FeedHandle) -> Result<bool> {
    let mut readers = Vec::new();
    for ring in &handle.rings {
        readers.push(Reader::new(ring, Start::Oldest)?);
    }
    let (begin, mut tally) = (Instant::now(), Tally::default());
    while begin.elapsed() < FIRST_FRAME {
        for reader in &mut readers {
            if !matches!(reader.count_in_place(&mut tally, 1)?, Poll::Empty) {
                return Ok(true);
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(false)
}

fn remove(
    handle: Option<FeedHandle>,
    control: &dyn FeedControl,
    removing: &mut Vec<Duration>,
    churned: &mut Churned,
) -> Result<()> {
    let Some(handle) = handle else { return Ok(()) };
    let begin = Instant::now();
    let ledger = control.remove(handle.slot).context("removing a feed")?;
    removing.push(begin.elapsed());
    let held = read(&handle.rings, |_| {})?;
    churned.open_ledgers += u64::from(!ledger.closes() || held != ledger.captured);
    Ok(())
}

fn consumers(
    count: u64,
    control: &dyn FeedControl,
    stays: &FeedHandle,
    churned: &mut Churned,
) -> Result<()> {
    let mut attaching = Vec::new();
    for _ in 0..count {
        let readers = stays.rings.iter().map(|ring| Reader::new(ring, Start::Newest));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let begin = Instant::now();
        let sleeper = Sleeper::new(stays.rings.len())?;
        let waker = control.attach(stays.slot, sleeper.waker()?, 0)?;
        attaching.push(begin.elapsed());
        let woken = sleeper.sleep(&readers, WAKE_FRAMES, FIRST_FRAME)?;
        churned.without_frames += u64::from(woken != weir_ring::wake::Woken::Frames);
        control.detach(stays.slot, waker);
    }
    churned.attach = Times::of(attaching);
    Ok(())
}

impl Times {
    fn of(mut calls: Vec<Duration>) -> Times {
        calls.sort_unstable();
        let ms = |call: Option<&Duration>| call.map_or(0.0, |call| call.as_secs_f64() * 1e3);
        Times {
            calls: calls.len(),
            median_ms: ms(calls.get(calls.len() / 2)),
            max_ms: ms(calls.last()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_middle_and_the_longest() {
        let ms = Duration::from_millis;
        let times = Times::of(vec![ms(9), ms(1), ms(2)]);
        assert_eq!((times.calls, times.median_ms, times.max_ms), (3, 2.0, 9.0));
        assert_eq!(Times::of(Vec::new()).max_ms, 0.0);
    }
}
