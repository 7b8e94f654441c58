//! The PCI devices with the host's memory, which are plugged in as long as there are feeds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_client::protocol::InRegion;
use weir_client::region::{Region, RegionError};
use weir_guest::{BellId, Bells, Devices};
use weir_region::Token;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

/// The kernel's list of PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// How long to wait until a device that the host has plugged in appears.
const APPEARS_WITHIN: Duration = Duration::from_secs(5);

/// The devices, if any feed is open.
pub struct GuestRegion {
    /// The directory of PCI devices.
    pci: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plugged: Option<Plugged>,
    sleepers: BTreeMap<u64, BellId>,
    numbered: u64,
    /// The note about the devices that were found last, for the user.
    note: Option<String>,
}

impl State {
    fn bells(&self) -> Option<&Bells> {
        self.plugged.as_ref().and_then(|plugged| plugged.bells.as_ref())
    }

    fn let_go_of_devices(&mut self) {
        self.plugged = None;
        self.sleepers.clear();
    }
}

struct Plugged {
    token: Token,
    devices: Devices,
    /// `None` once the session has ended: the host may then unplug the devices, so their words must not be accessed.
    bells: Option<Bells>,
    /// Number of mapped rings, by line (slot). A ring of an ended session may still be read after the host has given
    /// its line to a ring of the next session.
    slots: BTreeMap<u32, usize>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for GuestRegion {
    fn default() -> GuestRegion {
        GuestRegion { pci: PCI.into(), state: Mutex::default() }
    }
}

impl GuestRegion {
    /// Returns a note for the user about the devices.
    pub fn note(&self) -> Option<String> {
        lock(&self.state).note.clone()
    }

    /// Returns whether readers still use the memory of any feed.
    pub fn is_read(&self) -> bool {
        lock(&self.state).plugged.is_some()
    }

    /// Wakes readers after a notification from the host.
    pub fn ring(&self) {
        if let Some(bells) = lock(&self.state).bells() {
            bells.ring();
        }
    }

    /// Stops waking readers of the current feeds, because the session with the host has ended.
    pub fn end_session(&self) {
        let mut state = lock(&self.state);
        state.sleepers.clear();
        let bells = state.plugged.as_mut().and_then(|plugged| plugged.bells.take());
        drop(state);
        // Outside the lock, because the drop joins a thread.
        drop(bells);
    }
}

impl Region for GuestRegion {
    fn ring(&self, at: &InRegion) -> Result<Ring<Mapping>, RegionError> {
        let token: Token = at.token.parse()?;
        let is_there = |state: &State| state.plugged.as_ref().is_some_and(|own| own.token == token);
        let find = || Devices::find(&self.pci, token, APPEARS_WITHIN);
        // Outside the lock, because each notification from the host takes the lock.
        let found = if is_there(&lock(&self.state)) { None } else { Some(find()?) };
        let mut state = lock(&self.state);
        // Meanwhile, another feed may have found the devices, or the last feed may have released them.
        if !is_there(&state) {
            let devices = found.map_or_else(find, Ok)?;
            let bandwidth = devices.bandwidth();
            let megabytes = bandwidth.bytes_per_second / 1e6;
            eprintln!("weir: the host's memory is there: it is read at {megabytes:.0} MB/s");
            state.note = bandwidth.note();
            state.sleepers.clear();
            state.plugged = Some(Plugged { token, devices, bells: None, slots: BTreeMap::new() });
        }
        let plugged = state.plugged.as_mut().ok_or("there is no device")?;
        if plugged.bells.is_none() {
            plugged.bells = Some(Bells::start(plugged.devices.words()?)?);
        }
        let ring = match plugged.devices.ring(&at.place) {
            Ok(ring) => ring,
            Err(error) => {
                if plugged.slots.is_empty() {
                    state.let_go_of_devices();
                }
                return Err(error.into());
            }
        };
        *plugged.slots.entry(at.place.slot).or_default() += 1;
        Ok(ring)
    }

    fn attach(
        &self,
        at: &InRegion,
        ring: &Ring<Mapping>,
        waker: Waker,
        first_line: usize,
    ) -> Result<u64, RegionError> {
        let mut state = lock(&self.state);
        let plugged = state.plugged.as_ref().filter(|own| own.token.to_string() == at.token);
        let plugged = plugged.ok_or("the host has taken the devices away")?;
        let bells = plugged.bells.as_ref().ok_or("the session with the host has ended")?;
        let bell = bells.add(at.place.slot, ring.clone(), waker, first_line)?;
        state.numbered += 1;
        let number = state.numbered;
        state.sleepers.insert(number, bell);
        Ok(number)
    }

    fn detach(&self, number: u64) {
        let mut state = lock(&self.state);
        if let Some(bell) = state.sleepers.remove(&number)
            && let Some(bells) = state.bells()
        {
            bells.remove(bell);
        }
    }

    fn let_go(&self, at: &InRegion) {
        let mut state = lock(&self.state);
        let Some(plugged) = own(&mut state, at) else { return };
        // The ring of this feed may not have been mapped. There is no entry then.
        let Some(count) = plugged.slots.get_mut(&at.place.slot) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        plugged.slots.remove(&at.place.slot);
        plugged.bells.iter().for_each(|bells| bells.forget_slot(at.place.slot));
        if plugged.slots.is_empty() {
            state.let_go_of_devices();
        }
    }
}

/// Returns the devices of this feed, if they are still plugged in.
fn own<'a>(state: &'a mut State, at: &InRegion) -> Option<&'a mut Plugged> {
    state.plugged.as_mut().filter(|plugged| plugged.token.to_string() == at.token)
}

#[cfg(test)]
#[path = "region/tests.rs"]
mod tests;
