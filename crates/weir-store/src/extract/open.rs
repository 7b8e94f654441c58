//! Recorded files, opened without waiting and protected against deletion of the oldest.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::catalog::{Listed, State};

/// Number of attempts, and their interval, to get a lock that a process which deletes old files holds
/// for a moment.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Opens a file without waiting, and so that no one deletes it for room. `None`: it has been deleted.
pub(crate) fn open(listed: &Listed) -> io::Result<Option<File>> {
    let follow = if listed.named { OFlags::empty() } else { OFlags::NOFOLLOW };
    // Not to wait for a writer, should it have become a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | follow;
    let open = |path| match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(io::Error::from(error)),
    };
    let file = match open(&listed.path)? {
        // Meanwhile it may have been completed.
        None if listed.state != State::Complete => open(&listed.complete_path())?,
        other => other,
    };
    let Some(file) = file else { return Ok(None) };
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
            // Not all file systems have locks; nobody holds one there.
            _ => break,
        }
    }
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
    Ok((meta.nlink() > 0).then_some(file))
}
