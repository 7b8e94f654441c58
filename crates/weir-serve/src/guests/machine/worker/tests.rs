mod failures;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};
use weir_vm::Event;

use super::*;
use crate::guests::hypervisor::Unreachable;
use crate::guests::machine::{Claim, Machine};

const STATE_AGAIN_AFTER: [Duration; 1] = [Duration::from_secs(3)];
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(30);

/// The state of a simulated QEMU, as far as the tests need it.
#[derive(Default)]
struct Qemu {
    is_there: bool,
    objects: Vec<String>,
    devices: Vec<String>,
    /// Number of objects that were added, including those that were removed again.
    objects_added: usize,
    /// Number of requests to the guest to release a device.
    asked: usize,
    /// The guest answers no `device_del`.
    is_deaf: bool,
    /// The process is stopped: no command is answered.
    is_stopped: bool,
    /// The next command finds the connection broken.
    breaks: bool,
    events: VecDeque<Event>,
    connections: usize,
    /// The monitor's socket is there, and cannot be connected to.
    is_out_of_reach: bool,
    /// Reading events fails, although commands succeed.
    fails_events: bool,
    /// The machine takes devices only in PCIe ports, and has none.
    has_no_ports: bool,
    /// `object-del` is refused.
    holds_memory: bool,
    /// Number of refused `object-del` commands.
    refused: usize,
    /// No broker has the port open, though no event has said so.
    is_port_closed: bool,
    /// Number of searches for free PCI ports.
    port_looks: usize,
    /// This command is not answered in time.
    times_out: Option<&'static str>,
    /// The next command makes the machine's thread panic.
    panics: bool,
}

/// A [`Qemu`] that a machine's thread and the test share.
#[derive(Clone)]
struct Fake(Arc<(Mutex<Qemu>, Condvar, OwnedFd)>);

impl Fake {
    fn new() -> Fake {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let qemu = Qemu { is_there: true, ..Qemu::default() };
        Fake(Arc::new((Mutex::new(qemu), Condvar::new(), ready)))
    }

    fn look<T>(&self, look: impl FnOnce(&mut Qemu) -> T) -> T {
        look(&mut self.0.0.lock().unwrap())
    }

    /// Changes the state, and makes the monitor's connection readable.
    fn change(&self, change: impl FnOnce(&mut Qemu)) {
        self.look(change);
        self.0.1.notify_all();
        rustix::io::write(&self.0.2, &1u64.to_ne_bytes()).unwrap();
    }

    fn tell(&self, name: &str, data: Value) {
        self.change(|qemu| qemu.events.push_back(Event { name: name.to_owned(), data }));
    }

    fn leave_devices(&self, number: u64) {
        self.look(|qemu| {
            let ids = [format!("weir-region-{number}"), format!("weir-words-{number}")];
            qemu.objects.extend(ids.clone());
            qemu.devices.extend(ids);
        });
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Qemu) -> bool) {
        within_limit(what, || self.look(|qemu| is_so(qemu)));
    }
}

fn within_limit(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Hypervisor for Fake {
    fn monitor(&self) -> Result<Box<dyn Monitor + Send>, Unreachable> {
        let is_there = self.look(|qemu| {
            qemu.connections += 1;
            qemu.is_there
        });
        let path = PathBuf::from("/qmp");
        if self.look(|qemu| qemu.is_out_of_reach) {
            let source = io::ErrorKind::PermissionDenied.into();
            return Err(VmError::NotConnected { path, source }.into());
        }
        let source = io::ErrorKind::ConnectionRefused.into();
        if is_there { Ok(Box::new(self.clone())) } else { Err(VmError::Connect { path, source })? }
    }

    fn port(&self) -> Result<PathBuf, Unreachable> {
        unreachable!("nobody serves the port")
    }

    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }

    fn state_again_after(&self) -> &[Duration] {
        &STATE_AGAIN_AFTER
    }
}

