//! Byte streams that messages travel on: a Unix socket, or any that carries bytes in both directions. Only a Unix
//! socket carries descriptors; over the others an application hands memory over in a way of its own.

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

/// A byte stream. One thread reads while another writes.
pub trait Transport: Send + Sync {
    /// Reads some bytes; 0 at the end.
    ///
    /// # Errors
    /// The stream's error, `WouldBlock` after its time limit.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes.
    ///
    /// # Errors
    /// The stream's error, `WouldBlock` after its time limit.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits until there is something to read or the end, at most `limit`; `false` if nothing came.
    ///
    /// # Errors
    /// The stream's error.
    fn wait(&self, limit: Option<Duration>) -> io::Result<bool>;

    /// Ends the stream for both sides; threads that read or wait return.
    fn hang_up(&self);

    /// Sends descriptors.
    ///
    /// # Errors
    /// `Unsupported` unless it is a Unix socket.
    fn send_descriptors(&self, _: &[BorrowedFd<'_>]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Receives as many descriptors.
    ///
    /// # Errors
    /// `Unsupported` unless it is a Unix socket.
    fn receive_descriptors(&self, _count: usize) -> io::Result<Vec<OwnedFd>> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// A Unix stream socket.
#[derive(Debug)]
pub struct UnixTransport(UnixStream);

impl UnixTransport {
    /// Takes the stream, whose reads and writes get a time limit ([`PATIENCE_MAX`]): half a message is an error some
    /// time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(stream: UnixStream) -> io::Result<UnixTransport> {
        stream.set_read_timeout(Some(PATIENCE_MAX))?;
        stream.set_write_timeout(Some(PATIENCE_MAX))?;
        Ok(UnixTransport(stream))
    }

    /// The peer.
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
        // A library's program must not be killed by SIGPIPE because a daemon has died.
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))? > 0)
    }

    fn hang_up(&self) {
        // It fails where that has happened already.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    fn send_descriptors(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        descriptors::send(&self.0, fds)
    }

    fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        descriptors::receive(&self.0, count)
    }
}
