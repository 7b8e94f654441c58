//! Sends descriptors to another process over a Unix stream socket: those of a feed's rings and of its wake-up channel
//! ([`send_feed`], [`receive_feed`]), or any others.
//!
//! The message in bytes: the number of descriptors as `u32`, then one byte for each group of up to 128 descriptors,
//! which is the number of descriptors in the group. The kernel attaches descriptors to particular bytes of the stream,
//! and a plain read of these bytes drops them. So other users of the stream must not read ahead (no `BufReader`), and
//! the first number is read alone: four bytes and no more.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::Ring;
use crate::error::RingError;
use crate::memory::{self, Mapping, Trust};
use crate::wake::{Sleeper, Waker};

pub use crate::limits::FDS_MAX;
const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));
const _: () = assert!(FDS_MAX <= u8::MAX as usize && FDS_MAX <= 253);

/// Sends `fds`, after their number in four bytes. The other side must call [`receive`].
///
/// The stream should be blocking, with a timeout. If sending fails half-way, the stream is no longer usable.
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
        // A signal interrupts the call only before anything was sent, because a single byte cannot be sent in part.
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
/// [`RingError::Os`]; of kind `InvalidData` for a message that [`send`] does not make, and for one whose descriptors
/// the kernel could not all install (`RLIMIT_NOFILE`).
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

/// Sends a feed's rings to a consumer in another process, and returns the waker for this consumer, in which line `i` is
/// that of ring `i`. The other side must call [`receive_feed`]. Waits for its channel as long as the stream's read
/// timeout allows.
///
/// # Errors
/// The errors of [`receive_waker`] and [`send`].
pub fn send_feed(stream: &UnixStream, rings: &[Ring<Mapping>]) -> Result<Waker, RingError> {
    let waker = receive_waker(stream, rings.len())?;
    send_rings(stream, rings)?;
    Ok(waker)
}

/// Sends the descriptors of rings. The other side must call [`receive_rings`].
///
/// # Errors
/// As [`send`].
pub fn send_rings(stream: &UnixStream, rings: &[Ring<Mapping>]) -> Result<(), RingError> {
    let fds: Vec<_> = rings.iter().map(|ring| ring.memory().as_fd()).collect();
    send(stream, &fds)
}

/// Sends one more channel of a sleeper. The other side must call [`receive_waker`].
///
/// # Errors
/// As [`Sleeper::channel`] and [`send`].
///
/// # Panics
/// As [`Sleeper::channel`].
pub fn send_channel(stream: &UnixStream, sleeper: &Sleeper) -> Result<(), RingError> {
    // Both are dropped once they are sent: an open copy of the writer's end would hide the writer's death.
    let [page, socket] = sleeper.channel()?;
    send(stream, &[page.as_fd(), socket.as_fd()])
}

/// Receives the channel of a consumer in another process. Its wake page must have at least `lines` lines.
///
/// # Errors
/// The errors of [`receive`]; those of [`Waker::attach`] if the descriptors are not a consumer's.
pub fn receive_waker(stream: &UnixStream, lines: usize) -> Result<Waker, RingError> {
    let fds = <[OwnedFd; 2]>::try_from(receive(stream, 2)?);
    let [page, socket] = fds.map_err(|_| RingError::NotAWaker)?;
    Waker::attach(page, socket, lines)
}

/// Receives the rings that [`send_feed`] sends, 1 to `rings_max`. Returns them with the sleeper that their writer
/// wakes: ring `i` has line `i`, and the writer has channel 0.
///
/// # Errors
/// As [`receive_rings`] and [`Sleeper::new`]; `InvalidData` if there is no ring.
///
/// # Panics
/// If `rings_max` is 0 or above [`RINGS_MAX`](crate::wake::RINGS_MAX).
pub fn receive_feed(
    stream: &UnixStream,
    rings_max: usize,
    trust: Trust,
) -> Result<(Vec<Ring<Mapping>>, Sleeper), RingError> {
    let sleeper = Sleeper::new(rings_max)?;
    send_channel(stream, &sleeper)?;
    let rings = receive_rings(stream, rings_max, trust)?;
    if rings.is_empty() {
        let (doing, source) = ("receiving a feed", std::io::ErrorKind::InvalidData.into());
        return Err(RingError::Os { doing, source });
    }
    Ok((rings, sleeper))
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
    use crate::wake::Woken;
    use crate::{Batch, Poll, Reader, RingError, Start, Writer};
    use std::io::{Read, Write};
    use std::time::Duration;

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
    fn a_feed_passed_on_is_read_by_a_consumer_that_is_woken_and_hears_of_its_writers_end() {
        let rings = [4, 8].map(|blocks| memory::create_memfd("weir-test", &spec(blocks)).unwrap());
        let (here, there) = UnixStream::pair().unwrap();
        let receive = move || receive_feed(&there, 2, Trust::Anybody).unwrap();
        let receiver = std::thread::spawn(receive);
        let mut waker = send_feed(&here, &rings).unwrap();
        let (received, sleeper) = receiver.join().unwrap();
        let blocks: Vec<_> = received.iter().map(|ring| ring.geometry().data_blocks).collect();
        assert_eq!((blocks, waker.lines()), (vec![4, 8], 2));

        let reader = |ring| Reader::new(ring, Start::Oldest).unwrap();
        let readers: Vec<_> = received.iter().map(reader).collect();
        let long = Duration::from_secs(60);
        let sleeping = std::thread::spawn(move || {
            let first = sleeper.sleep(&readers, 1, long).unwrap();
            // A wake-up that crossed the look at the rings which ended the first sleep ends the second.
            let more = || sleeper.sleep(&readers, 2, long).unwrap();
            let end = std::iter::repeat_with(more).take(2).find(|woken| *woken != Woken::Frames);
            (first, end)
        });
        let mut writer = Writer::new(rings[1].clone());
        writer.push(&meta(0), b"frame");
        writer.publish();
        while waker.wake_threshold(1) != 2 {
            waker.wake_if_due(1, 1);
            std::thread::yield_now();
        }
        drop(waker);
        assert_eq!(sleeping.join().unwrap(), (Woken::Frames, Some(Woken::WriterGone(0))));
    }

    #[test]
    fn answers_that_no_consumer_gives_are_errors() {
        let ring = memory::create_memfd("weir-test", &spec(4)).unwrap();
        let refused = |answer: &[BorrowedFd<'_>]| {
            let (here, there) = UnixStream::pair().unwrap();
            send(&there, answer).unwrap();
            send_feed(&here, std::slice::from_ref(&ring)).unwrap_err()
        };
        let fd = ring.memory().as_fd();
        for count in 0..=2 {
            assert!(matches!(refused(&vec![fd; count]), RingError::NotAWaker), "{count}");
        }
        assert!(matches!(refused(&[fd; 3]), RingError::Os { .. }));
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, &[]).unwrap();
        let received = receive_feed(&there, 1, Trust::Anybody);
        assert!(matches!(received.map(drop), Err(RingError::Os { .. })));
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
