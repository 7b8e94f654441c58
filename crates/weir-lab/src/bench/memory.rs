//! Measures the ring alone: a writer on one core, readers on the other, frames made in memory. Compares it with a
//! ring in C.

mod paced;
mod peer;

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_frame::pcapng::Interface;
use weir_frame::record::{Meta, record_bytes};
use weir_ring::geometry::WriterWord;
use weir_ring::idle::DISTANCE_BYTES;
use weir_ring::{
    Batch, Clock, Mapping, Poll, Reader, Ring, RingError, RingSpec, Start, Tally, Writer,
    WriterKind, memory,
};

use super::bar::{Bar, Side};
use super::context::{Context, Cpus, stopped};
use super::row::{Frames, MPPS, Row, conclude, find, ratio_of, value_of};
use crate::generator::FCS_BYTES;
use crate::generator::affinity::Pinned;
use crate::{Error, Result};
use paced::at_fixed_rate;
pub(super) use peer::{IN_C, Peer};

pub(super) const SECTION: &str = "memory";
pub(super) const READERS: &str = "readers";
pub(super) const COUNTS: &str = "one reader skims";
pub(super) const POLLS: &str = "one reader polls";
pub(super) const ALONE: &str = "no reader";
pub(super) const FOUR: &str = "four readers";

const RING_MIB: u64 = 64;
/// Frames between two publications, as many as in a NAPI poll.
const BURST: u64 = 64;
/// Frames between two checks of the clock and of the reader's progress.
const LOOK_FRAMES: u64 = 4096;
/// Pause of a reader that has found no frames.
const PAUSE: Duration = Duration::from_micros(50);

/// How the reader of a row reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Counts frames in place.
    Count,
    /// Copies frames.
    Poll,
    /// Copies frames, and parses each record.
    Parse,
}

/// One measured case, a row.
#[derive(Debug, Clone, Copy)]
struct Case {
    what: &'static str,
    size_on_wire: u32,
    way: Option<Way>,
    clock: bool,
}

/// Frame size, in bytes on the wire, for which the ring in C is also measured.
const SIZES: [u32; 2] = [64, 1518];

const CASES: [Case; 9] = [
    Case { what: ALONE, size_on_wire: 64, way: None, clock: false },
    Case { what: COUNTS, size_on_wire: 64, way: Some(Way::Count), clock: false },
    Case { what: POLLS, size_on_wire: 64, way: Some(Way::Poll), clock: false },
    Case { what: "one skims, clock a frame", size_on_wire: 64, way: Some(Way::Count), clock: true },
    Case { what: "one polls, clock a frame", size_on_wire: 64, way: Some(Way::Poll), clock: true },
    Case { what: "one polls and parses", size_on_wire: 64, way: Some(Way::Parse), clock: false },
    Case { what: ALONE, size_on_wire: 1518, way: None, clock: false },
    Case { what: COUNTS, size_on_wire: 1518, way: Some(Way::Count), clock: false },
    Case { what: POLLS, size_on_wire: 1518, way: Some(Way::Poll), clock: false },
];

/// Measures the ring at full speed, and the writer's work at a fixed rate.
///
/// # Errors
/// [`Error::Measure`] if there is no memory, or a ring is inconsistent.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    // One second gives the same result as four.
    let seconds = context.seconds.min(1.0);
    let row = |case: &Case| Row::new(SECTION, case.what, MPPS).sized(case.size_on_wire);
    let mut rows: Vec<Row> = CASES.iter().map(row).collect();
    let peer = Peer::build();
    let mut peers = SIZES.map(|size| Row::new(SECTION, IN_C, MPPS).sized(size));
    let mut paced = [ALONE, FOUR].map(|what| Row::new(READERS, what, "ns/frame"));
    let mut interrupted = 0;
    for round in 0..context.rounds {
        for (case, row) in CASES.iter().zip(&mut rows) {
            if stopped(context.stop) {
                break;
            }
            let neighbours = context.calm();
            let (frames, held) = flat_out(context.cpus, case, seconds).map_err(failed)?;
            if held > 0 {
                row.note = format!("waited {held} times for its reader");
            }
            row.add_frames(round, frames, neighbours.done());
        }
        for row in &mut peers {
            Peer::add_round(&peer, context, round, seconds, row);
        }
        for (row, readers) in paced.iter_mut().zip([0, 4]) {
            if stopped(context.stop) {
                break;
            }
            let neighbours = context.calm();
            let work = at_fixed_rate(context.cpus, readers, seconds).map_err(failed)?;
            interrupted += work.interrupted;
            if work.lapped > 0 {
                row.note = format!("its readers were lapped {} frames", work.lapped);
            }
            row.add(round, work.ns_per_frame, neighbours.done());
        }
        context.say(&format!("memory, round {}", round + 1));
    }
    if interrupted > 0 {
        let note = format!("{interrupted} interrupted bursts left out of both rows");
        let so_far = std::mem::take(&mut paced[1].note);
        paced[1].note = if so_far.is_empty() { note } else { format!("{so_far}; {note}") };
    }
    rows.extend(peers);
    conclude(&mut rows, ALONE);
    conclude(&mut paced, ALONE);
    rows.extend(paced);
    Ok(rows)
}

