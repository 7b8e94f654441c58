//! A listening Unix socket at a path. It replaces a socket that an ended process has left behind.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Longest wait for a process that creates or removes another socket in the folder.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The path of a socket on which this process listens. Dropping it removes the socket, unless the path has another file
/// by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket: another process may have replaced it.
    own: (u64, u64),
    /// Keeps the inode alive, so that no other file gets its number.
    _inode: OwnedFd,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock, another process could put its socket there between the check and the removal.
        let Ok(_alone) = Alone::beside(&self.path) else { return };
        let is_own =
            self.path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == self.own);
        if is_own {
            // An error means that another process has removed the file already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a socket to the path, and replaces a socket on which no process listens any more. `mode` is the mode of the
/// socket's file before any process can connect: a user with write permission may connect.
///
/// # Errors
/// `AddrInUse` if the path has a socket that is in use, or another file; and the kernel's error.
pub fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    let _alone = Alone::beside(path).map_err(|error| {
        let folder = folder_of(path).display();
        let said = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "there is no folder {folder}; make it (`mkdir -p {folder}`), or choose another path"
            ),
            _ => format!("locking its folder: {error}"),
        };
        io::Error::new(error.kind(), said)
    })?;
    let listener = match listen_at(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Connecting to a file that is not a socket is refused with the same error.
            let is_socket = path.symlink_metadata()?.file_type().is_socket();
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).is_err_and(refused) {
                let said = "it is there already, and in use or no socket; name another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, said));
            }
            std::fs::remove_file(path)?;
            listen_at(path, mode)?
        }
        other => other?,
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inode = rustix::fs::open(path, flags, Mode::empty())?;
    let meta = path.symlink_metadata()?;
    let own = (meta.dev(), meta.ino());
    Ok((listener, SocketFile { path: path.to_owned(), own, _inode: inode }))
}

/// A lock on the folder of a socket. A process holds it while it creates or removes a socket there. It leaves no file
/// behind.
struct Alone(#[expect(dead_code, reason = "held, and given up when closed")] File);

impl Alone {
    fn beside(path: &Path) -> io::Result<Alone> {
        let folder = File::open(folder_of(path))?;
        let begin = Instant::now();
        // Our processes hold the lock for microseconds, but any process that may read the folder can hold it.
        while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || begin.elapsed() > LOCK_LIMIT {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Alone(folder))
    }
}

/// Returns the folder that a socket at this path is in: the current one for a name alone.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Creates a listening socket at the path. Its file has this mode before any process can connect.
fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // bind() gives the file the mode of the socket, minus the umask. Source: unix_bind_bsd, net/unix/af_unix.c.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &address)?;
    if mode != 0o600 {
        use std::os::unix::fs::PermissionsExt;
        // The umask applies to bind(), but not to this. Nobody can connect yet.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_socket_has_its_mode_and_replaces_one_left_behind_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (listener, first) = bind(&path, 0o600).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let error = bind(&path, 0o600).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        UnixStream::connect(&path).expect("the first is still there");
        drop(listener);
        let (_listener, _second) = bind(&path, 0o666).expect("the first is gone");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o666);
        drop(first);
        UnixStream::connect(&path).expect("the second listens, and the first left it alone");
        let file = folder.path().join("file");
        std::fs::write(&file, b"precious").unwrap();
        bind(&file, 0o600).unwrap_err();
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let said = bind(&missing.join("control"), 0o600).unwrap_err().to_string();
        assert!(said.contains(&format!("make it (`mkdir -p {}`)", missing.display())), "{said}");
    }

    #[test]
    fn of_many_that_start_together_one_listens_and_nobody_removes_its_socket() {
        for _ in 0..50 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("control");
            // As a killed process leaves it.
            let (listener, file) = bind(&path, 0o600).unwrap();
            drop(listener);
            std::mem::forget(file);
            let gate = Barrier::new(8);
            let bound: Vec<_> = thread::scope(|scope| {
                let start = || {
                    gate.wait();
                    bind(&path, 0o600).ok()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                all.into_iter().filter_map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            UnixStream::connect(&path).expect("the one that listens is at the path");
        }
    }
}