impl Monitor for Fake {
    fn version(&self) -> &str {
        "7.2.22"
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.2.as_fd())
    }

    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        _: Option<BorrowedFd<'_>>,
        _: Duration,
    ) -> Result<Value, VmError> {
        assert!(!self.look(|qemu| std::mem::take(&mut qemu.panics)), "as the test wants");
        let qemu = self.0.0.lock().unwrap();
        let mut qemu = self.0.1.wait_while(qemu, |qemu| qemu.is_stopped).unwrap();
        if std::mem::take(&mut qemu.breaks) || !qemu.is_there {
            return Err(VmError::Closed { command });
        }
        if qemu.times_out == Some(command) {
            qemu.port_looks += 1;
            return Err(VmError::TimeOut { command, limit_ms: 1 });
        }
        let id = arguments["id"].as_str().unwrap_or_default().to_owned();
        let children = |ids: &[String], kind: &str| -> Value {
            ids.iter().map(|id| json!({"name": id, "type": kind})).collect()
        };
        Ok(match command {
            "query-status" => json!({"running": !qemu.is_deaf}),
            "qom-list" if arguments["path"] == "/objects" => children(&qemu.objects, "child<x>"),
            "qom-list" => {
                let mut all = children(&qemu.devices, "child<ivshmem-plain>");
                let port = json!({"name": "our-port", "type": "child<virtserialport>"});
                all.as_array_mut().unwrap().push(port);
                all
            }
            "qom-get" if arguments["property"] == "name" => json!(weir_plug::port::NAME),
            "qom-get" if arguments["property"] == "chardev" => json!("weir"),
            "query-chardev" => {
                json!([{"label": "weir", "frontend-open": !qemu.is_port_closed}])
            }
            "query-pci" => {
                qemu.port_looks += 1;
                json!([])
            }
            "qom-get" if qemu.has_no_ports => json!("pc-q35-7.2-machine"),
            "qom-get" => json!("pc-i440fx-7.2-machine"),
            "add-fd" => json!({"fd": 3, "fdset-id": 0}),
            "object-add" => {
                qemu.objects.push(id);
                qemu.objects_added += 1;
                json!({})
            }
            "device_add" => {
                qemu.devices.push(id);
                json!({})
            }
            "device_del" => {
                qemu.asked += 1;
                if !qemu.is_deaf {
                    qemu.devices.retain(|device| *device != id);
                    let (name, data) = ("DEVICE_DELETED".to_owned(), json!({"device": id}));
                    qemu.events.push_back(Event { name, data });
                    rustix::io::write(&self.0.2, &1u64.to_ne_bytes()).unwrap();
                }
                json!({})
            }
            "object-del" if qemu.holds_memory => {
                qemu.refused += 1;
                let (class, text) = ("GenericError".to_owned(), "object is in use".to_owned());
                return Err(VmError::Refused { command, class, text });
            }
            "object-del" => {
                assert!(!qemu.devices.contains(&id), "{id} is in use");
                qemu.objects.retain(|object| *object != id);
                json!({})
            }
            _ => json!({}),
        })
    }

    fn wait_event(
        &mut self,
        _: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        let _ = rustix::io::read(&self.0.2, &mut [0; 8]);
        let mut qemu = self.0.0.lock().unwrap();
        if !qemu.is_there || qemu.fails_events {
            return Err(VmError::Closed { command: "events" });
        }
        let at = qemu.events.iter().position(is_wanted);
        Ok(at.and_then(|at| qemu.events.remove(at)))
    }
}

struct Guest {
    qemu: Fake,
    machine: Arc<Machine>,
    sessions_ended: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    fn new(qemu: Fake) -> Guest {
        Guest::with_region(qemu, 8)
    }

