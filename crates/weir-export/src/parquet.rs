//! Flows as Parquet files, a file for each minute or so.
//!
//! Source: <https://parquet.apache.org/docs/file-format/>. Columns are those of docs/flows.md.

mod columns;
mod part;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterPropertiesPtr;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::TypePtr;
use weir_flow::FlowRecord;

use self::columns::Group;
use self::part::Part;
use crate::export::{Batch, Counts, Export, ExportError, Origin};
use crate::limits::FULL_TIME_MAX;
use crate::patience::Patience;
use crate::patient_writer::PatientWriter;

/// Records that are compressed and written together. So many wait in memory, 120 bytes each: 8 MiB, and some 10 MiB
/// more while they are written. Readers skip a group where its least and greatest values say that none matches.
const GROUP_RECORDS: usize = 1 << 16;

/// How files are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long after its first record a file is closed. A crash loses so much.
    pub every: Duration,
    /// Records after which a file is closed early.
    pub file_records: u64,
    /// Whether records have the other direction, too: without it, the columns for that are null.
    pub is_biflow: bool,
    /// Permission bits of the files, of which those of the umask are taken away.
    pub mode: u32,
    /// How long a disk that is full is tried again before the export ends.
    pub full_time: Duration,
}

impl Default for Config {
    /// A file each minute or 4 Mi records, for its owner only; a full disk is tried again for a minute.
    fn default() -> Config {
        Config {
            every: Duration::from_secs(60),
            file_records: 64 * GROUP_RECORDS as u64,
            is_biflow: false,
            mode: 0o600,
            full_time: FULL_TIME_MAX,
        }
    }
}

/// An export that writes Parquet files into a directory.
///
/// A file is named by the time at which it was begun, `flows-20261126T042000Z.parquet`, and begins with a record: where
/// nothing comes there is no file. Until it is whole it is `.flows-20261126T042000Z.parquet.part`; then it is synced to
/// the disk and renamed, so `*.parquet` are whole files at any time. No file is ever overwritten: where the name is
/// taken, the next is `flows-20261126T042000Z-2.parquet`.
///
/// Records count as sent once their file has its name. Those of a file that fails are unsent, all of them, and the file
/// is removed.
pub struct Parquet {
    directory: PathBuf,
    config: Config,
    clock: Clock,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    open: Option<OpenFile>,
    /// Records of the open file that are not in it yet, fewer than a group.
    waiting: Vec<FlowRecord>,
    origins: Arc<Vec<Origin>>,
    counts: Counts,
    patience: Arc<Patience>,
}

/// The file that is being written.
struct OpenFile {
    writer: SerializedFileWriter<PatientWriter<File>>,
    part: Part,
    begun: Instant,
    /// Records that are in it.
    records: u64,
}

/// A moment by both clocks: files are named by one that may be set, and closed by one that may not.
#[derive(Clone, Copy)]
struct Now {
    wall: SystemTime,
    steady: Instant,
}

type Clock = Box<dyn FnMut() -> Now + Send>;

impl Parquet {
    /// Files go to `directory`, which is made if it is not there (its parent has to be).
    ///
    /// # Errors
    /// [`ExportError`]: no file can be made there.
    pub fn open(directory: &Path, config: Config) -> Result<Parquet, ExportError> {
        let clock = || Now { wall: SystemTime::now(), steady: Instant::now() };
        Parquet::with_clock(directory, config, Box::new(clock))
    }

