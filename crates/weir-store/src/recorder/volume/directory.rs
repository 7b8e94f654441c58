//! A directory: its lock, and the files that recorders have left in it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::catalog::{COMPLETE_ENDING, COMPRESSED_ENDING, LOCK_NAME, OPEN_ENDING, is_named};
use crate::recorder::RecorderError;
use crate::recorder::housekeeping::Past;

/// Number of attempts to get the lock of a directory, and the pause between them.
const LOCK_TRIES: u32 = 20;
pub const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks a file that nobody reads: readers hold a shared lock. `None`: the file does not exist any more.
pub fn lock_unread(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |access| rustix::fs::open(path, flags | access, Mode::empty());
    // Open the file for writing if its mode allows that, so that it can be truncated when it is deleted.
    let file = match open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(Some(file))
}

/// The lock of a directory. When it is dropped, its file is removed and the lock released.
///
/// A lock is valid only if the path still names the locked file, so [`lock`] checks that after it has got the lock.
/// Only the owner of a valid lock removes the file. So no two processes have a valid lock of one directory.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
    path: PathBuf,
    is_left: bool,
}

impl DirectoryLock {
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Leaves the file in the directory, because its file system does not answer.
    pub fn leave(&mut self) {
        self.is_left = true;
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if !self.is_left && is_named(&self.file, &self.path) {
            // An error is ignored: a file that is left over is not locked, so it excludes no recorder.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a directory as a recorder does.
pub(crate) fn lock(directory: &Path) -> Result<DirectoryLock, RecorderError> {
    let failed = |source| RecorderError::Directory { directory: directory.to_owned(), source };
    let path = directory.join(LOCK_NAME);
    for _ in 0..LOCK_TRIES {
        let file = open_lock(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_named(&file, &path) => {
                return Ok(DirectoryLock { file, path, is_left: false });
            }
            // The owner of the lock has removed the file since it was opened.
            Ok(()) => {}
            // A process that checks whether a recorder is running holds the lock for a moment.
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(failed(error.into())),
        }
    }
    Err(RecorderError::Taken { directory: directory.to_owned() })
}

/// Opens the file of a lock, or creates it.
fn open_lock(path: &Path) -> io::Result<File> {
    // Do not follow a symbolic link, and do not wait for a reader of a FIFO: other users may be able to write to the
    // directory.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut open = OpenOptions::new();
    let opened = open.write(true).create(true).truncate(false).custom_flags(flags).open(path);
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(io::Error::other(format!("{LOCK_NAME} is not a regular file; remove it")));
    }
    opened
}

/// Returns the files that recorders have left in the directory, the oldest first: names are in the order in which the
/// files were begun (decision 0049).
pub fn past_files(directory: &Path) -> io::Result<VecDeque<Past>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_recorded(&name.to_string_lossy())
            && let Ok(meta) = entry.metadata()
            && meta.is_file()
        {
            // A file that was being written may be longer than its contents, because of preallocated space.
            let is_open = name.as_bytes().ends_with(OPEN_ENDING.as_bytes());
            let taken = if is_open { 512 * meta.blocks() } else { u64::MAX };
            files.push((entry.path(), meta.len().min(taken)));
        }
    }
    files.sort();
    let past = |(path, bytes)| Past { path, bytes, lock: None, is_kept: false };
    Ok(files.into_iter().map(past).collect())
}

/// Returns whether a file name has the form that recorders use: `20261126T092719.123456789Z_eth0_0.pcapng`, with or
/// without `.open`.
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
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_directory_is_locked_once_although_its_lock_file_comes_and_goes() {
        let directory = tempfile::tempdir().unwrap();
        let (owners, begin) = (AtomicUsize::new(0), Instant::now());
        let lock_often = || {
            let mut locked = 0;
            while begin.elapsed() < Duration::from_millis(500) {
                let Ok(lock) = lock(directory.path()) else { continue };
                assert_eq!(owners.fetch_add(1, SeqCst), 0, "two have the lock");
                thread::yield_now();
                owners.fetch_sub(1, SeqCst);
                locked += 1;
                drop(lock);
            }
            locked
        };
        let locked: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(lock_often)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(locked > 6, "{locked}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_file_of_another_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOCK_NAME);
        let first = lock(directory.path()).unwrap();
        // A user takes it away, and another recorder begins.
        fs::remove_file(&path).unwrap();
        let second = lock(directory.path()).unwrap();
        drop(first);
        assert!(matches!(lock(directory.path()), Err(RecorderError::Taken { .. })));
        drop(second);
        assert!(!path.exists());
        let mut stalled = lock(directory.path()).unwrap();
        stalled.leave();
        drop(stalled);
        assert!(path.exists() && lock(directory.path()).is_ok());
    }

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
