//! Who is at the other end of a Unix socket, as the kernel noted it when that end connected.
//!
//! Source: unix(7) for `SO_PEERCRED`; net/core/sock.c in Linux for `SO_PEERGROUPS` (4.13 and later). No crate wraps the
//! groups; and the process number is 0 where the peer is in a PID namespace that this process does not see, which
//! wrappers take for impossible.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Groups that fit at the first attempt.
const GROUPS_FIRST: usize = 32;
/// Groups that a process has at most. Source: `NGROUPS_MAX`, linux/limits.h.
const GROUPS_MAX: usize = 65_536;

/// Who is at the other end of a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if that process is in a PID namespace that this one does not see.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Ids of its supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Those of the other end of `socket`.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        let into = (&raw mut peer).cast();
        // SAFETY: the kernel writes `bytes` bytes at most, which are the whole of `peer`: three numbers.
        unsafe { option(socket, libc::SO_PEERCRED, into, &mut bytes) }?;
        Ok(Credentials { pid: peer.pid, uid: peer.uid, gid: peer.gid, groups: groups(socket)? })
    }
}

fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_FIRST];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        let into = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes `bytes` bytes at most, which are the whole of `groups`.
        let read = unsafe { option(socket, libc::SO_PEERGROUPS, into, &mut bytes) };
        // It has been told how many there are also where they do not fit.
        let count = bytes as usize / size_of::<libc::gid_t>();
        match read {
            Ok(()) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(error) => {
                let fits = count <= groups.len() || count > GROUPS_MAX;
                if fits || error.raw_os_error() != Some(libc::ERANGE) {
                    return Err(error);
                }
                groups.resize(count, 0);
            }
        }
    }
}

/// Reads a socket option.
///
/// # Safety
/// `into` has room for `bytes` bytes, of which the kernel may write any.
unsafe fn option(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    into: *mut libc::c_void,
    bytes: &mut libc::socklen_t,
) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, into, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_socket_of_our_own_is_us() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut told = Credentials::of_peer(one.as_fd()).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let groups = line.split_whitespace().map(|group| group.parse().unwrap());
        let mut own = Credentials {
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.collect(),
        };
        own.groups.sort_unstable();
        told.groups.sort_unstable();
        assert_eq!(told, own);
    }
}
