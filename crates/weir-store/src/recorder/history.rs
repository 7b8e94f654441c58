//! The rings as history: which frames stay in them, which are skipped, and which are saved.
//!
//! Without a trigger, the recorder's cursors stay behind the writers by the time or bytes of the look-back, and skip
//! older blocks. After a trigger, the recorder reads and saves the frames from the cursors to the end of the wanted
//! part.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_consumer::{ConsumerError, Cursor, Lanes, Skip};
use weir_disk::Disk;
use weir_ring::{Batch, BlockRest, Poll};

use super::look_back::{Began, Cause, LookBack, LookBackReport, Span};
use super::stream::Stream;
use super::watcher::{Watcher, Windows};

/// The largest share of a ring that is kept as history. The rest is for frames that come while the history is written.
const KEPT_MAX: f64 = 0.5;
/// The largest share while the ring contains frames that were not examined for triggers.
const UNWATCHED_MAX: f64 = 0.75;

/// The history in the rings, and the part of it that is being saved.
pub struct History {
    asks: LookBack,
    /// The part that is being saved, if any.
    saving: Option<Saving>,
    /// Time of a trigger that has just begun a save. Frames that are too old for it have still to be skipped.
    begun_ns: Option<u64>,
    /// The newest time of a block that was skipped because the ring was full, in nanoseconds since the Unix epoch.
    full_ns: u64,
    /// Whether the current time is that of the newest frame, and not that of the machine's clock.
    goes_by_frames: bool,
    windows: Windows,
    pub report: LookBackReport,
}

struct Saving {
    /// Save frames up to this time, in nanoseconds since the Unix epoch.
    end_ns: u64,
    /// Save until this many more bytes were saved. `u64::MAX`: no limit.
    bytes_left: u64,
    /// Number of frames that each stream's ring had received before the trigger. Only later frames count for
    /// `bytes_left`.
    had: BTreeMap<usize, u64>,
}

impl History {
    pub fn new(asks: LookBack) -> History {
        History {
            asks,
            saving: None,
            begun_ns: None,
            full_ns: 0,
            goes_by_frames: false,
            windows: Windows::default(),
            report: LookBackReport::default(),
        }
    }

    /// Takes the time of the newest frame for the current time from now on, because some frames are not stamped by this
    /// machine's clock.
    pub fn go_by_frames(&mut self) {
        self.goes_by_frames = true;
    }

    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Looks for triggers. Returns whether there may be more frames to examine.
    pub fn look<D: Disk>(
        &mut self,
        lanes: &Lanes<Option<usize>>,
        streams: &mut BTreeMap<usize, Stream<D>>,
    ) -> Result<bool, ConsumerError> {
        let now_ns = self.now_ns(lanes);
        // If another trigger was requested meanwhile, the next call finds it.
        let mut triggers: Vec<(Cause, u64)> =
            self.asks.asked.take().map(|cause| (cause, now_ns)).into_iter().collect();
        let mut has_more = false;
        for stream in streams.values_mut() {
            let Some(watcher) = &mut stream.watcher else { continue };
            let report = &mut self.report;
            let (more, unseen) =
                watcher.look(&self.asks.watch, &mut self.windows, &mut |cause, at_ns| {
                    report.count(cause);
                    // A later trigger with the same cause extends the save.
                    if let Some((_, last_ns)) = triggers.iter_mut().find(|(one, _)| *one == cause) {
                        *last_ns = at_ns.max(*last_ns);
                    } else {
                        triggers.push((cause, at_ns));
                    }
                })?;
            self.report.unwatched += unseen;
            has_more |= more;
        }
        for (cause, at_ns) in triggers {
            if matches!(cause, Cause::Signal | Cause::Command) {
                self.report.count(cause);
            }
            self.pull(cause, at_ns, lanes);
        }
        Ok(has_more)
    }