    fn with_region(qemu: Fake, region_mib: u64) -> Guest {
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let sessions_ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sessions_ended);
        let spec = Spec {
            name: "web1".into(),
            hypervisor: Box::new(qemu.clone()),
            region_mib,
            pages: Pages::Now,
            has_port: true,
            end_session: Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst)),
            say: Arc::new(move |line| lines.lock().unwrap().push(line.to_owned())),
        };
        let (machine, worker) = Machine::new(spec).unwrap();
        let thread = Some(thread::spawn(|| worker.run()));
        Guest { qemu, machine: Arc::new(machine), sessions_ended, log, thread }
    }

    fn state(&self) -> GuestState {
        self.machine.status().state
    }

    fn wait_for(&self, state: GuestState) {
        within_limit(&format!("{state:?}"), || self.state() == state);
    }

    fn wait_for_ended(&self, sessions: usize) {
        within_limit("the session's end", || {
            self.sessions_ended.load(Ordering::SeqCst) == sessions
        });
    }

    fn claim(&self) -> Claim {
        self.machine.claim().unwrap_or_else(|refused| panic!("{refused}"))
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn refusal(&self) -> String {
        self.machine.claim().err().expect("a refusal")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.qemu.change(|qemu| qemu.is_stopped = false);
        self.machine.end(None);
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join();
        assert!(thread::panicking() || ended.is_ok());
    }
}

#[test]
fn devices_come_with_the_first_feed_and_go_some_time_after_the_last() {
    let guest = Guest::new(Fake::new());
    guest.wait_for(GuestState::Ready);
    let (one, two) = (guest.claim(), guest.claim());
    assert_eq!(one.memory().token(), two.memory().token());
    guest.wait_for(GuestState::Plugged);
    assert_eq!(guest.qemu.look(|qemu| (qemu.devices.len(), qemu.asked)), (2, 0));
    drop((one, two));
    guest.wait_for(GuestState::Ready);
    assert!(guest.qemu.look(|qemu| qemu.devices.is_empty() && qemu.objects.is_empty()));
    assert_eq!(guest.sessions_ended.load(Ordering::SeqCst), 0);
}

#[test]
fn a_feed_waits_for_the_devices_that_are_leaving_and_gets_others() {
    let qemu = Fake::new();
    qemu.leave_devices(7);
    qemu.look(|qemu| qemu.is_deaf = true);
    let guest = Guest::new(qemu.clone());
    guest.wait_for(GuestState::Leaving);
    let machine = Arc::clone(&guest.machine);
    let opening = thread::spawn(move || machine.claim().map(|claim| claim.memory().token()));
    // Each of the two devices was requested once at the beginning, and once again.
    guest.qemu.wait("asking again", |qemu| qemu.asked >= 4);
    guest.qemu.tell("RESUME", json!({}));
    guest.qemu.change(|qemu| qemu.is_deaf = false);
    opening.join().unwrap().unwrap();
    let left = guest.qemu.look(|qemu| qemu.devices.iter().filter(|id| id.ends_with("-7")).count());
    assert_eq!(left, 0);
}

#[test]
fn a_guest_that_releases_nothing_is_told_why_it_gets_no_feed() {
    let qemu = Fake::new();
    qemu.leave_devices(7);
    qemu.look(|qemu| qemu.is_deaf = true);
    let guest = Guest::new(qemu);
    guest.wait_for(GuestState::Leaving);
    let (start, refusal) = (Instant::now(), guest.refusal());
    assert!(refusal.contains("web1") && refusal.contains("paused"), "{refusal}");
    assert!(start.elapsed() < RELEASE_WAIT_MAX * 3, "{:?}", start.elapsed());
    assert_eq!(guest.machine.status().reason.as_deref(), Some("the machine is paused"));
}

#[test]
fn a_monitor_that_breaks_is_connected_again_and_the_devices_are_found() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    guest.qemu.look(|qemu| qemu.breaks = true);
    guest.machine.port_ended();
    guest.qemu.wait("connecting again", |qemu| qemu.connections >= 2);
    within_limit("the version", || guest.machine.status().qemu.is_some());
    assert_eq!(guest.claim().memory().token(), claim.memory().token());
    assert_eq!(guest.sessions_ended.load(Ordering::SeqCst), 0);
}

