//! Descriptors handed to another process over a Unix stream socket.
//!
//! The bytes: a count as `u32`, then one byte for each run of up to 128 descriptors, which says how many
//! come with it. Descriptors travel beside particular bytes of the stream, and a plain read of those
//! bytes drops them. So whatever else uses the stream must not read ahead (no `BufReader`), and the
//! count is read alone: four bytes and never a fifth.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::Ring;
use crate::error::RingError;
use crate::memory::{self, Mapping, Trust};

pub use crate::limits::FDS_MAX;
const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));
const _: () = assert!(FDS_MAX <= u8::MAX as usize && FDS_MAX <= 253);

/// Sends `fds`, with their number as the message's four bytes. The other side must [`receive`].
///
/// The stream should block: given up half-way, it is of no more use.
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
        let bytes = [IoSlice::new(&count)];
        // A signal interrupts before anything was sent: one byte goes whole or not at all.
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL)
        })
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
/// Waits for the sender, for as long as the stream's read timeout allows.
///
/// # Errors
/// [`RingError::Os`]; `InvalidData` for a message that is not what [`send`] makes, and for one of
/// which the kernel could not give us every descriptor (`RLIMIT_NOFILE`).
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
        let message = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
        .map_err(RingError::os(doing))?;
        let before = fds.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(got) = message {
                fds.extend(got);
            }
        }
        let got = fds.len() - before;
        let cut = message.flags.contains(ReturnFlags::CTRUNC);
        if cut || message.bytes != 1 || got == 0 || got != usize::from(byte[0]) {
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
    trust: Trust,
) -> Result<Vec<Ring<Mapping>>, RingError> {
    let attach = |fd| memory::attach(fd, trust);
    receive(stream, rings_max)?.into_iter().map(attach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, spec};
    use crate::{Batch, Poll, Reader, RingError, Start, Writer};
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    /// Descriptors of this process that are open for the file.
    fn open_fds(file: &std::fs::File) -> usize {
        use std::os::unix::fs::MetadataExt;
        let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let own = number(file.metadata().unwrap());
        let all = std::fs::read_dir("/proc/thread-self/fd").unwrap().flatten();
        // One that another test closes meanwhile is not ours.
        all.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|meta| number(meta) == own))
            .count()
    }

    #[test]
    fn any_number_of_descriptors_arrives_in_order_and_nothing_beside_them_is_read() {
        for count in [0, 1, 127, 128, 129, 253, 300] {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let files: Vec<_> = (0..count)
                .map(|i| {
                    let fd = rustix::fs::memfd_create("weir-test", rustix::fs::MemfdFlags::CLOEXEC);
                    let fd = fd.unwrap();
                    rustix::fs::ftruncate(&fd, i).unwrap();
                    fd
                })
                .collect();
            let sender = std::thread::spawn(move || {
                let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                here.write_all(b"before").unwrap();
                send(&here, &fds).unwrap();
                here.write_all(b"after").unwrap();
            });
            let mut before = [0; 6];
            there.read_exact(&mut before).unwrap();
            let got = receive(&there, 300).unwrap();
            let sizes: Vec<_> =
                got.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_size as u64).collect();
            assert_eq!(sizes, (0..count).collect::<Vec<_>>());
            let mut after = String::new();
            sender.join().unwrap();
            there.read_to_string(&mut after).unwrap();
            assert_eq!((&before, &after[..]), (b"before", "after"));
        }
    }

    fn send_raw(stream: &UnixStream, byte: u8, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        rustix::net::sendmsg(stream, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL)
            .unwrap();
    }

    #[test]
    fn hostile_messages_are_errors_and_leave_no_descriptor_behind() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        let refused = |count: u32, byte: u8, fds: &[BorrowedFd<'_>]| {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(&count.to_le_bytes()).unwrap();
            send_raw(&here, byte, fds);
            drop(here);
            assert!(receive(&there, 4).is_err(), "count {count}, byte {byte}, {} fds", fds.len());
        };
        for _ in 0..200 {
            refused(u32::MAX, 1, &[fd]);
            refused(5, 5, &[fd; 5]);
            refused(1, 0, &[]);
            refused(1, 1, &[]);
            refused(1, 2, &[fd; 2]);
            refused(2, 1, &[fd; 2]);
            refused(2, 1, &[fd]);
        }
        assert_eq!(open_fds(&file), 1);
    }

    #[test]
    fn a_ring_passed_on_is_read_and_not_written() {
        let ring = memory::create_memfd("weir-test", &spec(4)).unwrap();
        let mut writer = Writer::new(ring.clone());
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, &[ring.memory().as_fd()]).unwrap();
        let rings = receive_rings(&there, 1, Trust::Anybody).unwrap();
        writer.push(&meta(0), b"frame");
        writer.close();
        let mut reader = Reader::new(&rings[0], Start::Oldest).unwrap();
        let mut batch = Batch::new();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        assert_eq!(batch.records().next().unwrap().frame, b"frame");
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Closed);
        let second = std::panic::catch_unwind(|| drop(Writer::new(rings[0].clone())));
        assert!(second.is_err(), "a writer on read-only memory");
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let sealed = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("weir-test", sealed).unwrap();
        rustix::io::pwrite(&memory, &vec![0; 5 << 20], 0).unwrap();
        send(&here, &[memory.as_fd()]).unwrap();
        assert!(matches!(receive_rings(&there, 1, Trust::Anybody), Err(RingError::NotSealed)));
        use rustix::fs::SealFlags;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        send(&here, &[memory.as_fd()]).unwrap();
        assert!(matches!(
            receive_rings(&there, 1, Trust::Anybody),
            Err(RingError::NotARing { .. })
        ));
    }
}
