//! The consumers in the box: the null monitor, the printer and the file.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use anyhow::Result;
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_frame::record::{Flags, Record};
use weir_frame::summary::one_line;
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Poll, Reader, Ring, RingError, Start, Tally};
use weir_store::{FileError, FileWriter, Merge, Turn};

/// Frames counted before the clock and the signals are looked at again.
const TURN_FRAMES: u64 = 1 << 16;
/// A sleeping consumer is woken by this many frames of one ring, or after `SLEEP_LIMIT`.
const WAKE_FRAMES: u64 = 2048;
/// The longest that a frame waits for a sleeping consumer, of the 20 ms that we promise. Each waking
/// costs an idle machine some 40 us, in two threads.
const SLEEP_LIMIT: Duration = Duration::from_millis(10);
/// The same for one that merges: the default merge slack of 8 ms, with its notes and waits of 2 ms each,
/// comes on top.
const MERGING_SLEEP_LIMIT: Duration = Duration::from_millis(5);
/// How long a consumer waits for frames that may have to stand before those it has.
const WAIT: Duration = Duration::from_millis(2);
/// A consumer that has just had frames looks again after this pause before it goes to sleep: polling
/// the line that is being written would halve the writer.
const PAUSE: Duration = Duration::from_micros(50);
/// Pauses without a frame before sleeping for good.
const PAUSES_MAX: u32 = 4;

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

    /// Lets what was taken be seen outside, when the rings are empty.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// The cursors, ring by ring.
    fn readers(&self) -> Vec<Reader<Mapping>>;

    /// How far ring number `ring` was read: the ordinal of its next frame.
    fn ordinal(&self, ring: usize) -> u64;

    /// The longest that this consumer may sleep.
    fn sleep_limit(&self) -> Duration {
        SLEEP_LIMIT
    }

    /// Frames that were written and neither taken nor lapped: in the rings, or copied and held.
    fn unread(&self) -> u64;
}

fn behind(reader: &Reader<Mapping>) -> u64 {
    reader.ring().frames_written().saturating_sub(reader.ordinal())
}

/// Counts frames where they lie.
pub struct Null {
    readers: Vec<Reader<Mapping>>,
    /// The ring that the next turn begins with: each in its turn, or a busy one would starve the rest.
    first: usize,
    tally: Tally,
}

impl Null {
    pub fn new(rings: &[Ring<Mapping>]) -> Result<Null> {
        let readers = rings.iter().map(|ring| Reader::new(ring, Start::Oldest));
        let readers = readers.collect::<Result<_, _>>()?;
        Ok(Null { readers, first: 0, tally: Tally::default() })
    }
}

