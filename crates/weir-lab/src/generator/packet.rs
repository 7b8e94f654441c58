//! Sends frames from user space: by a packet socket that bypasses the queueing discipline, 64 frames in each system
//! call. Used if live frames are not possible, and for the demo's mix.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use super::counter::Counter;
use super::pace::{self, Wire};
use super::{GenOptions, GenReport, How, Job};
use crate::{Error, Result};

/// Frames of one system call: enough to make the cost of the call for each frame small.
pub(super) const BATCH: usize = 64;

pub(super) fn run(
    job: &Job,
    options: &GenOptions,
    stop: &AtomicBool,
    why: Option<String>,
) -> Result<GenReport> {
    let counter = Counter::of_link(job.iface)?;
    let paced = pace::run(options, stop, |turns| {
        turns.serve(&mut Packets {
            job,
            socket: Socket::open(job.iface, job.ifindex)?,
            counter: &counter,
            frames: vec![job.largest().blank().to_vec(); BATCH],
            stamp: options.stamp,
        })
    })?;
    Ok(GenReport { why, ..job.report(paced, How::AfPacket, &counter)? })
}

struct Packets<'a> {
    job: &'a Job<'a>,
    socket: Socket,
    counter: &'a Counter<'a>,
    frames: Vec<Vec<u8>>,
    stamp: bool,
}

impl Wire for Packets<'_> {
    fn send(&mut self, first: u64, frames: u32) -> Result<u64> {
        let (mut next, mut left) = (first, frames as usize);
        while left > 0 {
            let batch = left.min(BATCH);
            self.make(next, batch);
            self.socket.send_all(&self.frames[..batch]).map_err(|source| Error::Send {
                iface: self.job.iface.to_owned(),
                what: "send on a packet socket",
                source,
            })?;
            left -= batch;
            next = next.wrapping_add(batch as u64);
        }
        Ok(u64::from(frames))
    }

    fn check(&mut self) -> Result<()> {
        self.counter.now().map(|_| ())
    }
}

impl Packets<'_> {
    /// Fills the first `batch` buffers with frames whose numbers begin at `first`.
    fn make(&mut self, first: u64, batch: usize) {
        for (frame, ahead) in self.frames[..batch].iter_mut().zip(0..) {
            let number = first.wrapping_add(ahead);
            let template = self.job.template(number);
            template.shape(frame);
            template.stamp(frame, number, if self.stamp { tai_ns() } else { 0 });
        }
    }
}

/// A packet socket that only sends, bound to one interface.
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn open(iface: &str, ifindex: u32) -> Result<Socket> {
        let failed = |what| Error::Send {
            iface: iface.to_owned(),
            what,
            source: io::Error::last_os_error(),
        };
        // With protocol 0 the socket receives nothing, so its receive queue stays empty.
        // SAFETY: takes no pointers; the result is checked before it is used.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(failed("open a packet socket; run as root or with CAP_NET_RAW"));
        }
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
        let on: libc::c_int = 1;
        // SAFETY: `on` is a c_int, readable for the given length. The kernel keeps no pointer.
        let bypass = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if bypass != 0 {
            return Err(failed("bypass the queueing discipline"));
        }
        // SAFETY: sockaddr_ll is made of integers and an array of them: all zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex.cast_signed();
        // SAFETY: `address` is a whole sockaddr_ll, as its family says, readable for the length given.
        let bound = unsafe {
            libc::bind(
                fd,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound == 0 { Ok(socket) } else { Err(failed("bind a packet socket to it")) }
    }

    /// Passes all frames to the kernel once; there are at most [`BATCH`]. A frame that a full queue refuses (ENOBUFS)
    /// is not attempted again, because the link counts the frames that it accepted.
    pub(super) fn send_all(&self, frames: &[impl AsRef<[u8]>]) -> io::Result<()> {
        assert!(frames.len() <= BATCH);
        // SAFETY: iovec and mmsghdr are made of raw pointers and integers: all zero is a value.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for ((frame, part), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
            let frame = frame.as_ref();
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let mut done = 0;
        while done < frames.len() {
            let left = &mut messages[done..frames.len()];
            // SAFETY: `left` holds `left.len()` whole messages, writable for their `msg_len`. Each
            // points to one iovec of `parts`, and that to a frame of `frames` with its length; both
            // outlive the call and neither has moved since. The kernel only reads the frames.
            let sent = unsafe {
                libc::sendmmsg(self.0.as_raw_fd(), left.as_mut_ptr(), left.len() as libc::c_uint, 0)
            };
            if sent > 0 {
                done += sent as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS) => done += 1,
                _ => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the time of CLOCK_TAI in nanoseconds, the clock of stamps
/// ([`template::stamp_of`](super::template::stamp_of)). In the kernel, `bpf_ktime_get_tai_ns` returns the same time.
pub fn tai_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec, writable during the call. The clock exists since Linux 3.10, so
    // the call does not fail; if it did, the time would be zero.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
