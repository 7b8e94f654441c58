//! The number of bytes of a TCP connection that are not acknowledged.
#![allow(unsafe_code, reason = "no safe binding of SIOCOUTQ is at hand")]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Returns the number of written bytes that the peer has not acknowledged. Also works on a broken connection.
///
/// # Errors
/// As ioctl(2).
///
/// Source: tcp(7), SIOCOUTQ, which has the number of TIOCOUTQ.
pub(super) fn unacked_bytes(stream: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as `stream` is borrowed; the kernel writes one int to `bytes`, which
    // lives on this stack for the whole call.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes.max(0) as u64) }
}
