//! The directories of a recorder. Each is locked, kept within its quota, and no longer used once it fails.

mod deletion;
mod directory;
mod names;

use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_disk::{ALIGN_BYTES, Disk, Files};

use super::file::OpenFile;
use super::housekeeping::{Housekeeping, Job, Past};
use super::settings::{Quota, Settings};
use super::{RecorderError, VolumeReport};
use crate::catalog::OPEN_ENDING;
use crate::limits::{FILE_BYTES_MIN, FREE_BYTES_MIN, VOLUME_PENDING_MAX, VOLUME_WRITES_MAX};

#[cfg(test)]
pub(super) use directory::lock_unread;
pub(crate) use directory::{DirectoryLock, is_recorded, lock};
use directory::{LOCK_PAUSE, past_files};
pub(super) use names::begin_of_name;

/// A directory and its state.
struct Volume<D: Disk> {
    directory: PathBuf,
    files: D::Files,
    housekeeping: Housekeeping<D>,
    /// Most bytes of all files in the directory.
    quota: Option<u64>,
    /// Files to which no recorder writes any more, the oldest first.
    past: VecDeque<Past>,
    /// Bytes of past files, of open files, and of files that are being deleted.
    recorded: u64,
    /// Bytes and number of files that are being deleted.
    deleting_bytes: u64,
    deleting: usize,
    /// Number of deletions, and number of the latest successive deletions that freed no space.
    deletions: u64,
    fruitless: u32,
    /// Results of truncating files, which are still to be passed to their streams.
    cuts: VecDeque<(usize, u64, io::Result<()>)>,
    /// Whether the file system is full, so that writes wait until a file is deleted.
    is_full: bool,
    /// Whether the recorder is at its end, and waits for all writes and jobs.
    is_ending: bool,
    pending: usize,
    /// Pending writes that are longer than a page.
    long: usize,
    /// Time of the last answer of the file system, or of the first request since nothing was pending.
    moved: Instant,
    /// Whether the volume failed because the file system did not answer. It is not accessed again.
    is_stalled: bool,
    error: Option<io::Error>,
    /// Called when the volume fails: see [`Settings::volume_failed`].
    say_failed: fn(&Path, &io::Error),
    /// Time of the failure.
    failed: Option<Instant>,
    report: VolumeReport,
    /// The latest time in a file name, in nanoseconds since the Unix epoch.
    newest_ns: u64,
    /// The latest time in a file name at the start, if the clock was behind it.
    ahead_ns: Option<u64>,
    /// Dropped last, when no thread is working on files of the directory any more.
    lock: DirectoryLock,
}

/// All directories of a recorder.
pub struct Volumes<D: Disk> {
    all: Vec<Volume<D>>,
    /// Most bytes of a file.
    file_bytes: u64,
}

impl<D: Disk> Volumes<D> {
    pub fn open(settings: &Settings, disk: &D) -> Result<Volumes<D>, RecorderError> {
        let files = disk.files();
        let mut all: Vec<Volume<D>> = Vec::new();
        for directory in &settings.directories {
            let failed = |source| RecorderError::Directory { directory: directory.clone(), source };
            let real = directory.canonicalize().map_err(failed)?;
            if all.iter().any(|volume| volume.directory.canonicalize().ok().as_ref() == Some(&real))
            {
                return Err(RecorderError::Twice { directory: directory.clone() });
            }
            let lock = lock(directory)?;
            let past = past_files(directory).map_err(failed)?;
            let newest_ns = names::newest_ns(&past);
            let quota = match settings.quota {
                None => None,
                Some(Quota::Bytes(bytes)) => Some(bytes),
                Some(Quota::Percent(percent)) => {
                    let total = files.space(directory).map_err(failed)?.total;
                    Some((u128::from(total) * u128::from(percent) / 100) as u64)
                }
            };
            all.push(Volume {
                directory: directory.clone(),
                files: files.clone(),
                housekeeping: Housekeeping::new(files.clone(), directory),
                quota,
                recorded: past.iter().map(|past| past.bytes).sum(),
                past,
                deleting_bytes: 0,
                deleting: 0,
                deletions: 0,
                fruitless: 0,
                cuts: VecDeque::new(),
                is_full: false,
                is_ending: false,
                pending: 0,
                long: 0,
                moved: Instant::now(),
                is_stalled: false,
                error: None,
                say_failed: settings.volume_failed,
                failed: None,
                report: VolumeReport { directory: directory.clone(), ..VolumeReport::default() },
                newest_ns,
                ahead_ns: Some(newest_ns).filter(|newest| *newest > (settings.now)()),
                lock,
            });
        }
        Ok(Volumes { all, file_bytes: settings.file_bytes })
    }

