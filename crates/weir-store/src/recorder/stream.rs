//! A ring on its way to files: what was read of it, and what is still being written.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use weir_consumer::{ConsumerError, Cursor};
use weir_disk::{ALIGN_BYTES, Buffer, Bytes, Disk, Ticket};
use weir_frame::pcapng::Statistics;
use weir_ring::{Batch, BlockLook, Mapping, Poll, Reader, Ring, RingError, Whole, Words};

use super::file::OpenFile;
use super::gather::{self, Gather};
use super::{FLUSH_EVERY, Shop};
use crate::index::{Piece, Scan};

mod files;

/// Bytes that a poll copies at most.
const CHUNK_BYTES: u32 = 256 << 10;
/// Where more than this share of a ring lies before the writer, or is being written to disk, blocks are copied first:
/// the writer is near, or will be by the time a write is over.
const NEAR: f64 = 0.5;
/// The share of a ring that may be on its way to the disk in place.
const IN_PLACE: f64 = 0.25;
/// A block of which so much is padding is copied without it.
const SPARSE: f64 = 0.75;

/// What reading on brought.
pub enum Progress {
    /// Frames.
    Frames(u64),
    /// Something else; look again.
    Moved,
    /// Frames that are there and go out later.
    Later,
    /// Nothing.
    Nothing,
}

/// What was read and is not settled, in the order in which it was read.
struct Entry {
    what: What,
    /// The file that it goes to, and where in it.
    file: u64,
    at: u64,
    bytes: usize,
    state: State,
    /// The first page of a block that is written in place: written last, once the block is known to be whole. Until then
    /// there are zeros, at which every reader of the file stops.
    first_page: Option<Buffer>,
}

enum What {
    /// Frames; of a block of the ring, where they were not copied.
    Frames { frames: u64, wire_bytes: u64, block: Option<Whole>, highest: u32, piece: Piece },
    /// Headers, statistics.
    Blocks,
    /// Padding over what was torn.
    Cover,
    /// Frames that were lapped before they were read.
    Gap(u64),
}

enum State {
    Pending,
    Done,
    /// The writer had overtaken it by the time it was written.
    Torn,
    Failed(Bytes),
}

