//! The peer of a Unix socket, as the kernel recorded it when the peer connected.
//!
//! Source: unix(7) for `SO_PEERCRED`; net/core/sock.c in Linux for `SO_PEERGROUPS` (4.13 and later), which no crate
//! supports. The groups must not be read from /proc: the process id may belong to another process by then.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Number of groups for which the first attempt has memory.
const GROUPS_FIRST: usize = 32;
/// Most groups that a process can have. Source: `NGROUPS_MAX`, linux/limits.h.
const GROUPS_MAX: usize = 65_536;

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A process of this machine, with the credentials that the kernel recorded.
    Process(Credentials),
    /// A virtual machine, by the name of its port in the server's file. The guest itself decides which of its programs
    /// use the port.
    Guest(Arc<str>),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Process(who) => write!(f, "user {} (process {})", who.uid, who.pid),
            Who::Guest(name) => write!(f, "guest {name}"),
        }
    }
}

/// The peer of a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if the peer is not in this process's PID namespace or its descendants, as for a daemon in a
    /// container.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Reads the credentials of the process at the other end of a connection.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(stream: &UnixStream) -> io::Result<Credentials> {
        // Not with rustix: its process ids cannot be 0, but that of a peer in another PID namespace is 0.
        let peer = getsockopt(stream, PeerCredentials)?;
        let groups = groups(stream.as_fd())?;
        Ok(Credentials { pid: peer.pid(), uid: peer.uid(), gid: peer.gid(), groups })
    }
}

fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_FIRST];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, the size of `groups`, and sets `bytes` to the size of all
        // groups, also if they do not fit.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        let is_too_many = count > groups.len() && count <= GROUPS_MAX;
        if error.raw_os_error() != Some(libc::ERANGE) || !is_too_many {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_of_our_own_is_us() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut told = Credentials::of(&one).unwrap();
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
