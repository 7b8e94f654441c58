//! The connection to the host's daemon: one session over the port or a vsock, shared by all feeds.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_capture::engines::host::HostLink;
use weir_client::protocol::Source;
use weir_client::region::Region;
use weir_client::{ClientError, Connection};
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_plug::port::{NAME, Port, PortTransport};
use weir_plug::{PlugError, Transport as _, vsock};

use super::region::GuestRegion;

/// The kernel's list of virtio ports, with their names. Source: drivers/char/virtio_console.c.
const PORTS: &str = "/sys/class/virtio-ports";
/// The kernel's list of character devices, with the subsystem of each.
const DEVICES: &str = "/sys/dev/char";
/// How long readers may read the remaining frames of a session that has ended. The host keeps its memory for the same
/// time.
const UNREAD_WITHIN: Duration = Duration::from_secs(5);
/// How long the host may take to begin a session.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the host may take to answer while no other request is under way. After that, its daemon is considered to
/// have ended, because a vsock does not always report the end: `vhost-device-vsock` 0.3 does not tell the guest that
/// the daemon was killed. The time is shorter than the one that the next daemon leaves to readers (5 s).
const ALIVE_WITHIN: Duration = Duration::from_secs(3);
/// How long the host may take to answer while it may handle other requests of this guest: opening a feed may take 10 s.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);

/// The connection to the host's daemon.
pub struct Link {
    channel: Channel,
    region: Arc<GuestRegion>,
    session: Mutex<Session>,
    notifier: Arc<Notifier>,
}

/// Unparks the thread that created the link when the host's sources may have changed or the connection has ended.
struct Notifier {
    is_due: AtomicBool,
    thread: Thread,
}

impl Default for Notifier {
    fn default() -> Notifier {
        Notifier { is_due: AtomicBool::new(true), thread: thread::current() }
    }
}

impl Notifier {
    fn notify(&self) {
        self.is_due.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The channel of a session.
enum Channel {
    /// A virtio-serial port, which exists as long as this machine. It carries one session after the other.
    Port { path: PathBuf, port: Arc<Port> },
    /// A vsock stream for each session, to this vsock port of the host.
    Vsock(u32),
}

#[derive(Default)]
struct Session {
    current: Option<(Connection, Arc<PortTransport>)>,
    /// The host's sources at the last request.
    sources: BTreeMap<String, Source>,
    /// The last session and the time at which its end was found, as long as readers use its remaining frames.
    ended: Option<(Connection, Instant)>,
    /// Number of sessions that were begun so far.
    begun: u64,
}

impl Session {
    /// Returns whether a reader in this machine still reads the remaining frames of an ended session.
    ///
    /// The next session must wait until this is false: when it begins, the host may remove the memory of the last
    /// session, and other memory may appear in its place (Linux 6.1 keeps mappings of removed memory).
    fn is_read_yet(&mut self, region: &GuestRegion) -> bool {
        let is_read = self.ended.as_ref().is_some_and(|(ended, since)| {
            let _ = ended.let_go_of_unread();
            region.is_read() && since.elapsed() < UNREAD_WITHIN
        });
        if !is_read {
            self.ended = None;
        }
        is_read
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.path().display())
    }
}

impl Link {
    /// Creates a link over this vsock port of the host, without connecting yet.
    pub fn by_vsock(port: u32) -> Link {
        Link::over(Channel::Vsock(port), Arc::default())
    }

