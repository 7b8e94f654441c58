//! Opens recorded files without blocking, and protects them against the deletion of old files.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::catalog::{Listed, State};

/// Number of attempts to get a lock, and their interval. A process that deletes old files holds the lock for a
/// moment.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Opens a file without blocking, and takes a shared lock, so that no recorder deletes it to free space. `None`: it
/// has been deleted.
pub(crate) fn open(listed: &Listed) -> io::Result<Option<File>> {
    let follow = if listed.named { OFlags::empty() } else { OFlags::NOFOLLOW };
    // NONBLOCK: if the name is a FIFO now, the open must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | follow;
    let open = |path| match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(io::Error::from(error)),
    };
    let file = match open(&listed.path)? {
        // The file may have been completed meanwhile.
        None if listed.state != State::Complete => open(&listed.complete_path())?,
        other => other,
    };
    let Some(file) = file else { return Ok(None) };
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
            // The lock is held, or the file system does not support locks.
            _ => break,
        }
    }
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
    Ok((meta.nlink() > 0).then_some(file))
}
