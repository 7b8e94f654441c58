//! A pcapng file, or a pipe, that stays readable whatever happens to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weir_consumer::{ConsumerError, Count, Run, Sink, Stalled, write_counted};
use weir_frame::pcapng::{self, Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::header::section_info;

use crate::file_error::FileError;
use crate::names::{Names, Told};

/// Bytes collected before a write: large enough that system calls do not show.
const BUFFER_BYTES: usize = 1 << 20;
/// A run of at least so many bytes is written directly: a copy of it would cost more than a system
/// call.
const RUN_BYTES_MIN: usize = 64 << 10;

/// Bytes of an interface's statistics with all options: 24 of the block and its time, two times, five counts, the end.
pub(crate) const STATISTICS_BYTES: u64 = 24 + 2 * 12 + 5 * 12 + 4;

/// Where the interface's number stands in an Enhanced Packet Block. Source: draft-ietf-opsawg-pcapng, section 4.3.
const INTERFACE_ID_AT: usize = 8;

enum Output {
    File(File),
    Pipe(Box<dyn Write + Send>),
}

/// A pcapng file being written, block by block.
///
/// Blocks are collected and written in large pieces that end with a whole block. If a write fails, a
/// file is cut back to its last whole block.
pub struct FileWriter {
    output: Output,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Frames in `buffer`.
    pending: Count,
    /// Bytes and frames that are safely out.
    written_bytes: u64,
    kept: Count,
    failed: bool,
    /// Interfaces described so far.
    interfaces: u32,
    /// The name and link type of the first of them.
    first: Option<(String, u16)>,
    names: Names,
    told: Told,
    /// Bytes that it may have.
    bytes_max: u64,
}

impl FileWriter {
    /// Makes a file with the permissions `mode` (less the umask), or replaces one and leaves it its own.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub fn create(path: &Path, mode: u32) -> Result<FileWriter, FileError> {
        // An existing file stays until the first write: a run that cannot start replaces nothing.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(path);
        let file = file.map_err(|source| FileError::Create { path: path.into(), source })?;
        // A named pipe or a device cannot be cut back.
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let output = if regular { Output::File(file) } else { Output::Pipe(Box::new(file)) };
        Ok(FileWriter::begin(output, path))
    }

    /// Writes into a pipe, such as standard output; `name` is for messages. Nothing goes out before the first flush:
    /// then a tool at the other end knows the link type, frames or not.
    #[must_use]
    pub fn pipe(out: impl Write + Send + 'static, name: &str) -> FileWriter {
        FileWriter::begin(Output::Pipe(Box::new(out)), Path::new(name))
    }

    fn begin(output: Output, path: &Path) -> FileWriter {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + (1 << 17));
        pcapng::write::section_header(&mut buffer, &section_info());
        FileWriter {
            output,
            path: path.into(),
            buffer,
            pending: Count::default(),
            written_bytes: 0,
            kept: Count::default(),
            failed: false,
            interfaces: 0,
            first: None,
            names: Names::default(),
            told: Told::nothing(u64::MAX, 1),
            bytes_max: u64::MAX,
        }
    }

    /// Has [`has_room`](FileWriter::has_room) say when so many bytes are reached. Names get a quarter of them at most.
    #[must_use]
    pub(crate) fn limited_to(mut self, bytes_max: u64) -> FileWriter {
        self.bytes_max = bytes_max;
        self.told = Told::nothing(bytes_max, 1);
        self
    }

    /// Bytes that it has, written or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// The same once it has ended, with the statistics of all its interfaces.
    pub(crate) fn ended_bytes(&self) -> u64 {
        self.bytes() + u64::from(self.interfaces) * STATISTICS_BYTES
    }

    /// Whether it may have so many bytes more, and its statistics.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.ended_bytes() + bytes <= self.bytes_max
    }

    /// Has the file say these names: those that are known by then behind its first interface, and others as they come.
    #[must_use]
    pub fn with_names(mut self, names: &Names) -> FileWriter {
        self.names = names.clone();
        self
    }

    /// Writes the names that have come since. Not before the first interface: Wireshark 4.0's tools then refuse to
    /// write the file as another (editcap, mergecap, `tshark -w`).
    #[inline]
    pub(crate) fn tell_names(&mut self) {
        if self.told.is_behind(&self.names) && self.interfaces > 0 {
            let room = self.bytes_max.saturating_sub(self.ended_bytes());
            if !self.told.append_new(&self.names, room, &mut self.buffer) {
                // Those that have no room now have none later.
                self.told.end();
            }
        }
    }

    /// Describes one more interface of the file: the next one that [`add_as`](FileWriter::add_as) may name.
    ///
    /// # Errors
    /// [`FileError::LinkTypes`] if it has another link type than those before it.
    pub fn add_interface(&mut self, interface: &Interface) -> Result<(), FileError> {
        match &self.first {
            Some((first, link_type)) if *link_type != interface.link_type => {
                let (path, first) = (self.path.clone(), first.clone());
                return Err(FileError::LinkTypes { path, first, second: interface.name.clone() });
            }
            Some(_) => {}
            None => self.first = Some((interface.name.clone(), interface.link_type)),
        }
        self.interfaces += 1;
        pcapng::write::interface(&mut self.buffer, interface);
        self.tell_names();
        Ok(())
    }

    /// The link type of its interfaces, once it has one.
    #[must_use]
    pub fn link_type(&self) -> Option<u16> {
        self.first.as_ref().map(|(_, link_type)| *link_type)
    }

    /// Interfaces described so far.
    #[must_use]
    pub fn interfaces(&self) -> u32 {
        self.interfaces
    }

    /// Adds one frame: its ring record is a file block already.
    ///
    /// # Errors
    /// [`FileError`] when a write fails; the file is whole up to the frames that it says.
    #[inline]
    pub fn add(&mut self, record: &Record<'_>) -> Result<(), FileError> {
        self.add_as(record, record.meta.interface_id)
    }

    /// The same, as a frame of the file's interface number `interface_id`.
    ///
    /// # Errors
    /// As [`add`](FileWriter::add).
    #[inline]
    pub fn add_as(&mut self, record: &Record<'_>, interface_id: u32) -> Result<(), FileError> {
        let id_at = self.buffer.len() + INTERFACE_ID_AT;
        self.buffer.extend_from_slice(record.block);
        if let Some(id) = self.buffer.get_mut(id_at..id_at + 4) {
            id.copy_from_slice(&interface_id.to_le_bytes());
        }
        self.pending += Count::one(record.meta.wire_len);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds frames that follow each other; their interfaces have the file's numbers.
    ///
    /// # Errors
    /// As [`add`](FileWriter::add).
    pub fn add_run(&mut self, run: &Run<'_>) -> Result<(), FileError> {
        self.tell_names();
        self.append(run)
    }

    /// The same, without the names that have come since.
    pub(crate) fn append(&mut self, run: &Run<'_>) -> Result<(), FileError> {
        if run.block_bytes.len() >= RUN_BYTES_MIN {
            self.flush()?;
            return self.write_out(run.block_bytes, run.count);
        }
        self.buffer.extend_from_slice(run.block_bytes);
        self.pending += run.count;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Frames that are safely out.
    #[must_use]
    pub fn kept(&self) -> Count {
        self.kept
    }

    /// Writes the collected bytes.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn flush(&mut self) -> Result<(), FileError> {
        if self.buffer.is_empty() && matches!(self.output, Output::File(_)) {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let pending = std::mem::take(&mut self.pending);
        let result = self.write_out(&buffer, pending);
        buffer.clear();
        self.buffer = buffer;
        result
    }

    /// Writes whole blocks, and the frames among them count as kept. After a failure, nothing is written any more.
    fn write_out(&mut self, blocks: &[u8], frames: Count) -> Result<(), FileError> {
        if self.failed {
            return Ok(());
        }
        let first = self.written_bytes == 0;
        let (taken, result) = match &mut self.output {
            Output::File(file) => match if first { file.set_len(0) } else { Ok(()) } {
                Ok(()) => write_counted(file, blocks),
                Err(source) => (0, Err(source)),
            },
            Output::Pipe(pipe) => {
                let (taken, result) = write_counted(pipe, blocks);
                // Even with nothing to write: it may know that its reader has gone.
                (taken, result.and_then(|()| pipe.flush()))
            }
        };
        if let Err(source) = result {
            return Err(self.fail(source, &blocks[..taken]));
        }
        self.written_bytes += blocks.len() as u64;
        self.kept += frames;
        Ok(())
    }

    /// Ends the file with one statistics block per interface, and waits until it is on the disk.
    ///
    /// # Errors
    /// [`FileError`]; [`FileError::Sync`] for what only shows when the disk is waited for, such as a full
    /// network disk or thin volume.
    pub fn finish(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        self.tell_names();
        self.end(statistics)?;
        match &self.output {
            Output::File(file) if !self.failed => self.sync(file),
            _ => Ok(()),
        }
    }

    /// The same, and nobody waits for the disk.
    pub(crate) fn end(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        // Those of interfaces that never came have no block to refer to.
        for statistics in statistics.iter().filter(|one| one.interface_id < self.interfaces) {
            pcapng::write::statistics(&mut self.buffer, statistics);
        }
        self.flush()
    }

    fn sync(&self, file: &File) -> Result<(), FileError> {
        match file.sync_data() {
            // Some file systems have nothing to wait for, and say so. Source: fsync(2), EINVAL.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => {
                Err(FileError::Sync { path: self.path.clone(), frames: self.kept.frames, source })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Saves what can be saved: the frames of the failed piece that are whole in the part of it that was taken are out.
    fn fail(&mut self, source: io::Error, taken: &[u8]) -> FileError {
        self.failed = true;
        let (bytes, frames) = whole_blocks(taken);
        self.written_bytes += bytes as u64;
        self.kept += frames;
        if let Output::File(file) = &mut self.output {
            // Failing to cut leaves a half block at the end, which readers report and stop at.
            let _ = file.set_len(self.written_bytes);
        }
        let (path, kept) = (self.path.clone(), self.kept.frames);
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => FileError::Full { path, kept, source },
            io::ErrorKind::BrokenPipe => FileError::PipeClosed { path, kept },
            _ if Stalled::is_why(&source) => FileError::Stalled { path, kept },
            _ => FileError::Write { path, kept, source },
        }
    }
}

impl Sink for FileWriter {
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        Ok(self.add_interface(interface)?)
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        Ok(self.add(record)?)
    }

    fn run_frames_max(&self) -> u64 {
        u64::MAX
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        Ok(self.add_run(run)?)
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(FileWriter::flush(self)?)
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(FileWriter::finish(self, statistics)?)
    }

    fn kept(&self) -> Count {
        FileWriter::kept(self)
    }
}

impl Drop for FileWriter {
    /// A writer that is dropped after an error still writes the bytes that it has.
    fn drop(&mut self) {
        if self.written_bytes > 0 || self.pending.frames > 0 {
            let _ = self.flush();
        }
    }
}

/// Bytes of the whole blocks at the start of `bytes`, and what of them are frames.
fn whole_blocks(bytes: &[u8]) -> (usize, Count) {
    let (mut at, mut count) = (0, Count::default());
    while let Some(head) = bytes[at..].first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length < 12 || bytes.len() - at < length {
            break;
        }
        // The others are the header's and the statistics.
        if let Ok(record) = Record::parse(&bytes[at..at + length]) {
            count += Count::one(record.meta.wire_len);
        }
        at += length;
    }
    (at, count)
}