fn failed(error: RingError) -> Error {
    Error::Measure { what: "the ring in memory".to_owned(), reason: error.to_string() }
}

fn new_ring() -> std::result::Result<Ring<Mapping>, RingError> {
    let interface = Interface { link_type: 1, snaplen: 65_535, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: RING_MIB,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    memory::create_memfd("weir-bench", &spec)
}

/// Creates a reader with its own mapping, as in another process, which has read all frames so far. It polls, so it
/// keeps the distance that `weir_ring::idle` recommends for polling readers.
fn attach(ring: &Ring<Mapping>) -> std::result::Result<Reader<Mapping>, RingError> {
    let fd = ring.memory().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|source| RingError::Os { doing: "duplicating a descriptor", source })?;
    let mut reader = Reader::new(&memory::attach(fd, memory::Trust::Owner)?, Start::Newest)?;
    let mut tally = Tally::default();
    while let Poll::Frames(_) = reader.count_in_place(&mut tally, LOOK_FRAMES as u32)? {}
    reader.keep_distance(DISTANCE_BYTES);
    Ok(reader)
}

/// Creates the writer of a new ring and fills the ring once, so that the allocation of pages is not measured.
fn warm(ring: Ring<Mapping>, maker: &mut Maker) -> Writer<Mapping> {
    let mut writer = Writer::new(ring);
    while writer.ring().writer_word(WriterWord::Opened) <= RING_MIB {
        maker.burst(&mut writer);
    }
    writer
}

/// Creates frames with the same bytes and increasing time stamps.
struct Maker {
    meta: Meta,
    frame: Vec<u8>,
    clock: bool,
}

impl Maker {
    fn new(size_on_wire: u32, clock: bool) -> Maker {
        let frame_bytes = size_on_wire - FCS_BYTES;
        let meta = Meta { ts_ns: 1_000_000_000, wire_len: frame_bytes, ..Meta::default() };
        Maker { meta, frame: vec![0x5a; frame_bytes as usize], clock }
    }

    #[inline]
    fn burst(&mut self, writer: &mut Writer<Mapping>) {
        for _ in 0..BURST {
            if self.clock {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.meta.ts_ns = now.as_nanos() as u64;
            } else {
                self.meta.ts_ns += 10;
            }
            writer.push(&self.meta, black_box(&self.frame));
        }
        writer.publish();
    }
}

