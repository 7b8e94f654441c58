//! A virtual machine as the daemon on its host sees it: QEMU's monitor, the machine's port, and a guest that finds its
//! devices in a folder like that of the kernel (`/sys/bus/pci/devices`). There is no QEMU: memory is shared through
//! files, and nothing boots.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use weir_client::Connection;
use weir_client::protocol::InRegion;
use weir_client::region::{Region, RegionError};
use weir_guest::{BellId, Bells, Devices};
use weir_plug::port::Port;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

use crate::common::Setup;

const LIMIT: Duration = Duration::from_secs(30);

/// A machine that exists while this value lives.
pub struct Machine {
    name: &'static str,
    folder: tempfile::TempDir,
    port: UnixListener,
    region: Arc<GuestRegion>,
    sessions: AtomicU64,
    guest_port: Mutex<Option<Arc<Port>>>,
}

impl Machine {
    pub fn new(name: &'static str) -> Machine {
        let folder = tempfile::TempDir::with_prefix_in("weir-machine-test-", "/dev/shm").unwrap();
        let pci = folder.path().join("pci");
        fs::create_dir(&pci).unwrap();
        let port = UnixListener::bind(folder.path().join("port")).unwrap();
        let qmp = UnixListener::bind(folder.path().join("qmp")).unwrap();
        let region = Arc::new(GuestRegion { pci: pci.clone(), state: Mutex::default() });
        // This thread ends with the test's process.
        thread::spawn(move || {
            let mut monitor = Monitor { pci, ..Monitor::default() };
            qmp.incoming().flatten().for_each(|stream| _ = monitor.serve(stream));
        });
        let (sessions, guest_port) = (AtomicU64::new(0), Mutex::default());
        Machine { name, folder, port, region, sessions, guest_port }
    }

    /// Its name in the daemon's file.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its part of the daemon's file.
    pub fn config(&self) -> String {
        let (name, path) = (self.name, self.folder.path().display());
        format!("[guests.{name}]\nport = '{path}/port'\nqmp = '{path}/qmp'\nregion_mib = 64\n")
    }

    /// Begins a session of the guest with the daemon.
    pub fn connect(&self) -> Connection {
        let mut port = self.guest_port.lock().unwrap();
        let port = port.get_or_insert_with(|| {
            let (stream, _) = self.port.accept().unwrap();
            let region = Arc::downgrade(&self.region);
            let bell = move || region.upgrade().iter().for_each(|region| region.ring());
            Port::new(stream.into(), bell).unwrap()
        });
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let transport = port.connect(number, LIMIT).unwrap();
        let region = Arc::clone(&self.region) as Arc<dyn Region>;
        Connection::of_guest(Arc::new(transport), region, Arc::new(|| ())).unwrap()
    }
}

/// While this value lives, the daemon serves the guests of its file.
pub struct Served<'a>(&'a Setup);

pub fn serve_guests(setup: &Setup) -> Served<'_> {
    setup.daemon.serve_guests(&setup.serving).unwrap();
    Served(setup)
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.daemon.end_guests();
    }
}

/// The parts of QEMU that the daemon uses.
#[derive(Default)]
struct Monitor {
    pci: PathBuf,
    /// Descriptors that were passed and that no object has opened yet.
    passed: BTreeMap<i32, OwnedFd>,
    /// The memory file of each object.
    objects: BTreeMap<String, File>,
    devices: BTreeSet<String>,
}

impl Monitor {
    fn serve(&mut self, mut stream: UnixStream) -> std::io::Result<()> {
        let version = json!({"qemu": {"major": 7, "minor": 2, "micro": 22}, "package": ""});
        writeln!(stream, "{}", json!({"QMP": {"version": version, "capabilities": []}}))?;
        let mut received = Vec::new();
        while let Some(line) = self.next_line(&stream, &mut received)? {
            let command: Value = serde_json::from_slice(&line)?;
            let name = command["execute"].as_str().unwrap_or_default();
            let answer = self.execute(name, &command["arguments"]);
            writeln!(stream, "{}", json!({"return": answer, "id": command["id"]}))?;
            if name == "device_del" {
                let data = json!({"device": command["arguments"]["id"]});
                let timestamp = json!({"seconds": 0, "microseconds": 0});
                let event =
                    json!({"event": "DEVICE_DELETED", "data": data, "timestamp": timestamp});
                writeln!(stream, "{event}")?;
            }
        }
        Ok(())
    }

