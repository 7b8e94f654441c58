//! Helpers for the tests of the daemon.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::engines::of_generated;
use weir_capture::kernel::interface::LinkPattern;
use weir_plug::{Server, ServerLimits, Serving, socket};
use weir_serve::config::SourceConfig;
use weir_serve::{Capture, Config, Daemon, Resolved};

const LIMIT: Duration = Duration::from_secs(60);

/// Allows one test at a time, because descriptors are counted.
static ONE: Mutex<()> = Mutex::new(());

pub struct Setup {
    folder: tempfile::TempDir,
    pub daemon: Arc<Daemon>,
    pub serving: Arc<Serving>,
    _file: socket::SocketFile,
    _alone: MutexGuard<'static, ()>,
}

pub fn setup(config: &str) -> Setup {
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let resolve = |name: &str, source: &SourceConfig| {
        if let Some(place) = source.text(name).strip_prefix("netns:") {
            return interfaces(place).ok_or("netns:NAMESPACE/INTERFACE".to_owned());
        }
        let spec = source.text(name).strip_prefix("gen:").ok_or("no generator")?.to_owned();
        let request = EngineRequest { engine: Some(of_generated()), ..EngineRequest::default() };
        Ok(Resolved { target: Target::Text(spec), request, owner_finder: None })
    };
    let daemon = Daemon::new(Config::parse(config).unwrap(), resolve, |_| ()).unwrap();
    let daemon = Arc::new(daemon);
    let (listener, file) = socket::bind(&folder.path().join("s"), 0o600).unwrap();
    let server = Server::new("test", ServerLimits::default());
    let server = server.with(Arc::new(Capture::new(Arc::clone(&daemon))));
    let serving = Arc::new(server.serve(listener).unwrap());
    Setup { folder, daemon, serving, _file: file, _alone: alone }
}

/// An interface, or several by a pattern, in a network namespace.
fn interfaces(place: &str) -> Option<Resolved> {
    let (netns, iface) = place.split_once('/')?;
    let netns = Some(netns.into());
    let target = match LinkPattern::parse(iface) {
        Some(pattern) => Target::Pattern { netns, pattern },
        None => Target::Interface { netns, iface: iface.into() },
    };
    Some(Resolved { target, request: EngineRequest::default(), owner_finder: None })
}

impl Setup {
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

pub fn within_limit(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
