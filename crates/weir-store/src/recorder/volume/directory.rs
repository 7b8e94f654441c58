//! A directory: its lock, and the files that recorders have left in it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::catalog::{COMPLETE_ENDING, COMPRESSED_ENDING, LOCK_NAME, OPEN_ENDING};
use crate::recorder::RecorderError;
use crate::recorder::housekeeping::Past;

/// How often, and how long apart, the lock of a directory is asked for.
const LOCK_TRIES: u32 = 20;
pub const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks a file that nobody reads: readers hold a shared lock. `None`: it is not there any more.
pub fn lock_unread(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |access| rustix::fs::open(path, flags | access, Mode::empty());
    // To be written, where its mode allows that: so it can be shortened when it is deleted.
    let file = match open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
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
    // A process that checks whether a recorder runs holds it for a moment.
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

/// Files that recorders have left here, the oldest first: names begin with the time.
pub fn past_files(directory: &Path) -> io::Result<VecDeque<Past>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_recorded(&name.to_string_lossy())
            && let Ok(meta) = entry.metadata()
            && meta.is_file()
        {
            // A file that was being written may be longer than its contents.
            let is_open = name.as_bytes().ends_with(OPEN_ENDING.as_bytes());
            let taken = if is_open { 512 * meta.blocks() } else { u64::MAX };
            files.push((entry.path(), meta.len().min(taken)));
        }
    }
    files.sort();
    let past = |(path, bytes)| Past { path, bytes, lock: None, is_kept: false };
    Ok(files.into_iter().map(past).collect())
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
