//! Network namespaces: entering them, asking in them, and telling apart two that had the same name.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::CaptureError;

/// A network namespace, which is there as long as this is, whatever becomes of its name.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
    id: NetnsId,
}

/// What tells network namespaces apart that are there at the same time: device and inode. Source: namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetnsId(u64, u64);

impl NetnsId {
    /// Of the calling thread's; `None` if /proc is not mounted.
    #[must_use]
    pub fn current() -> Option<NetnsId> {
        std::fs::metadata("/proc/thread-self/ns/net").ok().map(|file| NetnsId::of(&file))
    }

    /// Of the one that `ip netns` knows as `name` now; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<NetnsId> {
        std::fs::metadata(path_of(name)).ok().map(|file| NetnsId::of(&file))
    }

    fn of(file: &Metadata) -> NetnsId {
        NetnsId(file.dev(), file.ino())
    }
}

impl Netns {
    /// The one that `ip netns` knows as `name`.
    ///
    /// # Errors
    /// [`CaptureError::NoNetns`]; [`CaptureError::Os`] if it is there and cannot be opened.
    pub fn open(name: &str) -> Result<Netns, CaptureError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => CaptureError::NoNetns { netns: name.to_owned() },
            _ => CaptureError::os(format!("opening network namespace {name}"))(error),
        };
        let file = File::open(path_of(name)).map_err(failed)?;
        let id = NetnsId::of(&file.metadata().map_err(failed)?);
        Ok(Netns { name: name.to_owned(), file, id })
    }

    /// Its device and inode.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Moves the calling thread into it.
    ///
    /// Only this thread moves, and it stays there: call it on a thread made for the purpose.
    ///
    /// # Errors
    /// [`CaptureError::NoRights`]; [`CaptureError::NoNetns`] for what is none (yet); [`CaptureError::Os`].
    pub fn enter(&self) -> Result<(), CaptureError> {
        // SAFETY: setns takes a descriptor, open here, and a flag; no pointers.
        let result = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        if result < 0 {
            let source = io::Error::last_os_error();
            let what = format!("entering network namespace {}", self.name);
            return Err(match source.raw_os_error() {
                Some(libc::EPERM) => CaptureError::NoRights { what, needs: "CAP_SYS_ADMIN" },
                // Its file, before `ip netns add` has put it there.
                Some(libc::EINVAL) => CaptureError::NoNetns { netns: self.name.clone() },
                _ => CaptureError::Os { doing: what, source },
            });
        }
        Ok(())
    }

    /// Runs `ask` in it.
    ///
    /// # Errors
    /// As [`enter`](Netns::enter).
    pub fn ask<T: Send>(&self, ask: impl FnOnce() -> T + Send) -> Result<T, CaptureError> {
        // A thread that enters a namespace stays there.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| self.enter().map(|()| ask()));
            asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Moves the calling thread into the network namespace that `ip netns` knows as `name`, as [`Netns::enter`].
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`].
pub fn enter_netns(name: &str) -> Result<(), CaptureError> {
    Netns::open(name)?.enter()
}

/// Runs `ask` in the network namespace that `ip netns` knows as `netns`, or here.
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`].
pub fn ask_in<T: Send>(
    netns: Option<&str>,
    ask: impl FnOnce() -> T + Send,
) -> Result<T, CaptureError> {
    match netns {
        Some(name) => Netns::open(name)?.ask(ask),
        None => Ok(ask()),
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}
