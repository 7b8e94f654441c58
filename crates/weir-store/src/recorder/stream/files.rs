//! The files of a ring: creation, headers, rotation, and end.

use std::io;
use std::path::Path;
use std::time::Instant;

use weir_disk::{ALIGN_BYTES, Bytes, Disk};
use weir_frame::pcapng::{Statistics, write};
use weir_frame::read::FrameReader;
use weir_ring::{Mapping, Ring, RingError};

use super::super::Shared;
use super::super::file::OpenFile;
use super::super::gather;
use super::super::volume::begin_of_name;
use super::{Stream, What};
use crate::catalog::{COMPLETE_ENDING, COMPRESSED_ENDING, index_path, open_path};
use crate::index::{self, Piece};
use crate::names::WrittenNames;

/// Names that are tried for a new file before its creation fails.
const NAMES_MAX: u32 = 100;

/// Returns link type and name of a ring's first interface.
pub fn first_interface(ring: &Ring<Mapping>) -> Result<(u16, String), RingError> {
    let header = ring.identity()?.pcapng_header;
    let reader = FrameReader::open(&header[..]).ok().and_then(|mut reader| {
        // Interfaces are known once the reader has read past them.
        let _ = reader.next();
        let first = reader.interfaces().first()?;
        Some((first.link_type, first.name.clone()))
    });
    reader.ok_or(RingError::Corrupt { block: 0, offset: 0, what: "no interface is described" })
}

/// Makes a text usable as part of a file name: at most 64 characters; characters other than ASCII letters, digits and
/// `.` become `-`.
pub fn name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = text.chars().take(64).map(plain).collect();
    if name.is_empty() { "frames".to_owned() } else { name }
}

/// Returns whether none of the names of this file is in use, not even by a symbolic link.
fn is_free(complete: &Path) -> bool {
    let has = |path: &Path| path.symlink_metadata().is_ok();
    !has(complete) && !has(&open_path(complete)) && !has(&index_path(complete))
}

impl<D: Disk> Stream<D> {
    /// Reserves space for a piece of `length` bytes whose frames have interfaces up to `highest`, and writes the
    /// headers that the piece needs. Returns the file and the offset; `None` if all volumes have failed or the ring
    /// is corrupt.
    pub(super) fn place(
        &mut self,
        length: usize,
        highest: u32,
        shared: &mut Shared<D>,
    ) -> Option<(u64, u64)> {
        let id = self.file_for(length, shared)?;
        match self.missing_headers(id, highest, length, shared) {
            Ok(headers) => self.submit_blocks(id, &headers, shared),
            Err(error) => {
                // The ring is corrupt; the volume has not failed.
                self.corrupt = Some(error);
                return None;
            }
        }
        Some((id, self.extend(id, length, shared)?))
    }

    /// Returns the file for a piece of `length` bytes, which is created if needed. `None` if all volumes have failed.
    pub(super) fn file_for(&mut self, length: usize, shared: &mut Shared<D>) -> Option<u64> {
        loop {
            let volume = shared.volumes.next()?;
            if let Some(id) = self.current.get(&volume).copied() {
                let limit = shared.volumes.file_bytes();
                let file = self.files.get(&id)?;
                let is_full =
                    file.end + length as u64 > limit && file.frames + file.pending as u64 > 1;
                // A file that is being truncated accepts no writes. Another file is begun, so that rings do not wait.
                if is_full || file.is_being_cut {
                    self.close(volume);
                }
            }
            let id = match self.current.get(&volume).copied() {
                Some(id) => id,
                None => match self.begin(volume, shared) {
                    Ok(id) => id,
                    Err(error) => {
                        if !shared.volumes.free_space(volume, &error) {
                            shared.volumes.fail(volume, error);
                        }
                        continue;
                    }
                },
            };
            return Some(id);
        }
    }

