//! Merges the frames of several pieces in order of time.
//!
//! Pieces are merged in the order of their first frames ([`Job`]s are sorted by that order). The earliest frame of
//! the pieces in memory is written next, unless the next piece may have an earlier one; then the merge waits for that
//! piece. The memory for pieces is bounded. If the pieces that overlap in time do not fit into it, frames are written
//! without waiting for the next piece, and the frames that are late for this reason are counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use weir_consumer::{ConsumerError, Sink};
use weir_frame::record::Record;

use super::reading::{Loaded, load};
use super::source::{Context, Source};
use super::stats::Stats;
use super::{Job, Options};
use crate::limits::EXTRACT_BYTES_MAX;

/// Number of pieces that are read ahead for each thread.
const AHEAD: usize = 4;

/// The next piece for a reader, and the first piece that readers may not take yet.
struct Turn {
    next: usize,
    limit: usize,
}

struct Shared {
    turn: Mutex<Turn>,
    moved: Condvar,
}

impl Shared {
    /// Waits until the next piece may be read, and returns its number; `None`: there are no more pieces.
    fn take(&self, jobs: usize) -> Option<usize> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if turn.next >= jobs {
                return None;
            }
            if turn.next < turn.limit {
                turn.next += 1;
                return Some(turn.next - 1);
            }
            turn = self.moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Turn)) {
        change(&mut self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }
}

/// Reads the pieces, and passes their wanted frames to `sink` in order.
///
/// # Errors
/// Those of the sink.
pub(super) fn run(
    files: &[Option<&Source>],
    jobs: &[Job],
    context: &Context<'_>,
    options: &Options,
    sink: &mut dyn Sink,
    stop: &(dyn Fn() -> bool + Sync),
    stats: &mut Stats,
) -> Result<(), ConsumerError> {
    let threads = options.threads.max(1);
    let turn = Turn { next: 0, limit: AHEAD * threads };
    let shared = Shared { turn: Mutex::new(turn), moved: Condvar::new() };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..threads.min(jobs.len()))
            .map(|_| {
                let (sender, shared) = (sender.clone(), &shared);
                scope.spawn(move || {
                    let mut stats = Stats::default();
                    while let Some(at) = shared.take(jobs.len()).filter(|_| !(context.stop)()) {
                        let job = &jobs[at];
                        let source = files[job.file];
                        let loaded = source.map(|source| load(job, source, context, &mut stats));
                        if sender.send((at, loaded.unwrap_or_default())).is_err() {
                            break;
                        }
                    }
                    stats
                })
            })
            .collect();
        drop(sender);
        let left = options.frames_max;
        let mut merge = Merge {
            jobs,
            context,
            shared: &shared,
            receiver,
            early: BTreeMap::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            heap: BinaryHeap::new(),
            entered: 0,
            numbers: BTreeMap::new(),
            last_ns: 0,
            left,
        };
        let result = merge.run(sink, stop, stats);
        drop(merge);
        // Ends the readers that wait for room.
        shared.change(|turn| turn.next = jobs.len());
        for reader in readers {
            *stats += reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        result
    })
}

struct Merge<'a, 'b> {
    jobs: &'a [Job],
    context: &'a Context<'b>,
    shared: &'a Shared,
    receiver: Receiver<(usize, Loaded)>,
    /// Pieces that were read before their predecessors, by number.
    early: BTreeMap<usize, Loaded>,
    /// Pieces with frames that were not written yet, and the index of the next frame of each.
    held: BTreeMap<usize, (Loaded, usize)>,
    held_bytes: usize,
    /// The next frame of each held piece: its time, and the piece's file, offset and number.
    heap: BinaryHeap<Reverse<(u64, usize, u64, usize)>>,
    /// Number of pieces that were taken into the merge.
    entered: usize,
    /// Maps the number of an interface to its number in the output.
    numbers: BTreeMap<u32, u32>,
    last_ns: u64,
    left: u64,
}

impl Merge<'_, '_> {
    fn run(
        &mut self,
        sink: &mut dyn Sink,
        stop: &(dyn Fn() -> bool + Sync),
        stats: &mut Stats,
    ) -> Result<(), ConsumerError> {
        while self.left > 0 && !stop() {
            let next = self.jobs.get(self.entered);
            let bound = next.map(|job| (job.wanted.first_ns, job.file, job.wanted.at));
            let top = self.heap.peek().map(|Reverse((ts_ns, file, at, _))| (*ts_ns, *file, *at));
            match (top, bound) {
                (None, None) => break,
                (Some(top), Some(bound)) if top >= bound && self.held_bytes < EXTRACT_BYTES_MAX => {
                    self.enter();
                }
                (None, Some(_)) => self.enter(),
                (Some(_), _) => self.emit(sink, stats)?,
            }
        }
        self.describe_all(sink)
    }

    /// Waits for the next piece in order, and adds it to the merge.
    fn enter(&mut self) {
        let at = self.entered;
        self.shared.change(|turn| turn.limit = turn.limit.max(at + 1));
        let loaded = loop {
            if let Some(loaded) = self.early.remove(&at) {
                break loaded;
            }
            match self.receiver.recv() {
                Ok((number, loaded)) => drop(self.early.insert(number, loaded)),
                // All readers have ended, so one has panicked. The panic is resumed when that reader is joined.
                Err(_) => break Loaded::default(),
            }
        };
        self.entered += 1;
        let Some(first) = loaded.found.first() else {
            return self.shared.change(|turn| turn.limit += 1);
        };
        let job = &self.jobs[at];
        self.heap.push(Reverse((first.ts_ns, job.file, job.wanted.at, at)));
        self.held_bytes += loaded.bytes.len();
        self.held.insert(at, (loaded, 0));
    }

    /// Writes the earliest frame.
    fn emit(&mut self, sink: &mut dyn Sink, stats: &mut Stats) -> Result<(), ConsumerError> {
        let Some(Reverse((ts_ns, file, place, number))) = self.heap.pop() else { return Ok(()) };
        let Some((loaded, next)) = self.held.get_mut(&number) else { return Ok(()) };
        let found = loaded.found[*next];
        let range = found.at as usize..(found.at + found.bytes) as usize;
        let interface = found.interface;
        let own = match self.numbers.get(&interface) {
            Some(own) => *own,
            None => {
                let own = self.numbers.len() as u32;
                if let Some(described) = self.context.interfaces.described(interface) {
                    sink.describe(own, &described, "")?;
                }
                self.numbers.insert(interface, own);
                own
            }
        };
        let id_at = range.start + 8;
        loaded.bytes[id_at..id_at + 4].copy_from_slice(&own.to_le_bytes());
        if let Ok(record) = Record::parse(&loaded.bytes[range]) {
            sink.take(&record)?;
            stats.frames += 1;
            stats.frames_late += u64::from(ts_ns < self.last_ns);
            self.last_ns = self.last_ns.max(ts_ns);
            self.left -= 1;
        }
        *next += 1;
        match loaded.found.get(*next) {
            Some(found) => self.heap.push(Reverse((found.ts_ns, file, place, number))),
            None => {
                self.held_bytes -= loaded.bytes.len();
                self.held.remove(&number);
                self.shared.change(|turn| turn.limit += 1);
            }
        }
        Ok(())
    }

    /// Describes the first interface if no frame was written, because tools need a link type.
    fn describe_all(&mut self, sink: &mut dyn Sink) -> Result<(), ConsumerError> {
        if self.numbers.is_empty()
            && let Some(described) = self.context.interfaces.described(0)
        {
            sink.describe(0, &described, "")?;
        }
        Ok(())
    }
}
