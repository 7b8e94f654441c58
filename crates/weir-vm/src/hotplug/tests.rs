use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use proptest::prelude::*;

use super::*;

/// The parts of QEMU's object tree that the tests need, with faults.
#[derive(Debug)]
struct Machine {
    kind: &'static str,
    /// For each port: the id of its bus, and the bytes that it reserves.
    ports: Vec<(&'static str, u64)>,
    objects: Vec<String>,
    /// For each device: its id, and the port that it is plugged into.
    devices: Vec<(String, Option<String>)>,
    events: VecDeque<Event>,
    /// All commands that changed something.
    log: Vec<String>,
    /// Number of `device_del` commands that the guest still ignores.
    deaf: usize,
    /// Number of `object-del` commands that are still refused after the device has gone.
    held: usize,
    /// A command, and how many more times it succeeds before it is refused once.
    refuse: Option<(&'static str, usize)>,
    /// A command, and how many more times it succeeds before it is carried out once but answered too late.
    late: Option<(&'static str, usize)>,
    /// Whether QEMU sends events.
    tells: bool,
    /// A descriptor that was passed with `add-fd` and not removed with `remove-fd`.
    given: Option<OwnedFd>,
}

impl Machine {
    fn new(kind: &'static str, ports: &[(&'static str, u64)]) -> Machine {
        Machine {
            kind,
            ports: ports.to_vec(),
            objects: vec!["mem0".to_owned()],
            devices: Vec::new(),
            events: VecDeque::new(),
            log: Vec::new(),
            deaf: 0,
            held: 0,
            refuse: None,
            late: None,
            tells: true,
            given: None,
        }
    }

    fn is_clean(&self) -> bool {
        self.objects == ["mem0"] && self.devices.is_empty() && self.given.is_none()
    }

    fn refused(command: &'static str, class: &str, text: &str) -> VmError {
        VmError::Refused { command, class: class.to_owned(), text: text.to_owned() }
    }

    fn list(&self, path: &str) -> Value {
        let named = |names: Vec<(String, &str)>| -> Value {
            names.into_iter().map(|(name, kind)| json!({"name": name, "type": kind})).collect()
        };
        let own = |name: &str| (name.to_owned(), "string");
        match path {
            "/objects" => named(
                self.objects.iter().map(|id| (id.clone(), "child<memory-backend-file>")).collect(),
            ),
            "/machine/peripheral" => {
                let ports =
                    self.ports.iter().map(|(id, _)| (id.to_string(), "child<pcie-root-port>"));
                let devices =
                    self.devices.iter().map(|(id, _)| (id.clone(), "child<ivshmem-plain>"));
                named([own("type")].into_iter().chain(ports).chain(devices).collect())
            }
            "/machine/peripheral-anon" => named(vec![own("type")]),
            _ => {
                let path = path.strip_prefix("/machine/peripheral/").expect("a known path");
                match path.split_once('/') {
                    None => named(vec![own("type"), (path.to_owned(), "child<PCIE>")]),
                    Some((_, bus)) => {
                        let on_it = |port: &Option<String>| port.as_deref() == Some(bus);
                        let on_it = self.devices.iter().filter(|(_, port)| on_it(port));
                        named(
                            on_it.map(|_| ("child[0]".to_owned(), "link<ivshmem-plain>")).collect(),
                        )
                    }
                }
            }
        }
    }
}

impl Monitor for Machine {
    fn version(&self) -> &str {
        "7.2.22"
    }

    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError> {
        if let Some((_, left)) = self.late.as_mut().filter(|(late, _)| *late == command) {
            if *left == 0 {
                self.late = None;
                let limit_ms = limit.as_millis() as u64;
                self.execute_with(command, arguments, descriptor, limit)?;
                return Err(VmError::TimeOut { command, limit_ms });
            }
            *left -= 1;
        }
        if let Some((refused, left)) = &mut self.refuse
            && *refused == command
        {
            if *left == 0 {
                self.refuse = None;
                return Err(Machine::refused(command, "GenericError", "as the test wants"));
            }
            *left -= 1;
        }
        let id = arguments["id"].as_str().unwrap_or_default().to_owned();
        if !["qom-list", "qom-get", "query-pci"].contains(&command) {
            self.log.push(format!("{command} {id}"));
        }
        match command {
            "qom-list" => return Ok(self.list(arguments["path"].as_str().unwrap())),
            // The answer while the firmware has not run yet.
            "query-pci" => return Ok(json!([])),
            "qom-get" => {
                let path = arguments["path"].as_str().unwrap();
                let port = path.rsplit('/').next().unwrap();
                let port = self.ports.iter().find(|(id, _)| *id == port);
                return match (arguments["property"].as_str().unwrap(), port) {
                    ("type", _) => Ok(json!(self.kind)),
                    ("pref64-reserve", Some((_, bytes))) => Ok(json!(bytes)),
                    _ => Err(Machine::refused(command, "GenericError", "no such property")),
                };
            }
            "add-fd" => {
                let given = descriptor.unwrap().try_clone_to_owned().unwrap();
                let fd = given.as_raw_fd();
                self.given = Some(given);
                return Ok(json!({"fd": fd, "fdset-id": 7}));
            }
            "remove-fd" => {
                assert_eq!(arguments["fdset-id"], 7);
                assert!(self.given.take().is_some());
            }
            "object-add" => {
                let file = File::open(arguments["mem-path"].as_str().unwrap()).unwrap();
                assert_eq!(json!(file.metadata().unwrap().len()), arguments["size"]);
                assert!(!self.objects.contains(&id));
                self.objects.push(id);
            }
            "device_add" => {
                assert!(self.objects.contains(&arguments["memdev"].as_str().unwrap().to_owned()));
                self.devices.push((id, arguments["bus"].as_str().map(str::to_owned)));
            }
            "device_del" => {
                let at = self.devices.iter().position(|(device, _)| *device == id);
                let missing = || Machine::refused(command, "DeviceNotFound", "Device not found");
                let at = at.ok_or_else(missing)?;
                if self.deaf > 0 {
                    self.deaf -= 1;
                } else {
                    self.devices.remove(at);
                    let name = "DEVICE_DELETED".to_owned();
                    self.events.push_back(Event { name, data: json!({"device": id}) });
                }
            }
            "object-del" => {
                assert!(self.devices.iter().all(|(device, _)| *device != id), "{id} is in use");
                if self.held > 0 {
                    self.held -= 1;
                    return Err(Machine::refused(command, "GenericError", "object is in use"));
                }
                self.objects.retain(|object| *object != id);
            }
            other => panic!("{other}"),
        }
        Ok(json!({}))
    }