    /// Reads the next line, and stores the descriptors that come with it.
    fn next_line(
        &mut self,
        stream: &UnixStream,
        received: &mut Vec<u8>,
    ) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(received.drain(..=end).collect()));
            }
            let mut chunk = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut chunk)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let bytes = recvmsg(stream, &mut slices, &mut control, flags)?.bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.passed.extend(fds.map(|fd| (fd.as_raw_fd(), fd)));
                }
            }
            if bytes == 0 {
                return Ok(None);
            }
            received.extend_from_slice(&chunk[..bytes]);
        }
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Value {
        let text = |key: &str| arguments[key].as_str().unwrap_or_default().to_owned();
        let list = |names: Vec<&String>, kind: &str| -> Value {
            names.into_iter().map(|name| json!({"name": name, "type": kind})).collect()
        };
        match (command, text("path").as_str()) {
            ("qom-list", "/objects") => {
                list(self.objects.keys().collect(), "child<memory-backend-file>")
            }
            ("qom-list", "/machine/peripheral") => {
                list(self.devices.iter().collect(), "child<ivshmem-plain>")
            }
            ("qom-list" | "query-pci", _) => json!([]),
            ("qom-get", _) => json!("pc-i440fx-7.2-machine"),
            ("query-status", _) => json!({"status": "running"}),
            ("add-fd", _) => {
                let number = self.passed.keys().next().copied().expect("a descriptor comes along");
                json!({"fd": number, "fdset-id": number})
            }
            ("remove-fd", _) => {
                self.passed.clear();
                json!({})
            }
            ("object-add", _) => {
                let writes = arguments["readonly"] != json!(true);
                let options = File::options().read(true).write(writes).open(text("mem-path"));
                self.objects.insert(text("id"), options.unwrap());
                json!({})
            }
            ("object-del", _) => {
                self.objects.remove(&text("id"));
                json!({})
            }
            ("device_add", _) => {
                show(&self.pci.join(text("id")), &self.objects[&text("memdev")]);
                self.devices.insert(text("id"));
                json!({})
            }
            ("device_del", _) => {
                let _ = fs::remove_dir_all(self.pci.join(text("id")));
                self.devices.remove(&text("id"));
                json!({})
            }
            _ => json!({}),
        }
    }
}

/// Creates the files by which the guest's kernel shows a device.
fn show(device: &Path, memory: &File) {
    fs::create_dir(device).unwrap();
    let bytes = memory.metadata().unwrap().len();
    let (none, first) = ("0x0 0x0 0x0\n", 0xfe00_0000_u64);
    let last = first + bytes - 1;
    for (file, text) in [
        ("vendor", "0x1af4\n".to_owned()),
        ("device", "0x1110\n".to_owned()),
        ("enable", "0\n".to_owned()),
        ("resource", format!("{none}{none}{first:#x} {last:#x} 0x14220c\n")),
    ] {
        fs::write(device.join(file), text).unwrap();
    }
    let file = format!("/proc/self/fd/{}", memory.as_raw_fd());
    symlink(file, device.join("resource2")).unwrap();
}

/// The guest's devices, as `weir guest` uses them.
struct GuestRegion {
    pci: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plugged: Option<(String, Devices, Bells)>,
    sleepers: BTreeMap<u64, BellId>,
    slots: BTreeSet<u32>,
    numbered: u64,
}

impl GuestRegion {
    fn ring(&self) {
        let state = self.state.lock().unwrap();
        state.plugged.iter().for_each(|(_, _, bells)| bells.ring());
    }
}

impl Region for GuestRegion {
    fn ring(&self, at: &InRegion) -> Result<Ring<Mapping>, RegionError> {
        let mut state = self.state.lock().unwrap();
        if state.plugged.as_ref().is_none_or(|(token, ..)| *token != at.token) {
            let devices = Devices::find(&self.pci, at.token.parse()?, LIMIT)?;
            let bells = Bells::start(devices.words()?)?;
            state.plugged = Some((at.token.clone(), devices, bells));
            state.slots.clear();
            state.sleepers.clear();
        }
        state.slots.insert(at.place.slot);
        let (_, devices, _) = state.plugged.as_ref().ok_or("no device")?;
        Ok(devices.ring(&at.place)?)
    }

    fn attach(
        &self,
        at: &InRegion,
        ring: &Ring<Mapping>,
        waker: Waker,
        first_line: usize,
    ) -> Result<u64, RegionError> {
        let mut state = self.state.lock().unwrap();
        let (_, _, bells) = state.plugged.as_ref().ok_or("no device")?;
        let bell = bells.add(at.place.slot, ring.clone(), waker, first_line)?;
        state.numbered += 1;
        let number = state.numbered;
        state.sleepers.insert(number, bell);
        Ok(number)
    }

    fn detach(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        if let Some(bell) = state.sleepers.remove(&number)
            && let Some((_, _, bells)) = &state.plugged
        {
            bells.remove(bell);
        }
    }

    fn let_go(&self, at: &InRegion) {
        let mut state = self.state.lock().unwrap();
        if let Some((_, _, bells)) = &state.plugged {
            bells.forget_slot(at.place.slot);
        }
        state.slots.remove(&at.place.slot);
        if state.slots.is_empty() {
            state.plugged = None;
            state.sleepers.clear();
        }
    }
}
