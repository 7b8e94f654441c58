//! The buses into which devices can be plugged.
//!
//! The root bus of `-M pc` accepts the devices. The root bus of q35, and of `virt` on ARM, does not: there a device
//! needs a PCIe port that is free, accepts hot-plugged devices, and has room for the device's memory. The guest's
//! firmware gives each port a window of addresses when it boots: 2 MiB unless more is requested (`pref64-reserve`).
//! Linux does not enlarge the window when a device comes (ACPI hot-plug, QEMU's default since 6.1): the memory of a
//! device that does not fit gets no address, and the guest cannot map it. The address of a BAR is a multiple of its
//! size, and that of the window a multiple of 1 MiB, so the BAR fits for certain only into a window of twice its size.
//!
//! `query-pci` shows a port's window, but its bus only once the guest has numbered it. So ports are looked for in
//! QEMU's object tree.

use serde_json::{Value, json};

use super::qom;
use crate::error::VmError;
use crate::limits::PORTS_MAX;
use crate::qmp::Monitor;

/// The paths of devices that were created with an id, and of devices without.
const FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];
/// Kinds of ports that accept hot-plugged devices.
const PORTS: [&str; 3] = ["child<pcie-root-port>", "child<ioh3420>", "child<xio3130-downstream>"];
/// The window of a port if no other size is requested. Source: SeaBIOS, src/fw/pciinit.c.
const DEFAULT_WINDOW_BYTES: u64 = 2 << 20;

/// A port without a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    /// The name of the port's bus, for `device_add`.
    bus: String,
    /// The first and the last address of the port's window for 64-bit BARs; `None` before the firmware has set it.
    window: Option<(u64, u64)>,
    /// Bytes that the firmware must reserve for 64-bit BARs.
    reserved_bytes: u64,
}

impl Port {
    fn window_bytes(&self) -> u64 {
        match self.window {
            Some((first, last)) => last.saturating_sub(first),
            None => self.reserved_bytes,
        }
    }

    /// Tells whether memory of this many bytes, a power of two, gets an address in the window.
    fn has_room(&self, bytes: u64) -> bool {
        let Some((first, last)) = self.window else { return self.reserved_bytes / 2 >= bytes };
        let begin = first.checked_next_multiple_of(bytes);
        let end = begin.and_then(|begin| begin.checked_add(bytes - 1));
        end.is_some_and(|end| end <= last)
    }
}

/// The buses into which a region and its words can be plugged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buses {
    /// The name of the region's bus; `None`: the root bus.
    pub(super) region: Option<String>,
    /// The name of the words' bus; `None`: the root bus.
    pub(super) words: Option<String>,
}

pub(super) fn find_buses(
    monitor: &mut dyn Monitor,
    [region_bytes, words_bytes]: [u64; 2],
) -> Result<Buses, VmError> {
    let machine = qom::get(monitor, "/machine", "type")?;
    let machine = machine.as_ref().and_then(Value::as_str).unwrap_or("unknown");
    if machine.contains("i440fx") {
        return Ok(Buses { region: None, words: None });
    }
    let free = free_ports(monitor)?;
    let ports = free.len();
    let [region, words] = choose_of(free, region_bytes, words_bytes).ok_or(VmError::NoPort {
        machine: machine.trim_end_matches("-machine").chars().take(64).collect(),
        free: ports,
        mib: region_bytes >> 20,
        reserve_mib: region_bytes >> 19,
    })?;
    Ok(Buses { region: Some(region), words: Some(words) })
}

/// Chooses two of these ports, each the smallest that has room.
fn choose_of(mut ports: Vec<Port>, region_bytes: u64, words_bytes: u64) -> Option<[String; 2]> {
    ports.sort_by_key(Port::window_bytes);
    let region = ports.iter().position(|port| port.has_room(region_bytes))?;
    let region = ports.remove(region).bus;
    let words = ports.into_iter().find(|port| port.has_room(words_bytes))?.bus;
    Some([region, words])
}

fn free_ports(monitor: &mut dyn Monitor) -> Result<Vec<Port>, VmError> {
    let pci = qom::command(monitor, "query-pci", json!({}))?;
    let mut free = Vec::new();
    let mut looked_at = 0;
    for folder in FOLDERS {
        for child in qom::list(monitor, folder)? {
            if !PORTS.contains(&&*child.kind) || looked_at == PORTS_MAX {
                continue;
            }
            looked_at += 1;
            let window = window_of(&pci, &child.name);
            free.extend(free_port(monitor, &format!("{folder}/{}", child.name), window)?);
        }
    }
    Ok(free)
}

