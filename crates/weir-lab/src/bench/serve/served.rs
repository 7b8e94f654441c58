//! Starts the measured daemon and its consumers.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_client::Connection;
use weir_client::status::ClientStatus;

use super::READY;
use crate::bench::child::{Child, pinned};
use crate::bench::context::Context;
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

/// A daemon in the receiver's namespace.
pub(in super::super) struct Served {
    /// The folder with the daemon's configuration file and socket.
    pub(in super::super) folder: tempfile::TempDir,
    pub(in super::super) daemon: Child,
}

impl Served {
    pub(in super::super) fn start(context: &Context, bed: &Testbed) -> Result<Served> {
        let failed = |source| Error::Spawn { command: "weir serve".to_owned(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        let config = folder.path().join("weir.toml");
        let text = format!(
            "[sources.lan]\nsource = \"{}\"\neverybody = true\n[limits]\nfeeds = 200\nmemory_mib = 20000\n\
             opens_per_second = 1000\n",
            bed.rx.iface
        );
        std::fs::write(&config, text).map_err(failed)?;
        // The daemon shares no CPU with the generator.
        let socket = folder.path().join("s");
        let words =
            ["serve", "--config", &config.to_string_lossy(), "--socket", &socket.to_string_lossy()]
                .map(str::to_owned);
        let command = pinned(context.cpus.tool, &context.options.weir.to_string_lossy(), &words);
        let mut daemon = Child::start("weir serve", &bed.rx, command)?;
        daemon.wait_for_line(READY, |line| line.starts_with("weir: serving "))?;
        Ok(Served { folder, daemon })
    }

    pub(in super::super) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Requests the daemon's status of its only client.
    ///
    /// # Errors
    /// [`Error::Measure`] if the daemon has no client with a ledger.
    pub(in super::super) fn client(&self) -> Result<ClientStatus> {
        let failed = |reason: String| Error::Measure { what: "weir serve".to_owned(), reason };
        let connection =
            Connection::open(&self.socket()).map_err(|error| failed(error.to_string()))?;
        let status = connection.status().map_err(|error| failed(error.to_string()))?;
        let client = status.clients.into_iter().find(|client| client.ledger.is_some());
        client.ok_or_else(|| failed("nobody reads its feed".to_owned()))
    }

    /// Waits until a client has an open feed. A tool with libweirpcap opens its feed in the first call that reads,
    /// after it has reported that it captures.
    ///
    /// # Errors
    /// As [`client`](Served::client), if there is no such client after [`READY`].
    pub(in super::super) fn wait_for_client(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.client() {
                Err(error) if begun.elapsed() > READY => return Err(error),
                Err(_) => sleep(Duration::from_millis(20)),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Starts a consumer that counts frames, on the tool's CPU. The arguments `before` precede its command line.
    pub(super) fn consumer(
        &self,
        context: &Context,
        end: &End,
        before: &[&str],
        part: &str,
    ) -> Result<Child> {
        let socket = self.socket().display().to_string();
        let source = format!("host:lan{part}");
        let weir = context.options.weir.display().to_string();
        let words = [weir.as_str(), "capture", &source, "--json", "--socket", &socket];
        let words: Vec<String> =
            before.iter().chain(&words).map(|word| (*word).to_owned()).collect();
        let (program, args) = words.split_first().expect("a program");
        let command = pinned(context.cpus.tool, program, args);
        let mut child = Child::start("weir capture host:", end, command)?;
        child.wait_for_line(READY, |line| line.contains("read from the daemon"))?;
        Ok(child)
    }

    pub(super) fn consumers(
        &self,
        context: &Context,
        end: &End,
        count: usize,
    ) -> Result<Vec<Child>> {
        (0..count).map(|_| self.consumer(context, end, &[], "")).collect()
    }
}

/// Start of a command line that runs a program in namespaces of its own and without capabilities, as in a container.
pub(super) const CONTAINER: [&str; 13] = [
    "unshare",
    "--mount",
    "--net",
    "--ipc",
    "--uts",
    "--cgroup",
    "setpriv",
    "--no-new-privs",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];
