//! A guest's memory as two PCI devices (`ivshmem-plain`), which are plugged in and unplugged while the guest runs.
//!
//! The ids of both devices of a guest, `weir-region-N` and `weir-words-N`, have the same number, and so have the ids of
//! the memory objects behind them. Each time, a number is chosen that no device or object has and that this process has
//! not used before.
//!
//! The region's memory is `readonly=on`, which makes it ROM: writes of the guest change nothing. QEMU 8.2 and later
//! also have `rom=`. Its default, `auto`, has the same effect, and QEMU 7.2 does not know the option, so it is left
//! out.
//!
//! Source: QEMU, docs/system/devices/ivshmem.rst; qapi/qom.json, `MemoryBackendFileProperties`; qapi/qdev.json.

mod limited;
mod ports;
mod qom;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_region::limits::WORDS_BYTES;

use crate::error::VmError;
use crate::limits::{
    PLUGGED_MAX, QMP_COMMAND_TIME_MAX, QMP_LOOK_TIME_MAX, TAKE_BACK_TIME_MAX, VIRTIO_PORTS_MAX,
};
use crate::memory::GuestMemory;
use crate::qmp::{Event, Monitor};
pub use limited::LimitedMonitor;
pub use ports::Buses;
use qom::{command, list};

/// Prefixes of the ids; the number follows.
const REGION_ID: &str = "weir-region-";
const WORDS_ID: &str = "weir-words-";
/// Pause between two `device_del` of a device. QEMU refuses the second one as long as the guest may still answer the
/// first one: on native PCIe, for 5 s.
const REPEAT: Duration = Duration::from_secs(1);
/// Pause between two checks whether QEMU has released memory whose device is gone.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// The devices of a guest and the memory objects behind them, as far as they still exist.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugged {
    number: u64,
    parts: Vec<Part>,
}

/// A memory object of QEMU, and its device, which has the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    id: String,
    has_device: bool,
}

impl Plugged {
    /// Returns the number in the ids.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the ids of the devices that still exist.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter(|part| part.has_device).map(|part| &*part.id)
    }

    /// Removes the device that is gone by this event. Returns whether it was one of these devices.
    pub fn remove_deleted(&mut self, event: &Event) -> bool {
        let device = event.text("device").filter(|_| event.name == "DEVICE_DELETED");
        let gone = self.parts.iter_mut().find(|part| part.has_device && device == Some(&*part.id));
        gone.map(|part| part.has_device = false).is_some()
    }

    /// Tells whether no device or object is left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Finds the buses into which a region of this many MiB and its words can be plugged, within [`QMP_LOOK_TIME_MAX`]. On
/// `-M pc` that is the root bus; on q35 and similar machines, free PCIe root ports that have room for them. The port
/// for the region must reserve twice its size (`pref64-reserve`).
///
/// # Errors
/// [`VmError::NoPort`], and errors of the monitor.
pub fn find_buses(monitor: &mut dyn Monitor, region_mib: u64) -> Result<Buses, VmError> {
    let mut monitor = LimitedMonitor::new(monitor, QMP_LOOK_TIME_MAX);
    ports::find_buses(&mut monitor, [region_mib << 20, WORDS_BYTES])
}

/// Plugs a guest's region and words into buses that have room for them.
///
/// # Errors
/// The errors of [`find_buses`] and of [`plug_into`].
pub fn plug(monitor: &mut dyn Monitor, memory: &GuestMemory) -> Result<Plugged, VmError> {
    let buses = find_buses(monitor, memory.region_bytes() >> 20)?;
    plug_into(monitor, buses, memory)
}

/// Plugs a guest's region and words into these buses.
///
/// If a step fails, the steps before it are undone. If the guest must release the region for that and does not within
/// [`TAKE_BACK_TIME_MAX`], the region stays, and [`find_plugged`] finds it.
///
/// # Errors
/// [`VmError::Refused`], and errors of the monitor.
pub fn plug_into(
    monitor: &mut dyn Monitor,
    buses: Buses,
    memory: &GuestMemory,
) -> Result<Plugged, VmError> {
    let number = fresh_number(monitor)?;
    let mut plugged = Plugged { number, parts: Vec::new() };
    let region = json!({
        "qom-type": "memory-backend-file", "id": format!("{REGION_ID}{number}"),
        "size": memory.region_bytes(), "share": true, "readonly": true, "dump": false,
    });
    let words = json!({
        "qom-type": "memory-backend-file", "id": format!("{WORDS_ID}{number}"),
        "size": memory.words_bytes(), "share": true, "dump": false,
    });
    let result = add(monitor, &mut plugged, region, memory.region_fd(), buses.region)
        .and_then(|()| add(monitor, &mut plugged, words, memory.words_fd(), buses.words));
    match result {
        Ok(()) => Ok(plugged),
        Err(error) => {
            // The first error is the one to report.
            let _ = unplug(monitor, &mut plugged, TAKE_BACK_TIME_MAX);
            Err(error)
        }
    }
}

