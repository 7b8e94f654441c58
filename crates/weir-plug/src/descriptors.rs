//! Descriptors that are sent with a message on a Unix stream socket.
//!
//! A message has the number of its descriptors. After the message, the descriptors come in runs of up to 128. Each run
//! is attached to one byte, whose value is the number of descriptors in the run. Descriptors are attached to particular
//! bytes of the stream, and a plain read of these bytes closes them. So no reader may read ahead; and if a sender
//! attaches descriptors without announcing them, the kernel closes them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::limits::RUN_DESCRIPTORS_MAX;

const SPACE: usize = rustix::cmsg_space!(ScmRights(RUN_DESCRIPTORS_MAX));
const _: () = assert!(RUN_DESCRIPTORS_MAX <= u8::MAX as usize && RUN_DESCRIPTORS_MAX <= 253);

/// Sends descriptors.
///
/// # Errors
/// The kernel's error; the stream cannot be used any more then.
pub fn send(stream: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    for run in fds.chunks(RUN_DESCRIPTORS_MAX) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(run));
        let count = [run.len() as u8];
        let bytes = [IoSlice::new(&count)];
        // A signal interrupts only before anything was sent: a single byte is sent or not.
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&stream, &bytes, &mut control, SendFlags::NOSIGNAL)
        })?;
    }
    Ok(())
}

/// Receives `count` descriptors. After an error, all received descriptors are closed.
///
/// # Errors
/// `InvalidData` if the number of descriptors differs from the announced one, or if the kernel could not install all of
/// them (`RLIMIT_NOFILE`). The stream cannot be used any more then.
pub fn receive(stream: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let bad = |said: String| io::Error::new(ErrorKind::InvalidData, said);
    let mut fds = Vec::new();
    while fds.len() < count {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8];
        let mut slices = [IoSliceMut::new(&mut byte)];
        let message = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(&stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let before = fds.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(got) = message {
                fds.extend(got);
            }
        }
        let (got, is_cut) = (fds.len() - before, message.flags.contains(ReturnFlags::CTRUNC));
        if message.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if is_cut {
            return Err(bad("not every descriptor could be received".into()));
        }
        if got == 0 || got != usize::from(byte[0]) || fds.len() > count {
            return Err(bad(format!("{got} descriptors, where {} were said to come", byte[0])));
        }
    }
    Ok(fds)
}