    /// Creates a file on a volume, and returns its number.
    fn begin(&mut self, volume: usize, shared: &mut Shared<D>) -> io::Result<u64> {
        let start_ns = (shared.settings.now)();
        let directory = shared.volumes.directory(volume).to_owned();
        let (mut file, mut path) = (None, directory.clone());
        let ending = if shared.pool.is_some() { COMPRESSED_ENDING } else { COMPLETE_ENDING };
        for _ in 0..NAMES_MAX {
            let start = begin_of_name(shared.volumes.name_ns(volume, start_ns));
            path = directory.join(format!("{start}_{}_{}{ending}", self.name, self.number));
            if !is_free(&path) {
                continue;
            }
            match shared.disk.create(&open_path(&path), shared.settings.file_mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    file = Some(other?);
                    break;
                }
            }
        }
        let file = file.ok_or(io::ErrorKind::AlreadyExists)?;
        // An error is ignored, because the file can be recorded and read without an index.
        let index = shared.settings.index.then(|| {
            index::Writer::create(&index_path(&path), &path, shared.settings.file_mode).ok()
        });
        let unit = if shared.pool.is_some() { 1 } else { ALIGN_BYTES as u64 };
        let written_names = WrittenNames::nothing(shared.volumes.file_bytes(), unit);
        let id = self.next_file;
        self.next_file += 1;
        self.files.insert(
            id,
            OpenFile {
                file,
                path: open_path(&path),
                final_path: path,
                index: index.flatten(),
                volume,
                began: Instant::now(),
                start_ns,
                end: 0,
                ahead_end: 0,
                allocated_end: 0,
                is_preallocation_refused: false,
                has_excess: false,
                is_being_cut: false,
                is_busy: false,
                plain_end: 0,
                frames_made: Vec::new(),
                interfaces: 0,
                written_names,
                frames: 0,
                lapped: 0,
                out_of_turn: Vec::new(),
                written: 0,
                pending: 0,
                broken_at: None,
                is_closing: false,
                has_statistics: false,
            },
        );
        self.current.insert(volume, id);
        shared.report.files += 1;
        Ok(id)
    }

    /// Returns the blocks that a file needs before a piece of `length` bytes with frames of interfaces up to
    /// `highest`: interfaces that the file does not describe yet, and new names of addresses. The caller must write
    /// them.
    pub(super) fn missing_headers(
        &mut self,
        id: u64,
        highest: u32,
        length: usize,
        shared: &Shared<D>,
    ) -> Result<Vec<u8>, RingError> {
        let mut blocks = self.missing_interfaces(id, highest)?;
        self.add_names(id, &mut blocks, length, shared);
        Ok(blocks)
    }

    fn add_names(&mut self, id: u64, blocks: &mut Vec<u8>, length: usize, shared: &Shared<D>) {
        if let Some(file) = self.files.get_mut(&id) {
            file.add_names(blocks, &shared.names, length, shared.volumes.file_bytes());
        }
    }

    /// Returns descriptions of interfaces up to `highest` that a file does not have yet; at the beginning of a file,
    /// after a section header.
    fn missing_interfaces(&mut self, id: u64, highest: u32) -> Result<Vec<u8>, RingError> {
        let Some(file) = self.files.get_mut(&id) else { return Ok(Vec::new()) };
        if file.interfaces > highest {
            return Ok(Vec::new());
        }
        let identity = self.ring.identity()?;
        let count = identity.interface_blocks().count() as u32;
        if count <= highest {
            let what = "a record of an interface that the ring does not describe";
            return Err(RingError::Corrupt { block: 0, offset: 0, what });
        }
        let blocks: Vec<u8> = if file.interfaces == 0 {
            identity.pcapng_header.clone()
        } else {
            identity.interface_blocks().skip(file.interfaces as usize).flatten().copied().collect()
        };
        file.interfaces = count;
        Ok(blocks)
    }

    /// Writes these blocks to a file.
    fn submit_blocks(&mut self, id: u64, blocks: &[u8], shared: &mut Shared<D>) {
        if blocks.is_empty() {
            return;
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        let plain_end = file.plain_end;
        let (buffer, plain) = match &mut shared.pool {
            None => (gather::piece(blocks), None),
            // With compression, this function is called only at the end of a file, so the seek table is appended.
            Some(pool) => {
                let buffer = file.last_piece(&pool.compress(blocks), blocks.len());
                (buffer, Some((plain_end, blocks.len())))
            }
        };
        let bytes = buffer.filled();
        let Some(at) = self.extend(id, bytes, shared) else { return };
        let number = self.push(What::Blocks, id, at, bytes, None);
        if let (Some(entry), Some((at, bytes))) = (self.entries.back_mut(), plain) {
            (entry.plain_at, entry.plain_bytes) = (at, bytes);
        }
        self.write(number, id, at, Bytes::Own(buffer), shared);
    }

    /// Closes the current file of this volume: nothing more is added to it.
    fn close(&mut self, volume: usize) {
        if let Some(file) = self.current.remove(&volume).and_then(|id| self.files.get_mut(&id)) {
            file.is_closing = true;
        }
    }

    /// Closes files whose rotation time has passed.
    pub fn rotate_if_due(&mut self, shared: &mut Shared<D>) {
        let Some(time) = shared.settings.file_time else { return };
        let due = |id: &u64| self.files.get(id).is_some_and(|file| file.began.elapsed() >= time);
        let due: Vec<usize> =
            self.current.iter().filter(|(_, id)| due(id)).map(|(volume, _)| *volume).collect();
        due.into_iter().for_each(|volume| self.close(volume));
        self.complete_files(shared);
    }

    /// Closes all files. The statistics are written into the last one.
    pub fn close_files(&mut self, statistics: &[Statistics], shared: &mut Shared<D>) {
        self.statistics = statistics.to_vec();
        let volumes: Vec<usize> = self.current.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.close(volume));
        self.complete_files(shared);
    }

    /// Completes closed files once their writes are settled: writes their statistics, then renames the files to their
    /// final names.
    pub(super) fn complete_files(&mut self, shared: &mut Shared<D>) {
        // A volume that does not answer gets no further requests. Its files keep their open names.
        let is_stalled = |(_, file): &(&u64, &OpenFile<D>)| shared.volumes.is_stalled(file.volume);
        let stalled: Vec<u64> = self.files.iter().filter(is_stalled).map(|(id, _)| *id).collect();
        stalled.iter().for_each(|id| std::mem::forget(self.files.remove(id)));
        let files = &self.files;
        self.current.retain(|_, current| files.contains_key(current));
        let idle = |file: &OpenFile<D>| file.is_closing && file.pending == 0 && !file.is_being_cut;
        let ids: Vec<u64> =
            self.files.iter().filter(|(_, file)| idle(file)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(file) = self.files.get_mut(&id) else { continue };
            if !file.has_statistics && file.broken_at.is_none() {
                file.has_statistics = true;
                let mut blocks = Vec::new();
                self.add_names(id, &mut blocks, 0, shared);
                blocks.extend(self.statistics_of(id, (shared.settings.now)()));
                if !blocks.is_empty() {
                    self.submit_blocks(id, &blocks, shared);
                    continue;
                }
            }
            let Some(file) = self.files.remove(&id) else { continue };
            self.current.retain(|_, current| *current != id);
            shared.report.bytes = shared.report.bytes.saturating_sub(file.lost_bytes());
            shared.report.files -= u64::from(file.is_empty());
            shared.volumes.complete(file);
        }
    }

    /// Returns the statistics blocks of a file. The last file of the feed's first ring contains the statistics of the
    /// run, if they are known.
    fn statistics_of(&mut self, id: u64, now_ns: u64) -> Vec<u8> {
        let mut blocks = Vec::new();
        let Some(file) = self.files.get(&id) else { return blocks };
        let end_ns = now_ns;
        let own = Statistics {
            interface_id: 0,
            ts_ns: end_ns,
            start_ns: Some(file.start_ns),
            end_ns: Some(end_ns),
            os_drops: Some(file.lapped),
            delivered: Some(file.frames),
            ..Statistics::default()
        };
        let ledger = std::mem::take(&mut self.statistics);
        let ring_id =
            |one: &Statistics| self.numbers.iter().position(|number| *number == one.interface_id);
        let mut own_said = false;
        for one in ledger.iter().filter(|_| self.number == 0) {
            let Some(interface_id) = ring_id(one).map(|id| id as u32) else { continue };
            if interface_id >= file.interfaces {
                continue;
            }
            let mut one = Statistics { interface_id, ..*one };
            if interface_id == 0 {
                own_said = true;
                one.delivered = own.delivered;
                one.os_drops = Some(one.os_drops.unwrap_or(0) + file.lapped);
            }
            write::statistics(&mut blocks, &one);
        }
        if !own_said && file.interfaces > 0 {
            write::statistics(&mut blocks, &own);
        }
        blocks
    }

    /// Counts frames that were lapped, for the statistics of the current file.
    pub(super) fn add_lapped(&mut self, frames: u64) {
        if let Some(file) = self.current.values().next().and_then(|id| self.files.get_mut(id)) {
            file.lapped += frames;
        }
    }

    /// Adds a piece to its file's index. If an index cannot be written, it is dropped, because files can be read
    /// without it.
    pub(super) fn tell_index(&mut self, id: u64, piece: Piece) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if let Some(index) = &mut file.index
            && index.append(&piece).is_err()
        {
            file.index = None;
        }
    }

    /// Writes the buffered entries of all indexes.
    pub fn flush_index(&mut self) {
        for file in self.files.values_mut() {
            if let Some(index) = &mut file.index
                && index.flush().is_err()
            {
                file.index = None;
            }
        }
    }
}
