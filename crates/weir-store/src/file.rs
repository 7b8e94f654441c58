//! A pcapng file, or a pipe, that stays readable after any failure.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use weir_consumer::{ConsumerError, Count, Run, Sink, Stalled, write_counted};
use weir_frame::pcapng::{self, Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::header::section_info;

use crate::file_error::FileError;
use crate::names::{Names, WrittenNames};

/// Bytes that are collected before a write, so that the cost of system calls is negligible.
const BUFFER_BYTES: usize = 1 << 20;
/// A run of at least this length is written directly, because copying it would cost more than a system call.
const RUN_BYTES_MIN: usize = 64 << 10;

/// Bytes of an Interface Statistics Block with all options: 24 for the block and its time, two times, five counts, and
/// the end of options.
pub(crate) const STATISTICS_BYTES: u64 = 24 + 2 * 12 + 5 * 12 + 4;

/// Offset of the interface ID in an Enhanced Packet Block. Source: draft-ietf-opsawg-pcapng, section 4.3.
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
    /// Bytes and frames of successful writes.
    written_bytes: u64,
    kept: Count,
    failed: bool,
    /// Interfaces described so far.
    interfaces: u32,
    /// The name and link type of the first interface.
    first: Option<(String, u16)>,
    names: Names,
    written_names: WrittenNames,
    /// The most bytes that the file may have.
    bytes_max: u64,
    /// Whether somebody may read the output while it is written.
    is_awaited: bool,
}