    /// Limits the size of files by the quota: open files, which cannot be deleted, may take at most a quarter of it.
    pub fn check_quota(&mut self, rings: usize, settings: &Settings) -> Result<(), RecorderError> {
        let rings = rings.max(1);
        self.file_bytes = settings.file_bytes;
        for volume in &self.all {
            let Some(quota) = volume.quota else { continue };
            let own = quota / (4 * rings as u64);
            if own < FILE_BYTES_MIN {
                let (directory, given) = (volume.directory.clone(), settings.quota);
                let least = FILE_BYTES_MIN * 4 * rings as u64;
                return Err(RecorderError::Quota { directory, quota, given, rings, least });
            }
            self.file_bytes = self.file_bytes.min(own);
        }
        Ok(())
    }

    /// Returns the largest size of a file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub fn directory(&self, volume: usize) -> &Path {
        &self.all[volume].directory
    }

    pub fn all_failed(&self) -> bool {
        !self.all.iter().any(|volume| volume.error.is_none())
    }

    /// Returns whether any volume accepts one more write.
    pub fn have_room(&self) -> bool {
        self.all.iter().any(Volume::takes_write)
    }

    /// Returns the volume for the next piece: the one with the fewest pending writes, so that faster volumes get more
    /// pieces.
    pub fn next(&self) -> Option<usize> {
        let works = self.all.iter().enumerate().filter(|(_, volume)| volume.error.is_none());
        let least = works.min_by_key(|(_, own)| (!own.takes_write(), own.long, own.pending));
        least.map(|(number, _)| number)
    }

    /// Records the begin of a write. Returns the value that [`wait_for_space`](Volumes::wait_for_space) needs if the
    /// write fails.
    pub fn begin(&mut self, volume: usize, bytes: usize) -> u64 {
        let own = &mut self.all[volume];
        own.touch();
        own.pending += 1;
        own.long += usize::from(bytes > ALIGN_BYTES);
        own.deletions
    }

    /// Records the end of a write. `has_grown`: the file has `bytes` more bytes; the write has not replaced existing
    /// bytes.
    pub fn end(&mut self, volume: usize, bytes: usize, has_grown: bool) {
        let own = &mut self.all[volume];
        own.pending = own.pending.saturating_sub(1);
        own.long = own.long.saturating_sub(usize::from(bytes > ALIGN_BYTES));
        own.moved = Instant::now();
        own.report.bytes += if has_grown { bytes as u64 } else { 0 };
    }

    /// Records that a file will grow by `bytes` bytes, and deletes past files if the quota requires it.
    pub fn grow(&mut self, volume: usize, bytes: u64) {
        let own = &mut self.all[volume];
        own.recorded += bytes;
        own.keep_quota(self.file_bytes);
    }

    /// Records that a file takes `bytes` bytes less than was recorded.
    pub fn shrink(&mut self, volume: usize, bytes: u64) {
        let own = &mut self.all[volume];
        own.recorded = own.recorded.saturating_sub(bytes);
    }

    /// Returns whether the file system has enough free space for preallocation.
    pub fn may_preallocate(&self, volume: usize) -> bool {
        let own = &self.all[volume];
        own.files.space(&own.directory).is_ok_and(|space| space.free >= FREE_BYTES_MIN)
    }

    /// Returns whether a failed write must be retried once a file is deleted. `begun` is the result of
    /// [`begin`](Volumes::begin).
    ///
    /// A file system may be full before the quota is reached, because other programs write there, and because the quota
    /// does not count indexes.
    pub fn wait_for_space(&mut self, volume: usize, error: &io::Error, begun: u64) -> bool {
        let own = &mut self.all[volume];
        if !own.may_delete(error) {
            return false;
        }
        // A deletion since the begin of the write may be enough.
        let is_waiting = own.deleting > 0 || own.deletions != begun || own.delete_oldest();
        own.is_full = is_waiting && own.deleting > 0;
        own.note_waiting();
        is_waiting
    }

    /// Returns whether writes of a volume wait until a file is deleted.
    pub fn is_full(&self, volume: usize) -> bool {
        self.all[volume].is_full
    }

    /// Returns whether a volume has failed.
    pub fn has_failed(&self, volume: usize) -> bool {
        self.all[volume].error.is_some()
    }

    /// Deletes the oldest file after a file could not be created for lack of space, and waits for the deletion.
    /// Returns whether the creation should be retried.
    pub fn free_space(&mut self, volume: usize, error: &io::Error) -> bool {
        let own = &mut self.all[volume];
        if !own.may_delete(error) || own.deleting == 0 && !own.delete_oldest() {
            return false;
        }
        while own.deleting > 0 {
            own.housekeeping.set_waited_for(true);
            match own.housekeeping.next() {
                Some(outcome) => {
                    let cut = own.take(outcome);
                    own.cuts.extend(cut);
                }
                None => std::thread::sleep(LOCK_PAUSE),
            }
        }
        own.note_waiting();
        own.error.is_none()
    }

    /// Requests a job on a file.
    pub fn ask(&mut self, volume: usize, job: Job<D>) {
        let own = &mut self.all[volume];
        own.touch();
        own.housekeeping.ask(job);
    }

    /// Requests the completion of a file without pending writes.
    pub fn complete(&mut self, file: OpenFile<D>) {
        let report = &mut self.all[file.volume].report;
        report.bytes = report.bytes.saturating_sub(file.lost_bytes());
        self.ask(file.volume, Job::Complete(Box::new(file)));
    }

    /// Returns the next result of truncating a file: the stream, the number of the file, and the result.
    pub fn next_cut(&mut self) -> Option<(usize, u64, io::Result<()>)> {
        for own in &mut self.all {
            if let Some(cut) = own.cuts.pop_front() {
                return Some(cut);
            }
            while let Some(outcome) = own.housekeeping.next() {
                if let Some(cut) = own.take(outcome) {
                    return Some(cut);
                }
            }
        }
        None
    }

    /// Records that the recorder is at its end, so that files are deleted at once instead of in steps.
    pub fn end_soon(&mut self) {
        for own in &mut self.all {
            own.is_ending = true;
            own.note_waiting();
        }
    }

    /// Returns whether any file is being completed, truncated or deleted.
    pub fn are_at_work(&self) -> bool {
        self.all.iter().any(|volume| volume.housekeeping.under_way() > 0)
    }

    /// Marks a volume as failed if it has not answered for `stall_max` while another volume works, or, at the end,
    /// for `end_stall_max`. Returns the volume.
    pub fn give_up_stalled(&mut self, settings: &Settings, is_end: bool) -> Option<usize> {
        let stands = |volume: &Volume<D>, limit: Duration| {
            let is_asked = volume.pending > 0 || volume.housekeeping.under_way() > 0;
            !volume.is_stalled && is_asked && volume.moved.elapsed() >= limit
        };
        let works =
            |volume: &Volume<D>| volume.error.is_none() && !stands(volume, settings.stall_max);
        let has_other = self.all.iter().any(works);
        let limit = match (has_other, is_end) {
            (true, _) => settings.stall_max,
            (false, true) => settings.end_stall_max,
            (false, false) => return None,
        };
        let volume = self.all.iter().position(|volume| stands(volume, limit))?;
        let waited = self.all[volume].moved.elapsed().as_secs_f64();
        self.all[volume].is_stalled = true;
        self.all[volume].housekeeping.abandon();
        self.all[volume].lock.leave();
        let text = format!(
            "the file system did not answer for {waited:.0} s; what is wrong is in the kernel's log (dmesg)"
        );
        self.fail(volume, io::Error::new(io::ErrorKind::TimedOut, text));
        Some(volume)
    }

    /// Returns whether a volume failed because the file system did not answer.
    pub fn is_stalled(&self, volume: usize) -> bool {
        self.all[volume].is_stalled
    }

    /// Bytes of its files.
    #[cfg(test)]
    pub fn recorded(&self, volume: usize) -> u64 {
        self.all[volume].recorded
    }

    /// Marks a volume as failed.
    pub fn fail(&mut self, volume: usize, error: io::Error) {
        self.all[volume].fail(error);
    }

    /// Returns the error of the volume that failed last.
    pub fn error(&mut self) -> RecorderError {
        let last = self.all.iter().enumerate().max_by_key(|(_, own)| own.failed);
        let volume = last.map_or(0, |(volume, _)| volume);
        let left_open = self.all.iter().filter(|own| own.is_stalled || own.left_files() > 0);
        let left_open = left_open.map(|own| own.directory.clone()).collect();
        let volume = &mut self.all[volume];
        let again = volume.error.as_ref().map_or(io::ErrorKind::Other.into(), same_error);
        let source = volume.error.replace(again).unwrap_or(io::ErrorKind::Other.into());
        RecorderError::Write { directory: volume.directory.clone(), left_open, source }
    }

    /// Returns the number of files that killed recorders left with names of open files.
    pub fn left_files(&self) -> usize {
        self.all.iter().map(Volume::left_files).sum()
    }

    pub fn report(&self) -> Vec<VolumeReport> {
        self.all.iter().map(|volume| volume.report.clone()).collect()
    }
}

impl<D: Disk> Volume<D> {
    /// Returns whether the volume accepts one more write.
    fn takes_write(&self) -> bool {
        let has_room = self.long < VOLUME_WRITES_MAX && self.pending < VOLUME_PENDING_MAX;
        self.error.is_none() && !self.is_full && has_room
    }

    /// Returns the number of past files with names of open files.
    fn left_files(&self) -> usize {
        let is_open = |path: &Path| path.as_os_str().as_bytes().ends_with(OPEN_ENDING.as_bytes());
        self.past.iter().filter(|past| is_open(&past.path)).count()
    }

    /// Records that a request is made: restarts the stall timer if no request is pending.
    fn touch(&mut self) {
        if self.pending == 0 && self.housekeeping.under_way() == 0 {
            self.moved = Instant::now();
        }
    }

    fn fail(&mut self, error: io::Error) {
        if self.error.is_none() {
            (self.say_failed)(&self.directory, &error);
            self.report.error = Some(error.to_string());
            (self.error, self.failed) = (Some(error), Some(Instant::now()));
        }
    }
}

/// Returns a copy of an error: with the same error number, or else the same kind.
fn same_error(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)
}
