//! A rotating pcapng file: a new file begins at a size or a time, and a number of files may be reused in turn.

mod file_names;
mod run_files;
pub mod settings;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, access, syncfs};
use weir_consumer::{Count, Run, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;

use crate::file::{FileWriter, STATISTICS_BYTES};
use crate::file_error::FileError;
use crate::names::Names;
pub use file_names::check_name;
use file_names::{FileNames, nanoseconds};
use run_files::RunFiles;
pub use settings::Rotation;

/// A sequence of files of one link type. Each file is complete in itself: it has the descriptions of all interfaces,
/// and statistics of its own frames at its end.
pub(crate) struct RotatingFile {
    path: PathBuf,
    mode: u32,
    rotation: Rotation,
    file_names: FileNames,
    interfaces: Vec<Interface>,
    names: Names,
    /// Begin of the first period, in nanoseconds since the Unix epoch.
    begin_ns: Option<u64>,
    current: Option<Current>,
    /// Number of files that were begun.
    files: u32,
    /// Frames in complete files.
    kept: Count,
    run_files: Option<RunFiles>,
    /// The directory, opened before the first file, so that syncfs(2) on it reports all write errors since then.
    folder: Option<File>,
}

/// The file that is being written.
struct Current {
    path: PathBuf,
    writer: FileWriter,
    /// The number of the file's period.
    period: u64,
    /// Frames that were added to the file, by interface.
    taken: Vec<u64>,
    /// Earliest and latest time of the file's frames, in nanoseconds since the Unix epoch.
    times_ns: Option<(u64, u64)>,
}

impl Current {
    fn count(&mut self, record: &Record<'_>, interface_id: u32) {
        if let Some(taken) = self.taken.get_mut(interface_id as usize) {
            *taken += 1;
        }
        let ts_ns = record.meta.ts_ns;
        let (first, last) = self.times_ns.unwrap_or((ts_ns, ts_ns));
        self.times_ns = Some((first.min(ts_ns), last.max(ts_ns)));
    }

    /// Returns statistics with the counts of the file's own frames, and other values from `known`.
    fn statistics(&self, known: &[Statistics]) -> Vec<Statistics> {
        let times_ns = self.times_ns.unzip();
        let own = (0..).zip(&self.taken).map(|(interface_id, taken)| {
            let of = |one: &&Statistics| one.interface_id == interface_id;
            let bare = Statistics {
                interface_id,
                ts_ns: times_ns.1.unwrap_or_default(),
                start_ns: times_ns.0,
                end_ns: times_ns.1,
                ..Statistics::default()
            };
            let known = known.iter().find(of).copied().unwrap_or(bare);
            Statistics { delivered: Some(*taken), ..known }
        });
        own.collect()
    }
}

impl RotatingFile {
    /// Creates or replaces the first file if its name does not depend on the time; otherwise checks that a file can
    /// be created.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub(crate) fn create(
        path: &Path,
        mode: u32,
        rotation: Rotation,
    ) -> Result<RotatingFile, FileError> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut file = RotatingFile {
            path: path.to_owned(),
            mode,
            rotation,
            file_names: FileNames::new(path, &rotation),
            interfaces: Vec::new(),
            names: Names::default(),
            begin_ns: None,
            current: None,
            files: 0,
            kept: Count::default(),
            run_files: rotation.quota_bytes.map(RunFiles::new),
            folder: rotation.is_asked_for().then(|| File::open(folder).ok()).flatten(),
        };
        if file.file_names.tell_the_time() {
            access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
                FileError::Create { path: path.to_owned(), source: error.into() }
            })?;
        } else {
            file.begin_file(0)?;
        }
        Ok(file)
    }

    /// Creates a sequence of files with the same settings, for one more link type of the run.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub(crate) fn another(&self, path: &Path) -> Result<RotatingFile, FileError> {
        let mut file =
            RotatingFile::create(path, self.mode, self.rotation)?.with_names(&self.names);
        file.begin_ns = self.begin_ns;
        file.run_files = self.run_files.as_ref().map(RunFiles::another);
        Ok(file)
    }

    /// Adds names to each file, as [`FileWriter::with_names`] does.
    #[must_use]
    pub(crate) fn with_names(mut self, names: &Names) -> RotatingFile {
        self.names = names.clone();
        self.current = self.current.map(|current| {
            let writer = current.writer.with_names(names);
            Current { writer, ..current }
        });
        self
    }

    /// Returns the name that the user gave.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the link type of the interfaces, once one is described.
    pub(crate) fn link_type(&self) -> Option<u16> {
        self.interfaces.first().map(|interface| interface.link_type)
    }

    /// Returns the number of interfaces described so far.
    pub(crate) fn interfaces(&self) -> u32 {
        self.interfaces.len() as u32
    }

    /// Returns whether writing may be delayed, see [`Sink::allows_delay`].
    pub(crate) fn allows_delay(&self) -> bool {
        self.current.as_ref().is_none_or(|current| current.writer.allows_delay())
    }

    /// Returns whether files rotate, and [`begin`](Self::begin) was not called yet.
    pub(crate) fn waits_for_begin(&self) -> bool {
        self.begin_ns.is_none() && self.rotation.is_asked_for()
    }

    /// Sets the time of the run's first frame, at which the first period begins.
    pub(crate) fn begin(&mut self, ns: u64) {
        self.begin_ns = Some(ns);
    }

    /// Adds the description of one more interface of this link type.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn add_interface(&mut self, interface: &Interface) -> Result<(), FileError> {
        self.interfaces.push(interface.clone());
        let Some(current) = &mut self.current else { return Ok(()) };
        let bytes = interface_bytes(interface) + STATISTICS_BYTES;
        if current.times_ns.is_some() && !current.writer.has_room(bytes) {
            let period = current.period;
            return self.next_file(period);
        }
        current.taken.push(0);
        current.writer.add_interface(interface)
    }

    /// Adds a frame as [`FileWriter::add_as`] does, in the next file if it belongs there.
    ///
    /// # Errors
    /// [`FileError`]; [`FileError::Complete`] for the first frame after the last file.
    pub(crate) fn add_as(
        &mut self,
        record: &Record<'_>,
        interface_id: u32,
    ) -> Result<(), FileError> {
        if self.rotation.is_asked_for() {
            self.tell_names();
            self.make_room(record, 0)?;
            self.grow(record.block.len() as u64);
        }
        let current = self.current.as_mut().expect("there is a file by now");
        current.count(record, interface_id);
        current.writer.add_as(record, interface_id)
    }

    /// Adds a run of frames as [`FileWriter::add_run`] does. The run is split where a file is full or its period
    /// ends.
    ///
    /// # Errors
    /// As [`add_as`](RotatingFile::add_as).
    pub(crate) fn add_run(&mut self, run: &Run<'_>) -> Result<(), FileError> {
        if !self.rotation.is_asked_for() {
            let current = self.current.as_mut().expect("there is a file by now");
            return current.writer.add_run(run);
        }
        self.tell_names();
        let (mut from, mut to, mut count) = (0, 0, Count::default());
        for record in run.records() {
            if self.is_due(&record, (to - from) as u64) {
                self.append(&run.block_bytes[from..to], count)?;
                (from, count) = (to, Count::default());
                self.make_room(&record, 0)?;
            }
            let current = self.current.as_mut().expect("room was made");
            current.count(&record, record.meta.interface_id);
            to += record.block.len();
            count += Count::one(record.meta.wire_len);
        }
        self.append(&run.block_bytes[from..to], count)
    }

    fn append(&mut self, block_bytes: &[u8], count: Count) -> Result<(), FileError> {
        if block_bytes.is_empty() {
            return Ok(());
        }
        self.grow(block_bytes.len() as u64);
        let current = self.current.as_mut().expect("there is a file with these frames");
        current.writer.append(&Run { block_bytes, count })
    }

    fn tell_names(&mut self) {
        if let Some(current) = &mut self.current {
            current.writer.tell_names();
        }
    }

    /// Reports to the quota the size that the file will have after `bytes` are added.
    fn grow(&self, bytes: u64) {
        if let (Some(run_files), Some(current)) = (&self.run_files, &self.current) {
            run_files.grow(current.writer.ended_bytes() + bytes);
        }
    }

    /// Returns whether a frame belongs in the next file. `pending` bytes are still to be added to the current file.
    #[inline]
    fn is_due(&self, record: &Record<'_>, pending: u64) -> bool {
        let Some(current) = &self.current else { return true };
        let is_full = || !current.writer.has_room(pending + record.block.len() as u64);
        // A file accepts at least one frame, even a frame that is larger than the limit.
        self.period_of(record.meta.ts_ns) > current.period
            || current.times_ns.is_some() && is_full()
    }

    /// Begins the next file if the frame belongs there.
    fn make_room(&mut self, record: &Record<'_>, pending: u64) -> Result<(), FileError> {
        if !self.is_due(record, pending) {
            return Ok(());
        }
        // If the clock is set back, the current period continues.
        let so_far = self.current.as_ref().map_or(0, |current| current.period);
        self.next_file(self.period_of(record.meta.ts_ns).max(so_far))
    }

    /// Returns the number of the period in which a frame was captured.
    fn period_of(&self, ns: u64) -> u64 {
        match (self.rotation.file_time, self.begin_ns) {
            (Some(time), Some(begin)) => ns.saturating_sub(begin) / nanoseconds(time).max(1),
            _ => 0,
        }
    }

    fn next_file(&mut self, period: u64) -> Result<(), FileError> {
        if let Some(files) = self.rotation.ends_after()
            && self.files >= files.get()
        {
            return Err(FileError::Complete { path: self.path.clone(), files: self.files });
        }
        self.end_file()?;
        self.begin_file(period)
    }

    /// Completes the current file.
    fn end_file(&mut self) -> Result<(), FileError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let statistics = current.statistics(&[]);
        current.writer.end(&statistics)?;
        if let Some(Current { writer, path, .. }) = self.current.take() {
            self.kept += writer.kept();
            if let Some(run_files) = &self.run_files {
                run_files.complete(path, writer.bytes());
            }
        }
        Ok(())
    }

    fn begin_file(&mut self, period: u64) -> Result<(), FileError> {
        let length = self.rotation.file_time.map_or(0, nanoseconds);
        let begin_ns = self.begin_ns.unwrap_or_default();
        let path = self.file_names.next(begin_ns.saturating_add(period.saturating_mul(length)));
        if let Some(run_files) = &self.run_files {
            run_files.begin(&path);
        }
        let writer = FileWriter::create(&path, self.mode)?;
        let mut writer = writer.limited_to(self.rotation.bytes_max()).with_names(&self.names);
        for interface in &self.interfaces {
            writer.add_interface(interface)?;
        }
        self.files += 1;
        let taken = vec![0; self.interfaces.len()];
        self.current = Some(Current { path, writer, period, taken, times_ns: None });
        Ok(())
    }

    /// Writes buffered data, as [`FileWriter::flush`] does.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn flush(&mut self) -> Result<(), FileError> {
        self.current.as_mut().map_or(Ok(()), |current| current.writer.flush())
    }

    /// Ends the last file as [`FileWriter::finish`] does. It gets the statistics of the run, except that the
    /// delivered frames are those of the file.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn finish(&mut self, statistics: &[Statistics]) -> Result<(), FileError> {
        if self.current.is_none() {
            // A run without frames also creates a file.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.begin_ns.get_or_insert(nanoseconds(now));
            self.begin_file(0)?;
        }
        let current = self.current.as_mut().expect("it was just made");
        if !self.rotation.is_asked_for() {
            return current.writer.finish(statistics);
        }
        let own = current.statistics(statistics);
        current.writer.finish(&own)?;
        // The earlier files were not synchronized, because that would have delayed the capture.
        match &self.folder {
            Some(folder) if self.files > 1 => syncfs(folder).map_err(|error| FileError::Sync {
                path: self.path.clone(),
                frames: self.kept().frames,
                source: error.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the frames of successful writes, in all files.
    pub(crate) fn kept(&self) -> Count {
        let mut kept = self.kept;
        self.current.iter().for_each(|current| kept += current.writer.kept());
        kept
    }
}

/// Returns the length of the block that describes an interface.
fn interface_bytes(interface: &Interface) -> u64 {
    let mut block = Vec::new();
    weir_frame::pcapng::write::interface(&mut block, interface);
    block.len() as u64
}
