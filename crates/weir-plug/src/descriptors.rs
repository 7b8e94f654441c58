//! Descriptors beside a message, on a Unix stream socket.
//!
//! A message says how many come with it. Behind its bytes there is one byte for each run of up to 128 of them, which
//! says how many come beside that byte. Descriptors travel beside particular bytes of the stream, and a plain read of
//! those bytes closes them. So nobody may read ahead, and descriptors that nobody announced are closed by the kernel.

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

/// Sends these.
///
/// # Errors
/// The kernel's error; the stream is of no more use then.
pub fn send(stream: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    for run in fds.chunks(RUN_DESCRIPTORS_MAX) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(run));
        let count = [run.len() as u8];
        let bytes = [IoSlice::new(&count)];
        // A signal interrupts before anything was sent: one byte goes whole or not at all.
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&stream, &bytes, &mut control, SendFlags::NOSIGNAL)
        })?;
    }
    Ok(())
}

/// Receives `count` of them. After an error all that came are closed.
///
/// # Errors
/// `InvalidData` if they are not the announced number, or the kernel could not give us every one (`RLIMIT_NOFILE`);
/// the stream is of no more use then.
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
