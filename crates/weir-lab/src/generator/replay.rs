//! Replays a trace, `weir gen IFACE --file TRACE`: sends the frames of a pcap or pcapng file out of an interface,
//! unchanged and in the order of the file.
//!
//! The replay uses `AF_PACKET`, because frames that differ in length and content must come from user space. TCP
//! super-frames, which no link carries, are segmented. Other frames that cannot be sent as recorded are skipped, and
//! counted by reason.

mod even;
mod trace;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use weir_frame::schedule::{Schedule, Speed};
use weir_frame::segment::Segments;

use super::counter::Counter;
use super::packet::{BATCH, Socket};
use super::{FCS_BYTES, Rate, Totals, affinity, check_rate, checked_link, option, pace};
use crate::{Error, Result, ethtool};
use even::Even;
pub use trace::Skipped;
use trace::{Fate, Trace, segments};

/// Options of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOptions {
    /// The pcap or pcapng file.
    pub path: PathBuf,
    /// The speed, relative to the stamps in the file.
    pub speed: Speed,
    /// A rate that replaces the stamps. It cannot be combined with a speed.
    pub rate: Rate,
    /// Number of passes over the file, 1 or more. A pass begins when the previous one has ended.
    pub loops: u32,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Stop after this number of attempted frames.
    pub frames: Option<u64>,
    /// CPU for the sending thread.
    pub cpu: Option<usize>,
}

impl ReplayOptions {
    /// Sends the file once, as fast as possible.
    pub fn new(path: impl Into<PathBuf>) -> ReplayOptions {
        let path = path.into();
        ReplayOptions {
            path,
            speed: Speed::Top,
            rate: Rate::Max,
            loops: 1,
            duration: None,
            frames: None,
            cpu: None,
        }
    }
}

/// Result of a replay.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplayReport {
    /// Counts and duration.
    pub totals: Totals,
    /// Frames read from the file in all passes: `read + segments = attempted + skipped +
    /// segmented`.
    pub read: u64,
    /// TCP super-frames that were segmented.
    pub segmented: u64,
    /// Segments that were attempted in place of these super-frames.
    pub segments: u64,
    /// Frames that were not attempted, by reason.
    pub skipped: Skipped,
    /// Number of complete passes.
    pub loops: u32,
    /// The place where the file is damaged, if it is. Frames before this place were sent, those after it were not.
    pub damage: Option<String>,
}

impl Deref for ReplayReport {
    type Target = Totals;

    fn deref(&self) -> &Totals {
        &self.totals
    }
}

/// Sends the file's frames out of `iface`, in the calling thread's network namespace, until all
/// passes are done, a limit is reached, or `stop` is set.
///
/// Damage within the file is not an error: [`ReplayReport::damage`] gives the place.
///
/// # Errors
/// The interface is missing or down; capabilities are missing; the file is no capture file; or the speed, the rate or
/// the number of passes is invalid. Each text gives a remedy.
pub fn run(iface: &str, options: &ReplayOptions, stop: &AtomicBool) -> Result<ReplayReport> {
    check(options)?;
    let ifindex = checked_link(iface)?;
    let frame_bytes_max = ethtool::mtu(iface)? as usize + 14;
    let _pinned = options.cpu.map(affinity::Pinned::to).transpose()?;
    let counter = Counter::of_link(iface)?;
    let mut sender = Sender {
        iface,
        options,
        stop,
        counter: &counter,
        socket: Socket::open(iface, ifindex)?,
        frame_bytes_max,
        clock: match (options.speed, options.rate) {
            (Speed::Times(times), _) => Clock::Stamps(Schedule::new(times)),
            (Speed::Top, Rate::Max) => Clock::None,
            (Speed::Top, rate) => Clock::Rate(Even::new(rate)),
        },
        batch: vec![Vec::new(); BATCH],
        filled: 0,
        attempted_bytes: 0,
        start: Instant::now(),
        check_at: Duration::from_secs(1),
        report: ReplayReport {
            totals: Totals { counted_by: counter.name(), ..Totals::default() },
            ..ReplayReport::default()
        },
    };
    let mut trace = Trace::open(&options.path)?;
    sender.start = Instant::now();
    while sender.pass(&mut trace)? {
        trace = Trace::open(&options.path)?;
    }
    sender.finish()
}

fn check(options: &ReplayOptions) -> Result<()> {
    if options.loops == 0 {
        return Err(option("loop", "a file gone through 0 times gives no frame; use 1 or more"));
    }
    check_rate(options.rate)?;
    match options.speed {
        Speed::Times(_) if options.rate != Rate::Max => {
            Err(option("rate", "takes the place of the stamps; give a rate or a speed"))
        }
        Speed::Times(times) if !(times > 0.0 && times.is_finite()) => {
            Err(option("speed", "is a number above 0: 1 is real time, 2 twice as fast"))
        }
        _ => Ok(()),
    }
}

/// Decides when a frame is due.
enum Clock {
    /// Every frame is due at once.
    None,
    Stamps(Schedule),
    Rate(Even),
}

struct Sender<'a> {
    iface: &'a str,
    options: &'a ReplayOptions,
    stop: &'a AtomicBool,
    counter: &'a Counter<'a>,
    socket: Socket,
    frame_bytes_max: usize,
    clock: Clock,
    /// Copies of frames for one system call. The first `filled` are in use.
    batch: Vec<Vec<u8>>,
    filled: usize,
    attempted_bytes: u64,
    start: Instant,
    check_at: Duration,
    report: ReplayReport,
}

