//! The consumers in the box: the null monitor, and what takes merged frames.

use std::io;
use std::time::Duration;

use anyhow::Result;
use weir_frame::pcapng::Statistics;
use weir_frame::record::Record;
use weir_ring::{Mapping, Poll, Reader, Ring, RingError, Start, Tally};
use weir_store::{Count, FileError, FileWriter, Merge, Turn};

/// Frames counted before the clock and the signals are looked at again.
pub const TURN_FRAMES: u64 = 1 << 16;
/// The longest that a frame waits for a sleeping consumer, of the 20 ms that we promise. Each waking
/// costs an idle machine some 30 us.
const SLEEP_LIMIT: Duration = Duration::from_millis(10);
/// The same for one that merges: the default merge slack of 8 ms, with its notes and waits of 2 ms each,
/// comes on top.
const MERGING_SLEEP_LIMIT: Duration = Duration::from_millis(5);

/// What reached the consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Frames that the writers overtook.
    pub lapped: u64,
    /// Frames left in the rings because `--frames` was reached.
    pub after_limit: u64,
    /// Frames that came too late to stand in order.
    pub late: u64,
}

/// What was taken of one interface's frames: a feed's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Frames.
    pub frames: u64,
    /// Frames that the writers overtook.
    pub lapped: u64,
}

/// Of each interface, by id.
fn by_interface(readers: &[Reader<Mapping>], frames: impl Fn(usize) -> u64) -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for (number, reader) in readers.iter().enumerate() {
        // A ring that says nothing of itself is one that could not be read either.
        let Ok(identity) = reader.ring().identity() else { continue };
        let id = identity.interface_id as usize;
        all.resize(all.len().max(id + 1), Taken::default());
        all[id].lapped += reader.lapped();
        all[id].frames += frames(number);
    }
    all
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Frames came.
    Busy,
    /// Nothing now.
    Idle,
    /// Frames are there, but must wait for other rings.
    Waiting,
    /// Nothing more.
    Ended,
}

/// Whatever takes the frames of a run.
pub trait Consumer {
    /// Takes what is there, at most `frames_max` frames.
    fn step(&mut self, frames_max: u64) -> Result<Step>;

    /// What was taken so far.
    fn delivered(&self) -> Delivered;

    /// What was taken so far, by interface id; empty if it is not counted.
    fn by_interface(&self) -> Vec<Taken> {
        Vec::new()
    }

    /// Lets what was taken be seen outside, when the rings are empty.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// The cursors, ring by ring.
    fn readers(&self) -> Vec<Reader<Mapping>>;

    /// How far ring number `ring` was read: the ordinal of its next frame.
    fn ordinal(&self, ring: usize) -> u64;

    /// Whether it waits between looks that found nothing: if not, it waits by itself and sleeps never.
    fn rests(&self) -> bool {
        true
    }

    /// The longest that this consumer may sleep.
    fn sleep_limit(&self) -> Duration {
        SLEEP_LIMIT
    }

    /// Frames that were written and neither taken nor lapped: in the rings, or copied and held.
    fn unread(&self) -> u64;

    /// How much of its fullest ring lies before this consumer: 0 to 1, where it is lapped.
    fn fill(&self) -> f64;
}

pub fn behind(reader: &Reader<Mapping>) -> u64 {
    reader.ring().frames_written().saturating_sub(reader.ordinal())
}

pub fn fullest<'a>(readers: impl Iterator<Item = &'a Reader<Mapping>>) -> f64 {
    readers.map(Reader::fill).fold(0.0, f64::max)
}

/// Counts frames where they lie.
pub struct Null {
    readers: Vec<Reader<Mapping>>,
    /// The ring that the next turn begins with: each in its turn, or a busy one would starve the rest.
    first: usize,
    /// By ring.
    tallies: Vec<Tally>,
}

impl Null {
    pub fn new(rings: &[Ring<Mapping>]) -> Result<Null> {
        let readers = rings.iter().map(|ring| Reader::new(ring, Start::Oldest));
        let readers = readers.collect::<Result<_, _>>()?;
        Ok(Null { readers, first: 0, tallies: vec![Tally::default(); rings.len()] })
    }

    fn frames(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.frames).sum()
    }
}

