//! A tap interface, and frames that are written into it one by one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::NetdevError;
use crate::name::{NAME_BYTES, NetdevName};

/// Fail if an interface of this name exists. Source: linux/if_tun.h.
const IFF_TUN_EXCL: libc::c_int = 0x8000;
/// `_IOR('T', 225, int)`. Source: linux/if_tun.h.
const TUNSETFILTEREBPF: libc::c_ulong = 0x8004_54e1;

/// `struct ifreq` with flags.
#[repr(C)]
struct FlagsRequest {
    name: [u8; NAME_BYTES],
    flags: libc::c_short,
    /// The kernel copies the whole union.
    rest: [u8; 22],
}

impl FlagsRequest {
    fn new(name: &NetdevName, flags: libc::c_int) -> FlagsRequest {
        let mut bytes = [0; NAME_BYTES];
        // A `NetdevName` has at least one byte less.
        bytes[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
        FlagsRequest { name: bytes, flags: flags as libc::c_short, rest: [0; 22] }
    }
}

/// A tap interface of this process. It is removed when this value is dropped, or when the process ends for any reason.
pub(crate) struct Tap {
    file: File,
    name: NetdevName,
    pub(crate) index: u32,
    /// A socket in the interface's network namespace, for requests of its flags.
    socket: OwnedFd,
}

impl Tap {
    /// Creates the interface in the calling thread's network namespace. It is down at first.
    pub(crate) fn create(name: &NetdevName) -> Result<Tap, NetdevError> {
        let failed = |what| move |source| NetdevError::Os { name: name.clone(), what, source };
        // Without O_NONBLOCK, a write could wait for memory. Losing the frame is better.
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = file
            .open("/dev/net/tun")
            .map_err(|source| NetdevError::NoDevice { name: name.clone(), source })?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | IFF_TUN_EXCL;
        let mut request = FlagsRequest::new(name, flags);
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which `FlagsRequest` is as long as; it lives through the
        // call, and the descriptor is open.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if made < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EBUSY) => NetdevError::Exists { name: name.clone() },
                Some(libc::EPERM) => NetdevError::NoRights {
                    name: name.clone(),
                    what: "making a tap interface",
                    needs: "CAP_NET_ADMIN",
                },
                _ => failed("making a tap interface")(error),
            });
        }
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed("a socket to ask by")(error.into()))?;
        let index = name_to_index(&socket, name.as_str())
            .map_err(|error| failed("finding the interface that was just made")(error.into()))?;
        Ok(Tap { file, name: name.clone(), index, socket })
    }

    /// Returns the name of the interface.
    pub(crate) fn name(&self) -> &NetdevName {
        &self.name
    }

    /// Sets the program that decides which of the frames that are sent into the interface can be read from the tap.
    pub(crate) fn filter(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let number = program.as_raw_fd();
        // SAFETY: TUNSETFILTEREBPF reads one int, which lives through the call; both descriptors are open. The kernel
        // takes a reference of its own to the program.
        let set =
            unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETFILTEREBPF, &raw const number) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the interface receive this frame.
    pub(crate) fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }

    /// Returns whether the interface is up. A removed interface is not.
    pub(crate) fn is_up(&self) -> bool {
        let mut request = FlagsRequest::new(&self.name, 0);
        // SAFETY: SIOCGIFFLAGS reads and writes a `struct ifreq`, which `FlagsRequest` is as long as; it lives through
        // the call, and the descriptor is open.
        let asked =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
        asked == 0 && libc::c_int::from(request.flags) & libc::IFF_UP != 0
    }
}

const _: () = assert!(size_of::<FlagsRequest>() == size_of::<libc::ifreq>());
