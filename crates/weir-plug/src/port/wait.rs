//! Waiting at a port.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The end of a wait for a session.
pub(super) enum Wait<'a> {
    Limit(Instant),
    /// The wait ends when this descriptor is readable.
    Until(BorrowedFd<'a>),
}

impl Wait<'_> {
    pub(super) fn is_over(&self) -> io::Result<bool> {
        match self {
            Wait::Limit(until) => Ok(*until <= Instant::now()),
            Wait::Until(end) => {
                let mut fds = [PollFd::from_borrowed_fd(*end, PollFlags::IN)];
                Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
            }
        }
    }
}

/// Waits until one of the descriptors is ready, at most `limit`.
pub(super) fn wait_for(
    asked: &[(BorrowedFd<'_>, PollFlags)],
    limit: Option<Duration>,
) -> io::Result<()> {
    let limit = limit.map(Timespec::try_from).transpose();
    let limit = limit.map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut fds: Vec<PollFd<'_>> =
        asked.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    // No reader is at the other end. A guest's port without its host reports this at once, so waiting again would be a
    // busy loop.
    let is_lost = |(fd, (_, flags)): (&PollFd<'_>, &(_, PollFlags))| {
        flags.contains(PollFlags::OUT) && fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)
    };
    if fds.iter().zip(asked).any(is_lost) {
        return Err(ErrorKind::BrokenPipe.into());
    }
    Ok(())
}