/// Adds a memory object and its device. They are added to `plugged` before QEMU creates them: after a time-out they may
/// exist.
fn add(
    monitor: &mut dyn Monitor,
    plugged: &mut Plugged,
    mut object: Value,
    memory: BorrowedFd<'_>,
    bus: Option<String>,
) -> Result<(), VmError> {
    let id = object["id"].as_str().unwrap_or_default().to_owned();
    let mut device = json!({"driver": "ivshmem-plain", "id": id, "memdev": id});
    if let Some(bus) = bus {
        device["bus"] = bus.into();
    }
    plugged.parts.push(Part { id: id.clone(), has_device: false });
    // A memory-backend-file opens its file itself and cannot use descriptor sets (/dev/fdset). So it opens a descriptor
    // of QEMU by its number in /proc, and the descriptor is then removed.
    let given = json!({"opaque": id});
    let given = monitor.execute_with("add-fd", given, Some(memory), QMP_COMMAND_TIME_MAX)?;
    let number = |key| given.get(key).and_then(Value::as_u64);
    let (Some(fd), Some(set)) = (number("fd"), number("fdset-id")) else {
        return Err(VmError::Protocol { what: "add-fd gives no number" });
    };
    object["mem-path"] = format!("/proc/self/fd/{fd}").into();
    let added = command(monitor, "object-add", object);
    command(monitor, "remove-fd", json!({"fdset-id": set}))?;
    added?;
    if let Some(part) = plugged.parts.last_mut() {
        part.has_device = true;
    }
    command(monitor, "device_add", device)?;
    Ok(())
}

/// Asks the guest to release the devices, once a second, and removes their memory after that, within `limit`. `plugged`
/// keeps the remaining devices, for another attempt. QEMU closes the files a moment later, in a thread of its own.
///
/// # Errors
/// [`VmError::NotReleased`] if the guest has not released the devices, [`VmError::StillHeld`] if QEMU has not released
/// the memory, and errors of the monitor.
pub fn unplug(
    monitor: &mut dyn Monitor,
    plugged: &mut Plugged,
    limit: Duration,
) -> Result<(), VmError> {
    let start = Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    let mut refusal = None;
    while plugged.devices().next().is_some() {
        if let Some(error) = ask(monitor, plugged)? {
            refusal = Some(Box::new(error));
        }
        await_deleted(monitor, plugged, left().min(REPEAT))?;
        if left().is_zero() && plugged.devices().next().is_some() {
            let devices = plugged.devices().collect::<Vec<_>>().join(" and ");
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            return Err(VmError::NotReleased { devices, limit_ms, source: refusal });
        }
    }
    loop {
        let Err(error) = delete_objects(monitor, plugged) else { return Ok(()) };
        if !error.is_refusal() {
            return Err(error);
        }
        // A device is gone before QEMU's other threads have released its memory.
        if left().is_zero() {
            let ids: Vec<&str> = plugged.parts.iter().map(|part| &*part.id).collect();
            let objects = ids.join(" and ");
            return Err(VmError::StillHeld { objects, source: Box::new(error) });
        }
        sleep(RELEASE_PAUSE);
    }
}

