//! Changes to a capture that runs, asked for through a Unix socket beside it.
//!
//! Who may connect is up to the socket's permissions, which are its owner's alone. None of those who may can keep the
//! others out: when all places are taken, whoever has said nothing for the longest time has to go.

mod clients;
pub mod rpc;
mod served;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;
use weir_probe::Probe;

use crate::journal::Journal;
use crate::sources::Subscriptions;
use clients::Clients;
pub use served::InForce;
use served::Served;

/// How long either side waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait for whoever makes another socket in the folder.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The socket of a capture. Dropping it takes the path away.
pub struct Control {
    path: PathBuf,
    /// Device and inode: another capture may have come to the path.
    own: (u64, u64),
    served: Arc<Served>,
}

impl Drop for Control {
    fn drop(&mut self) {
        // Without the lock, another capture could put its socket there between the look and the removal.
        let Ok(_alone) = Alone::beside(&self.path) else { return };
        let is_own =
            self.path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == self.own);
        if is_own {
            // Gone by now: somebody tidied up.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Control {
    /// Listens at `path` for changes to these subscriptions of the probe's, which `journal` is kept of.
    ///
    /// # Errors
    /// If there is something at the path that is not a socket left behind.
    pub fn listen(
        path: &Path,
        probe: Arc<Probe>,
        journal: Arc<Journal>,
        subscriptions: Arc<Subscriptions>,
    ) -> Result<Control> {
        let name = || format!("--control {}", path.display());
        let listener = bind(path).with_context(name)?;
        let meta = path.symlink_metadata().with_context(name)?;
        let served = Arc::new(Served::new(probe, journal, subscriptions));
        let own = (meta.dev(), meta.ino());
        let control = Control { path: path.to_owned(), own, served: Arc::clone(&served) };
        thread::Builder::new()
            .name("weir-control".into())
            .spawn(move || serve(&listener, &served))
            .context("starting a thread")?;
        Ok(control)
    }

    /// What each feed chooses by now, in the order that they were given in.
    pub fn in_force(&self) -> Vec<InForce> {
        self.served.in_force()
    }
}

/// A lock on the folder of a socket: whoever makes or removes a socket there has it. It leaves no file behind.
struct Alone(#[expect(dead_code, reason = "held, and given up when closed")] File);

impl Alone {
    fn beside(path: &Path) -> io::Result<Alone> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or(Path::new(".")))?;
        let begin = Instant::now();
        // Held for microseconds, but by anybody who may read the folder.
        while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || begin.elapsed() > LOCK_LIMIT {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Alone(folder))
    }
}

/// Binds, in place of a socket that nobody listens to any more.
fn bind(path: &Path) -> Result<UnixListener> {
    let _alone = Alone::beside(path).context("locking its folder")?;
    match listen_at(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A file that is no socket refuses connections, too.
            let is_socket = path.symlink_metadata()?.file_type().is_socket();
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).is_err_and(refused) {
                bail!("it is there already, and in use or no socket; name another path");
            }
            std::fs::remove_file(path)?;
            Ok(listen_at(path)?)
        }
        other => Ok(other?),
    }
}

/// A listening socket at the path, which is its owner's alone from the first moment.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // What bind makes has the mode of the socket (less the umask). Source: unix_bind_bsd, net/unix/af_unix.c.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

fn serve(listener: &UnixListener, served: &Arc<Served>) {
    let clients = Clients::default();
    for stream in listener.incoming() {
        // Out of descriptors, for a moment; or one too many.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        // Its permissions let nobody else in, but the folder may be on a file system that has none.
        let is_ours =
            socket_peercred(&stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
        if is_ours {
            let served = Arc::clone(served);
            clients.admit(stream, move |message| {
                rpc::answer(message, |method| served.carry_out(method))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_socket_is_its_owners_alone_and_replaces_one_left_behind_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let first = bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        UnixStream::connect(&path).expect("the first is still there");
        drop(first);
        let _second = bind(&path).expect("the first is gone");
        UnixStream::connect(&path).expect("the second listens");
        let file = folder.path().join("file");
        std::fs::write(&file, b"precious").unwrap();
        bind(&file).unwrap_err();
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn of_many_that_start_together_one_listens_and_nobody_removes_its_socket() {
        for _ in 0..50 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("control");
            // As a killed capture leaves it.
            drop(bind(&path).unwrap());
            let gate = Barrier::new(8);
            let bound: Vec<UnixListener> = thread::scope(|scope| {
                let start = || {
                    gate.wait();
                    bind(&path).ok()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                all.into_iter().filter_map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            UnixStream::connect(&path).expect("the one that listens is at the path");
        }
    }
}