#[test]
fn with_qemu_the_session_ends_and_the_next_one_begins_anew() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    guest.qemu.change(|qemu| {
        qemu.is_there = false;
        qemu.devices.clear();
        qemu.objects.clear();
    });
    guest.wait_for(GuestState::Absent);
    guest.wait_for_ended(1);
    let refusal = guest.refusal();
    assert!(refusal.contains("cannot be reached") && refusal.contains("/qmp"), "{refusal}");
    guest.qemu.change(|qemu| qemu.is_there = true);
    guest.wait_for(GuestState::Ready);
    let next = guest.claim();
    assert_ne!(next.memory().token(), claim.memory().token());
    // Dropping a claim of the previous machine does not release the new machine's memory.
    drop(claim);
    assert_eq!(guest.claim().memory().token(), next.memory().token());
}

#[test]
fn sessions_end_by_what_qemu_tells() {
    let guest = Guest::new(Fake::new());
    let _claim = guest.claim();
    guest.qemu.tell("VSERPORT_CHANGE", json!({"id": "another", "open": false}));
    guest.qemu.tell("VSERPORT_CHANGE", json!({"id": "our-port", "open": true}));
    guest.qemu.tell("VSERPORT_CHANGE", json!({"id": "our-port", "open": false}));
    guest.wait_for_ended(1);
    guest.qemu.tell("RESET", json!({"guest": true}));
    guest.wait_for_ended(2);
    guest.qemu.tell("SHUTDOWN", json!({"guest": true}));
    guest.wait_for_ended(3);
    // Somebody removes one of the two devices: the rest of both is removed, too.
    let region = guest.qemu.look(|qemu| qemu.devices.remove(0));
    guest.qemu.tell("DEVICE_DELETED", json!({"device": region}));
    guest.wait_for_ended(4);
    guest.wait_for(GuestState::Ready);
    assert!(guest.qemu.look(|qemu| qemu.objects.is_empty()));
}

#[test]
fn a_detached_guest_opens_nothing_until_it_is_attached() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    let detached = guest.machine.detach(LIMIT, || drop(claim));
    assert_eq!(detached, Ok(()));
    guest.wait_for(GuestState::Detached);
    assert!(guest.refusal().contains("weir vm attach web1"), "{}", guest.refusal());
    assert!(guest.qemu.look(|qemu| qemu.devices.is_empty()));
    guest.machine.attach();
    drop(guest.claim());
    // The end of the machine also ends the detachment.
    assert_eq!(guest.machine.detach(LIMIT, || ()), Ok(()));
    guest.qemu.change(|qemu| qemu.is_there = false);
    guest.wait_for(GuestState::Absent);
    guest.qemu.change(|qemu| qemu.is_there = true);
    guest.wait_for(GuestState::Ready);
    guest.claim();
}

#[test]
fn feeds_that_a_guest_does_not_let_go_of_end_with_its_session() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    let machine = Arc::clone(&guest.machine);
    let detaching = thread::spawn(move || machine.detach(Duration::from_secs(4), || ()));
    guest.wait_for_ended(1);
    drop(claim);
    assert_eq!(detaching.join().unwrap(), Ok(()));
}

#[test]
fn a_detachment_that_takes_too_long_is_refused_and_goes_on() {
    let guest = Guest::new(Fake::new());
    drop(guest.claim());
    guest.qemu.tell("STOP", json!({}));
    guest.qemu.change(|qemu| qemu.is_deaf = true);
    let refused = guest.machine.detach(Duration::from_millis(200), || ()).unwrap_err();
    assert!(refused.contains("paused"), "{refused}");
    guest.wait_for(GuestState::Leaving);
    guest.qemu.change(|qemu| qemu.is_deaf = false);
    guest.wait_for(GuestState::Detached);
}

#[test]
fn a_stopped_qemu_harms_nobody_else() {
    let (stopped, other) = (Guest::new(Fake::new()), Guest::new(Fake::new()));
    let _claim = stopped.claim();
    stopped.qemu.look(|qemu| qemu.is_stopped = true);
    let start = Instant::now();
    let refused = stopped.machine.detach(Duration::from_millis(100), || ()).unwrap_err();
    assert!(refused.contains("not"), "{refused}");
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(stopped.state(), GuestState::Plugged);
    drop(other.claim());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
