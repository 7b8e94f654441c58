//! Virtual machines that read feeds: what they share with the daemon, as long as they have feeds.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use weir_client::protocol::InRegion;
use weir_plug::message::RpcError;
use weir_plug::port::Port;
use weir_plug::{Serving, Who};
use weir_probe::{Probe, SubscriptionId};
use weir_vm::hotplug::{self, Plugged};
use weir_vm::{GuestMemory, Qmp, TakenRing, VmError};

use crate::config::GuestConfig;
use crate::guest_channel::GuestListener;
use crate::limits::{GUEST_CONNECT_EVERY, GUEST_LINGER, GUEST_LOOK_EVERY, QMP_PATIENCE_MAX};
use crate::private;
use crate::relay::{Bell, Relay, RelayError};

/// Of the folder of guests' memory: QEMU opens files in it by name, and nobody lists them.
const FOLDER_MODE: u32 = 0o711;

/// The guests of the daemon's file.
pub(crate) struct Guests(BTreeMap<String, Arc<Guest>>);

/// A guest.
pub(crate) struct Guest {
    name: Arc<str>,
    config: GuestConfig,
    /// The port, while QEMU is there.
    port: Mutex<Option<Arc<Port>>>,
    machine: Mutex<Option<Machine>>,
}

/// What a guest has as long as it has feeds.
struct Machine {
    memory: Arc<GuestMemory>,
    qmp: Qmp,
    plugged: Plugged,
    feeds: usize,
    /// Since when there are no feeds; somebody waits to unplug the devices then.
    idle_since: Option<Instant>,
    /// Places that applications in the guest may still read, and since when.
    left: Vec<(Instant, Arc<TakenRing>)>,
}

/// A guest's feed. Dropping it gives its place in the region back.
pub(crate) struct GuestFeed {
    pub(crate) relay: Relay,
    guest: Arc<Guest>,
    memory: Arc<GuestMemory>,
    /// The guest has said that nothing in it reads the ring any more.
    is_unmapped: AtomicBool,
}

impl GuestFeed {
    /// Nothing in the guest reads the ring any more.
    pub(crate) fn unmapped(&self) {
        self.is_unmapped.store(true, Ordering::Relaxed);
    }
}