/// Returns the port with this path, if it is free and accepts hot-plugged devices.
fn free_port(
    monitor: &mut dyn Monitor,
    path: &str,
    window: Option<(u64, u64)>,
) -> Result<Option<Port>, VmError> {
    if qom::get(monitor, path, "hotplug")? == Some(Value::Bool(false)) {
        return Ok(None);
    }
    let children = qom::list(monitor, path)?;
    let Some(bus) = children.into_iter().find(|child| child.kind == "child<PCIE>") else {
        return Ok(None);
    };
    let on_it = qom::list(monitor, &format!("{path}/{}", bus.name))?;
    if on_it.iter().any(|child| child.name.starts_with("child[")) {
        return Ok(None);
    }
    let reserved = qom::get(monitor, path, "pref64-reserve")?.and_then(|bytes| bytes.as_u64());
    // The largest number means that no size is requested.
    let reserved = reserved.filter(|bytes| *bytes != u64::MAX);
    let reserved_bytes = reserved.unwrap_or(DEFAULT_WINDOW_BYTES);
    Ok(Some(Port { bus: bus.name, window, reserved_bytes }))
}

/// Returns the window of the bridge with this id, anywhere in the answer to `query-pci`.
fn window_of(pci: &Value, id: &str) -> Option<(u64, u64)> {
    // The recursion is as deep as the answer, whose depth serde_json limits.
    match pci {
        Value::Array(items) => items.iter().find_map(|item| window_of(item, id)),
        Value::Object(object) => {
            if object.get("qdev_id").and_then(Value::as_str) != Some(id) {
                return object.values().find_map(|value| window_of(value, id));
            }
            let bus = pci.pointer("/pci_bridge/bus")?;
            let number = |path| bus.pointer(path).and_then(Value::as_u64);
            // A bridge after a reset has no bus number, and its window is not valid.
            number("/secondary").filter(|secondary| *secondary != 0)?;
            Some((number("/prefetchable_range/base")?, number("/prefetchable_range/limit")?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn port(bus: &str, window: Option<(u64, u64)>, reserved_bytes: u64) -> Port {
        Port { bus: bus.to_owned(), window, reserved_bytes }
    }

    #[test]
    fn a_window_has_room_if_a_multiple_of_the_size_fits() {
        let window = |first, last| port("", Some((first, last)), 0);
        // As SeaBIOS placed 16 MiB, seen here: 16 MiB do not fit.
        let off = window(0xfd80_0000, 0xfe7f_ffff);
        assert!(off.has_room(8 * MIB) && !off.has_room(16 * MIB));
        assert!(window(0xfd00_0000, 0xfdff_ffff).has_room(16 * MIB));
        assert!(!window(0xfd00_0000, 0xfdff_fffe).has_room(16 * MIB));
        // Closed, or nonsense.
        assert!(!window(0xfff0_0000, 0xf_ffff).has_room(4096));
        assert!(!window(u64::MAX, u64::MAX).has_room(4096));
        // Before the firmware has run: a size that fits wherever it is placed.
        let asked = |bytes| port("", None, bytes);
        assert!(asked(32 * MIB).has_room(16 * MIB) && !asked(31 * MIB).has_room(16 * MIB));
    }

    #[test]
    fn the_region_takes_the_smallest_port_with_room_for_it() {
        let choose = |reserved: &[u64]| {
            let ports = reserved.iter().enumerate();
            let ports = ports.map(|(at, mib)| port(&at.to_string(), None, mib * MIB)).collect();
            choose_of(ports, 64 * MIB, 4096)
        };
        let chosen = |region: &str, words: &str| Some([region.to_owned(), words.to_owned()]);
        assert_eq!(choose(&[2, 128]), chosen("1", "0"));
        assert_eq!(choose(&[1024, 128, 2]), chosen("1", "2"));
        assert_eq!(choose(&[128, 128]), chosen("0", "1"));
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[128]), None);
        assert_eq!(choose(&[2, 2, 64]), None);
    }

    #[test]
    fn windows_are_found_in_the_answer_of_a_real_qemu() {
        let bridge = |id: &str, secondary: u8, base: u64, behind: Value| {
            json!({"bus": 0, "slot": 3, "qdev_id": id, "class_info": {"class": 1540}, "pci_bridge": {
                "bus": {"number": 0, "secondary": secondary, "memory_range": {"base": 1, "limit": 2},
                    "prefetchable_range": {"base": base, "limit": 0xfe7f_ffffu64}},
                "devices": behind}})
        };
        let inner = bridge("down", 4, 0xfe00_0000, json!([]));
        let pci = json!([{"bus": 0, "devices": [bridge("reset", 0, 0xfff0_0000, json!([])),
            {"qdev_id": "", "slot": 1}, bridge("up", 3, 0xfd80_0000, json!([inner]))]}]);
        assert_eq!(window_of(&pci, "up"), Some((0xfd80_0000, 0xfe7f_ffff)));
        assert_eq!(window_of(&pci, "down"), Some((0xfe00_0000, 0xfe7f_ffff)));
        assert_eq!(window_of(&pci, "reset"), None);
        assert_eq!(window_of(&pci, "other"), None);
        assert_eq!(window_of(&json!({"qdev_id": "x"}), "x"), None);
    }

    proptest! {
        #[test]
        fn twice_the_size_has_room_wherever_it_is(first in 1u64..1 << 40, bits in 12u32..36) {
            let (first, bytes) = (first << 20, 1u64 << bits);
            let window = (first, first + 2 * bytes - 1);
            prop_assert!(port("", Some(window), 0).has_room(bytes));
        }
    }
}
