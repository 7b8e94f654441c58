//! Memory plugged into guests of the real QEMU, and unplugged.

mod common;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_region::words::AWAKE;
use weir_ring::Writer;
use weir_vm::{
    Event, GuestMemory, Monitor, Pages, Plugged, Qmp, VmError, find_plugged, plug, unplug,
};

use common::{Guest, LIMIT, Means, means, spec, write};

const MIB: u64 = 16;
/// Two ports, one of them with room for the region in any case, and a third one that takes no hot-plugged device.
const PORTS: &str = "-device pcie-root-port,id=never,chassis=200,hotplug=off \
    -device pcie-root-port,id=weir1,chassis=202 \
    -device pcie-root-port,id=weir0,chassis=201,pref64-reserve=32M";
/// Ports without room for the region.
const NO_ROOM: &str = "-device pcie-root-port,id=weir0,chassis=201 \
    -device pcie-root-port,id=weir1,chassis=202";

/// Prints each ivshmem device that appears, once its BAR has an address: its size and its first 40 bytes. Also prints
/// when a device has gone. Writes to the region's BAR, which must change nothing, and to that of the words, where it
/// sets a threshold and a position in slot 0.
const SCRIPT: &str = r#"
seen=
while :; do
    now=
    for dev in /sys/bus/pci/devices/*; do
        [ "$(cat $dev/vendor 2>&1) $(cat $dev/device 2>&1)" = '0x1af4 0x1110' ] || continue
        set -- $(sed -n 3p $dev/resource)
        [ "${1:-0x0000000000000000}" != 0x0000000000000000 ] || continue
        name=${dev##*/}
        now="$now $name"
        case " $seen " in *" $name "*) continue ;; esac
        echo 1 >$dev/enable
        size=$(($2 - $1 + 1))
        line=
        for word in 0 8 16 24 32; do line="$line $(devmem $(($1 + word)) 64)"; done
        echo "device $size$line"
        if [ $size = 4096 ]; then
            devmem $(($1 + 64)) 64 0x11
            devmem $(($1 + 72)) 64 0x10
            echo "wrote words"
        else
            devmem $(($1 + 16)) 64 0xdead
            devmem $(($1 + 1048576)) 64 0xdead
            echo "wrote region $(devmem $(($1 + 16)) 64)"
        fi
    done
    for name in $seen; do
        case " $now " in *" $name "*) ;; *) echo "gone" ;; esac
    done
    seen=$now
    usleep 20000
done
"#;

fn memory() -> GuestMemory {
    GuestMemory::create(MIB, Pages::Now).unwrap()
}

fn qom_names(guest: &mut Guest, path: &str) -> BTreeSet<String> {
    let list = guest.qmp.execute("qom-list", json!({"path": path}), LIMIT).unwrap();
    let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

/// Everything that could be left in QEMU: objects, devices, devices on its PCI buses, descriptors.
fn inventory(guest: &mut Guest) -> (BTreeSet<String>, BTreeSet<String>, usize, usize) {
    let pci = guest.qmp.execute("query-pci", json!({}), LIMIT).unwrap().to_string();
    let on_buses = pci.matches("\"weir-").count();
    (
        qom_names(guest, "/objects"),
        qom_names(guest, "/machine/peripheral"),
        on_buses,
        guest.descriptors(),
    )
}

/// The line that the guest must print for memory with this header.
fn line(kind: u8, bytes: u64, memory: &GuestMemory) -> String {
    let kind = if kind == 1 { weir_region::Kind::Region } else { weir_region::Kind::Words };
    let header = weir_region::Header { kind, token: memory.token(), bytes }.encode();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let words = header[..40].chunks(8).map(|bytes| format!(" 0x{:016X}", word(bytes)));
    format!("device {bytes}{}", words.collect::<String>())
}

fn unplug_in_time(guest: &mut Guest, plugged: &mut Plugged) -> Duration {
    let start = Instant::now();
    unplug(&mut guest.qmp, plugged, LIMIT).unwrap();
    start.elapsed()
}

/// Ten times: plugs memory in and unplugs it. The guest sees both devices with their headers, its writes to the region
/// change nothing, its writes to the words arrive, and at the end nothing is left.
fn ten_times(means: &Means, machine: &str, options: &str) {
    let mut guest = Guest::boot(means, machine, options, SCRIPT);
    let before = inventory(&mut guest);
    let (mut plugging, mut unplugging) = (Duration::ZERO, Duration::ZERO);
    let mut ids = BTreeSet::new();
    for round in 1..=10 {
        let memory = memory();
        let start = Instant::now();
        let mut plugged = plug(&mut guest.qmp, &memory).unwrap();
        plugging = plugging.max(start.elapsed());
        assert!(ids.insert(plugged.number()));
        assert!(!guest.holds().is_empty());
        guest.wait_for(&line(1, MIB << 20, &memory));
        guest.wait_for(&line(2, 4096, &memory));
        let said = |console: &str, text| console.matches(text).count();
        guest.wait_until("writing", |console| {
            said(console, "wrote words") == round && said(console, "wrote region") == round
        });
        assert_eq!((memory.threshold(0), memory.position(0)), (0x11, Some(0x10)));
        assert_eq!(memory.threshold(1), AWAKE);
        let mut region = vec![0; usize::try_from(MIB << 20).unwrap()];
        let file = std::fs::File::from(memory.region_fd().try_clone_to_owned().unwrap());
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut region, 0).unwrap();
        assert_eq!(region[16..32], memory.token().0);
        assert!(region[40..].iter().all(|byte| *byte == 0), "the guest has written the region");
        unplugging = unplugging.max(unplug_in_time(&mut guest, &mut plugged));
        assert!(plugged.is_gone());
        guest.wait_until_released();
        assert_eq!(find_plugged(&mut guest.qmp).unwrap(), []);
        guest.wait_until("going", |console| said(console, "gone") == 2 * round);
    }
    assert_eq!(inventory(&mut guest), before, "left behind");
    println!("{machine}: plugged in within {plugging:?}, unplugged within {unplugging:?}");
}