    fn wait_event(
        &mut self,
        _limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        let at = self.events.iter().position(is_wanted).filter(|_| self.tells);
        Ok(at.and_then(|at| self.events.remove(at)))
    }
}

const PC: &str = "pc-i440fx-7.2-machine";
const Q35: &str = "pc-q35-10.0-machine";
const LONG: Duration = Duration::from_secs(20);

fn memory() -> GuestMemory {
    GuestMemory::create(8, weir_ring::memory::Pages::Now).unwrap()
}

#[test]
fn what_is_plugged_is_unplugged_and_no_id_comes_twice() {
    let memory = memory();
    let ports = [("small", u64::MAX), ("taken", 16 << 20), ("large", 16 << 20)];
    for (kind, buses) in [(PC, [None, None]), (Q35, [Some("large"), Some("small")])] {
        let mut machine = Machine::new(kind, &ports);
        machine.devices.push(("nic".to_owned(), Some("taken".to_owned())));
        let mut numbers = Vec::new();
        for _ in 0..3 {
            let mut plugged = plug(&mut machine, &memory).unwrap();
            let found: Vec<_> =
                machine.devices[1..].iter().map(|(_, bus)| bus.as_deref()).collect();
            assert_eq!(found, buses);
            assert_eq!(find_plugged(&mut machine).unwrap(), [Plugged { ..clone(&plugged) }]);
            numbers.push(plugged.number());
            unplug(&mut machine, &mut plugged, LONG).unwrap();
            assert!(plugged.is_gone());
            // Once more makes no difference.
            unplug(&mut machine, &mut plugged, LONG).unwrap();
        }
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        machine.devices.clear();
        assert!(machine.is_clean(), "{machine:?}");
    }
}

fn clone(plugged: &Plugged) -> Plugged {
    Plugged { number: plugged.number, parts: plugged.parts.clone() }
}

/// The machine of a hostile QEMU, which lists 20,000 of everything.
struct Huge {
    commands: usize,
}

impl Monitor for Huge {
    fn version(&self) -> &str {
        "7.2.22"
    }

    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        _: Option<BorrowedFd<'_>>,
        _: Duration,
    ) -> Result<Value, VmError> {
        self.commands += 1;
        let all = |name: &str, kind: &str| -> Value {
            let one = |number| json!({"name": format!("{name}{number}"), "type": kind});
            (0..20_000).map(one).collect()
        };
        Ok(match (command, arguments["path"].as_str()) {
            ("qom-list", Some("/objects")) => all(REGION_ID, "child<x>"),
            ("qom-list", _) => all("port", "child<virtserialport>"),
            _ => json!("another"),
        })
    }

    fn wait_event(
        &mut self,
        _: Duration,
        _: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        Ok(None)
    }
}

