//! The writing of one ring to files: data that was read, and data that is still being written.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use weir_consumer::{ConsumerError, Cursor};
use weir_disk::{Buffer, Bytes, Disk};
use weir_frame::pcapng::Statistics;
use weir_ring::{Batch, BlockLook, Mapping, Poll, Reader, Ring, RingError};

use super::file::OpenFile;
use super::gather::Gather;
use super::look_back::Watch;
use super::pool::Plain;
use super::watcher::Watcher;
use super::{Asked, FLUSH_EVERY, Shared};
use crate::index::Scan;
use crate::limits::UNSETTLED_MAX;

mod ahead;
mod blocks;
mod entry;
mod files;
mod packed;
mod run;
mod settle;

pub use blocks::NEAR;
use entry::{Entry, Gap, State, What};
use run::Run;

/// Most bytes that a poll copies.
const CHUNK_BYTES: u32 = 256 << 10;

/// The result of [`Stream::read_on`].
pub enum Progress {
    /// This number of frames was read.
    Frames(u64),
    /// There was progress other than frames: the caller must continue.
    Moved,
    /// There are frames that will be read or written later.
    Later,
    /// There is nothing to read.
    Nothing,
}

/// A ring and its files.
pub struct Stream<D: Disk> {
    id: usize,
    /// The number of the ring among the feed's rings.
    number: usize,
    name: String,
    link_type: u16,
    ring: Ring<Mapping>,
    /// A reader to check whether the ring still holds a block.
    reader: Reader<Mapping>,
    /// The output's numbers of the ring's interfaces.
    numbers: Vec<u32>,
    files: BTreeMap<u64, OpenFile<D>>,
    /// The file to which each volume is currently written, by volume.
    current: BTreeMap<usize, u64>,
    next_file: u64,
    entries: VecDeque<Entry>,
    first_entry: u64,
    /// Number of entries that wait because the file system is full.
    full: usize,
    batch: Batch,
    /// Blocks to be written by one request. Empty if `gather` is not.
    run: Run,
    gather: Gather,
    /// Time at which frames of the incomplete block were first seen.
    part_since: Option<Instant>,
    scan: Scan,
    gathered: Scan,
    is_read: bool,
    statistics: Vec<Statistics>,
    /// Finds triggers in the frames.
    pub watcher: Option<Watcher>,
    /// Whether the available part of an incomplete block is written at once.
    pub is_last: bool,
    /// Whether a block may be split at the frame limit, because no earlier frames are pending that could still be
    /// lost.
    pub may_cut: bool,
    /// Bytes of blocks that were read.
    pub bytes_read: u64,
    /// An error found in the contents of the ring.
    corrupt: Option<RingError>,
    /// Time at which the ring was read to its end.
    pub ended: Option<Instant>,
}

impl<D: Disk> Stream<D> {
    pub fn new(
        id: usize,
        number: usize,
        ring: &Ring<Mapping>,
        label: &str,
        numbers: Vec<u32>,
    ) -> Result<Stream<D>, RingError> {
        let mut batch = Batch::new();
        batch.set_chunk_bytes(CHUNK_BYTES);
        let (link_type, interface) = files::first_interface(ring)?;
        let name = files::name(if label.is_empty() { &interface } else { label });
        Ok(Stream {
            id,
            number,
            name,
            link_type,
            reader: Reader::new(ring, weir_ring::Start::Newest)?,
            ring: ring.clone(),
            numbers,
            files: BTreeMap::new(),
            current: BTreeMap::new(),
            next_file: 0,
            entries: VecDeque::new(),
            first_entry: 0,
            full: 0,
            batch,
            run: Run::default(),
            gather: Gather::new(),
            part_since: None,
            scan: Scan::default(),
            gathered: Scan::default(),
            is_read: false,
            statistics: Vec::new(),
            watcher: None,
            is_last: false,
            may_cut: true,
            bytes_read: 0,
            corrupt: None,
            ended: None,
        })
    }

    /// Returns the number of frames that were read and are not settled.
    pub fn unsettled(&self) -> u64 {
        let submitted: u64 = self.entries.iter().map(Entry::frames).sum();
        submitted + self.run.frames() + self.gather.frames
    }