/// Runs the writer as fast as its reader allows without being lapped: the writer waits when it is half a ring ahead, as
/// it does with a replayed file. Returns the number of frames, and how often the writer waited.
fn flat_out(
    cpus: Cpus,
    case: &Case,
    seconds: f64,
) -> std::result::Result<(Frames, u64), RingError> {
    let mut maker = Maker::new(case.size_on_wire, case.clock);
    let mut writer = warm(new_ring()?, &mut maker);
    let first = writer.frames();
    let record = u64::from(record_bytes(&maker.meta, maker.frame.len() as u32));
    let ahead_max = (RING_MIB << 20) / 2 / record;
    // Number of frames that the reader has read. Without a reader, the writer must never wait.
    let seen = AtomicU64::new(if case.way.is_some() { first } else { u64::MAX });
    let reader = case.way.map(|way| attach(writer.ring()).map(|reader| (way, reader)));
    let reader = reader.transpose()?;
    thread::scope(|scope| {
        let reader = reader.map(|(way, reader)| {
            let seen = &seen;
            scope.spawn(move || {
                let result = read(reader, way, cpus.reader(0), seen);
                seen.store(u64::MAX, Ordering::Relaxed); // so that the writer never waits for this reader again
                result
            })
        });
        let _pinned = Pinned::to(cpus.generator);
        let (begin, mut held) = (Instant::now(), 0);
        let limit = Duration::from_secs_f64(seconds);
        while begin.elapsed() < limit {
            for _ in 0..LOOK_FRAMES / BURST {
                maker.burst(&mut writer);
            }
            let ahead = || writer.frames().saturating_sub(seen.load(Ordering::Relaxed));
            held += u64::from(ahead() > ahead_max);
            while ahead() > ahead_max {
                thread::yield_now();
            }
        }
        let written = writer.frames() - first;
        drop(writer);
        let got = reader.map(|reader| reader.join().expect("the reader does not panic"));
        let seconds = begin.elapsed().as_secs_f64();
        let got = got.transpose()?.unwrap_or(Got { delivered: written, lapped: 0 });
        let drops = [("lapped".to_owned(), got.lapped)].into();
        Ok((Frames::new(written, got.delivered, drops, seconds), held))
    })
}

/// Runs a writer, and a reader that counts frames in place, for the time of a measurement.
///
/// # Errors
/// As [`measure`].
pub(super) fn counted_in_place(context: &Context, size_on_wire: u32) -> Result<Frames> {
    let case = Case { what: COUNTS, size_on_wire, way: Some(Way::Count), clock: false };
    let (frames, _) = flat_out(context.cpus, &case, context.seconds).map_err(failed)?;
    Ok(frames)
}

struct Got {
    delivered: u64,
    lapped: u64,
}

/// Reads to the end of the ring, and counts the frames that come after that.
fn read(
    mut reader: Reader<Mapping>,
    way: Way,
    cpu: usize,
    seen: &AtomicU64,
) -> std::result::Result<Got, RingError> {
    let _pinned = Pinned::to(cpu);
    let before = reader.delivered();
    let (mut tally, mut batch, mut wire_bytes) = (Tally::default(), Batch::new(), 0u64);
    loop {
        let poll = match way {
            Way::Count => reader.count_in_place(&mut tally, LOOK_FRAMES as u32)?,
            Way::Poll => reader.poll(&mut batch)?,
            Way::Parse => {
                let poll = reader.poll(&mut batch)?;
                for record in batch.records() {
                    wire_bytes += u64::from(record.meta.wire_len);
                }
                poll
            }
        };
        match poll {
            Poll::Frames(_) | Poll::Lapped(_) => seen.store(reader.ordinal(), Ordering::Relaxed),
            Poll::Empty => sleep(PAUSE),
            Poll::Closed => break,
        }
    }
    black_box((wire_bytes, tally));
    Ok(Got { delivered: reader.delivered() - before, lapped: reader.lapped() })
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "memory: writer on CPU {}, readers on the others; a writer half a 64 MiB ring \
         ahead of its reader waits; published every 64 frames",
        context.cpus.generator
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let bar = |what| {
        let found = value_of(rows, SECTION, what, Some(64));
        Bar::new(format!("64 B in memory, {what}, Mpps"), found, Side::AtLeast, 60.0)
    };
    let what = "writer's time a frame, four readers / none";
    let four = Bar::new(what, ratio_of(rows, READERS, FOUR, None), Side::Below, 1.1);
    let in_c = SIZES.map(|size| {
        let both = [POLLS, IN_C].map(|what| find(rows, SECTION, what, Some(size)));
        let ratio = both[0].zip(both[1]).and_then(|(ours, in_c)| ours.over(in_c));
        Bar::new(format!("{size} B in memory, {POLLS} / {IN_C}"), ratio, Side::AtLeast, 0.8)
    });
    [bar(COUNTS), bar(POLLS), four].into_iter().chain(in_c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: Cpus = Cpus { generator: 0, tool: 0, all: 1 };

    #[test]
    fn nothing_is_lapped_and_every_frame_arrives() {
        for case in CASES {
            let (frames, _) = flat_out(CPUS, &case, 0.02).unwrap();
            assert!(frames.offered > 0, "{case:?}");
            assert_eq!((frames.kept, frames.unaccounted), (frames.offered, 0), "{case:?}");
            assert_eq!(frames.drops["lapped"], 0, "{case:?}");
        }
    }
}
