//! Waits until a descriptor can be read or written without blocking, by poll(2).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A blocking write of this size does not block if poll(2) reports POLLOUT: the size of a page of a pipe.
/// Source: pipe(7), `PIPE_BUF`.
pub const PIECE_BYTES: usize = 4096;

/// Waits until a write of [`PIECE_BYTES`] would not block, because it would succeed or fail; at most for `limit`.
/// Returns whether that is so.
pub fn has_room(file: &impl AsFd, limit: Duration) -> io::Result<bool> {
    Ok(!look(file, PollFlags::OUT, limit)?.is_empty())
}

/// Waits until a read would not block, because there are bytes, the end, or an error; at most for `limit`. Returns
/// whether that is so.
pub fn has_come(file: &impl AsFd, limit: Duration) -> io::Result<bool> {
    Ok(!look(file, PollFlags::IN, limit)?.is_empty())
}

/// Returns whether the other end was closed.
pub fn has_left(file: &impl AsFd) -> io::Result<bool> {
    let gone = PollFlags::ERR | PollFlags::HUP;
    Ok(look(file, PollFlags::empty(), Duration::ZERO)?.intersects(gone))
}

fn look(file: &impl AsFd, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
    let limit =
        Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut fds = [PollFd::new(file, wanted)];
    match poll(&mut fds, Some(&limit)) {
        Ok(_) => Ok(fds[0].revents()),
        // A signal interrupted the call, so the caller checks the stop.
        Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}