#[test]
fn vm_on_pc_memory_comes_and_goes_ten_times() {
    let Some(means) = means("vm_on_pc_memory_comes_and_goes_ten_times") else { return };
    ten_times(&means, "pc", "");
}

#[test]
fn vm_on_q35_memory_comes_and_goes_ten_times() {
    let Some(means) = means("vm_on_q35_memory_comes_and_goes_ten_times") else { return };
    ten_times(&means, "q35", PORTS);
}

/// Linux does not enlarge a port's window when a device is plugged in: without room, it could not map the region.
#[test]
fn vm_on_q35_without_room_the_remedy_is_told() {
    let Some(means) = means("vm_on_q35_without_room_the_remedy_is_told") else { return };
    let mut guest = Guest::boot(&means, "q35", NO_ROOM, SCRIPT);
    let before = inventory(&mut guest);
    let memory = memory();
    let error = plug(&mut guest.qmp, &memory).unwrap_err();
    assert!(matches!(error, VmError::NoPort { free: 2, mib: MIB, .. }), "{error}");
    assert!(error.to_string().contains("pref64-reserve=32M"), "{error}");
    assert_eq!(inventory(&mut guest), before);
}

#[test]
fn vm_on_q35_without_ports_the_remedy_is_told() {
    let Some(means) = means("vm_on_q35_without_ports_the_remedy_is_told") else { return };
    let mut guest = Guest::boot(&means, "q35", "-S", SCRIPT);
    let before = inventory(&mut guest);
    let memory = memory();
    let error = plug(&mut guest.qmp, &memory).unwrap_err();
    assert!(matches!(error, VmError::NoPort { free: 0, mib: MIB, .. }), "{error}");
    assert_eq!(inventory(&mut guest), before);
    drop(guest);
    // A machine with the options that the error recommends starts, and takes the devices.
    let text = error.to_string();
    let remedy = text.split('`').nth(1).unwrap();
    let mut guest = Guest::boot(&means, "q35", &format!("-S {remedy}"), SCRIPT);
    plug(&mut guest.qmp, &memory).unwrap();
}

