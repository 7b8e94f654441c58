//! The vsock of a virtual machine to its host: a stream that has a beginning and an end, unlike a
//! [`port`](crate::port). Programs that use a port can use such a stream unchanged.
//!
//! Source: vsock(7); Linux, net/vmw_vsock/af_vsock.c.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, socket};

/// The vsock port at which a host listens for its guests' brokers. No other known program uses it.
pub const PORT: u32 = 5745;
/// The address of the host for its guests (`VMADDR_CID_HOST`).
const HOST: u32 = 2;

/// Connects to a port of the host. Waits for 2 s at most, which is the kernel's own limit
/// (`VSOCK_DEFAULT_CONNECT_TIMEOUT`).
///
/// # Errors
/// The kernel's error: `ConnectionReset` if no program listens there, `Unsupported` if this machine has no vsock.
pub fn connect_to_host(port: u32) -> io::Result<OwnedFd> {
    let made = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let unsupported = |errno: nix::errno::Errno| match errno {
        nix::errno::Errno::EAFNOSUPPORT | nix::errno::Errno::ENODEV => {
            let way = "this machine has no vsock (module vmw_vsock_virtio_transport, and a vsock device of its host's)";
            io::Error::new(io::ErrorKind::Unsupported, way)
        }
        errno => errno.into(),
    };
    let stream = made.map_err(unsupported)?;
    connect(stream.as_raw_fd(), &VsockAddr::new(HOST, port)).map_err(unsupported)?;
    Ok(stream)
}
