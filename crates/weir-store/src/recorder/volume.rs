//! The directories of a recorder: each locked, within its quota, and left out once it fails.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use weir_disk::{ALIGN_BYTES, Disk};

use super::settings::{Quota, Settings};
use super::{RecorderError, VolumeReport};
use crate::catalog::{
    COMPLETE_ENDING, COMPRESSED_ENDING, LOCK_NAME, OPEN_ENDING, complete_path, index_path,
};
use crate::limits::{FILE_BYTES_MIN, VOLUME_PENDING_MAX, VOLUME_WRITES_MAX};

/// How often, and how long apart, the lock of a directory is asked for.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// One directory.
struct Volume {
    directory: PathBuf,
    /// Held as long as it is open.
    _lock: File,
    /// Bytes that files may have here.
    quota: Option<u64>,
    /// Files that no recorder writes to any more, the oldest first.
    past: VecDeque<(PathBuf, u64)>,
    /// Bytes of those and of the open ones.
    recorded: u64,
    /// Writes that are tried again on the full file system before another file is deleted for them: those that were
    /// under way when the last one was.
    full_tries: usize,
    pending: usize,
    /// Those of them that are longer than a page.
    long: usize,
    /// When a write was answered last, or the first of those under way was asked for.
    moved: Instant,
    /// It was left out because it answered no more: it is not touched again.
    is_stalled: bool,
    error: Option<io::Error>,
    report: VolumeReport,
}

/// All of them.
pub struct Volumes {
    all: Vec<Volume>,
    /// The one that failed last.
    failed: Option<usize>,
    /// Bytes of a file.
    file_bytes: u64,
}

impl Volumes {
    pub fn open<D: Disk>(settings: &Settings, disk: &D) -> Result<Volumes, RecorderError> {
        let mut all: Vec<Volume> = Vec::new();
        for directory in &settings.directories {
            let failed = |source| RecorderError::Directory { directory: directory.clone(), source };
            let real = directory.canonicalize().map_err(failed)?;
            if all.iter().any(|volume| volume.directory.canonicalize().ok().as_ref() == Some(&real))
            {
                return Err(RecorderError::Twice { directory: directory.clone() });
            }
            let lock = lock(directory)?;
            let past = past_files(directory).map_err(failed)?;
            let quota = match settings.quota {
                None => None,
                Some(Quota::Bytes(bytes)) => Some(bytes),
                Some(Quota::Percent(percent)) => {
                    let total = disk.space(directory).map_err(failed)?.total;
                    Some((u128::from(total) * u128::from(percent) / 100) as u64)
                }
            };
            all.push(Volume {
                directory: directory.clone(),
                _lock: lock,
                quota,
                recorded: past.iter().map(|(_, bytes)| bytes).sum(),
                past,
                full_tries: 0,
                pending: 0,
                long: 0,
                moved: Instant::now(),
                is_stalled: false,
                error: None,
                report: VolumeReport { directory: directory.clone(), ..VolumeReport::default() },
            });
        }
        Ok(Volumes { all, failed: None, file_bytes: settings.file_bytes })
    }

    /// Has files be small enough for the quota: open ones, which cannot be deleted, take a quarter of it at most.
    pub fn check_quota(&mut self, rings: usize, settings: &Settings) -> Result<(), RecorderError> {
        let rings = rings.max(1);
        self.file_bytes = settings.file_bytes;
        for volume in &self.all {
            let Some(quota) = volume.quota else { continue };
            let own = quota / (4 * rings as u64);
            if own < FILE_BYTES_MIN {
                let directory = volume.directory.clone();
                let least = FILE_BYTES_MIN * 4 * rings as u64;
                return Err(RecorderError::Quota { directory, quota, rings, least });
            }
            self.file_bytes = self.file_bytes.min(own);
        }
        Ok(())
    }