/// Asks the guest once to release the devices that still exist. Returns QEMU's refusal, if there was one. For callers
/// that cannot wait, together with [`Plugged::remove_deleted`] and [`take_back`]; [`unplug`] does all three.
///
/// # Errors
/// Errors of the monitor.
pub fn ask(monitor: &mut dyn Monitor, plugged: &mut Plugged) -> Result<Option<VmError>, VmError> {
    let mut refusal = None;
    for part in plugged.parts.iter_mut().filter(|part| part.has_device) {
        match command(monitor, "device_del", json!({"id": part.id})) {
            Ok(_) => {}
            Err(error) if error.is_device_missing() => part.has_device = false,
            Err(error) if error.is_refusal() => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    Ok(refusal)
}

/// Removes the memory of devices that are gone. After that, [`Plugged::is_gone`] tells whether anything is left.
///
/// # Errors
/// [`VmError::Refused`] as long as QEMU has not released the memory, and errors of the monitor.
pub fn take_back(monitor: &mut dyn Monitor, plugged: &mut Plugged) -> Result<(), VmError> {
    if plugged.devices().count() == plugged.parts.len() {
        return Ok(());
    }
    delete_objects(monitor, plugged)
}

/// Waits until QEMU has reported that all devices are gone, at most `limit`.
fn await_deleted(
    monitor: &mut dyn Monitor,
    plugged: &mut Plugged,
    limit: Duration,
) -> Result<(), VmError> {
    let start = Instant::now();
    while plugged.devices().next().is_some() {
        let mut is_ours = |event: &Event| {
            let device = event.text("device");
            event.name == "DEVICE_DELETED"
                && device.is_some_and(|id| plugged.devices().any(|ours| ours == id))
        };
        let left = limit.saturating_sub(start.elapsed());
        let Some(event) = monitor.wait_event(left, &mut is_ours)? else { break };
        plugged.remove_deleted(&event);
    }
    Ok(())
}

/// Deletes the memory objects of devices that are gone, and removes objects that do not exist from the list.
fn delete_objects(monitor: &mut dyn Monitor, plugged: &mut Plugged) -> Result<(), VmError> {
    let objects = list(monitor, "/objects")?;
    plugged
        .parts
        .retain(|part| part.has_device || objects.iter().any(|object| object.name == part.id));
    let mut result = Ok(());
    plugged.parts.retain(|part| {
        if part.has_device || result.is_err() {
            return true;
        }
        result = command(monitor, "object-del", json!({"id": part.id})).map(drop);
        result.is_err()
    });
    result
}

/// Returns the devices and memory objects of this kind in QEMU, by number. A killed daemon has left them. They should
/// be unplugged: no process has their memory any more. Of more than [`PLUGGED_MAX`], only those with the largest
/// numbers are returned.
///
/// # Errors
/// Errors of the monitor.
pub fn find_plugged(monitor: &mut dyn Monitor) -> Result<Vec<Plugged>, VmError> {
    let found = find_parts(monitor)?;
    let too_many = found.len().saturating_sub(PLUGGED_MAX);
    let found = found.into_iter().skip(too_many).map(|(number, mut parts)| {
        // The region comes before the words, as in `plug_into`.
        parts.sort_by(|a, b| a.id.cmp(&b.id));
        Plugged { number, parts }
    });
    Ok(found.collect())
}

/// Returns all of them: as many as fit into QEMU's longest message.
fn find_parts(monitor: &mut dyn Monitor) -> Result<BTreeMap<u64, Vec<Part>>, VmError> {
    let devices = list(monitor, "/machine/peripheral")?;
    let objects = list(monitor, "/objects")?;
    let mut found: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
    let all = devices.iter().map(|one| (one, true)).chain(objects.iter().map(|one| (one, false)));
    for (one, has_device) in all {
        let id = &one.name;
        let Some(number) = number_of(id) else { continue };
        let parts = found.entry(number).or_default();
        if !parts.iter().any(|part| part.id == *id) {
            parts.push(Part { id: id.clone(), has_device });
        }
    }
    Ok(found)
}

/// Returns QEMU's id of the virtio-serial port with this name, if there is one. The event `VSERPORT_CHANGE` has this id
/// when the guest opens or closes the port. At most [`VIRTIO_PORTS_MAX`] ports are checked.
///
/// # Errors
/// Errors of the monitor.
pub fn find_port(monitor: &mut dyn Monitor, name: &str) -> Result<Option<String>, VmError> {
    let ports = list(monitor, "/machine/peripheral")?.into_iter();
    let ports = ports.filter(|device| device.kind == "child<virtserialport>");
    for device in ports.take(VIRTIO_PORTS_MAX) {
        let own = qom::get(monitor, &path_of(&device.name), "name")?;
        if own.as_ref().and_then(Value::as_str) == Some(name) {
            return Ok(Some(device.name));
        }
    }
    Ok(None)
}

/// Tells whether a program in the guest has the virtio-serial port with this id open, which is also what the last
/// `VSERPORT_CHANGE` has reported; `None` if QEMU does not tell.
///
/// # Errors
/// Errors of the monitor.
pub fn is_port_open(monitor: &mut dyn Monitor, id: &str) -> Result<Option<bool>, VmError> {
    let Some(chardev) = qom::get(monitor, &path_of(id), "chardev")? else { return Ok(None) };
    let all = command(monitor, "query-chardev", json!({}))?;
    let mut all = all.as_array().into_iter().flatten();
    let own = all.find(|one| one.get("label") == Some(&chardev));
    Ok(own.and_then(|one| one.get("frontend-open")).and_then(Value::as_bool))
}

/// Returns the path of the object of a device that has an id.
fn path_of(id: &str) -> String {
    format!("/machine/peripheral/{id}")
}

/// Tells whether the machine does not run: it is paused, or waits for an incoming migration.
///
/// # Errors
/// Errors of the monitor.
pub fn is_paused(monitor: &mut dyn Monitor) -> Result<bool, VmError> {
    let status = command(monitor, "query-status", json!({}))?;
    Ok(status.get("running") == Some(&Value::Bool(false)))
}

fn number_of(id: &str) -> Option<u64> {
    let number = id.strip_prefix(REGION_ID).or_else(|| id.strip_prefix(WORDS_ID))?;
    // No sign and no leading zeros: only numbers as this crate writes them.
    number.parse().ok().filter(|n: &u64| n.to_string() == number)
}

/// Returns a number that no device or object has, and that this process has not used for any machine. It is not derived
/// from the largest existing number: QEMU reports that one, and a hostile QEMU could use up the numbers of other
/// machines.
fn fresh_number(monitor: &mut dyn Monitor) -> Result<u64, VmError> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let taken = find_parts(monitor)?;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The loop ends: the machine has only a limited number of such devices and objects.
        if !taken.contains_key(&number) {
            return Ok(number);
        }
    }
}

#[cfg(test)]
mod tests;