    /// Opens the port. Only one process can have a port open.
    pub fn open(given: Option<&Path>) -> Result<Link> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => own_port(Path::new(PORTS))?,
        };
        if let Some(what) = other_device(&path, Path::new(DEVICES)) {
            anyhow::bail!(
                "{}: it is no port of virtio-serial but a device of '{what}'",
                path.display()
            );
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|error| no_port(&path, error))?;
        let region = Arc::new(GuestRegion::default());
        let port = port_of(&region, file.into())?;
        Ok(Link::over(Channel::Port { path, port }, region))
    }

    fn over(channel: Channel, region: Arc<GuestRegion>) -> Link {
        Link { channel, region, session: Mutex::default(), notifier: Arc::default() }
    }

    /// Returns whether there was a notification since the last call. If so, the caller must request the host's sources
    /// again.
    pub fn take_notification(&self) -> bool {
        self.notifier.is_due.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the channel reports the end of the host's daemon. A port does, because it is closed then.
    pub fn tells_of_end(&self) -> bool {
        matches!(self.channel, Channel::Port { .. })
    }

    /// Returns memory that nobody reads any more to the host. Returns whether some of the memory is still read.
    pub fn let_go_of_unread(&self) -> bool {
        let current = self.session().current.clone();
        current.is_some_and(|(connection, _)| connection.let_go_of_unread())
    }

    /// Requests the host's sources.
    pub fn sources(&self) -> Result<BTreeMap<String, Source>, ClientError> {
        let sources = self.connection()?.sources_within(ANSWER_TIME_MAX)?;
        let sources: BTreeMap<String, Source> =
            sources.into_iter().map(|source| (source.source.clone(), source)).collect();
        self.session().sources.clone_from(&sources);
        Ok(sources)
    }

    /// Returns whether the next session is delayed because readers still read frames of the last one.
    pub fn waits_for_readers(&self) -> bool {
        self.session().ended.is_some()
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the guest's end of the channel. A notification from the host wakes the readers of the region.
fn port_of(region: &Arc<GuestRegion>, fd: OwnedFd) -> std::io::Result<Arc<Port>> {
    let rung = Arc::clone(region);
    Port::new(fd, move || rung.ring())
}

/// Returns the error for a port that cannot be opened, with advice.
fn no_port(path: &Path, error: std::io::Error) -> anyhow::Error {
    let way = match error.kind() {
        ErrorKind::ResourceBusy => {
            "another program has it open, such as another `weir guest` (a service, perhaps: `systemctl status \
             weir-guest`); end that one"
        }
        ErrorKind::PermissionDenied => "run as root",
        _ => "is this a port of virtio-serial?",
    };
    anyhow::Error::new(error).context(format!("the port to the host, {}: {way}", path.display()))
}

/// Returns the kernel's subsystem of a character device that is not a virtio-serial port; `None` if the device is such
/// a port, or if its subsystem is unknown.
fn other_device(path: &Path, devices: &Path) -> Option<String> {
    let device =
        std::fs::metadata(path).ok().filter(|meta| meta.file_type().is_char_device())?.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let subsystem = devices.join(format!("{major}:{minor}/subsystem")).read_link().ok()?;
    let name = subsystem.file_name()?.to_string_lossy().into_owned();
    (name != "virtio-ports").then_some(name)
}

/// Finds the device of the port to the host in the kernel's list, without the symbolic links of udev, which small
/// systems do not have.
fn own_port(ports: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(ports).into_iter().flatten().flatten();
    let is_own = |port: &PathBuf| {
        let name = std::fs::read_to_string(port.join("name"));
        name.is_ok_and(|name| name.trim() == NAME)
    };
    let found = entries.map(|entry| entry.path()).find(is_own);
    let device = found.and_then(|port| Some(Path::new("/dev").join(port.file_name()?)));
    device.with_context(|| {
        format!(
            "this machine has no port to its host that is called {NAME} ({}); its host gives it one with \
             `-device virtio-serial -chardev socket,id=weir,path=PORT,server=on,wait=off -device \
             virtserialport,chardev=weir,name={NAME}`",
            ports.display()
        )
    })
}

impl HostLink for Link {
    fn connection(&self) -> Result<Connection, ClientError> {
        let mut session = self.session();
        if let Some((connection, transport)) = session.current.take() {
            // A vsock does not report that a host has ended, so the host is asked. It answers one request after the
            // other, so the time limit applies only while no other request is under way.
            let is_there = || self.tells_of_end() || connection.is_answering(ALIVE_WITHIN);
            if connection.is_open() && is_there() {
                session.current = Some((connection.clone(), transport));
                return Ok(connection);
            }
            // The feeds of the session then find that the host's daemon has ended.
            transport.hang_up();
            self.region.end_session();
            session.ended = Some((connection, Instant::now()));
        }
        let no_host = PlugError::os(format!("beginning a session over {}", self.path().display()));
        if session.is_read_yet(&self.region) {
            let what = "readers in this machine are at what the last session has left";
            return Err(no_host(io::Error::other(what)).into());
        }
        session.begun += 1;
        // A number that no earlier broker has used, because it contains the process id.
        let number = u64::from(std::process::id()) << 32 | session.begun;
        let port = match &self.channel {
            Channel::Port { port, .. } => Ok(Arc::clone(port)),
            Channel::Vsock(port) => {
                vsock::connect_to_host(*port).and_then(|stream| port_of(&self.region, stream))
            }
        };
        let transport = port.and_then(|port| port.connect(number, PATIENCE)).map_err(no_host)?;
        let transport = Arc::new(transport);
        let region = Arc::clone(&self.region) as Arc<dyn Region>;
        let notifier = Arc::clone(&self.notifier);
        let notify = Arc::new(move || notifier.notify());
        let connection = Connection::of_guest(Arc::clone(&transport) as _, region, notify)?;
        session.current = Some((connection.clone(), transport));
        Ok(connection)
    }

    fn path(&self) -> PathBuf {
        match &self.channel {
            Channel::Port { path, .. } => path.clone(),
            // The path is shown in messages only. It is not a file.
            Channel::Vsock(port) => format!("vsock:{port}").into(),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.region.note().into_iter().collect()
    }

    fn link_type(&self, source: &str) -> u16 {
        self.session().sources.get(source).map_or(LINKTYPE_ETHERNET, |source| source.link_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_no_port_is_refused() {
        let said = Link::open(Some(Path::new("/dev/null"))).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("no port of virtio-serial but a device of 'mem'"), "{said}");
        assert_eq!(other_device(Path::new("/dev/null"), Path::new("/nowhere")), None);
        assert_eq!(other_device(Path::new("/etc/passwd"), Path::new(DEVICES)), None);
    }

    #[test]
    fn the_port_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let said = own_port(folder.path()).unwrap_err().to_string();
        assert!(said.contains("virtserialport"), "{said}");
        for (device, name) in [("vport0p1", "org.qemu.guest_agent.0"), ("vport0p2", NAME)] {
            let port = folder.path().join(device);
            std::fs::create_dir(&port).unwrap();
            std::fs::write(port.join("name"), format!("{name}\n")).unwrap();
        }
        assert_eq!(own_port(folder.path()).unwrap(), Path::new("/dev/vport0p2"));
    }
}