    fn pull(&mut self, cause: Cause, at_ns: u64, lanes: &Lanes<Option<usize>>) {
        let (end_ns, bytes_left) = match self.asks.after {
            Span::Time(time) => (at_ns.saturating_add(nanoseconds(time)), u64::MAX),
            Span::Bytes(bytes) => (u64::MAX, bytes),
        };
        let written = |lane: &weir_consumer::lanes::Lane<Option<usize>>| {
            Some((lane.work?, lane.cursor.reader().ring().frames_written()))
        };
        let had = lanes.iter().filter_map(written).collect();
        if let Some(saving) = &mut self.saving {
            let end_ns = end_ns.max(saving.end_ns);
            *saving = Saving { end_ns, bytes_left, had };
            return;
        }
        let oldest = lanes.iter().filter_map(|lane| lane.cursor.reader().block_ns()).min();
        let before = Duration::from_nanos(at_ns.saturating_sub(oldest.unwrap_or(at_ns)));
        let (before, is_short) = match self.asks.before {
            Span::Time(Duration::MAX) | Span::Bytes(_) => (before, false),
            Span::Time(time) => {
                (before.min(time), self.full_ns > at_ns.saturating_sub(nanoseconds(time)))
            }
        };
        self.begun_ns = Some(at_ns);
        self.saving = Some(Saving { end_ns, bytes_left, had });
        self.report.saves += 1;
        (self.asks.began)(&Began { cause, at_ns, before, is_short });
    }

    /// Returns whether the next block of this ring is to be saved.
    pub fn wants(&self, cursor: &Cursor) -> bool {
        let Some(saving) = &self.saving else { return false };
        saving.bytes_left > 0 && cursor.reader().block_ns().is_none_or(|ns| ns <= saving.end_ns)
    }

    /// Counts bytes that were read from a ring.
    pub fn count(&mut self, stream: usize, cursor: &Cursor, bytes: u64) {
        let Some(saving) = &mut self.saving else { return };
        let is_after =
            cursor.reader().ordinal() > saving.had.get(&stream).copied().unwrap_or_default();
        if is_after && saving.bytes_left != u64::MAX {
            saving.bytes_left = saving.bytes_left.saturating_sub(bytes);
        }
    }

    /// Returns whether the end of the wanted part has passed, so that no later frames belong to it.
    pub fn is_past(&self, lanes: &Lanes<Option<usize>>) -> bool {
        let now_ns = self.now_ns(lanes);
        self.saving.as_ref().is_some_and(|saving| saving.bytes_left == 0 || now_ns > saving.end_ns)
    }

    /// Ends the save, after the whole wanted part was read.
    pub fn end_saving(&mut self) {
        (self.saving, self.full_ns) = (None, 0);
    }

    /// Skips, after a trigger, the frames that are too old for it: the recorder may not have skipped them in time.
    pub fn begin_saving<D: Disk>(
        &mut self,
        lanes: &mut Lanes<Option<usize>>,
        streams: &mut BTreeMap<usize, Stream<D>>,
    ) -> Result<(), ConsumerError> {
        let (Some(at_ns), Span::Time(time)) = (self.begun_ns.take(), self.asks.before) else {
            return Ok(());
        };
        let before_ns = at_ns.saturating_sub(nanoseconds(time));
        for lane in lanes.iter_mut() {
            let Some(stream) = lane.work.and_then(|id| streams.get_mut(&id)) else { continue };
            while lane.cursor.reader().block_ns().is_some_and(|ns| ns < before_ns) {
                match lane.cursor.skip_block(|rest| rest.last_ns < before_ns)? {
                    Skip::Passed(frames) => stream.let_pass(frames, false),
                    Skip::Other(Poll::Lapped(frames)) => stream.let_pass(frames, true),
                    Skip::Stays | Skip::Part | Skip::Other(_) => break,
                }
            }
        }
        Ok(())
    }

    /// Skips frames that are too old. Returns whether frames were skipped.
    pub fn let_go<D: Disk>(
        &mut self,
        lanes: &mut Lanes<Option<usize>>,
        streams: &mut BTreeMap<usize, Stream<D>>,
    ) -> Result<bool, ConsumerError> {
        let before_ns = match self.asks.before {
            Span::Time(time) => self.now_ns(lanes).saturating_sub(nanoseconds(time)),
            Span::Bytes(_) => 0,
        };
        let full_ns = &mut self.full_ns;
        let mut moved = false;
        for lane in lanes.round() {
            let Some(stream) = lane.work.and_then(|id| streams.get_mut(&id)) else { continue };
            let seen = stream.watcher.as_ref().map_or(u64::MAX, Watcher::ordinal);
            while let Some(progress) = pass(&mut lane.cursor, stream, |rest, fill, end| {
                let is_seen = seen >= end || fill > UNWATCHED_MAX;
                let is_old = rest.last_ns < before_ns;
                let goes = is_seen && (fill > KEPT_MAX || is_old);
                if goes && !is_old {
                    *full_ns = rest.last_ns.max(*full_ns);
                }
                goes
            })? {
                moved |= progress;
            }
        }
        if let Span::Bytes(bytes) = self.asks.before {
            moved |= let_bytes_go(bytes, lanes, streams)?;
        }
        Ok(moved)
    }