    /// Bytes of a file at most.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub fn directory(&self, volume: usize) -> &Path {
        &self.all[volume].directory
    }

    pub fn all_failed(&self) -> bool {
        !self.all.iter().any(|volume| volume.error.is_none())
    }

    /// Whether some volume takes one more write.
    pub fn have_room(&self) -> bool {
        let free = |volume: &Volume| {
            let has_room = volume.long < VOLUME_WRITES_MAX && volume.pending < VOLUME_PENDING_MAX;
            volume.error.is_none() && has_room
        };
        self.all.iter().any(free)
    }

    /// The volume that the next piece goes to: the one with the least under way, so that the faster ones get more.
    pub fn next(&self) -> Option<usize> {
        let works = self.all.iter().enumerate().filter(|(_, volume)| volume.error.is_none());
        works.min_by_key(|(_, volume)| volume.long).map(|(number, _)| number)
    }

    /// A write of so many bytes begins.
    pub fn begin(&mut self, volume: usize, bytes: usize) {
        let own = &mut self.all[volume];
        if own.pending == 0 {
            own.moved = Instant::now();
        }
        own.pending += 1;
        own.long += usize::from(bytes > ALIGN_BYTES);
        own.report.bytes += bytes as u64;
    }

    /// A file is to be so many bytes longer.
    pub fn grow<D: Disk>(&mut self, volume: usize, bytes: u64, disk: &mut D) {
        let own = &mut self.all[volume];
        own.recorded += bytes;
        own.keep_quota(disk);
    }

    /// A file takes so many bytes less than it was to.
    pub fn shrink(&mut self, volume: usize, bytes: u64) {
        let own = &mut self.all[volume];
        own.recorded = own.recorded.saturating_sub(bytes);
    }

    /// Deletes the oldest file of a volume with a quota, whose file system is full before that is reached: others write
    /// there, too, and indexes are not counted. Whether a write that failed for that is to be tried again.
    pub fn make_room<D: Disk>(&mut self, volume: usize, error: &io::Error, disk: &mut D) -> bool {
        let own = &mut self.all[volume];
        if error.kind() != io::ErrorKind::StorageFull || own.quota.is_none() || own.error.is_some()
        {
            return false;
        }
        if own.full_tries > 0 {
            own.full_tries -= 1;
            return true;
        }
        let is_deleted = own.delete_oldest(&mut 0, disk);
        own.full_tries = if is_deleted { VOLUME_WRITES_MAX } else { 0 };
        is_deleted
    }

    /// A write of so many bytes is over.
    pub fn end(&mut self, volume: usize, bytes: usize) {
        let own = &mut self.all[volume];
        own.pending = own.pending.saturating_sub(1);
        own.long = own.long.saturating_sub(usize::from(bytes > ALIGN_BYTES));
        own.moved = Instant::now();
    }

    /// A volume that has not answered a write for `stall_max` while another one works, or, at the end, for
    /// `end_stall_max`. It is left out from here on.
    pub fn give_up_stalled(&mut self, settings: &Settings, is_end: bool) -> Option<usize> {
        let stands = |volume: &Volume, limit: Duration| {
            volume.error.is_none() && volume.pending > 0 && volume.moved.elapsed() >= limit
        };
        let works = |volume: &Volume| volume.error.is_none() && !stands(volume, settings.stall_max);
        let has_other = self.all.iter().any(works);
        let limit = match (has_other, is_end) {
            (true, _) => settings.stall_max,
            (false, true) => settings.end_stall_max,
            (false, false) => return None,
        };
        let volume = self.all.iter().position(|volume| stands(volume, limit))?;
        let waited = self.all[volume].moved.elapsed().as_secs_f64();
        self.all[volume].is_stalled = true;
        let text = format!(
            "a write was not answered for {waited:.0} s; what is wrong is in the kernel's log (dmesg)"
        );
        self.fail(volume, io::Error::new(io::ErrorKind::TimedOut, text));
        Some(volume)
    }

    /// Whether it was left out because it answered no more.
    pub fn is_stalled(&self, volume: usize) -> bool {
        self.all[volume].is_stalled
    }

    /// A file is complete, or as complete as it will be: it may be deleted. It has so many bytes of those that it was
    /// to have.
    pub fn add_past(&mut self, volume: usize, path: PathBuf, bytes: u64, planned: u64) {
        let own = &mut self.all[volume];
        own.past.push_back((path, bytes));
        own.recorded = (own.recorded + bytes).saturating_sub(planned);
    }

    /// Bytes of its files.
    #[cfg(test)]
    pub fn recorded(&self, volume: usize) -> u64 {
        self.all[volume].recorded
    }

    /// It takes no more files.
    pub fn fail(&mut self, volume: usize, error: io::Error) {
        let own = &mut self.all[volume];
        if own.error.is_none() {
            own.report.error = Some(error.to_string());
            own.error = Some(error);
            self.failed = Some(volume);
        }
    }

    /// Why the last one failed.
    pub fn error(&mut self) -> RecorderError {
        let volume = &mut self.all[self.failed.unwrap_or_default()];
        let again = volume.error.as_ref().map_or(io::ErrorKind::Other.into(), same_error);
        let source = volume.error.replace(again).unwrap_or(io::ErrorKind::Other.into());
        RecorderError::Write { directory: volume.directory.clone(), source }
    }

    /// Files that are still named as if they were being written, by recorders that were killed.
    pub fn left_files(&self) -> usize {
        let past = self.all.iter().flat_map(|volume| &volume.past);
        let is_open = |path: &Path| path.as_os_str().as_bytes().ends_with(OPEN_ENDING.as_bytes());
        past.filter(|(path, _)| is_open(path)).count()
    }

    pub fn report(&self) -> Vec<VolumeReport> {
        self.all.iter().map(|volume| volume.report.clone()).collect()
    }
}