impl Consumer for Null {
    fn step(&mut self, frames_max: u64) -> Result<Step> {
        let before = self.tally.frames;
        let (mut moved, mut closed) = (false, 0);
        let count = self.readers.len();
        self.first = (self.first + 1) % count;
        for index in (self.first..count).chain(0..self.first) {
            let reader = &mut self.readers[index];
            loop {
                let left = frames_max.min(TURN_FRAMES) - (self.tally.frames - before);
                if left == 0 {
                    return Ok(Step::Busy);
                }
                match reader.skim(&mut self.tally, left as u32)? {
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
            frames: self.tally.frames,
            wire_bytes: self.tally.wire_bytes,
            lapped: self.readers.iter().map(Reader::lapped).sum(),
            ..Delivered::default()
        }
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
}

/// Where merged frames go.
pub trait Sink {
    fn take(&mut self, record: &Record<'_>) -> Result<(), MergeError>;
    fn flush(&mut self) -> Result<(), MergeError>;
}

/// What can go wrong between the rings and a sink.
#[derive(Debug)]
pub enum MergeError {
    Ring(RingError),
    File(FileError),
    Print(io::Error),
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
            MergeError::Print(error) => anyhow::Error::new(error).context("printing"),
        }
    }
}

/// Takes frames in time order and hands them to a sink.
pub struct Ordered<S> {
    merge: Merge,
    pub sink: S,
    wire_bytes: u64,
}

impl<S: Sink> Ordered<S> {
    pub fn new(rings: &[Ring<Mapping>], slack: Duration, sink: S) -> Result<Ordered<S>> {
        Ok(Ordered { merge: Merge::new(rings, slack)?, sink, wire_bytes: 0 })
    }
}

impl<S: Sink> Consumer for Ordered<S> {
    fn step(&mut self, frames_max: u64) -> Result<Step> {
        let (sink, wire_bytes) = (&mut self.sink, &mut self.wire_bytes);
        let turn = self.merge.turn(frames_max.min(TURN_FRAMES), |record| {
            sink.take(record)?;
            *wire_bytes += u64::from(record.meta.wire_len);
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
}

impl Sink for FileWriter {
    fn take(&mut self, record: &Record<'_>) -> Result<(), MergeError> {
        self.add(record).map_err(MergeError::File)
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        FileWriter::flush(self).map_err(MergeError::File)
    }
}

/// One line a frame: time of day (UTC), interface, direction, summary.
pub struct Printer {
    out: BufWriter<io::Stdout>,
    interfaces: Vec<Interface>,
}

impl Printer {
    pub fn new(interfaces: Vec<Interface>) -> Printer {
        Printer { out: BufWriter::with_capacity(1 << 16, io::stdout()), interfaces }
    }
}

impl Sink for Printer {
    fn take(&mut self, record: &Record<'_>) -> Result<(), MergeError> {
        let meta = &record.meta;
        let second = meta.ts_ns / 1_000_000_000;
        let (h, m, s) = (second / 3600 % 24, second / 60 % 60, second % 60);
        let way = match meta.flags {
            Some(flags) if flags.has(Flags::OUTBOUND) => "out",
            Some(flags) if flags.has(Flags::INBOUND) => "in",
            _ => "-",
        };
        let interface = self.interfaces.get(meta.interface_id as usize);
        let name = interface.map_or("?", |interface| &interface.name);
        let ns = meta.ts_ns % 1_000_000_000;
        let out = &mut self.out;
        write!(out, "{h:02}:{m:02}:{s:02}.{ns:09} {name} {way} ")
            .and_then(|()| match interface.map(|interface| interface.link_type) {
                Some(LINKTYPE_ETHERNET) => {
                    writeln!(out, "{}", one_line(record.frame, meta.wire_len))
                }
                // Only Ethernet is taken apart: anything else would be shown as what it is not.
                other => {
                    let link_type = other.unwrap_or_default();
                    writeln!(out, "link type {link_type}, {} bytes", meta.wire_len)
                }
            })
            .map_err(MergeError::Print)
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        self.out.flush().map_err(MergeError::Print)
    }
}

/// How a consumer waits: a few short pauses while frames flow, then asleep until it is woken.
pub struct Rest {
    sleeper: Sleeper,
    pauses: u32,
}

impl Rest {
    pub fn new(sleeper: Sleeper) -> Rest {
        Rest { sleeper, pauses: 0 }
    }

    /// Frames came: the next wait begins with short pauses again.
    pub fn busy(&mut self) {
        self.pauses = 0;
    }

    /// Waits for other rings.
    pub fn wait(&mut self, consumer: &mut dyn Consumer) -> Result<()> {
        consumer.flush()?;
        std::thread::sleep(WAIT);
        Ok(())
    }

    /// Waits a little, or until woken.
    pub fn idle(&mut self, consumer: &mut dyn Consumer) -> Result<()> {
        if self.pauses < PAUSES_MAX {
            self.pauses += 1;
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        consumer.flush()?;
        self.sleeper.sleep(&consumer.readers(), WAKE_FRAMES, consumer.sleep_limit())?;
        Ok(())
    }
}