#[test]
fn a_machine_that_shows_too_much_is_looked_at_in_part() {
    let mut huge = Huge { commands: 0 };
    let found = find_plugged(&mut huge).unwrap();
    assert_eq!(found.len(), PLUGGED_MAX);
    // The newest objects are returned.
    assert_eq!(found.last().map(Plugged::number), Some(19_999));
    huge.commands = 0;
    assert_eq!(find_port(&mut huge, "org.weir.0").unwrap(), None);
    assert_eq!(huge.commands, VIRTIO_PORTS_MAX + 1);
}

#[test]
fn a_monitor_for_a_while_sends_nothing_afterwards() {
    let mut huge = Huge { commands: 0 };
    let mut limited = LimitedMonitor::new(&mut huge, Duration::ZERO);
    let error = find_plugged(&mut limited).unwrap_err();
    assert!(matches!(error, VmError::TimeOut { command: "qom-list", limit_ms: 0 }), "{error}");
    assert_eq!(huge.commands, 0);
    let mut limited = LimitedMonitor::new(&mut huge, LONG);
    assert_eq!(find_plugged(&mut limited).unwrap().len(), PLUGGED_MAX);
}

#[test]
fn without_two_ports_the_remedy_is_told_and_nothing_is_done() {
    let memory = memory();
    for ports in [&[][..], &[("one", 16 << 20)], &[("one", u64::MAX), ("two", 8 << 20)]] {
        let mut machine = Machine::new(Q35, ports);
        let error = plug(&mut machine, &memory).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("pref64-reserve=16M") && text.contains("(pc-q35-10.0)"), "{text}");
        assert!(machine.log.is_empty(), "{:?}", machine.log);
    }
}

#[test]
fn what_fails_half_way_is_taken_back() {
    let memory = memory();
    for refuse in [
        ("add-fd", 0),
        ("object-add", 0),
        ("device_add", 0),
        ("add-fd", 1),
        ("object-add", 1),
        ("device_add", 1),
    ] {
        let mut machine = Machine::new(PC, &[]);
        machine.refuse = Some(refuse);
        let error = plug(&mut machine, &memory).unwrap_err();
        assert!(error.to_string().contains("as the test wants"), "{error}");
        assert!(machine.is_clean(), "{refuse:?}: {machine:?}");
    }
}

#[test]
fn what_was_done_but_answered_too_late_is_taken_back() {
    let memory = memory();
    for late in ["add-fd", "object-add", "remove-fd", "device_add"] {
        for number in 0..2 {
            let mut machine = Machine::new(PC, &[]);
            machine.late = Some((late, number));
            let error = plug(&mut machine, &memory).unwrap_err();
            assert!(
                matches!(error, VmError::TimeOut { command, .. } if command == late),
                "{error}"
            );
            // When the monitor's connection ends, QEMU closes descriptors that were passed to it and that nobody has
            // opened.
            if late == "add-fd" {
                assert!(machine.given.take().is_some());
            }
            assert!(machine.is_clean(), "{late} {number}: {machine:?}");
        }
    }
}

#[test]
fn an_unplugging_that_is_answered_too_late_can_be_tried_again() {
    let memory = memory();
    for late in ["device_del", "object-del"] {
        for number in 0..2 {
            let mut machine = Machine::new(PC, &[]);
            let mut plugged = plug(&mut machine, &memory).unwrap();
            machine.late = Some((late, number));
            let error = unplug(&mut machine, &mut plugged, LONG).unwrap_err();
            assert!(
                matches!(error, VmError::TimeOut { command, .. } if command == late),
                "{error}"
            );
            unplug(&mut machine, &mut plugged, LONG).unwrap();
            assert!(machine.is_clean(), "{late} {number}: {machine:?}");
        }
    }
}

#[test]
fn a_guest_that_never_answers_is_an_error_and_can_be_tried_again() {
    let memory = memory();
    let mut machine = Machine::new(PC, &[]);
    let mut plugged = plug(&mut machine, &memory).unwrap();
    machine.deaf = usize::MAX;
    let error = unplug(&mut machine, &mut plugged, Duration::ZERO).unwrap_err();
    let number = plugged.number();
    let devices = format!("weir-region-{number} and weir-words-{number}");
    assert!(matches!(&error, VmError::NotReleased { devices: d, .. } if *d == devices), "{error}");
    assert_eq!(plugged.devices().count(), 2);
    // The guest releases one of the devices, and then the other.
    machine.deaf = 1;
    let error = unplug(&mut machine, &mut plugged, Duration::ZERO).unwrap_err();
    assert!(matches!(&error, VmError::NotReleased { devices, .. } if !devices.contains("and")));
    unplug(&mut machine, &mut plugged, Duration::ZERO).unwrap();
    assert!(machine.is_clean() && plugged.is_gone());
}