    fn now_ns(&self, lanes: &Lanes<Option<usize>>) -> u64 {
        if self.goes_by_frames {
            let newest = lanes.iter().filter_map(|lane| lane.cursor.reader().newest_ns());
            return newest.max().unwrap_or_default();
        }
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
    }
}

/// Skips the oldest blocks until all rings together keep at most `bytes` bytes. Returns whether frames were skipped.
fn let_bytes_go<D: Disk>(
    bytes: u64,
    lanes: &mut Lanes<Option<usize>>,
    streams: &mut BTreeMap<usize, Stream<D>>,
) -> Result<bool, ConsumerError> {
    let mut moved = false;
    loop {
        let kept = |cursor: &Cursor| {
            let geometry = cursor.reader().ring().geometry();
            cursor.reader().fill() * geometry.data_blocks as f64 * f64::from(geometry.block_bytes)
        };
        let sum: f64 = lanes.iter().map(|lane| kept(&lane.cursor)).sum();
        if sum <= bytes as f64 {
            return Ok(moved);
        }
        let has_blocks = |cursor: &Cursor| kept(cursor) > 0.0;
        let lane = lanes.iter_mut().filter(|lane| has_blocks(&lane.cursor));
        let Some(lane) = lane.min_by_key(|lane| lane.cursor.reader().block_ns()) else {
            return Ok(moved);
        };
        let Some(stream) = lane.work.and_then(|id| streams.get_mut(&id)) else { return Ok(moved) };
        let seen = stream.watcher.as_ref().map_or(u64::MAX, Watcher::ordinal);
        match pass(&mut lane.cursor, stream, |_, fill, end| seen >= end || fill > UNWATCHED_MAX)? {
            Some(true) => moved = true,
            _ => return Ok(moved),
        }
    }
}

/// Skips the next block of a ring if `may_go` allows it. `may_go` gets the block's summary, the unread share of the
/// ring, and the ordinal of the first frame after the block. A stream that has ended is skipped without asking
/// `may_go`. `None`: nothing more can be skipped now.
fn pass<D: Disk>(
    cursor: &mut Cursor,
    stream: &mut Stream<D>,
    may_go: impl FnOnce(&BlockRest, f64, u64) -> bool,
) -> Result<Option<bool>, ConsumerError> {
    if stream.is_read() {
        return Ok(None);
    }
    let (fill, ordinal) = (cursor.reader().fill(), cursor.reader().ordinal());
    let has_ended = cursor.has_left() || cursor.reader().ring().is_closed();
    // A stream that has ended may be skipped once all its frames were examined.
    let written = cursor.reader().ring().frames_written().min(cursor.until());
    let is_seen = stream.watcher.as_ref().is_none_or(|watcher| watcher.ordinal() >= written);
    let skip = cursor.skip_block(|rest| {
        has_ended && is_seen || may_go(rest, fill, ordinal.saturating_add(rest.frames))
    })?;
    Ok(match skip {
        Skip::Passed(frames) => {
            stream.let_pass(frames, false);
            Some(true)
        }
        Skip::Part if has_ended && is_seen => {
            let mut batch = Batch::new();
            match cursor.poll_ahead(&mut batch)? {
                Poll::Frames(frames) => stream.let_pass(frames.into(), false),
                Poll::Lapped(frames) => stream.let_pass(frames, true),
                Poll::Closed => stream.set_read(),
                Poll::Empty => return Ok(None),
            }
            Some(true)
        }
        Skip::Other(Poll::Lapped(frames)) => {
            stream.let_pass(frames, true);
            Some(true)
        }
        Skip::Other(Poll::Closed) => {
            stream.set_read();
            Some(true)
        }
        Skip::Stays | Skip::Part | Skip::Other(_) => None,
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
