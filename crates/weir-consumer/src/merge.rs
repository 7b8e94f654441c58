//! Reads several rings as one stream in timestamp order.
//!
//! The frames of each ring are in order, or nearly so. But a frame of one ring can become visible a little after a
//! newer frame of another ring. So while a ring is *empty*, frames of other rings are delivered only after they have
//! been in their own ring for `slack`: by then the empty ring has published its older frames. A frame that is older
//! than one that was already delivered is *late*: it is delivered, too, and counted. A clock that was set back makes no
//! frame late (`lateness`).
//!
//! The merge knows how long a frame has been in its ring without reading clocks or timestamps for each frame. Several
//! times in each slack it notes how many frames every ring has. A note that is as old as the slack releases these
//! frames.
//!
//! A small ring can fill up within the slack. So once a ring is half full, frames no longer wait for empty rings, and
//! frames that an empty ring publishes after that may be late. Frames out of order can be sorted later, but overwritten
//! frames are lost (decision 0004). The same applies to the rings of the past feed that is the next to be dropped
//! unread.

mod copied;
mod lateness;
mod notes;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use weir_ring::{Mapping, RingError, Words};

use crate::account::Taken;
use crate::counted::Count;
use crate::lanes::{Lane, Lanes, Rings};
use crate::limits::RUNS_PER_UPKEEP;
use crate::numbering::{Numbering, OutputInterface};
use crate::sink::Run;
use crate::source::JoinedFeed;
use copied::Copied;
use lateness::Lateness;

/// Result of [`Merge::turn`] and [`Merge::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This many frames were delivered.
    Passed(u64),
    /// There are frames, but they must wait for a ring that may still have older ones.
    Waiting,
    /// There are no frames.
    Empty,
    /// Every ring was read to its end.
    Ended,
}

/// Bytes that are copied at a time if there is only one ring, and the sink takes frames in runs: a run should be worth
/// a system call. With several rings less is copied, because frames that other rings publish during a long run would be
/// late.
const RUN_BYTES: u32 = 256 * 1024;

/// From this fill on (`Reader::fill`), frames of a ring do not wait for other rings. The rest of the ring is for frames
/// that come until the reader has caught up.
const PRESSED: f64 = 0.5;

/// Number of records of positions in each slack. More of them cost time; with fewer, frames wait longer.
const NOTES: u32 = 4;

/// Reads some rings, and merges their frames.
pub struct Merge<M: Words = Mapping> {
    lanes: Lanes<Copied, M>,
    slack: Duration,
    /// Most frames that are delivered at a time.
    run_frames_max: u64,
    /// Time of the last record of the rings' positions.
    noted: Option<Instant>,
    passed: u64,
    lateness: Lateness,
    /// Number of calls of `advance`.
    runs: u32,
    /// The frames that the last call of `advance` delivered.
    last: Option<Last>,
}

/// A run in the batch of a lane: it begins at byte `begin`, and ends where the lane's next record begins.
#[derive(Clone, Copy)]
struct Last {
    lane: usize,
    begin: usize,
    count: Count,
}

impl<M: Words> Merge<M> {
    /// Creates a merge without rings. `run_frames_max`: most frames that are delivered at a time, 1 or more.
    #[must_use]
    pub fn new(slack: Duration, run_frames_max: u64) -> Merge<M> {
        Merge {
            lanes: Lanes::new(),
            slack,
            run_frames_max,
            noted: None,
            passed: 0,
            lateness: Lateness::default(),
            runs: 0,
            last: None,
        }
    }

