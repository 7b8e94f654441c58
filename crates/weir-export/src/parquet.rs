//! Exports flows as Parquet files. By default there is a new file each minute.
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

/// Records of a row group. Waiting records take 120 bytes each in memory, 8 MiB in total, and writing them takes
/// another 10 MiB or so. Readers skip a row group if its minima and maxima show that no record matches.
const GROUP_RECORDS: usize = 1 << 16;

/// Settings of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A file is closed this long after its first record. A crash loses at most the records of this time.
    pub every: Duration,
    /// A file is closed early after this number of records.
    pub file_records: u64,
    /// Whether records have both directions. If not, the columns of the reverse direction are null.
    pub is_biflow: bool,
    /// Permission bits of the files, before the umask is applied.
    pub mode: u32,
    /// How long a write is tried again while the disk is full. Then the export ends.
    pub full_time: Duration,
}

impl Default for Config {
    /// Closes a file after one minute or 4 Mi records. Only the owner may read it. A full disk is tried again for a
    /// minute.
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
/// A file is created when its first record comes, and named by this time: `flows-20261126T042000Z.parquet`. While it is
/// incomplete, its name is `.flows-20261126T042000Z.parquet.part`. When complete, it is synced to the disk and renamed,
/// so `*.parquet` matches only complete files. No file is ever overwritten: if the name is taken, the next one is
/// `flows-20261126T042000Z-2.parquet`.
///
/// Records count as sent once their file has its final name. If writing a file fails, it is removed, and all of its
/// records count as unsent.
pub struct Parquet {
    directory: PathBuf,
    config: Config,
    clock: Clock,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    open: Option<OpenFile>,
    /// Records for the open file that are not written yet: less than a row group.
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
    /// Number of records written to the file.
    records: u64,
}

/// The present time by two clocks. The wall clock, which may be set, names the files; the monotonic clock decides when
/// to close them.
#[derive(Clone, Copy)]
struct Now {
    wall: SystemTime,
    steady: Instant,
}

type Clock = Box<dyn FnMut() -> Now + Send>;

impl Parquet {
    /// Creates an export to `directory`. The directory is created if it is missing; its parent has to exist.
    ///
    /// # Errors
    /// [`ExportError`]: no file can be created in the directory.
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
            // Sync the new directory's name, too. Its parent may not be readable for us; others then sync it.
            Ok(()) => {
                let _ = part::sync_directory(&directory.join(".."));
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        };
        // Test this before the capture starts. Otherwise the user would learn a minute later that no file can be
        // created.
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

    /// Takes these records. If that fails, `rest` has those that were not taken.
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

    /// Returns the number of records that still fit into both the row group and the file, at least 1. Opens a file if
    /// there is none.
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

    /// Writes the waiting records as a row group, and closes the file if that is full.
    fn write_full(&mut self) -> io::Result<()> {
        self.write_group()?;
        let written = self.open.as_ref().map_or(0, |open| open.records);
        if written >= self.config.file_records { self.close() } else { Ok(()) }
    }

    /// Writes the waiting records to the open file, as a row group.
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

    /// Completes the open file, if there is one, and gives it its final name.
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

    /// Closes the open file if its time is over.
    fn close_if_due(&mut self) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let is_due =
            (self.clock)().steady.saturating_duration_since(open.begun) >= self.config.every;
        if is_due { self.close() } else { Ok(()) }
    }

    /// Removes the open file, and counts its records as unsent.
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
        // For the records that wait, the new origins are equal, or have an owner that was unknown before.
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

/// Creates the error, with a remedy for the user.
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

/// Returns the I/O error inside the Parquet error, if there is one.
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
