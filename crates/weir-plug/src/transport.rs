//! Byte streams that carry messages: a Unix socket, or any other bidirectional stream. Only a Unix socket carries
//! descriptors; over other streams, an application must transfer memory in another way.

use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;

use crate::credentials::Credentials;
use crate::descriptors;
use crate::limits::PATIENCE_MAX;

/// A byte stream. One thread may read while another writes.
pub trait Transport: Send + Sync {
    /// Reads some bytes. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// The stream's error, `WouldBlock` after its time limit.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes, and returns their number.
    ///
    /// # Errors
    /// The stream's error, `WouldBlock` after its time limit.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits until there is data to read or the stream has ended, at most `limit`. Returns `false` after that.
    ///
    /// # Errors
    /// The stream's error.
    fn wait(&self, limit: Option<Duration>) -> io::Result<bool>;

    /// Ends the stream for both sides. Threads that read or wait return.
    fn hang_up(&self);

    /// Sends descriptors.
    ///
    /// # Errors
    /// `Unsupported`, except for a Unix socket.
    fn send_descriptors(&self, _: &[BorrowedFd<'_>]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Receives this number of descriptors.
    ///
    /// # Errors
    /// `Unsupported`, except for a Unix socket.
    fn receive_descriptors(&self, _count: usize) -> io::Result<Vec<OwnedFd>> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// A Unix stream socket.
#[derive(Debug)]
pub struct UnixTransport(UnixStream);

impl UnixTransport {
    /// Takes the stream. Its reads and writes get a time limit ([`PATIENCE_MAX`]), so that an incomplete message leads
    /// to an error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(stream: UnixStream) -> io::Result<UnixTransport> {
        stream.set_read_timeout(Some(PATIENCE_MAX))?;
        stream.set_write_timeout(Some(PATIENCE_MAX))?;
        Ok(UnixTransport(stream))
    }

    /// Returns the credentials of the peer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn credentials(&self) -> io::Result<Credentials> {
        Credentials::of(&self.0)
    }
}

impl Transport for UnixTransport {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // Without SIGPIPE: this code runs in programs that use a library, and these must not be killed because a daemon
        // has ended.
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))? > 0)
    }

    fn hang_up(&self) {
        // Fails if the other side has ended the connection already.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    fn send_descriptors(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        descriptors::send(&self.0, fds)
    }

    fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        descriptors::receive(&self.0, count)
    }
}