impl Drop for GuestFeed {
    fn drop(&mut self) {
        self.relay.finish();
        let is_unmapped = self.is_unmapped.load(Ordering::Relaxed);
        self.guest.let_go(&self.memory, (!is_unmapped).then(|| Arc::clone(self.relay.taken())));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: &(dyn std::error::Error + 'static)) -> RpcError {
    RpcError::refused(weir_client::error_text(error))
}

impl Guests {
    pub(crate) fn new(all: &BTreeMap<String, GuestConfig>) -> Guests {
        let guest = |(name, config): (&String, &GuestConfig)| {
            let (port, machine) = (Mutex::default(), Mutex::default());
            let guest = Guest { name: name.as_str().into(), config: config.clone(), port, machine };
            (name.clone(), Arc::new(guest))
        };
        Guests(all.iter().map(guest).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Guest>> {
        self.0.get(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Guest>> {
        self.0.values()
    }
}

impl Guest {
    /// Its name in the daemon's file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Serves whoever speaks on its port, QEMU after QEMU, until `is_over`.
    pub(crate) fn serve(&self, serving: &Serving, is_over: &AtomicBool, say: impl Fn(&str)) {
        if let Some(uds_path) = &self.config.vsock {
            return self.serve_vsock(uds_path, serving, is_over, say);
        }
        let Some(port) = &self.config.port else { return };
        let mut was_there = true;
        while !is_over.load(Ordering::Acquire) {
            match UnixStream::connect(port) {
                Ok(stream) => {
                    was_there = true;
                    if let Err(error) = self.serve_port(stream.into(), serving, is_over) {
                        say(&format!("guest {}: its port has ended: {error}", self.name));
                    }
                    *lock(&self.port) = None;
                    // QEMU has ended, and with it all that was plugged in; or this daemon ends, and its successor
                    // takes out what the guest may still read.
                    *lock(&self.machine) = None;
                    thread::sleep(GUEST_CONNECT_EVERY);
                }
                Err(error) => {
                    if std::mem::replace(&mut was_there, false) {
                        let port = port.display();
                        say(&format!("guest {}: {port}: {error}; it is looked for", self.name));
                    }
                    thread::sleep(GUEST_CONNECT_EVERY);
                }
            }
        }
    }

    /// Serves each stream that the guest makes, until `is_over`. A stream's end says nothing of QEMU's.
    fn serve_vsock(
        &self,
        uds_path: &Path,
        serving: &Serving,
        is_over: &AtomicBool,
        say: impl Fn(&str),
    ) {
        let serve = |stream: OwnedFd| {
            // It ends by what the guest does.
            let _ = self.serve_port(stream, serving, is_over);
            *lock(&self.port) = None;
        };
        let mut was_said = false;
        while !is_over.load(Ordering::Acquire) {
            let served = GuestListener::bind(uds_path).and_then(|own| own.serve(is_over, serve));
            if let Err(error) = served {
                if !std::mem::replace(&mut was_said, true) {
                    say(&format!("guest {}: {error}; it is tried again", self.name));
                }
                thread::sleep(GUEST_CONNECT_EVERY);
            }
        }
    }

    fn serve_port(
        &self,
        stream: OwnedFd,
        serving: &Serving,
        is_over: &AtomicBool,
    ) -> std::io::Result<()> {
        let port = Port::new(stream, || ())?;
        *lock(&self.port) = Some(Arc::clone(&port));
        port.announce()?;
        while !is_over.load(Ordering::Acquire) {
            if let Some(transport) = port.accept(GUEST_LOOK_EVERY)? {
                // Too many connections: the guest tries again.
                let _ = serving.serve_over(Arc::new(transport), Who::Guest(Arc::clone(&self.name)));
            }
        }
        Ok(())
    }

    /// Copies what a subscription reads into this guest's region, which is plugged in if need be.
    pub(crate) fn copy(
        self: &Arc<Guest>,
        probe: &Probe,
        subscription: SubscriptionId,
        from: Vec<u64>,
        data_blocks: u64,
    ) -> Result<(GuestFeed, InRegion), RpcError> {
        self.prepare_folder().map_err(|error| refused(error.as_ref()))?;
        let memory = self.claim().map_err(|error| refused(&error))?;
        let port = lock(&self.port).clone();
        let ring = Arc::new(move || port.iter().for_each(|port| port.ring()));
        let bell = Bell { memory: Arc::clone(&memory), ring };
        let relay = Relay::start(probe, subscription, from, data_blocks, bell);
        let relay =
            relay.inspect_err(|_| self.let_go(&memory, None)).map_err(|error| match error {
                RelayError::Probe(error) => crate::refusal::refused(error),
                error => refused(&error),
            })?;
        let at = InRegion {
            token: memory.token().to_string(),
            region_bytes: memory.region_bytes(),
            place: relay.place(),
        };
        let (guest, is_unmapped) = (Arc::clone(self), AtomicBool::new(false));
        Ok((GuestFeed { relay, guest, memory, is_unmapped }, at))
    }

    /// The folder of the memory's files is there, and nobody else can put others in their place.
    fn prepare_folder(&self) -> Result<(), Box<dyn Error>> {
        let folder = &self.config.folder;
        match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(format!("{}: it cannot be made: {error}", folder.display()).into())
            }
            _ => Ok(private::check(folder)?),
        }
    }

    /// One more feed: the devices are there when this returns.
    fn claim(&self) -> Result<Arc<GuestMemory>, VmError> {
        let mut machine = lock(&self.machine);
        if let Some(machine) = machine.as_mut() {
            machine.feeds += 1;
            machine.idle_since = None;
            machine.left.retain(|(since, _)| since.elapsed() < GUEST_LINGER);
            return Ok(Arc::clone(&machine.memory));
        }
        let GuestConfig { qmp, region_mib, folder, group, .. } = &self.config;
        let memory = Arc::new(GuestMemory::create(folder, &self.name, *region_mib, *group)?);
        let mut qmp = Qmp::connect(qmp, QMP_PATIENCE_MAX)?;
        // What a daemon left that was killed is of files that are no more.
        for mut left in hotplug::find_plugged(&mut qmp)? {
            hotplug::unplug(&mut qmp, &mut left, QMP_PATIENCE_MAX)?;
        }
        let plugged = hotplug::plug(&mut qmp, &memory)?;
        let (idle_since, left) = (None, Vec::new());
        let own = Arc::clone(&memory);
        *machine = Some(Machine { memory: own, qmp, plugged, feeds: 1, idle_since, left });
        Ok(memory)
    }

    /// One less, whose place may have to stay for a while. Some time after the last one the devices are unplugged.
    fn let_go(self: &Arc<Guest>, memory: &Arc<GuestMemory>, left: Option<Arc<TakenRing>>) {
        let mut machine = lock(&self.machine);
        // Of a QEMU that has ended nothing is to be given back.
        let own = machine.as_mut().filter(|own| Arc::ptr_eq(&own.memory, memory));
        let Some(known) = own else { return };
        known.feeds -= 1;
        known.left.extend(left.map(|left| (Instant::now(), left)));
        if known.feeds > 0 {
            return;
        }
        let idle_since = Instant::now();
        known.idle_since = Some(idle_since);
        drop(machine);
        let guest = Arc::downgrade(self);
        let linger = move || {
            thread::sleep(GUEST_LINGER);
            guest.upgrade().iter().for_each(|guest| guest.unplug(idle_since));
        };
        // Without a thread they stay, for the guest's next feed.
        let _ = thread::Builder::new().name("guest-linger".into()).spawn(linger);
    }

    /// Takes the devices away, if there has been no feed since then. A guest that does not answer keeps them, for its
    /// next feed.
    fn unplug(&self, idle_since: Instant) {
        let mut machine = lock(&self.machine);
        if let Some(known) = machine.as_mut()
            && known.idle_since == Some(idle_since)
            && hotplug::unplug(&mut known.qmp, &mut known.plugged, QMP_PATIENCE_MAX).is_ok()
        {
            *machine = None;
        }
    }
}