#[test]
fn the_guest_is_asked_again_until_it_answers() {
    let memory = memory();
    let mut machine = Machine::new(PC, &[]);
    let mut plugged = plug(&mut machine, &memory).unwrap();
    (machine.deaf, machine.held) = (4, 3);
    unplug(&mut machine, &mut plugged, LONG).unwrap();
    let asked = machine.log.iter().filter(|line| line.starts_with("device_del")).count();
    assert_eq!((asked, machine.is_clean()), (6, true), "{:?}", machine.log);
}

#[test]
fn without_events_the_next_command_finds_the_devices_gone() {
    let memory = memory();
    let mut machine = Machine::new(PC, &[]);
    machine.tells = false;
    let mut plugged = plug(&mut machine, &memory).unwrap();
    unplug(&mut machine, &mut plugged, LONG).unwrap();
    assert!(machine.is_clean(), "{machine:?}");
}

#[test]
fn memory_that_qemu_keeps_is_an_error_and_can_be_tried_again() {
    let memory = memory();
    let mut machine = Machine::new(PC, &[]);
    let mut plugged = plug(&mut machine, &memory).unwrap();
    machine.held = usize::MAX;
    let error = unplug(&mut machine, &mut plugged, Duration::ZERO).unwrap_err();
    assert!(matches!(error, VmError::StillHeld { .. }), "{error}");
    machine.held = 0;
    unplug(&mut machine, &mut plugged, Duration::ZERO).unwrap();
    assert!(machine.is_clean());
}

#[test]
fn what_a_killed_daemon_left_is_found() {
    let mut machine = Machine::new(PC, &[]);
    for id in ["weir-region-7", "weir-words-7", "weir-region-90", "weir-region-x", "weir-words-07"]
    {
        machine.objects.push(id.to_owned());
    }
    machine.devices.push(("weir-region-7".to_owned(), None));
    machine.devices.push(("weir-something-8".to_owned(), None));
    let mut found = find_plugged(&mut machine).unwrap();
    assert_eq!(found.iter().map(Plugged::number).collect::<Vec<_>>(), [7, 90]);
    assert_eq!(found[0].devices().collect::<Vec<_>>(), ["weir-region-7"]);
    let memory = memory();
    let mut plugged = plug(&mut machine, &memory).unwrap();
    assert!(![7, 90].contains(&plugged.number()));
    for one in found.iter_mut().chain([&mut plugged]) {
        unplug(&mut machine, one, LONG).unwrap();
    }
    assert_eq!(machine.objects, ["mem0", "weir-region-x", "weir-words-07"]);
}

#[test]
fn a_machine_with_the_largest_number_uses_up_none_of_others() {
    let memory = memory();
    let mut hostile = Machine::new(PC, &[]);
    hostile.objects.push(format!("{REGION_ID}{}", u64::MAX));
    let mut honest = Machine::new(PC, &[]);
    for _ in 0..2 {
        for machine in [&mut hostile, &mut honest] {
            let mut plugged = plug(machine, &memory).unwrap();
            assert!(plugged.number() < u64::MAX / 2, "{}", plugged.number());
            unplug(machine, &mut plugged, LONG).unwrap();
        }
    }
    assert!(honest.is_clean(), "{honest:?}");
}

#[test]
fn numbers_that_a_machine_has_are_passed_by() {
    let memory = memory();
    let mut machine = Machine::new(PC, &[]);
    let number = plug(&mut machine, &memory).unwrap().number();
    let taken = number + 1..number + 1000;
    machine.objects.extend(taken.clone().map(|number| format!("{WORDS_ID}{number}")));
    let plugged = plug(&mut machine, &memory).unwrap();
    assert!(!taken.contains(&plugged.number()), "{}", plugged.number());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whichever command is refused, and however often memory is still held, nothing is left at the end.
    #[test]
    fn nothing_is_left_at_last(
        command in prop::sample::select(vec!["add-fd", "object-add", "device_add", "device_del", "object-del"]),
        at in 0usize..3,
        held in 0usize..3,
        is_pc: bool,
    ) {
        let memory = memory();
        let (one, two) = (("one", u64::MAX), ("two", 1 << 30));
        let mut machine = Machine::new(if is_pc { PC } else { Q35 }, &[one, two]);
        (machine.refuse, machine.held) = (Some((command, at)), held);
        let result = plug(&mut machine, &memory);
        if let Ok(mut plugged) = result {
            unplug(&mut machine, &mut plugged, LONG).unwrap();
        }
        prop_assert!(machine.is_clean(), "{machine:?}");
    }
}
