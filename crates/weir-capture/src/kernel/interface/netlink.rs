//! A socket of rtnetlink: requests to the kernel, and its answers. Needs no rights.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of `struct nlmsghdr`. Source: linux/netlink.h.
pub(super) const HEADER_BYTES: usize = 16;
/// The kernel fills at most so much of a buffer for a dump, and one link's answer is smaller.
const ANSWER_BYTES: usize = 32 * 1024;

/// In the network namespace of the thread that opened it.
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

    /// Sends a message of this kind: a header with `NLM_F_REQUEST` and these flags, and a body.
    pub(super) fn request(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        let mut request = vec![0u8; HEADER_BYTES];
        request.extend_from_slice(body);
        let bytes = request.len() as u32;
        request[0..4].copy_from_slice(&bytes.to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        // SAFETY: the buffer is borrowed for the call and its true length is passed; an unconnected
        // netlink socket sends to the kernel.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// One datagram of the answer: one message or several.
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
}
