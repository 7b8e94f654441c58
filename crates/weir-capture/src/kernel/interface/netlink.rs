//! An rtnetlink socket: requests to the kernel, and its answers. Needs no privileges.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of `struct nlmsghdr`. Source: linux/netlink.h.
pub(super) const HEADER_BYTES: usize = 16;
/// The kernel writes at most this much into a buffer for a dump. The answer for one link is smaller.
const ANSWER_BYTES: usize = 32 * 1024;

/// A socket in the network namespace of the thread that opened it.
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Ok(Netlink(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Receives the notifications of a group (`RTNLGRP_*`) from now on.
    pub(super) fn join(&self, group: libc::c_uint) -> io::Result<()> {
        self.set(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group)
    }

    /// Sets the receive buffer to `bytes`, or to net.core.rmem_max if that is less.
    pub(super) fn set_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads `size_of::<T>()` bytes of a live `T`; both callers pass the integer that netlink(7)
        // or socket(7) names for the option.
        let result = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the socket's port, which is in all answers to it (`nlmsg_pid`). The kernel assigns the port when the
    /// socket first sends.
    pub(super) fn port(&self) -> io::Result<u32> {
        let mut address = no_address();
        let mut bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, the size of the address, which is borrowed mutably, and its
        // length; any bytes are a valid `sockaddr_nl`.
        let result = unsafe {
            libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut bytes)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(address.nl_pid) }
    }

    /// Sends a message of this kind: a header with `NLM_F_REQUEST` and these flags, and a body.
    pub(super) fn request(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        self.request_numbered(0, kind, flags, body)
    }

    /// As [`request`](Netlink::request). Each message of the answer contains `number` (`nlmsg_seq`).
    pub(super) fn request_numbered(
        &self,
        number: u32,
        kind: u16,
        flags: libc::c_int,
        body: &[u8],
    ) -> io::Result<()> {
        let mut request = vec![0u8; HEADER_BYTES];
        request.extend_from_slice(body);
        let bytes = request.len() as u32;
        request[0..4].copy_from_slice(&bytes.to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request[8..12].copy_from_slice(&number.to_ne_bytes());
        // SAFETY: the buffer is borrowed for the call and its true length is passed; an unconnected
        // netlink socket sends to the kernel.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for one datagram of the answer, which contains one or more messages.
    pub(super) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0u8; ANSWER_BYTES];
        // SAFETY: the buffer is borrowed for the call; the kernel writes at most `answer.len()` bytes.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        answer.truncate(got as usize);
        Ok(answer)
    }

    /// Receives one datagram without waiting, and returns its length. The length is above that of `buffer`
    /// if the datagram was cut, and 0 if it came from another process and not from the kernel.
    pub(super) fn receive_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut from = no_address();
        let mut from_bytes = size_of_val(&from) as libc::socklen_t;
        // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer` and at most `from_bytes` into `from`,
        // all borrowed mutably for the call; any bytes are a valid `sockaddr_nl`.
        let got = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                (&raw mut from).cast(),
                &raw mut from_bytes,
            )
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(if from.nl_pid == 0 { got as usize } else { 0 })
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn no_address() -> libc::sockaddr_nl {
    // SAFETY: `sockaddr_nl` is plain old data of integers; all zeroes is a value of it.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