impl Volume {
    /// Deletes the oldest files until all are within the quota, but none that is being read.
    fn keep_quota<D: Disk>(&mut self, disk: &mut D) {
        let Some(quota) = self.quota else { return };
        let mut at = 0;
        while self.recorded > quota && self.delete_oldest(&mut at, disk) {}
    }

    /// Deletes the oldest file that is not being read, of those from number `at` on, which becomes its.
    fn delete_oldest<D: Disk>(&mut self, at: &mut usize, disk: &mut D) -> bool {
        while let Some((path, bytes)) = self.past.get(*at).cloned() {
            // Held until it is removed.
            let lock = lock_unread(&path);
            if lock.is_err() || disk.remove(&path).is_err() && path.exists() {
                *at += 1;
                continue;
            }
            let _ = fs::remove_file(index_path(&complete_path(&path)));
            self.past.remove(*at);
            self.recorded = self.recorded.saturating_sub(bytes);
            self.report.deleted_files += 1;
            self.report.deleted_bytes += bytes;
            return true;
        }
        false
    }
}

/// An error that says the same, as far as the kernel said it.
fn same_error(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)
}

/// Locks a file that nobody reads: readers hold a shared lock. `None`: it is not there any more.
fn lock_unread(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Some(file))
}

/// Locks a directory as a recorder does, for as long as the file is open.
pub(crate) fn lock(directory: &Path) -> Result<File, RecorderError> {
    let failed = |source| RecorderError::Directory { directory: directory.to_owned(), source };
    let path = directory.join(LOCK_NAME);
    // Neither through a link nor waiting for a reader: the directory may be written to by others.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(false).custom_flags(flags);
    let file = open.open(path);
    let file = file.map_err(failed)?;
    // Whoever looks whether a recorder is there holds it for a moment.
    let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    for _ in 0..LOCK_TRIES {
        if locked != Err(rustix::io::Errno::WOULDBLOCK) {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(RecorderError::Taken { directory: directory.to_owned() })
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// What recorders have left here, the oldest first: names begin with the time.
fn past_files(directory: &Path) -> io::Result<VecDeque<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_recorded(&name.to_string_lossy())
            && let Ok(meta) = entry.metadata()
            && meta.is_file()
        {
            // One that was being written may have room for more than is in it.
            files.push((entry.path(), meta.len().min(512 * meta.blocks())));
        }
    }
    files.sort();
    Ok(files.into())
}

/// Whether a recorder gives files such names: `20261126T092719.123456789Z_eth0_0.pcapng`, perhaps `.open`.
pub(crate) fn is_recorded(name: &str) -> bool {
    let name = name.strip_suffix(OPEN_ENDING).unwrap_or(name);
    let stem = [COMPRESSED_ENDING, COMPLETE_ENDING];
    let stem = stem.iter().find_map(|ending| name.strip_suffix(ending));
    let Some((start, rest)) = stem.and_then(|stem| stem.split_once('_')) else { return false };
    let is_time = start.len() == 26
        && start.bytes().zip(0..).all(|(byte, at)| match at {
            8 => byte == b'T',
            15 => byte == b'.',
            25 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        });
    is_time && rest.contains('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorders_files_are_known_by_their_names() {
        for name in [
            "20261126T092719.123456789Z_eth0_0.pcapng",
            "20261126T092719.123456789Z_a-b_12-2.pcapng.open",
            "20261126T092719.123456789Z_eth0_0.pcapng.zst",
            "20261126T092719.123456789Z_eth0_0.pcapng.zst.open",
        ] {
            assert!(is_recorded(name), "{name}");
        }
        for name in [
            "eth0.pcapng",
            "20261126T092719.123456789Z_eth0_0.pcapng.index",
            "20261126T092719.12345678Z_eth0_0.pcapng",
            "20261126T092719.123456789Z.pcapng",
            "é0261126T092719.123456789Z_eth0_0.pcapng",
        ] {
            assert!(!is_recorded(name), "{name}");
        }
    }
}