impl Consumer for Null {
    fn step(&mut self, frames_max: u64) -> Result<Step> {
        let before = self.frames();
        let (mut moved, mut closed) = (false, 0);
        let count = self.readers.len();
        self.first = (self.first + 1) % count;
        for index in (self.first..count).chain(0..self.first) {
            loop {
                let left = frames_max.min(TURN_FRAMES) - (self.frames() - before);
                if left == 0 {
                    return Ok(Step::Busy);
                }
                match self.readers[index].count_in_place(&mut self.tallies[index], left as u32)? {
                    Poll::Frames(_) | Poll::Lapped(_) => moved = true,
                    Poll::Empty => break,
                    Poll::Closed => {
                        closed += 1;
                        break;
                    }
                }
            }
        }
        Ok(match (moved, closed == self.readers.len()) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        })
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.frames(),
            wire_bytes: self.tallies.iter().map(|tally| tally.wire_bytes).sum(),
            lapped: self.readers.iter().map(Reader::lapped).sum(),
            ..Delivered::default()
        }
    }

    fn by_interface(&self) -> Vec<Taken> {
        by_interface(&self.readers, |number| self.tallies[number].frames)
    }

    fn readers(&self) -> Vec<Reader<Mapping>> {
        self.readers.clone()
    }

    fn ordinal(&self, ring: usize) -> u64 {
        self.readers[ring].ordinal()
    }

    fn unread(&self) -> u64 {
        self.readers.iter().map(behind).sum()
    }

    fn fill(&self) -> f64 {
        fullest(self.readers.iter())
    }
}

/// Where merged frames go.
pub trait Sink {
    fn take(&mut self, record: &Record<'_>) -> Result<(), MergeError>;

    /// Lets out what was collected.
    fn flush(&mut self) -> Result<(), MergeError>;

    /// Lets out the rest; `statistics` are those of the run.
    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), MergeError>;

    /// Frames that are safely out.
    fn kept(&self) -> Count;
}

/// What can go wrong between the rings and a sink.
#[derive(Debug)]
pub enum MergeError {
    Ring(RingError),
    File(FileError),
    Print { kept: u64, source: io::Error },
}

impl From<RingError> for MergeError {
    fn from(error: RingError) -> Self {
        MergeError::Ring(error)
    }
}

impl From<MergeError> for anyhow::Error {
    fn from(error: MergeError) -> Self {
        match error {
            MergeError::Ring(error) => error.into(),
            MergeError::File(error) => error.into(),
            MergeError::Print { kept, source } => anyhow::Error::new(source).context(format!(
                "standard output: cannot be printed to after {kept} frames; free space, or print elsewhere"
            )),
        }
    }
}

/// Takes frames in time order and hands them to a sink.
pub struct Ordered<S> {
    merge: Merge,
    pub sink: S,
    wire_bytes: u64,
    /// Frames by interface id.
    frames: Vec<u64>,
}

impl<S: Sink> Ordered<S> {
    pub fn new(rings: &[Ring<Mapping>], slack: Duration, sink: S) -> Result<Ordered<S>> {
        Ok(Ordered { merge: Merge::new(rings, slack)?, sink, wire_bytes: 0, frames: Vec::new() })
    }
}

impl<S: Sink> Consumer for Ordered<S> {
    fn step(&mut self, frames_max: u64) -> Result<Step> {
        let Ordered { sink, wire_bytes, frames, .. } = self;
        let turn = self.merge.turn(frames_max.min(TURN_FRAMES), |record| {
            sink.take(record)?;
            *wire_bytes += u64::from(record.meta.wire_len);
            let id = record.meta.interface_id as usize;
            if id >= frames.len() {
                frames.resize(id + 1, 0);
            }
            frames[id] += 1;
            Ok::<(), MergeError>(())
        })?;
        Ok(match turn {
            Turn::Passed(_) => Step::Busy,
            Turn::Waiting => Step::Waiting,
            Turn::Empty => Step::Idle,
            Turn::Ended => Step::Ended,
        })
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.merge.passed(),
            wire_bytes: self.wire_bytes,
            lapped: self.merge.lapped(),
            late: self.merge.late(),
            after_limit: 0,
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.sink.flush()?)
    }

    fn by_interface(&self) -> Vec<Taken> {
        let mut taken = by_interface(&self.readers(), |_| 0);
        for (taken, frames) in taken.iter_mut().zip(&self.frames) {
            taken.frames = *frames;
        }
        taken
    }

    fn readers(&self) -> Vec<Reader<Mapping>> {
        self.merge.readers().cloned().collect()
    }

    fn ordinal(&self, ring: usize) -> u64 {
        self.merge.readers().nth(ring).map_or(0, Reader::ordinal)
    }

    fn sleep_limit(&self) -> Duration {
        MERGING_SLEEP_LIMIT
    }

    fn unread(&self) -> u64 {
        self.merge.readers().map(behind).sum::<u64>() + self.merge.held()
    }

    fn fill(&self) -> f64 {
        fullest(self.merge.readers())
    }
}

impl Sink for FileWriter {
    fn take(&mut self, record: &Record<'_>) -> Result<(), MergeError> {
        self.add(record).map_err(MergeError::File)
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        FileWriter::flush(self).map_err(MergeError::File)
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), MergeError> {
        FileWriter::finish(self, statistics).map_err(MergeError::File)
    }

    fn kept(&self) -> Count {
        FileWriter::kept(self)
    }
}
