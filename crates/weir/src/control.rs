//! Changes to a capture that runs, asked for through a Unix socket beside it.
//!
//! Who may connect is up to the socket's permissions, which are its owner's alone. None of those who may can keep the
//! others out: when all places are taken, whoever has said nothing for the longest time has to go.

mod clients;
pub mod rpc;
mod served;

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use weir_capture::Remote;
use weir_frame::pcapng::Interface;

use crate::sources::Subscribed;
use clients::Clients;
pub use served::InForce;
use served::Served;

/// How long either side waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The socket of a capture. Dropping it takes the path away.
pub struct Control {
    path: PathBuf,
    /// Device and inode: another capture may have come to the path.
    own: (u64, u64),
    served: Arc<Served>,
}

impl Drop for Control {
    fn drop(&mut self) {
        let is_own =
            self.path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == self.own);
        if is_own {
            // Gone by now: somebody tidied up.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Control {
    /// Listens at `path` for changes to these feeds, which have these interfaces.
    ///
    /// # Errors
    /// If there is something at the path that is not a socket left behind.
    pub fn listen(
        path: &Path,
        remote: Remote,
        feeds: Vec<(Subscribed, Interface)>,
    ) -> Result<Control> {
        let name = || format!("--control {}", path.display());
        let listener = bind(path).with_context(name)?;
        let meta = path.symlink_metadata().with_context(name)?;
        let served = Arc::new(Served::new(remote, feeds));
        let own = (meta.dev(), meta.ino());
        let control = Control { path: path.to_owned(), own, served: Arc::clone(&served) };
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).with_context(name)?;
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

/// Binds, in place of a socket that nobody listens to any more.
fn bind(path: &Path) -> Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A file that is no socket refuses connections, too.
            let is_socket = path.symlink_metadata()?.file_type().is_socket();
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).is_err_and(refused) {
                bail!("it is there already, and in use or no socket; name another path");
            }
            std::fs::remove_file(path)?;
            Ok(UnixListener::bind(path)?)
        }
        other => Ok(other?),
    }
}

fn serve(listener: &UnixListener, served: &Arc<Served>) {
    let clients = Clients::default();
    for stream in listener.incoming() {
        // Out of descriptors, for a moment; or one too many.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        // Its permissions come after the socket, and whoever was quicker is in the queue.
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