    /// Returns whether everything was read and settled, and [`end`](Self::end) was not called yet.
    pub fn has_ended(&self) -> bool {
        self.is_read && self.ended.is_none() && self.unsettled() == 0 && self.gaps() == 0
    }

    /// Returns whether the stream has files that are not complete.
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Ends the stream: everything was read, or the rest was dropped and is counted.
    pub fn end(&mut self) {
        self.is_read = true;
        self.ended.get_or_insert_with(Instant::now);
    }

    fn gaps(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.what, What::Gap(..))).count()
    }

    /// Returns whether everything was read.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Records that everything was read.
    pub fn set_read(&mut self) {
        self.is_read = true;
    }

    /// Counts the next frames as untriggered. Even if they were lapped, this is not a loss.
    pub fn let_pass(&mut self, frames: u64, are_lapped: bool) {
        self.push_gap(if are_lapped { Gap::LappedUntriggered } else { Gap::Untriggered }, frames);
    }

    fn push_gap(&mut self, gap: Gap, frames: u64) {
        self.entries.push_back(Entry::nowhere(What::Gap(gap, frames)));
    }

    /// Begins to look for triggers in the frames of the ring.
    pub fn watch(&mut self, watch: &Watch) -> Result<(), RingError> {
        self.watcher = Some(Watcher::new(&self.ring, self.link_type, watch)?);
        Ok(())
    }

    /// Reads the next block, or a part of it, with at most `left` frames.
    pub fn read_on(
        &mut self,
        cursor: &mut Cursor,
        left: u64,
        shared: &mut Shared<D>,
    ) -> Result<Progress, ConsumerError> {
        if let Some(error) = self.corrupt.take() {
            return Err(error.into());
        }
        if self.is_read {
            return Ok(Progress::Nothing);
        }
        if self.entries.len() >= UNSETTLED_MAX {
            return Ok(Progress::Later);
        }
        let (scan, link_type, index) = (&mut self.scan, self.link_type, shared.settings.index);
        let look = cursor.next_block(left, |head| {
            if index {
                scan.add(head.ts_ns, link_type, head.bytes, head.caplen);
            }
        })?;
        match look {
            BlockLook::Whole(whole) => {
                self.part_since = None;
                if !self.gather.is_empty() {
                    self.submit_gathered(shared);
                }
                self.bytes_read += whole.bytes as u64;
                self.take_block(cursor, &whole, shared);
                Ok(Progress::Frames(whole.frames))
            }
            BlockLook::Part => {
                self.scan.discard();
                self.submit_run(shared);
                self.take_part(cursor, left, shared)
            }
            BlockLook::Other(poll) => {
                self.scan.discard();
                Ok(self.found(poll, shared))
            }
        }
    }

    fn found(&mut self, poll: Poll, shared: &mut Shared<D>) -> Progress {
        match poll {
            Poll::Lapped(frames) => {
                self.submit_gathered(shared);
                self.push_gap(Gap::Lapped, frames);
                self.add_lapped(frames);
                Progress::Moved
            }
            Poll::Closed => {
                self.submit_gathered(shared);
                self.is_read = true;
                Progress::Moved
            }
            Poll::Empty | Poll::Frames(_) if self.gather.is_empty() => {
                self.part_since = None;
                Progress::Nothing
            }
            Poll::Empty | Poll::Frames(_) => {
                if !self.is_due() {
                    return Progress::Later;
                }
                self.submit_gathered(shared);
                Progress::Moved
            }
        }
    }

    /// Returns whether the available part of an incomplete block must be written now.
    fn is_due(&self) -> bool {
        self.is_last || self.part_since.is_some_and(|since| since.elapsed() >= FLUSH_EVERY)
    }

    fn take_part(
        &mut self,
        cursor: &mut Cursor,
        left: u64,
        shared: &mut Shared<D>,
    ) -> Result<Progress, ConsumerError> {
        self.part_since.get_or_insert_with(Instant::now);
        if !self.may_cut && left < self.waiting(cursor) {
            self.submit_gathered(shared);
            return Ok(Progress::Later);
        }
        let is_behind = cursor.reader().fill() > 0.0;
        if !is_behind && !cursor.has_left() && !self.is_due() && left > self.waiting(cursor) {
            return Ok(Progress::Later);
        }
        let frames = match cursor.poll_ahead(&mut self.batch)? {
            Poll::Frames(frames) => u64::from(frames).min(left),
            other => return Ok(self.found(other, shared)),
        };
        self.batch.truncate(frames as u32);
        let mut wire_bytes = 0;
        for record in self.batch.records() {
            wire_bytes += u64::from(record.meta.wire_len);
            if shared.settings.index {
                let head = &record.frame[..record.frame.len().min(crate::index::HEAD_BYTES)];
                self.gathered.add(
                    record.meta.ts_ns,
                    self.link_type,
                    head,
                    record.frame.len() as u32,
                );
            }
        }
        let highest = self.batch.highest_interface_id();
        self.bytes_read += self.batch.block_bytes().len() as u64;
        self.gather.add(self.batch.block_bytes(), frames, wire_bytes, highest);
        if self.gather.is_full() {
            self.submit_gathered(shared);
        }
        Ok(Progress::Frames(frames))
    }

    /// Returns the number of frames in the ring that were not read yet.
    fn waiting(&self, cursor: &Cursor) -> u64 {
        self.ring.frames_written().saturating_sub(cursor.reader().ordinal())
    }

    /// Writes everything that was read.
    pub fn submit_gathered(&mut self, shared: &mut Shared<D>) {
        self.submit_run(shared);
        self.part_since = None;
        if self.gather.is_empty() {
            return;
        }
        let Gather { frames, wire_bytes, highest_interface_id: highest, .. } = self.gather;
        let Some(buffer) = self.gather.take() else { return };
        let piece = self.gathered.finish(0, 0);
        let what = What::Frames { frames, wire_bytes, block: None, highest, piece };
        if shared.pool.is_some() {
            return self.pack(what, Plain::Own(buffer), shared);
        }
        self.submit(what, Bytes::Own(buffer), shared);
    }

    /// Begins to write these bytes to their file, as an entry that will be settled in order.
    fn submit(&mut self, what: What, bytes: Bytes, shared: &mut Shared<D>) {
        let (length, highest) = (length(&bytes), highest(&what));
        let Some((file, at)) = self.place(length, highest, shared) else {
            // All volumes have failed, so the data counts as `store` drops.
            return self.push_failed(what, length);
        };
        let number = self.push(what, file, at, length, None);
        self.write(number, file, at, bytes, shared);
    }

    /// Adds an entry of `bytes` bytes that no volume accepts.
    fn push_failed(&mut self, what: What, bytes: usize) {
        let state = State::Failed(None);
        self.entries.push_back(Entry { bytes, state, ..Entry::nowhere(what) });
    }

    /// Adds an entry to be settled, and returns its number.
    fn push(
        &mut self,
        what: What,
        file: u64,
        at: u64,
        bytes: usize,
        first_page: Option<Buffer>,
    ) -> u64 {
        if let Some(open) = self.files.get_mut(&file) {
            open.pending += 1;
        }
        let state = State::Pending;
        let (plain_at, plain_bytes) = (at, bytes);
        let nowhere = Entry::nowhere(what);
        let entry = Entry { file, at, bytes, state, first_page, plain_at, plain_bytes, ..nowhere };
        self.entries.push_back(entry);
        self.first_entry + self.entries.len() as u64 - 1
    }

    fn write(&mut self, entry: u64, file: u64, at: u64, bytes: Bytes, shared: &mut Shared<D>) {
        let Some(open) = self.files.get(&file) else { return };
        let begun = shared.volumes.begin(open.volume, length(&bytes));
        let ticket = shared.ticket(self.id, Asked::Write(entry));
        shared.disk.write(&open.file, at, bytes, ticket);
        if let Some(entry) = self.entries.get_mut((entry - self.first_entry) as usize) {
            entry.begun = begun;
        }
    }
}

fn length(bytes: &Bytes) -> usize {
    match bytes {
        Bytes::Own(buffer) => buffer.filled(),
        Bytes::Ring { bytes, .. } => *bytes,
        Bytes::Preallocate { .. } => 0,
    }
}

fn highest(what: &What) -> u32 {
    match what {
        What::Frames { highest, .. } => *highest,
        _ => 0,
    }
}
