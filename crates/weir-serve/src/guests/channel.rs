//! Streams from a guest's broker to the host by vsock. Each stream is one session.
//!
//! The daemon `vhost-device-vsock` forwards a connection to port P to a Unix socket, whose path is its option
//! `uds-path` with `_P` appended (README of the crate, "Using the vsock device"). The path identifies the guest.
//!
//! A newer stream replaces the previous one: a guest that is reset leaves a stream that nobody closes, and its next
//! broker must not wait for the end of that stream.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use weir_plug::socket::{self, SocketFile};
use weir_plug::vsock;

use crate::private;

/// Returns the permissions of the socket. The folder belongs to QEMU's user and to the daemon's group.
/// `vhost-device-vsock` runs as QEMU's user, who is not in that group, so it can connect only if others may write the
/// socket. That is safe where only the folder's owner and group can enter the folder. In any other folder only the
/// daemon's user can connect, because the socket's group could be that of the daemon's clients.
fn socket_mode(folder: &Path) -> io::Result<u32> {
    let is_closed = folder.metadata()?.mode() & 0o001 == 0;
    Ok(if is_closed { 0o666 } else { 0o600 })
}

/// A socket on which the daemon listens for a guest's vsock connections.
pub(crate) struct GuestListener {
    listener: UnixListener,
    _file: SocketFile,
}

/// Returns the path of the socket on which the daemon listens for a guest whose `vhost-device-vsock` has this
/// `uds-path`.
pub(crate) fn socket_of(uds_path: &Path) -> PathBuf {
    let mut path = uds_path.as_os_str().to_owned();
    path.push(format!("_{}", vsock::PORT));
    path.into()
}

impl GuestListener {
    /// Begins to listen. Fails if any user could replace the socket: a process that listens there gets the guest's
    /// block lists and filters.
    ///
    /// # Errors
    /// The folder does not exist; it, or one above it, is writable by everybody; another daemon listens there; or the
    /// kernel's error.
    pub(crate) fn bind(uds_path: &Path) -> io::Result<GuestListener> {
        let path = socket_of(uds_path);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("listening at {}: {error}", path.display()))
        };
        private::check_folder_of(&path).map_err(io::Error::other)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mode = socket_mode(folder).map_err(named)?;
        let (listener, file) = socket::bind(&path, mode).map_err(named)?;
        listener.set_nonblocking(true)?;
        Ok(GuestListener { listener, _file: file })
    }

    /// Waits for the next stream; returns `None` once `end` is readable.
    fn accept(&self, end: BorrowedFd<'_>) -> io::Result<Option<UnixStream>> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(end, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            if !fds[0].revents().is_empty() {
                return Ok(None);
            }
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                // The connection has ended before it was accepted, or a signal came: wait again.
                Err(error) if is_transient(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Serves the streams, each on its own thread and one at a time, until `end` is readable.
    ///
    /// # Errors
    /// The kernel's error: no thread or no descriptor is left.
    pub(crate) fn serve(
        &self,
        end: BorrowedFd<'_>,
        serve: impl Fn(OwnedFd) + Sync,
    ) -> io::Result<()> {
        let serve = &serve;
        thread::scope(|scope| {
            // Dropping this value ends the stream, also if this function fails.
            let mut served: Option<ServedStream<'_>> = None;
            while let Some(stream) = self.accept(end)? {
                drop(served.take());
                let own = stream.try_clone()?;
                let thread = thread::Builder::new().name("guest-vsock".into());
                let thread = thread.spawn_scoped(scope, move || serve(stream.into()))?;
                served = Some(ServedStream { end: own, thread: Some(thread) });
            }
            Ok(())
        })
    }
}

fn is_transient(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// The stream that is served now. Dropping it ends the stream and waits for its thread.
struct ServedStream<'scope> {
    end: UnixStream,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

impl Drop for ServedStream<'_> {
    fn drop(&mut self) {
        // Fails if the stream has ended already.
        let _ = shutdown(&self.end, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn each_stream_is_served_and_a_newer_one_ends_the_one_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let uds_path = folder.path().join("web1.vsock");
        let listener = GuestListener::bind(&uds_path).unwrap();
        let connect = || {
            let stream = UnixStream::connect(folder.path().join("web1.vsock_5745")).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream
        };
        let (end, (said, ended)) = (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), mpsc::channel());
        // Echoes the stream's data, and reports the end of each stream.
        let serve = |stream: OwnedFd| {
            let mut stream = UnixStream::from(stream);
            stream.set_nonblocking(false).unwrap();
            let mut bytes = [0; 9];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                stream.write_all(&bytes[..count]).unwrap();
            }
            said.send(()).unwrap();
        };
        let repeats = |mut stream: &UnixStream| {
            stream.write_all(b"x").unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"x");
        };
        thread::scope(|scope| {
            let serving = scope.spawn(|| listener.serve(end.as_fd(), serve));
            let first = connect();
            repeats(&first);
            let second = connect();
            repeats(&second);
            ended.recv_timeout(LONG).unwrap();
            assert_eq!((&first).read(&mut [0]).unwrap(), 0, "the first has ended");
            drop(second);
            ended.recv_timeout(LONG).unwrap();
            let third = connect();
            repeats(&third);
            rustix::io::write(&end, &1u64.to_ne_bytes()).unwrap();
            serving.join().unwrap().unwrap();
            ended.recv_timeout(LONG).unwrap();
            assert_eq!((&third).read(&mut [0]).unwrap(), 0, "the last has ended");
        });
        drop(listener);
        assert!(!socket_of(&uds_path).exists());
    }

    #[test]
    fn only_a_folder_without_others_has_a_socket_that_all_may_write() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let uds_path = folder.path().join("vsock");
        for (folder_mode, mode) in
            [(0o700, 0o666), (0o2770, 0o666), (0o755, 0o600), (0o2771, 0o600)]
        {
            set_permissions(folder.path(), Permissions::from_mode(folder_mode)).unwrap();
            let _listener = GuestListener::bind(&uds_path).unwrap();
            let socket = socket_of(&uds_path).metadata().unwrap();
            assert_eq!(socket.mode() & 0o777, mode, "{folder_mode:o}");
        }
    }

    #[test]
    fn a_second_daemon_does_not_take_the_guests_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let uds_path = folder.path().join("web1.vsock");
        let _first = GuestListener::bind(&uds_path).unwrap();
        let said = GuestListener::bind(&uds_path).err().unwrap().to_string();
        assert!(said.contains("web1.vsock_5745") && said.contains("in use"), "{said}");
    }
}
