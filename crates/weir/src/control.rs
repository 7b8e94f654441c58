//! The control socket of a running capture, for changes and for status requests.
//!
//! Only the owner of the socket and root may connect. No client can lock out the others: when the number of clients
//! is at its limit, the client that has been silent for the longest time is disconnected.

mod clients;
pub mod rpc;
mod served;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::geteuid;
use weir_plug::Credentials;
use weir_plug::socket::{SocketFile, bind};
use weir_probe::Probe;

use crate::journal::Journal;
use crate::plan::CapturePlan;
use crate::so_far::SoFar;
use crate::sources::{InForce, Subscriptions};
use clients::Clients;
use served::Served;

/// Read and write time-out of the control socket's connections, on both sides.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The control socket. Dropping it removes its path.
pub struct Control {
    _file: SocketFile,
    served: Arc<Served>,
}

impl Control {
    /// Starts to serve the plan's control socket, on a thread of its own. Returns `None` if the plan has none.
    ///
    /// # Errors
    /// The socket cannot be bound, for example because the path exists and is not a stale socket.
    pub fn of(
        plan: &CapturePlan,
        probe: &Arc<Probe>,
        journal: &Arc<Journal>,
        subscriptions: &Arc<Subscriptions>,
        so_far: &Arc<SoFar>,
    ) -> Result<Option<Control>> {
        let Some(path) = &plan.control else { return Ok(None) };
        let name = || format!("--control {}", path.display());
        // Accessible to its owner only.
        let (listener, file) = bind(path, 0o600).with_context(name)?;
        let asked = plan.outputs.look_back.as_ref().map(|look_back| look_back.asked.clone());
        let (probe, journal) = (Arc::clone(probe), Arc::clone(journal));
        let (subscriptions, so_far) = (Arc::clone(subscriptions), Arc::clone(so_far));
        let served = Arc::new(Served::new(probe, journal, subscriptions, so_far, asked));
        let control = Control { _file: file, served: Arc::clone(&served) };
        thread::Builder::new()
            .name("weir-control".into())
            .spawn(move || serve(&listener, &served))
            .context("starting a thread")?;
        Ok(Some(control))
    }

    /// Returns the filter in force of each feed, in the order of the feeds.
    pub fn in_force(&self) -> Vec<InForce> {
        self.served.in_force()
    }
}

fn serve(listener: &UnixListener, served: &Arc<Served>) {
    let clients = Clients::default();
    for stream in listener.incoming() {
        // The process may be out of descriptors, for example. Retry after a pause.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        // The permissions of the socket exclude other users, but some file systems have no permissions.
        let is_ours = Credentials::of(&stream)
            .is_ok_and(|peer| peer.uid == 0 || peer.uid == geteuid().as_raw());
        // Others get no answer: the connection is closed.
        if is_ours {
            let served = Arc::clone(served);
            clients.admit(stream, move |message| {
                rpc::answer(message, |method| served.carry_out(method))
            });
        }
    }
}