    /// Adds the rings of a feed, which are read beginning with their oldest frames. Those that are older than a frame
    /// that was already delivered are late.
    ///
    /// # Errors
    /// [`RingError`] if a ring is inconsistent.
    pub fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), RingError> {
        self.lanes.join(feed)
    }

    /// Returns the rings.
    #[must_use]
    pub fn rings(&self) -> &dyn Rings<M> {
        &self.lanes
    }

    /// Returns the rings, so that feeds can leave.
    pub fn rings_mut(&mut self) -> &mut dyn Rings<M> {
        self.last = None;
        &mut self.lanes
    }

    /// Returns, for each ring of a feed, the ordinal of the next frame that was not delivered.
    #[must_use]
    pub fn positions(&self, key: u64) -> Vec<u64> {
        self.lanes.positions(key)
    }

    /// Returns the numbers of the interfaces so far.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        self.lanes.numbering()
    }

    /// Returns the number of frames delivered so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns the number of frames that came after a newer frame of the same run of the clock had been delivered.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.lateness.late()
    }

    /// Returns the number of frames that the writers overwrote before they were read.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.lanes.taken().lapped
    }

    /// Returns the counts of delivered and lapped frames, at the index of their feed's first interface.
    #[must_use]
    pub fn by_interface(&self) -> Vec<Taken> {
        self.lanes.by_interface()
    }

    /// Returns the number of frames that were copied from the rings and not delivered: 0 after `Turn::Ended`.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.cursor.held()).sum()
    }

    /// Delivers at most `frames_max` frames that are due, oldest first. `pass` gets consecutive frames, and all
    /// interfaces of the output so far; the frames name only these.
    ///
    /// # Errors
    /// The error of `pass`, after which the frames that it refused are skipped; or [`RingError`].
    pub fn turn<E: From<RingError>>(
        &mut self,
        frames_max: u64,
        mut pass: impl FnMut(&Run<'_>, &[OutputInterface]) -> Result<(), E>,
    ) -> Result<Turn, E> {
        let before = self.passed;
        self.last = None;
        self.release(Instant::now());
        while self.passed - before < frames_max {
            let Some(choice) = self.choose()? else { break };
            let (lanes, numbering) = self.lanes.parts();
            let Lane { cursor, work, .. } = &mut lanes[choice.lane];
            // Deliver all frames of this lane up to the next frame of another lane, so that one choice serves many
            // frames.
            loop {
                let left = frames_max - (self.passed - before);
                let most = choice.until_ordinal.saturating_sub(cursor.ordinal()).min(left);
                let most = most.min(self.run_frames_max);
                let run = work.take(choice.until_ns, most, &mut self.lateness);
                if run.count.frames == 0 {
                    break;
                }
                cursor.take(run.count.frames);
                self.passed += run.count.frames;
                pass(&run, numbering.interfaces())?;
            }
        }
        self.lanes.retire();
        Ok(match self.passed - before {
            0 if self.is_waiting() => Turn::Waiting,
            0 if self.lanes.is_empty() => Turn::Ended,
            0 => Turn::Empty,
            passed => Turn::Passed(passed),
        })
    }

    fn is_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| lane.work.is_waiting())
    }

    /// Delivers the next frames that are due, at most `frames_max`, all of one ring: for callers that ask for frames.
    /// [`run`](Merge::run) returns them.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn advance(&mut self, frames_max: u64) -> Result<Turn, RingError> {
        self.last = None;
        // With several busy rings a run may be one frame, so the clock is not read for each run.
        self.runs = self.runs.wrapping_add(1);
        let mut choice = None;
        if !self.runs.is_multiple_of(RUNS_PER_UPKEEP) {
            choice = self.choose()?;
        }
        if choice.is_none() {
            self.release(Instant::now());
            choice = self.choose()?;
        }
        let Some(choice) = choice else {
            self.lanes.retire();
            return Ok(match self.is_waiting() {
                true => Turn::Waiting,
                false if self.lanes.is_empty() => Turn::Ended,
                false => Turn::Empty,
            });
        };
        let (lanes, _) = self.lanes.parts();
        let Lane { cursor, work, .. } = &mut lanes[choice.lane];
        let most = choice.until_ordinal.saturating_sub(cursor.ordinal()).min(frames_max);
        let begin = work.used();
        let count = work.take(choice.until_ns, most, &mut self.lateness).count;
        cursor.take(count.frames);
        self.passed += count.frames;
        self.last = Some(Last { lane: choice.lane, begin, count });
        Ok(Turn::Passed(count.frames))
    }

    /// Whether [`advance`](Merge::advance) would deliver a frame now.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn is_due(&mut self) -> Result<bool, RingError> {
        self.last = None;
        Ok(self.choose()?.is_some())
    }

    /// Returns the frames that [`advance`](Merge::advance) delivered, perhaps none. Their records use the interface
    /// numbers of [`numbering`](Merge::numbering).
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        let Some(Last { lane, begin, count }) = self.last else {
            return Run { block_bytes: &[], count: Count::default() };
        };
        let lane = self.lanes.iter().nth(lane);
        let copied = lane.map(|Lane { work, .. }| work.taken_since(begin));
        Run { block_bytes: copied.unwrap_or_default(), count }
    }

    /// Returns the time until frames that wait for empty rings are released, if no frames come in the empty rings.
    #[must_use]
    pub fn due(&self) -> Duration {
        let notes =
            self.lanes.iter().filter_map(|lane| lane.work.notes.when_beyond(lane.cursor.ordinal()));
        match notes.min() {
            Some(taken) => self.slack.saturating_sub(taken.elapsed()),
            // The waiting frames came after the last notes. The next notes will include them.
            None => self.slack / NOTES,
        }
    }

    /// Returns how many bytes of a ring are copied at a time; 0: the default.
    fn chunk_bytes(&self) -> u32 {
        let reads_one = self.lanes.iter().len() == 1;
        if reads_one && self.run_frames_max > 1 { RUN_BYTES } else { 0 }
    }

    /// Notes how many frames each ring has, if it is time, and releases the frames of old notes.
    fn release(&mut self, now: Instant) {
        let is_due = |noted| now.saturating_duration_since(noted) >= self.slack / NOTES;
        let is_due = self.noted.is_none_or(is_due);
        if is_due {
            self.noted = Some(now);
        }
        for lane in self.lanes.iter_mut() {
            if is_due {
                lane.work.notes.push(now, lane.cursor.reader().ring().frames_written());
            }
            lane.work.notes.release(now, self.slack);
        }
    }

    /// Chooses the lane with the oldest frame, and the timestamp up to which it may be read before the others must be
    /// checked again. Returns `None` if there is no frame, or if it must wait.
    fn choose(&mut self) -> Result<Option<Choice>, RingError> {
        let mut oldest: Option<(usize, u64)> = None;
        let mut until_ns = u64::MAX;
        let mut somebody_may_come = false;
        let chunk_bytes = self.chunk_bytes();
        let (lanes, numbering) = self.lanes.parts();
        for (index, lane) in lanes.iter_mut().enumerate() {
            if !lane.fill(numbering, chunk_bytes)? {
                // A ring whose feed has left gets no more frames.
                somebody_may_come |= !lane.cursor.has_ended() && !lane.cursor.has_left();
                continue;
            }
            let ts_ns = lane.work.next_ns().unwrap_or(u64::MAX);
            match oldest {
                Some((_, best)) if best <= ts_ns => until_ns = until_ns.min(ts_ns),
                _ => {
                    until_ns = until_ns.min(oldest.map_or(u64::MAX, |(_, best)| best));
                    oldest = Some((index, ts_ns));
                }
            }
        }
        let Some((index, _)) = oldest else { return Ok(None) };
        let Lane { cursor, work, .. } = &lanes[index];
        let released = work.notes.released();
        let until_ordinal = match somebody_may_come {
            true if cursor.ordinal() < released => released,
            true if !is_pressed(lanes) => return Ok(None),
            // Either no ring may get older frames, or a ring is nearly full: deliver the whole batch of this lane, then
            // check again.
            _ => u64::MAX,
        };
        Ok(Some(Choice { lane: index, until_ns, until_ordinal: until_ordinal.min(cursor.until()) }))
    }
}

/// Whether some ring may soon be lapped or dropped. All rings are checked, because the oldest frame, in whichever ring,
/// delays all others. Called only if a frame would have to wait, because the check takes a cache line from each writer.
fn is_pressed<M: Words>(lanes: &[Lane<Copied, M>]) -> bool {
    lanes.iter().any(|lane| {
        lane.is_next_to_go && !lane.cursor.is_read() || lane.cursor.reader().fill() >= PRESSED
    })
}

/// The frames that may be delivered next.
struct Choice {
    lane: usize,
    until_ns: u64,
    until_ordinal: u64,
}
