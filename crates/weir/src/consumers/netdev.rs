//! The consumer of `weir attach`: feeds frames into an interface that it creates.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use weir_capture::kernel::netns::Netns;
use weir_consumer::{ConsumerError, Count, Run, Sink};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET, Statistics};
use weir_frame::record::Record;
use weir_frame::segment::Segmentation;
use weir_netdev::{Counts, Netdev, NetdevError};

use super::{Input, Named, RunSink};
use crate::cli::{NetdevArgs, SuperFramesName};
use crate::interruptible_writer::Stop;

/// The most frames that the sink takes in one call.
const RUN_FRAMES: u64 = 256;
/// Interval of the checks for readers of the interface.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The longest time that readers are given for the last frames. tcpdump receives the frames of an unfilled block after
/// a second.
const READERS_TIME: Duration = Duration::from_secs(2);

/// Report on an interface that was fed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetdevReport {
    /// Name of the interface, preceded by its network namespace if that is not this one.
    pub name: String,
    /// Frames that the interface received. Each segment counts as a frame.
    pub received: u64,
    /// Captured frames that the interface refused, fully or in part. Which frame a refused segment belongs to is
    /// unknown, so each refused segment counts as one frame.
    pub refused: u64,
    /// Frames that were segmented.
    pub segmented: u64,
    /// Frames that could not be segmented, and were fed whole.
    pub unsegmented: u64,
    /// Frames that the capture had truncated, and that were fed truncated.
    pub cut: u64,
    /// Frames that programs sent into the interface. All are dropped.
    pub sent_into: u64,
}

/// Creates the interface and its consumer.
pub(super) fn open(input: &Input<'_>, args: &NetdevArgs) -> Result<Named> {
    let netns = args.into.as_ref().map(Netns::open).transpose()?;
    let create = || Netdev::create(&args.name, args.mtu);
    let mut netdev = match &netns {
        Some(netns) => netns.ask(create)?.with_context(|| netns.owner().to_string())?,
        None => create()?,
    };
    if args.wait_for_reader {
        wait_for_reader(input, &mut netdev, &name(args))?;
    }
    eprintln!("weir: {}: up", name(args));
    let segments = args.super_frames == SuperFramesName::Segment;
    let sink = Feeder {
        netdev,
        segment_bytes: segments.then_some(args.mtu as usize),
        segment: Vec::new(),
        waiting: Count::default(),
        kept: Count::default(),
        refused: 0,
        stop: input.stop.clone(),
        report: NetdevReport { name: name(args), ..NetdevReport::default() },
    };
    Ok(Named { name: "netdev", consumer: input.ordered(sink), netns })
}

/// Returns the name of the interface, preceded by its network namespace if that is not this one.
fn name(args: &NetdevArgs) -> String {
    args.into.as_ref().map_or_else(|| args.name.to_string(), |into| format!("{into}/{}", args.name))
}

fn wait_for_reader(input: &Input<'_>, netdev: &mut Netdev, name: &str) -> Result<()> {
    eprintln!("weir: {name}: waiting for a packet socket on it");
    while !netdev.has_reader().context("looking for packet sockets")? {
        if input.stop.is_asked_for() {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Feeds frames into the interface.
struct Feeder {
    netdev: Netdev,
    /// MTU of segments, if super-frames are segmented.
    segment_bytes: Option<usize>,
    segment: Vec<u8>,
    /// Frames that the interface has neither received nor refused yet.
    waiting: Count,
    kept: Count,
    /// Number of refused frames and segments at the last count.
    refused: u64,
    stop: Stop,
    report: NetdevReport,
}

impl Feeder {
    /// Gives readers time for the remaining frames, because their sockets fail once the interface is gone. Returns at
    /// once after a signal.
    fn wait_for_readers(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < READERS_TIME
            && !self.stop.is_signalled()
            && self.netdev.has_reader().unwrap_or(false)
        {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn feed(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let is_cut = (record.frame.len() as u32) < record.meta.wire_len;
        self.report.cut += u64::from(is_cut);
        let Some(mtu) = self.segment_bytes else { return self.feed_bytes(record.frame) };
        match Segmentation::of(record.frame, mtu) {
            Segmentation::Fits => self.feed_bytes(record.frame),
            Segmentation::Segments(mut segments) if !is_cut => {
                self.report.segmented += 1;
                let mut segment = std::mem::take(&mut self.segment);
                let mut fed = Ok(());
                while fed.is_ok() && segments.next_into(&mut segment) {
                    fed = self.feed_bytes(&segment);
                }
                self.segment = segment;
                fed
            }
            _ => {
                self.report.unsegmented += 1;
                self.feed_bytes(record.frame)
            }
        }
    }

    fn feed_bytes(&mut self, frame: &[u8]) -> Result<(), ConsumerError> {
        if !self.netdev.has_room(frame.len()) {
            self.let_out()?;
        }
        self.netdev.feed(frame).map_err(failed)
    }

    /// Passes buffered frames to the interface, and updates the counts.
    fn let_out(&mut self) -> Result<(), ConsumerError> {
        let result = self.netdev.flush();
        self.count();
        result.map_err(failed)
    }

    /// Counts frames that were received or refused since the last call. Pending frames stay in `waiting`.
    fn count(&mut self) {
        let Counts { received, refused, pending, .. } = self.netdev.counts();
        let refused_now = refused - std::mem::replace(&mut self.refused, refused);
        let Count { frames, wire_bytes } = self.waiting;
        // `refused` and `pending` also count segments, so both are limited by the number of waiting frames.
        let lost = refused_now.min(frames);
        let left = pending.min(frames - lost);
        let kept = frames - lost - left;
        self.report.received = received;
        self.report.refused += lost;
        // Which frames were refused is unknown, so bytes are computed from their average length.
        let bytes_of = |some: u64| wire_bytes * some / frames.max(1);
        self.kept.frames += kept;
        self.kept.wire_bytes += bytes_of(kept);
        self.waiting = Count { frames: left, wire_bytes: bytes_of(left) };
    }
}

fn failed(error: NetdevError) -> ConsumerError {
    ConsumerError::Output(error.into())
}

impl Sink for Feeder {
    fn describe(&mut self, _: u32, interface: &Interface, _: &str) -> Result<(), ConsumerError> {
        if interface.link_type != LINKTYPE_ETHERNET {
            let text = format!(
                "{}: frames of {} have link type {}, and an interface takes Ethernet frames only; write them into a \
                 file: weir capture {} --write FILE",
                self.report.name, interface.name, interface.link_type, interface.name
            );
            return Err(ConsumerError::Output(text.into()));
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        self.feed(record)?;
        self.waiting += Count::one(record.meta.wire_len);
        Ok(())
    }

    fn run_frames_max(&self) -> u64 {
        RUN_FRAMES
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        run.records().try_for_each(|record| self.take(&record))
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.let_out()
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.let_out()?;
        self.netdev.settle();
        self.count();
        self.wait_for_readers();
        Ok(())
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

impl RunSink for Feeder {
    fn netdev(&self) -> Option<NetdevReport> {
        let sent_into = self.netdev.counts().sent_into;
        Some(NetdevReport { sent_into, ..self.report.clone() })
    }
}
