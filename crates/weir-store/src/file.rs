//! A pcapng file, or a pipe, that stays readable whatever happens to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_frame::pcapng::{self, Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::header::section_info;

/// Bytes collected before a write: large enough that system calls do not show.
const BUFFER_BYTES: usize = 1 << 20;

/// Why a capture file cannot be written.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be made.
    #[error("{path}: cannot be made; choose another --write PATH, or make the folder writable")]
    Create {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The disk is full, or a quota or size limit is reached.
    #[error(
        "{path}: no room; the {kept} frames before are whole and readable; free space, write elsewhere, or keep less of each frame with --snaplen"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Frames in it.
        kept: u64,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Whoever reads the pipe has gone.
    #[error("{path}: the reader of the pipe has gone after {kept} frames")]
    PipeClosed {
        /// Its name.
        path: PathBuf,
        /// Frames that went through.
        kept: u64,
    },
    /// Any other failure.
    #[error("{path}: cannot be written; the {kept} frames before are whole and readable")]
    Write {
        /// The file.
        path: PathBuf,
        /// Frames in it.
        kept: u64,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Link types that one file cannot hold.
    #[error(
        "{path}: a pcapng file that every tool reads has one link type, but {first} and {second} differ; write them with two runs"
    )]
    LinkTypes {
        /// The file.
        path: PathBuf,
        /// An interface.
        first: String,
        /// One of another link type.
        second: String,
    },
}

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
    pending: u64,
    /// Bytes and frames that are safely out.
    written_bytes: u64,
    kept: u64,
    failed: bool,
}

impl FileWriter {
    /// Makes a file, or replaces one.
    ///
    /// # Errors
    /// [`FileError::Create`], [`FileError::LinkTypes`].
    pub fn create(path: &Path, interfaces: &[Interface]) -> Result<FileWriter, FileError> {
        one_link_type(path, interfaces)?;
        // What was there stays until the first write: a run that cannot start replaces nothing.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|source| FileError::Create { path: path.into(), source })?;
        // A named pipe or a device cannot be cut back.
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let output = if regular { Output::File(file) } else { Output::Pipe(Box::new(file)) };
        Ok(FileWriter::begin(output, path, interfaces))
    }

    /// Writes into a pipe, such as standard output; `name` is for messages.
    ///
    /// # Errors
    /// [`FileError::LinkTypes`]; and the header goes out at once, so [`FileError::PipeClosed`].
    pub fn pipe(
        out: impl Write + Send + 'static,
        name: &str,
        interfaces: &[Interface],
    ) -> Result<FileWriter, FileError> {
        one_link_type(Path::new(name), interfaces)?;
        let mut writer =
            FileWriter::begin(Output::Pipe(Box::new(out)), Path::new(name), interfaces);
        // A tool at the other end wants to know the link type before the first frame comes.
        writer.flush()?;
        Ok(writer)
    }

    fn begin(output: Output, path: &Path, interfaces: &[Interface]) -> FileWriter {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + (1 << 17));
        pcapng::write::section_header(&mut buffer, &section_info());
        for interface in interfaces {
            pcapng::write::interface(&mut buffer, interface);
        }
        FileWriter {
            output,
            path: path.into(),
            buffer,
            pending: 0,
            written_bytes: 0,
            kept: 0,
            failed: false,
        }
    }

    /// Adds one frame: its ring record is a file block already.
    ///
    /// # Errors
    /// [`FileError`] when a write fails; the file is whole up to the frames that it says.
    #[inline]
    pub fn add(&mut self, record: &Record<'_>) -> Result<(), FileError> {
        self.buffer.extend_from_slice(record.block);
        self.pending += 1;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Frames that were added, out or not.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.kept + self.pending
    }

    /// Frames that are safely out.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Writes what was collected.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn flush(&mut self) -> Result<(), FileError> {
        if self.failed || self.buffer.is_empty() {
            return Ok(());
        }
        let first = self.written_bytes == 0;
        let result = match &mut self.output {
            Output::File(file) if first => {
                file.set_len(0).and_then(|()| file.write_all(&self.buffer))
            }
            Output::File(file) => file.write_all(&self.buffer),
            Output::Pipe(pipe) => pipe.write_all(&self.buffer).and_then(|()| pipe.flush()),
        };
        if let Err(source) = result {
            return Err(self.fail(source));
        }
        self.written_bytes += self.buffer.len() as u64;
        self.kept += self.pending;
        self.pending = 0;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the file with one statistics block per interface.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn finish(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        for statistics in statistics {
            pcapng::write::statistics(&mut self.buffer, statistics);
        }
        self.flush()
    }

    /// Saves what can be saved: the frames of the failed piece that are whole on disk stay.
    fn fail(&mut self, source: io::Error) -> FileError {
        self.failed = true;
        if let Output::File(file) = &mut self.output {
            let on_disk = file.metadata().map_or(self.written_bytes, |meta| meta.len());
            let landed = on_disk.saturating_sub(self.written_bytes) as usize;
            let (bytes, frames) = whole_blocks(&self.buffer[..landed.min(self.buffer.len())]);
            self.written_bytes += bytes as u64;
            self.kept += frames;
            // Failing to cut leaves a half block at the end, which readers report and stop at.
            let _ = file.set_len(self.written_bytes);
        }
        let (path, kept) = (self.path.clone(), self.kept);
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => FileError::Full { path, kept, source },
            io::ErrorKind::BrokenPipe => FileError::PipeClosed { path, kept },
            _ => FileError::Write { path, kept, source },
        }
    }
}

impl Drop for FileWriter {
    /// A writer dropped on the way out of an error still keeps what it has.
    fn drop(&mut self) {
        if self.written_bytes > 0 || self.pending > 0 {
            let _ = self.flush();
        }
    }
}

/// Bytes of the whole blocks at the start of `bytes`, and how many of them are frames.
fn whole_blocks(bytes: &[u8]) -> (usize, u64) {
    let (mut at, mut frames) = (0, 0);
    while let Some(head) = bytes[at..].first_chunk::<8>() {
        let block_type = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length < 12 || bytes.len() - at < length {
            break;
        }
        at += length;
        frames += u64::from(block_type == weir_frame::record::EPB_TYPE);
    }
    (at, frames)
}

fn one_link_type(path: &Path, interfaces: &[Interface]) -> Result<(), FileError> {
    let Some(first) = interfaces.first() else { return Ok(()) };
    match interfaces.iter().find(|interface| interface.link_type != first.link_type) {
        None => Ok(()),
        Some(second) => Err(FileError::LinkTypes {
            path: path.into(),
            first: first.name.clone(),
            second: second.name.clone(),
        }),
    }
}
