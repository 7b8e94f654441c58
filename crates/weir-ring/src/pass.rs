//! Descriptors handed to another process over a Unix stream socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::Ring;
use crate::error::RingError;
use crate::memory::{self, Mapping};

/// Most descriptors of one message. The kernel takes 253 (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 128;
const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// Sends `fds`, with their number as the message's four bytes. The other side must [`receive`].
///
/// # Errors
/// [`RingError::Os`].
pub fn send(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> Result<(), RingError> {
    stream_length(stream, fds.len() as u32)?;
    for some in fds.chunks(FDS_MAX) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(some));
        let count = [some.len() as u8];
        rustix::net::sendmsg(stream, &[IoSlice::new(&count)], &mut control, SendFlags::NOSIGNAL)
            .map_err(RingError::os("sending descriptors"))?;
    }
    Ok(())
}

fn stream_length(mut stream: &UnixStream, count: u32) -> Result<(), RingError> {
    use std::io::Write;
    let doing = "sending descriptors";
    stream.write_all(&count.to_le_bytes()).map_err(|source| RingError::Os { doing, source })
}

/// Receives what [`send`] sent, at most `fds_max` descriptors.
///
/// # Errors
/// [`RingError::Os`]; `InvalidData` for a message that is not what [`send`] makes.
pub fn receive(mut stream: &UnixStream, fds_max: usize) -> Result<Vec<OwnedFd>, RingError> {
    use std::io::Read;
    let doing = "receiving descriptors";
    let bad = || RingError::Os { doing, source: std::io::ErrorKind::InvalidData.into() };
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(|source| RingError::Os { doing, source })?;
    let count = u32::from_le_bytes(length) as usize;
    if count > fds_max {
        return Err(bad());
    }
    let mut fds = Vec::with_capacity(count);
    while fds.len() < count {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8];
        let mut slices = [IoSliceMut::new(&mut byte)];
        let message =
            rustix::net::recvmsg(stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
                .map_err(RingError::os(doing))?;
        let before = fds.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(got) = message {
                fds.extend(got);
            }
        }
        let got = fds.len() - before;
        if message.bytes != 1 || got == 0 || got != usize::from(byte[0]) {
            return Err(bad());
        }
    }
    if fds.len() == count { Ok(fds) } else { Err(bad()) }
}

/// Receives ring descriptors and attaches to the rings, read-only.
///
/// # Errors
/// As [`receive`] and [`memory::attach`].
pub fn receive_rings(
    stream: &UnixStream,
    rings_max: usize,
) -> Result<Vec<Ring<Mapping>>, RingError> {
    receive(stream, rings_max)?.into_iter().map(memory::attach).collect()
}