impl Sender<'_> {
    /// Makes one pass over the file. Returns true if another pass follows.
    fn pass(&mut self, trace: &mut Trace) -> Result<bool> {
        let (began, tried_before) = (self.start.elapsed(), self.tried());
        loop {
            if self.is_over() {
                self.flush()?;
                return Ok(false);
            }
            let frame = match trace.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(damage) => {
                    self.report.damage = Some(damage);
                    self.flush()?;
                    return Ok(false);
                }
            };
            self.report.read += 1;
            let fate = Fate::of(&frame, self.frame_bytes_max);
            if fate == Fate::TooLong
                && let Some(segments) = segments(frame.data, self.frame_bytes_max)
            {
                if !self.push_segments(segments, frame.ts_ns, began)? {
                    return Ok(false);
                }
                continue;
            }
            if fate != Fate::Sent {
                self.report.skipped.add(fate);
                continue;
            }
            let bytes = frame.data.len() + FCS_BYTES as usize;
            if !self.await_turn(frame.ts_ns, bytes, began)? {
                // The frame was read, but was not due before the end, so it counts as not read.
                self.report.read -= 1;
                return Ok(false);
            }
            self.push(frame.data)?;
        }
        self.flush()?;
        self.report.loops += 1;
        if let Clock::Stamps(schedule) = &mut self.clock {
            schedule.restart();
        }
        // A file without sendable frames is not read again.
        Ok(self.report.loops < self.options.loops && self.tried() > tried_before)
    }

    /// Waits until a frame with this stamp and size is due. Stamps count from `began`, the start of this pass. Returns
    /// false if the run ends earlier; then all frames that were due have been sent.
    fn await_turn(&mut self, ts_ns: u64, wire_bytes: usize, began: Duration) -> Result<bool> {
        let (due, wake) = match &mut self.clock {
            Clock::None => return Ok(true),
            Clock::Stamps(schedule) => {
                let due = began.saturating_add(schedule.due(ts_ns));
                (due, due)
            }
            Clock::Rate(even) => {
                let due = even.next(wire_bytes, self.start.elapsed());
                // Frames that are close together are sent in one system call, a little late, instead of one call for
                // each.
                (due, due.saturating_add(even.gather(wire_bytes)))
            }
        };
        let end = self.options.duration.unwrap_or(Duration::MAX);
        if due <= self.start.elapsed() && due < end {
            return Ok(true);
        }
        while let Some(left) =
            wake.min(end).checked_sub(self.start.elapsed()).filter(|left| !left.is_zero())
        {
            self.flush()?;
            if self.is_stopped() {
                return Ok(false);
            }
            pace::wait(left.as_nanos().min(u128::from(u64::MAX)) as u64);
        }
        if due >= end {
            self.flush()?;
        }
        Ok(due < end)
    }

    /// Sends the segments of a frame with this stamp, each when it is due. Returns false if the run ends before the
    /// last segment.
    fn push_segments(
        &mut self,
        mut segments: Segments<'_>,
        ts_ns: u64,
        began: Duration,
    ) -> Result<bool> {
        let mut segment = Vec::new();
        let mut count = 0;
        let mut is_over = false;
        while !is_over && segments.next_into(&mut segment) {
            let bytes = segment.len() + FCS_BYTES as usize;
            is_over = self.is_over() || !self.await_turn(ts_ns, bytes, began)?;
            if !is_over {
                self.push(&segment)?;
                count += 1;
            }
        }
        if is_over {
            self.flush()?;
        }
        self.report.segments += count;
        // If no segment was sent, the frame counts as not read.
        match count {
            0 => self.report.read -= 1,
            _ => self.report.segmented += 1,
        }
        Ok(!is_over)
    }

    fn push(&mut self, data: &[u8]) -> Result<()> {
        let place = &mut self.batch[self.filled];
        place.clear();
        place.extend_from_slice(data);
        self.filled += 1;
        if self.filled == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            let batch = &self.batch[..self.filled];
            self.socket.send_all(batch).map_err(|source| Error::Send {
                iface: self.iface.to_owned(),
                what: "send on a packet socket",
                source,
            })?;
            self.attempted_bytes += batch.iter().map(|frame| frame.len() as u64).sum::<u64>();
            self.report.totals.attempted += self.filled as u64;
            self.filled = 0;
        }
        let elapsed = self.start.elapsed();
        if elapsed >= self.check_at {
            self.counter.now()?;
            self.check_at = elapsed + Duration::from_secs(1);
        }
        Ok(())
    }

    fn tried(&self) -> u64 {
        self.report.attempted + self.filled as u64
    }

    fn is_over(&self) -> bool {
        // With a rate, the run ends at the first frame that is due after the end. All frames before
        // it are sent, however late.
        let timed = !matches!(self.clock, Clock::Rate(_));
        self.is_stopped()
            || self.options.frames.is_some_and(|most| self.tried() >= most)
            || timed && self.options.duration.is_some_and(|end| self.start.elapsed() >= end)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn finish(mut self) -> Result<ReplayReport> {
        let totals = &mut self.report.totals;
        totals.duration = self.start.elapsed();
        if let Clock::Rate(even) = &self.clock {
            totals.given_up = even.given_up();
        }
        totals.sent = self.counter.settled(totals.attempted)?;
        totals.refused = totals.attempted - totals.sent;
        let bytes = if totals.refused == 0 {
            self.attempted_bytes
        } else {
            self.counter.settled_bytes()?.min(self.attempted_bytes)
        };
        totals.bytes = bytes + totals.sent * u64::from(FCS_BYTES);
        Ok(self.report)
    }
}