impl FileWriter {
    /// Creates a file with the permissions `mode` (less the umask). An existing file is overwritten, and keeps its
    /// permissions.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub fn create(path: &Path, mode: u32) -> Result<FileWriter, FileError> {
        // An existing file is truncated at the first write, so that a run that cannot start destroys nothing.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(path);
        let file = file.map_err(|source| FileError::Create { path: path.into(), source })?;
        // A named pipe or a device cannot be cut back.
        let meta = file.metadata();
        let is_file = meta.as_ref().is_ok_and(|meta| meta.is_file());
        // Pipes and terminals have readers, and so may other devices. The null device has none.
        let is_null = meta.as_ref().is_ok_and(|meta| {
            meta.file_type().is_char_device() && meta.rdev() == rustix::fs::makedev(1, 3)
        });
        let is_awaited = !is_file && !is_null;
        let output = if is_file { Output::File(file) } else { Output::Pipe(Box::new(file)) };
        let mut writer = FileWriter::begin(output, path);
        writer.is_awaited = is_awaited;
        Ok(writer)
    }

    /// Creates a writer into a pipe, such as standard output; `name` is for messages. The first flush writes the
    /// header and the interfaces even without frames, so that a tool that reads the pipe learns the link type.
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
            written_names: WrittenNames::nothing(u64::MAX, 1),
            bytes_max: u64::MAX,
            is_awaited: true,
        }
    }

    /// Limits the size of the file, which [`has_room`](FileWriter::has_room) checks. Names take at most a quarter.
    #[must_use]
    pub(crate) fn limited_to(mut self, bytes_max: u64) -> FileWriter {
        self.bytes_max = bytes_max;
        self.written_names = WrittenNames::nothing(bytes_max, 1);
        self
    }

    /// Returns the current size in bytes, including data that was not written yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// Returns the size in bytes that the file would have if it ended now, with the statistics of all its interfaces.
    pub(crate) fn ended_bytes(&self) -> u64 {
        self.bytes() + u64::from(self.interfaces) * STATISTICS_BYTES
    }

    /// Returns whether there is space for `bytes` more bytes and the statistics.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.ended_bytes() + bytes <= self.bytes_max
    }

    /// Writes these names into the file: names that are known already after the first interface, later ones when they
    /// become known.
    #[must_use]
    pub fn with_names(mut self, names: &Names) -> FileWriter {
        self.names = names.clone();
        self
    }

    /// Writes names that are new since the last call. They must not precede the first interface: Wireshark 4.0's
    /// tools (editcap, mergecap, `tshark -w`) refuse to convert such a file.
    #[inline]
    pub(crate) fn tell_names(&mut self) {
        if self.written_names.is_behind(&self.names) && self.interfaces > 0 {
            let room = self.bytes_max.saturating_sub(self.ended_bytes());
            if !self.written_names.append_new(&self.names, room, &mut self.buffer) {
                // The space only shrinks, so later names would not fit either.
                self.written_names.end();
            }
        }
    }

    /// Adds the description of the file's next interface, to which [`add_as`](FileWriter::add_as) may refer.
    ///
    /// # Errors
    /// [`FileError::LinkTypes`] if its link type differs from that of the first interface.
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

    /// Returns the link type of the file's interfaces, once it has an interface.
    #[must_use]
    pub fn link_type(&self) -> Option<u16> {
        self.first.as_ref().map(|(_, link_type)| *link_type)
    }

    /// Returns the number of interfaces described so far.
    #[must_use]
    pub fn interfaces(&self) -> u32 {
        self.interfaces
    }

    /// Adds a frame. Its ring record already is a pcapng block.
    ///
    /// # Errors
    /// [`FileError`] if a write fails. The file is whole up to the number of frames in the error.
    #[inline]
    pub fn add(&mut self, record: &Record<'_>) -> Result<(), FileError> {
        self.add_as(record, record.meta.interface_id)
    }

    /// Adds a frame as one of the file's interface number `interface_id`.
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

    /// Adds a run of successive frames, whose interface IDs are those of the file.
    ///
    /// # Errors
    /// As [`add`](FileWriter::add).
    pub fn add_run(&mut self, run: &Run<'_>) -> Result<(), FileError> {
        self.tell_names();
        self.append(run)
    }

    /// Adds a run of successive frames, without writing new names before it.
    pub(crate) fn append(&mut self, run: &Run<'_>) -> Result<(), FileError> {
        if run.block_bytes.len() >= RUN_BYTES_MIN {
            self.flush()?;
            return self.write_out(run.block_bytes, run.count);
        }
        self.buffer.extend_from_slice(run.block_bytes);
        self.pending += run.count;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Returns the frames of successful writes.
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

    /// Writes whole blocks, and counts their frames as kept. After a failure, nothing more is written.
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
                // The flush is done even without data, because it fails if the reader of the pipe has gone.
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
    /// [`FileError`]; [`FileError::Sync`] for errors that only fdatasync(2) reports, such as a full network disk or
    /// thin volume.
    pub fn finish(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        self.tell_names();
        self.end(statistics)?;
        match &self.output {
            Output::File(file) if !self.failed => self.sync(file),
            _ => Ok(()),
        }
    }

    /// Ends the file with one statistics block per interface, without waiting for the disk.
    pub(crate) fn end(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        // Statistics of an interface that was never described have no block to refer to.
        for statistics in statistics.iter().filter(|one| one.interface_id < self.interfaces) {
            pcapng::write::statistics(&mut self.buffer, statistics);
        }
        self.flush()
    }

    fn sync(&self, file: &File) -> Result<(), FileError> {
        match file.sync_data() {
            // Some files do not support synchronization. Source: fsync(2), EINVAL.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => {
                Err(FileError::Sync { path: self.path.clone(), frames: self.kept.frames, source })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Handles a failed write, of which the part `taken` was written: counts the whole blocks in it, and truncates a
    /// file after them.
    fn fail(&mut self, source: io::Error, taken: &[u8]) -> FileError {
        self.failed = true;
        let (bytes, frames) = whole_blocks(taken);
        self.written_bytes += bytes as u64;
        self.kept += frames;
        if let Output::File(file) = &mut self.output {
            // If this fails, an incomplete block is left at the end; readers report it and stop there.
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

    fn allows_delay(&self) -> bool {
        !self.is_awaited
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
    /// Writes data that is still in the buffer, also if the run ended with an error elsewhere.
    fn drop(&mut self) {
        if self.written_bytes > 0 || self.pending.frames > 0 {
            let _ = self.flush();
        }
    }
}

/// Returns the length of the whole blocks at the start of `bytes`, and the count of frames in them.
fn whole_blocks(bytes: &[u8]) -> (usize, Count) {
    let (mut at, mut count) = (0, Count::default());
    while let Some(head) = bytes[at..].first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length < 12 || bytes.len() - at < length {
            break;
        }
        // Other blocks are headers, names and statistics.
        if let Ok(record) = Record::parse(&bytes[at..at + length]) {
            count += Count::one(record.meta.wire_len);
        }
        at += length;
    }
    (at, count)
}
