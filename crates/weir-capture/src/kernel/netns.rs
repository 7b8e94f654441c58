//! Network namespaces: entering them, running a function in them, and distinguishing two that had the same
//! name.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::CaptureError;
use crate::own_thread::in_own_thread;

mod described;
mod finder;
mod name;

pub use finder::OwnerFinder;
pub use name::{Locate, Located, NetnsName, Owner, netns_of_process};

/// An open network namespace. It exists as long as this value, even if its name is removed.
#[derive(Debug)]
pub struct Netns {
    name: NetnsName,
    path: PathBuf,
    owner: Owner,
    file: File,
    id: NetnsId,
}

/// Identity of a network namespace among those that exist at the same time: device and inode. Source:
/// namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetnsId(u64, u64);

impl NetnsId {
    /// Returns the identity of the calling thread's namespace; `None` if /proc is not mounted.
    #[must_use]
    pub fn current() -> Option<NetnsId> {
        std::fs::metadata("/proc/thread-self/ns/net").ok().map(|file| NetnsId::of(&file))
    }

    /// Returns the identity of the namespace that has this name now; `None` if there is none.
    #[must_use]
    pub fn named(name: &NetnsName) -> Option<NetnsId> {
        NetnsId::at(&name.locate().ok()?.path)
    }

    /// Returns the identity of the namespace that this file represents; `None` if there is none.
    #[must_use]
    pub fn at(path: &Path) -> Option<NetnsId> {
        std::fs::metadata(path).ok().map(|file| NetnsId::of(&file))
    }

    fn of(file: &Metadata) -> NetnsId {
        NetnsId(file.dev(), file.ino())
    }
}

impl Netns {
    /// Opens the namespace that has this name now.
    ///
    /// # Errors
    /// As [`NetnsName::locate`]; [`CaptureError::NoRights`]; [`CaptureError::Os`] if it exists and cannot
    /// be opened.
    pub fn open(name: &NetnsName) -> Result<Netns, CaptureError> {
        let Located { path, owner } = name.locate()?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound if owner.pid.is_some() => CaptureError::NoOwner {
                owner: name.to_string(),
                why: "its process has ended".to_owned(),
            },
            io::ErrorKind::NotFound => CaptureError::NoNetns { netns: name.name().to_owned() },
            // Source: proc_pid_ns(5), ptrace(2).
            io::ErrorKind::PermissionDenied => CaptureError::NoRights {
                what: format!("opening the network namespace of {name}"),
                needs: "CAP_SYS_PTRACE",
            },
            _ => CaptureError::os(format!("opening the network namespace of {name}"))(error),
        };
        let file = File::open(&path).map_err(failed)?;
        let id = NetnsId::of(&file.metadata().map_err(failed)?);
        let owner = Owner { netns: id.1, ..owner };
        Ok(Netns { name: name.clone(), path, owner, file, id })
    }

    /// Returns the owner of the namespace.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns whether the file by which the namespace was found still represents it. For the file of a process:
    /// whether the process still exists and is still in this namespace. A thread without CAP_SYS_PTRACE can only check
    /// that the process exists.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match std::fs::metadata(&self.path) {
            Ok(file) => NetnsId::of(&file) == self.id,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Returns the device and inode of the namespace.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Moves the calling thread into the namespace.
    ///
    /// Only this thread moves, and it stays there, so call this on a thread made for the purpose.
    ///
    /// # Errors
    /// [`CaptureError::NoRights`]; [`CaptureError::NoNetns`] for a name that is not a network namespace
    /// (yet); [`CaptureError::Os`].
    pub fn enter(&self) -> Result<(), CaptureError> {
        // SAFETY: setns takes a descriptor, open here, and a flag; no pointers.
        let result = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        if result < 0 {
            let source = io::Error::last_os_error();
            let what = format!("entering the network namespace of {}", self.name);
            return Err(match source.raw_os_error() {
                Some(libc::EPERM) => CaptureError::NoRights { what, needs: "CAP_SYS_ADMIN" },
                // `ip netns add` has created the file, but has not mounted the namespace on it yet.
                Some(libc::EINVAL) => CaptureError::NoNetns { netns: self.name.name().to_owned() },
                _ => CaptureError::Os { doing: what, source },
            });
        }
        Ok(())
    }

    /// Runs `ask` in the namespace, on a thread of its own.
    ///
    /// # Errors
    /// As [`enter`](Netns::enter), and if no thread can be started.
    pub fn ask<T: Send>(&self, ask: impl FnOnce() -> T + Send) -> Result<T, CaptureError> {
        // A thread that enters a namespace stays there.
        in_own_thread("weir-netns", || self.enter().map(|()| ask()))
            .map_err(CaptureError::os("starting a thread"))?
    }
}

/// Moves the calling thread into the network namespace of this name, as [`Netns::enter`].
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`].
pub fn enter_netns(name: &NetnsName) -> Result<(), CaptureError> {
    Netns::open(name)?.enter()
}

/// Runs `ask` in the network namespace of this name, on a thread of its own; with `None`, on the calling thread.
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`].
pub fn ask_in<T: Send>(
    netns: Option<&NetnsName>,
    ask: impl FnOnce() -> T + Send,
) -> Result<T, CaptureError> {
    match netns {
        Some(name) => Netns::open(name)?.ask(ask),
        None => Ok(ask()),
    }
}