/// A ring on its way to files.
pub struct Stream<D: Disk> {
    id: usize,
    /// Of the feed's rings.
    number: usize,
    name: String,
    link_type: u16,
    ring: Ring<Mapping>,
    /// Asks whether a block is still held.
    reader: Reader<Mapping>,
    /// The output's numbers of the ring's interfaces.
    numbers: Vec<u32>,
    files: BTreeMap<u64, OpenFile<D>>,
    /// By volume, the file that is written to.
    current: BTreeMap<usize, u64>,
    next_file: u64,
    entries: VecDeque<Entry>,
    first_entry: u64,
    batch: Batch,
    gather: Gather,
    /// When frames of a block that is not whole were first seen.
    part_since: Option<Instant>,
    scan: Scan,
    gathered: Scan,
    is_read: bool,
    statistics: Vec<Statistics>,
    /// Since when nothing more comes.
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
            batch,
            gather: Gather::new(),
            part_since: None,
            scan: Scan::default(),
            gathered: Scan::default(),
            is_read: false,
            statistics: Vec::new(),
            ended: None,
        })
    }

    /// Frames that were read and are not settled.
    pub fn unsettled(&self) -> u64 {
        let frames = self.entries.iter().map(|entry| match &entry.what {
            What::Frames { frames, .. } => *frames,
            _ => 0,
        });
        frames.sum::<u64>() + self.gather.frames
    }

    /// Whether everything was read, and what became of it is known.
    pub fn has_ended(&self) -> bool {
        self.is_read && self.ended.is_none() && self.unsettled() == 0 && self.gaps() == 0
    }

    /// Whether files of it are not complete.
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    fn gaps(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.what, What::Gap(_))).count()
    }

    /// Reads on: a block, or a part of one, of at most `left` frames.
    pub fn read_on(
        &mut self,
        cursor: &mut Cursor,
        left: u64,
        shop: &mut Shop<D>,
    ) -> Result<Progress, ConsumerError> {
        if self.is_read {
            return Ok(Progress::Nothing);
        }
        let (scan, link_type, index) = (&mut self.scan, self.link_type, shop.settings.index);
        let look = cursor.next_block(left, |head| {
            if index {
                scan.add(head.ts_ns, link_type, head.bytes, head.caplen);
            }
        })?;
        match look {
            BlockLook::Whole(whole) => {
                self.submit_gathered(shop);
                self.take_block(cursor, &whole, shop);
                Ok(Progress::Frames(whole.frames))
            }
            BlockLook::Part => {
                self.scan.finish(0, 0);
                self.take_part(cursor, left, shop)
            }
            BlockLook::Other(poll) => {
                self.scan.finish(0, 0);
                Ok(self.found(poll, shop))
            }
        }
    }

    fn found(&mut self, poll: Poll, shop: &mut Shop<D>) -> Progress {
        match poll {
            Poll::Lapped(frames) => {
                self.submit_gathered(shop);
                self.entries.push_back(Entry {
                    what: What::Gap(frames),
                    file: 0,
                    at: 0,
                    bytes: 0,
                    state: State::Done,
                    first_page: None,
                });
                self.add_lapped(frames);
                Progress::Moved
            }
            Poll::Closed => {
                self.submit_gathered(shop);
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
                self.submit_gathered(shop);
                Progress::Moved
            }
        }
    }

    /// Whether what is there of a block that is not whole goes out.
    fn is_due(&self) -> bool {
        self.part_since.is_some_and(|since| since.elapsed() >= FLUSH_EVERY)
    }

    fn take_part(
        &mut self,
        cursor: &mut Cursor,
        left: u64,
        shop: &mut Shop<D>,
    ) -> Result<Progress, ConsumerError> {
        self.part_since.get_or_insert_with(Instant::now);
        let is_behind = cursor.reader().fill() > 0.0;
        if !is_behind && !cursor.has_left() && !self.is_due() && left > self.waiting(cursor) {
            return Ok(Progress::Later);
        }
        let frames = match cursor.poll_ahead(&mut self.batch)? {
            Poll::Frames(frames) => u64::from(frames).min(left),
            other => return Ok(self.found(other, shop)),
        };
        self.batch.truncate(frames as u32);
        let mut wire_bytes = 0;
        for record in self.batch.records() {
            wire_bytes += u64::from(record.meta.wire_len);
            if shop.settings.index {
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
        self.gather.add(self.batch.block_bytes(), frames, wire_bytes, highest);
        if self.gather.is_full() {
            self.submit_gathered(shop);
        }
        Ok(Progress::Frames(frames))
    }

    /// Frames that are there and were not read.
    fn waiting(&self, cursor: &Cursor) -> u64 {
        self.ring.frames_written().saturating_sub(cursor.reader().ordinal())
    }

    /// Has what was collected written.
    pub fn submit_gathered(&mut self, shop: &mut Shop<D>) {
        self.part_since = None;
        if self.gather.is_empty() {
            return;
        }
        let Gather { frames, wire_bytes, highest_interface_id: highest, .. } = self.gather;
        let Some(buffer) = self.gather.take() else { return };
        let piece = self.gathered.finish(0, 0);
        let what = What::Frames { frames, wire_bytes, block: None, highest, piece };
        self.submit(what, Bytes::Own(buffer), shop);
    }

    fn take_block(&mut self, cursor: &Cursor, whole: &Whole, shop: &mut Shop<D>) {
        let piece = self.scan.finish(0, 0);
        let Whole { block, frames, wire_bytes, highest_interface_id: highest, .. } = *whole;
        let is_near = cursor.reader().fill() > NEAR || self.is_full_of_writes();
        let is_sparse = (whole.used as f64) < SPARSE * whole.bytes as f64;
        if !is_near && !is_sparse {
            let what = What::Frames { frames, wire_bytes, block: Some(*whole), highest, piece };
            return self.submit_in_place(what, whole, shop);
        }
        let buffer = self.copy(whole, is_sparse);
        if !self.reader.holds(block) {
            self.entries.push_back(Entry {
                what: What::Frames { frames, wire_bytes, block: None, highest, piece },
                file: 0,
                at: 0,
                bytes: 0,
                state: State::Torn,
                first_page: None,
            });
            return self.add_lapped(frames);
        }
        shop.report.copied_blocks += u64::from(is_near);
        let what = What::Frames { frames, wire_bytes, block: None, highest, piece };
        self.submit(what, Bytes::Own(buffer), shop);
    }

    /// Whether as many blocks are being written in place as may be.
    fn is_full_of_writes(&self) -> bool {
        let in_place = self.entries.iter().filter(|entry| {
            let is_block = matches!(entry.what, What::Frames { block: Some(_), .. });
            is_block && matches!(entry.state, State::Pending)
        });
        let most = (self.ring.geometry().data_blocks as f64 * IN_PLACE) as usize;
        in_place.count() >= most
    }

    /// A block, without its padding if that is much.
    fn copy(&self, whole: &Whole, is_sparse: bool) -> Buffer {
        let words = &self.ring.memory().words()[whole.at / 8..(whole.at + whole.bytes) / 8];
        let mut buffer = Buffer::new(whole.bytes);
        if !is_sparse {
            buffer.fill_from_ring(words);
            return buffer;
        }
        buffer.fill_from_ring(&words[..whole.used.div_ceil(8)]);
        gather::piece(&buffer.as_slice()[..whole.used])
    }

    /// Has these bytes written to the file that they belong to, and settled in their turn.
    fn submit(&mut self, what: What, bytes: Bytes, shop: &mut Shop<D>) {
        let (length, highest) = (length(&bytes), highest(&what));
        let Some((file, at)) = self.place(length, highest, shop) else {
            // No volume works: what cannot be written is lost in the store.
            let (state, first_page) = (State::Failed(bytes), None);
            let entry = Entry { what, file: 0, at: 0, bytes: length, state, first_page };
            return self.entries.push_back(entry);
        };
        let number = self.push(what, file, at, length, None);
        self.write(number, file, at, bytes, shop);
    }

    /// The same of a block, all but its first page.
    fn submit_in_place(&mut self, what: What, whole: &Whole, shop: &mut Shop<D>) {
        let mut first_page = Buffer::new(ALIGN_BYTES);
        let words = &self.ring.memory().words()[whole.at / 8..];
        first_page.fill_from_ring(&words[..ALIGN_BYTES / 8]);
        let memory = Arc::clone(self.ring.memory());
        let (at, bytes) = (whole.at + ALIGN_BYTES, whole.bytes - ALIGN_BYTES);
        let rest = Bytes::Ring { memory, at, bytes };
        let Some((file, at)) = self.place(whole.bytes, highest(&what), shop) else {
            return self.submit(what, rest, shop);
        };
        let number = self.push(what, file, at, whole.bytes, Some(first_page));
        self.write(number, file, at + ALIGN_BYTES as u64, rest, shop);
    }

    /// One more to be settled. Gives its number.
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
        self.entries.push_back(Entry { what, file, at, bytes, state, first_page });
        self.first_entry + self.entries.len() as u64 - 1
    }

    fn write(&mut self, entry: u64, file: u64, at: u64, bytes: Bytes, shop: &mut Shop<D>) {
        let Some(open) = self.files.get(&file) else { return };
        let ticket = Ticket(shop.next_ticket);
        shop.next_ticket += 1;
        shop.tickets.insert(ticket, (self.id, entry));
        shop.volumes.begin(open.volume, length(&bytes) as u64, &mut shop.disk);
        shop.report.bytes += length(&bytes) as u64;
        shop.disk.write(&open.file, at, bytes, ticket);
    }

    /// A write is over.
    pub fn completed(
        &mut self,
        entry: u64,
        result: io::Result<()>,
        bytes: Bytes,
        shop: &mut Shop<D>,
    ) {
        let Some(own) = self.entries.get_mut((entry - self.first_entry) as usize) else { return };
        let Some(file) = self.files.get_mut(&own.file) else { return };
        shop.volumes.end(file.volume);
        let block = match own.what {
            What::Frames { block, .. } => block.map(|whole| whole.block),
            _ => None,
        };
        if result.is_ok()
            && block.is_some_and(|block| self.reader.holds(block))
            && let Some(first_page) = own.first_page.take()
        {
            // What is there is whole and stays so: readers of the file may see it.
            let (file, at) = (own.file, own.at);
            return self.write(entry, file, at, Bytes::Own(first_page), shop);
        }
        let is_hidden = own.first_page.is_some();
        own.state = match result {
            Ok(()) if is_hidden && block.is_some_and(|block| !self.reader.holds(block)) => {
                State::Torn
            }
            Ok(()) => State::Done,
            Err(error) => {
                shop.volumes.fail(file.volume, error);
                file.broken_at = Some(file.broken_at.map_or(own.at, |at| at.min(own.at)));
                file.is_closing = true;
                State::Failed(bytes)
            }
        };
        if matches!(own.state, State::Torn) {
            shop.report.torn_blocks += 1;
            let (file, at, bytes) = (own.file, own.at, own.bytes);
            self.cover(file, at, bytes, shop);
        }
    }

    /// Hides a torn piece from readers of the file.
    fn cover(&mut self, file: u64, at: u64, bytes: usize, shop: &mut Shop<D>) {
        let [first, last] = gather::cover(bytes);
        let last_at = at + (bytes - last.filled()) as u64;
        for (at, buffer) in [(last_at, last), (at, first)] {
            let number = self.push(What::Cover, file, at, buffer.filled(), None);
            self.write(number, file, at, Bytes::Own(buffer), shop);
        }
    }

    /// Settles what is known of the oldest entries. Without a cursor, that of a ring that was read to its end: there are
    /// no frames among them then.
    pub fn settle(&mut self, cursor: &mut Option<&mut Cursor>, shop: &mut Shop<D>) {
        while let Some(entry) = self.entries.front_mut() {
            let state = std::mem::replace(&mut entry.state, State::Done);
            match state {
                State::Pending => {
                    entry.state = State::Pending;
                    break;
                }
                State::Failed(bytes) => {
                    if let Some(bytes) = self.again(bytes, shop) {
                        drop(bytes);
                        self.settle_front(cursor, Fate::Lost, shop);
                    } else {
                        break;
                    }
                }
                State::Torn => self.settle_front(cursor, Fate::Lapped, shop),
                State::Done => self.settle_front(cursor, Fate::Kept, shop),
            }
        }
        self.complete_files(shop);
    }

    /// Tries the oldest entry, whose write has failed, on another volume. Gives its bytes back where that cannot be.
    fn again(&mut self, bytes: Bytes, shop: &mut Shop<D>) -> Option<Bytes> {
        let entry = self.entries.front()?;
        let What::Frames { block, highest, .. } = entry.what else { return Some(bytes) };
        let (old, length) = (entry.file, entry.bytes);
        let bytes = match block {
            // Its first page may have been written or not: all of it once more.
            Some(whole) => {
                let copy = self.copy(&whole, false);
                if !self.reader.holds(whole.block) {
                    return Some(bytes);
                }
                Bytes::Own(copy)
            }
            None => bytes,
        };
        let number = self.first_entry;
        let Some((file, at)) = self.place(length, highest, shop) else { return Some(bytes) };
        self.release(old);
        if let Some(open) = self.files.get_mut(&file) {
            open.pending += 1;
        }
        let entry = self.entries.front_mut()?;
        (entry.file, entry.at, entry.state, entry.first_page) = (file, at, State::Pending, None);
        if let What::Frames { block, .. } = &mut entry.what {
            *block = None;
        }
        self.write(number, file, at, bytes, shop);
        None
    }

    /// The oldest entry is settled.
    fn settle_front(&mut self, cursor: &mut Option<&mut Cursor>, fate: Fate, shop: &mut Shop<D>) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.first_entry += 1;
        let is_cut_off = self
            .files
            .get(&entry.file)
            .is_some_and(|file| file.broken_at.is_some_and(|broken| entry.at >= broken));
        let (at, bytes) = (entry.at, entry.bytes as u32);
        match entry.what {
            What::Gap(frames) => {
                if let Some(cursor) = cursor {
                    cursor.pass(frames);
                }
                return;
            }
            What::Blocks => self.tell_index(entry.file, Piece::headers(at, bytes), shop),
            What::Cover => {}
            What::Frames { frames, .. } if matches!(fate, Fate::Lapped) => {
                if let Some(cursor) = cursor {
                    cursor.lose(frames);
                }
                if bytes == 0 {
                    return;
                }
                self.add_lapped(frames);
                self.tell_index(entry.file, Piece::nothing(at, bytes), shop);
            }
            What::Frames { frames, wire_bytes, piece, .. } => {
                if let Some(cursor) = cursor {
                    cursor.take(frames);
                }
                shop.taken.frames += frames;
                shop.taken.wire_bytes += wire_bytes;
                if matches!(fate, Fate::Kept) && !is_cut_off {
                    shop.kept.frames += frames;
                    shop.kept.wire_bytes += wire_bytes;
                    if let Some(file) = self.files.get_mut(&entry.file) {
                        file.frames += frames;
                    }
                    self.tell_index(entry.file, Piece { at, bytes, ..piece }, shop);
                }
            }
        }
        self.release(entry.file);
    }

    /// A write of a file is settled.
    fn release(&mut self, file: u64) {
        if let Some(file) = self.files.get_mut(&file) {
            file.pending = file.pending.saturating_sub(1);
        }
    }
}

/// What became of frames.
enum Fate {
    Kept,
    Lapped,
    Lost,
}

fn length(bytes: &Bytes) -> usize {
    match bytes {
        Bytes::Own(buffer) => buffer.filled(),
        Bytes::Ring { bytes, .. } => *bytes,
    }
}

fn highest(what: &What) -> u32 {
    match what {
        What::Frames { highest, .. } => *highest,
        _ => 0,
    }
}