    fn with_clock(
        directory: &Path,
        config: Config,
        mut clock: Clock,
    ) -> Result<Parquet, ExportError> {
        let made = match fs::create_dir(directory) {
            // Its own name belongs on the disk, too; a parent that may not be read is synced by others.
            Ok(()) => {
                let _ = part::sync_directory(&directory.join(".."));
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        };
        // Before anything is captured: a first file that cannot be made would be told of a minute later.
        made.and_then(|()| Part::create(directory, clock().wall, config.mode))
            .map_err(|source| failure(directory, source))?;
        Ok(Parquet {
            directory: directory.to_owned(),
            config,
            clock,
            schema: columns::schema(),
            properties: columns::properties(),
            open: None,
            waiting: Vec::new(),
            origins: Arc::default(),
            counts: Counts::default(),
            patience: Arc::default(),
        })
    }

    /// Takes these records; those that it has not taken when it fails are left in `rest`.
    fn take_all(&mut self, rest: &mut &[FlowRecord]) -> io::Result<()> {
        self.close_if_due()?;
        while !rest.is_empty() {
            let fits = self.records_that_fit()?;
            let (fitting, later) = rest.split_at(rest.len().min(fits));
            self.waiting.extend_from_slice(fitting);
            *rest = later;
            if fitting.len() == fits {
                self.write_full()?;
            }
        }
        Ok(())
    }

    /// Number of records that still fit into the group and the file, at least 1. Begins a file if none is open.
    fn records_that_fit(&mut self) -> io::Result<usize> {
        let written = match &self.open {
            Some(open) => open.records,
            None => {
                let now = (self.clock)();
                let (directory, config) = (&self.directory, &self.config);
                let create = || Part::create(directory, now.wall, config.mode);
                let (part, file) = self.patience.until_there_is_room(config.full_time, create)?;
                let patience = Arc::clone(&self.patience);
                let file = PatientWriter { inner: file, patience, full_time: config.full_time };
                let (schema, properties) = (self.schema.clone(), self.properties.clone());
                let writer =
                    SerializedFileWriter::new(file, schema, properties).map_err(io_error)?;
                self.open = Some(OpenFile { writer, part, begun: now.steady, records: 0 });
                0
            }
        };
        let of_file = self.config.file_records.saturating_sub(written + self.waiting.len() as u64);
        let of_group = GROUP_RECORDS - self.waiting.len();
        Ok(of_group.min(of_file.try_into().unwrap_or(usize::MAX)).max(1))
    }

    /// Writes the group, which is full, and closes the file if that is full too.
    fn write_full(&mut self) -> io::Result<()> {
        self.write_group()?;
        let written = self.open.as_ref().map_or(0, |open| open.records);
        if written >= self.config.file_records { self.close() } else { Ok(()) }
    }

    /// Writes what waits into the open file.
    fn write_group(&mut self) -> io::Result<()> {
        let Some(open) = self.open.as_mut().filter(|_| !self.waiting.is_empty()) else {
            return Ok(());
        };
        let (records, origins) = (&self.waiting[..], &self.origins[..]);
        let group = Group { records, origins, is_biflow: self.config.is_biflow };
        group.write(&mut open.writer).map_err(io_error)?;
        open.records += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Makes the open file whole, if there is one, and gives it its name.
    fn close(&mut self) -> io::Result<()> {
        self.write_group()?;
        let Some(open) = &mut self.open else { return Ok(()) };
        open.writer.finish().map_err(io_error)?;
        open.writer.inner().inner.sync_all()?;
        self.patience.until_there_is_room(self.config.full_time, || open.part.publish())?;
        self.counts.sent += open.records;
        self.open = None;
        Ok(())
    }

    /// Closes the open file if its time has come.
    fn close_if_due(&mut self) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let is_due =
            (self.clock)().steady.saturating_duration_since(open.begun) >= self.config.every;
        if is_due { self.close() } else { Ok(()) }
    }

    /// Removes the open file, whose records are lost.
    fn fail(&mut self, source: io::Error) -> ExportError {
        let written = self.open.take().map_or(0, |open| open.records);
        self.counts.unsent += written + self.waiting.len() as u64;
        self.waiting.clear();
        failure(&self.directory, source)
    }
}

impl Export for Parquet {
    fn name(&self) -> String {
        format!("parquet:{}", self.directory.display())
    }

    fn take(&mut self, batch: &Batch) -> Result<(), ExportError> {
        // Those of records that wait are the same, or their owner has become known meanwhile.
        self.origins = Arc::clone(&batch.origins);
        let mut rest = &batch.records[..];
        self.take_all(&mut rest).map_err(|source| {
            self.counts.unsent += rest.len() as u64;
            self.fail(source)
        })
    }

    fn tick(&mut self) -> Result<(), ExportError> {
        self.close_if_due().map_err(|source| self.fail(source))
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.close().map_err(|source| self.fail(source))
    }

    fn set_patience(&mut self, patience: Arc<Patience>) {
        self.patience = patience;
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// The error, with a remedy.
fn failure(directory: &Path, source: io::Error) -> ExportError {
    use io::ErrorKind::*;
    let directory = directory.display();
    let help = match source.kind() {
        NotFound => "make that directory (again), or name another",
        StorageFull | QuotaExceeded => "free space there, or name a directory of another disk",
        PermissionDenied => "let this user write there, or name another directory",
        ReadOnlyFilesystem => "name a directory that can be written to",
        NotADirectory => "name a directory",
        _ => "look what ails its disk, or name another directory",
    };
    ExportError { what: format!("{directory}: no Parquet file can be written; {help}"), source }
}

/// The error of the file itself where that failed.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests;