/// The guest sees a ring that the host writes at its place, and the place can be used again while it is plugged in.
#[test]
fn vm_a_ring_lies_in_the_guests_memory() {
    let Some(means) = means("vm_a_ring_lies_in_the_guests_memory") else { return };
    let script = r#"
    while :; do
        for dev in /sys/bus/pci/devices/*; do
            [ "$(cat $dev/vendor) $(cat $dev/device)" = '0x1af4 0x1110' ] || continue
            set -- $(sed -n 3p $dev/resource)
            # Its file goes while it is unplugged, and has no addresses before they are assigned.
            [ "${1:-0x0000000000000000}" != 0x0000000000000000 ] || continue
            [ $(($2 - $1)) -gt 4096 ] || continue
            echo 1 >$dev/enable
            # The magic of the ring's header, and the number of frames written.
            echo "ring $(devmem $(($1 + 0x110008)) 64) $(devmem $(($1 + 0x110108)) 64)"
        done
        usleep 100000
    done
    "#;
    let mut guest = Guest::boot(&means, "pc", "", script);
    let memory = memory();
    let mut plugged = plug(&mut guest.qmp, &memory).unwrap();
    let magic = u64::from_le_bytes(*b"WEIRRNG1");
    for frames in [3u64, 5] {
        let taken = memory.take_ring(&spec()).unwrap();
        assert_eq!(taken.place().offset, 1 << 20);
        let mut writer = Writer::new(taken.ring().clone());
        write(&mut writer, frames);
        guest.wait_for(&format!("ring 0x{magic:016X} 0x{frames:016X}"));
    }
    unplug_in_time(&mut guest, &mut plugged);
}

#[test]
fn vm_a_stopped_guest_is_told_of_and_tried_again() {
    let Some(means) = means("vm_a_stopped_guest_is_told_of_and_tried_again") else { return };
    let mut guest = Guest::boot(&means, "pc", "", SCRIPT);
    let before = inventory(&mut guest);
    let memory = memory();
    let mut plugged = plug(&mut guest.qmp, &memory).unwrap();
    guest.wait_for(&line(1, MIB << 20, &memory));
    guest.qmp.execute("stop", json!({}), LIMIT).unwrap();
    let limit = Duration::from_millis(1500);
    let start = Instant::now();
    let error = unplug(&mut guest.qmp, &mut plugged, limit).unwrap_err();
    assert!(matches!(error, VmError::NotReleased { limit_ms: 1500, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // A daemon that is started again finds the same devices.
    assert_eq!(find_plugged(&mut guest.qmp).unwrap(), [plugged]);
    let mut plugged = find_plugged(&mut guest.qmp).unwrap().remove(0);
    guest.qmp.execute("cont", json!({}), LIMIT).unwrap();
    unplug_in_time(&mut guest, &mut plugged);
    guest.wait_until_released();
    assert_eq!(inventory(&mut guest), before);
}

/// QEMU runs as a user who does not own the memory. Even root, who can open QEMU's descriptors again, can write only
/// the words.
#[test]
fn vm_as_another_user_qemu_writes_only_the_words() {
    const TEST: &str = "vm_as_another_user_qemu_writes_only_the_words";
    if !rustix::process::geteuid().is_root() {
        return weir_lab::testbed::skip(TEST, "needs root, to become another user");
    }
    let Some(means) = means(TEST) else { return };
    let mut guest = Guest::boot_as(&means, Some(65_534), "pc", "", SCRIPT);
    let memory = memory();
    let mut plugged = plug(&mut guest.qmp, &memory).unwrap();
    guest.wait_for(&line(1, MIB << 20, &memory));
    guest.wait_for("wrote words");
    assert_eq!(memory.threshold(0), 0x11);
    // QEMU itself could try this if it were root.
    for held in guest.held_files() {
        let again = std::fs::OpenOptions::new().read(true).write(true).open(&held.path);
        let file = again.unwrap();
        assert!(file.set_len(0).is_err(), "{held:?} was cut short");
        let written = std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], 4088);
        assert_eq!(written.is_ok(), held.name.contains("words"), "{held:?}: {written:?}");
    }
    unplug_in_time(&mut guest, &mut plugged);
    guest.wait_until_released();
}

/// A monitor that makes the second `device_add` fail, with the name of a driver that does not exist.
struct Spoilt<'a> {
    qmp: &'a mut Qmp,
    devices: usize,
}

impl Monitor for Spoilt<'_> {
    fn execute_with(
        &mut self,
        command: &'static str,
        mut arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError> {
        self.devices += usize::from(command == "device_add");
        if command == "device_add" && self.devices == 2 {
            arguments["driver"] = "no-such-device".into();
        }
        self.qmp.execute_with(command, arguments, descriptor, limit)
    }

    fn version(&self) -> &str {
        self.qmp.version()
    }

    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        self.qmp.wait_event(limit, is_wanted)
    }
}

#[test]
fn vm_what_fails_half_way_is_taken_back() {
    let Some(means) = means("vm_what_fails_half_way_is_taken_back") else { return };
    let mut guest = Guest::boot(&means, "pc", "", SCRIPT);
    let before = inventory(&mut guest);
    let memory = memory();
    let mut spoilt = Spoilt { qmp: &mut guest.qmp, devices: 0 };
    let error = plug(&mut spoilt, &memory).unwrap_err();
    assert!(matches!(error, VmError::Refused { command: "device_add", .. }), "{error}");
    guest.wait_until_released();
    assert_eq!(inventory(&mut guest), before);
}
