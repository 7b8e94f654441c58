//! The devices that the host has plugged in, as long as there are feeds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_client::protocol::InRegion;
use weir_client::region::{Region, RegionError};
use weir_guest::{BellId, Bells, Devices};
use weir_region::Token;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

/// Where the kernel shows devices.
const PCI: &str = "/sys/bus/pci/devices";
/// How long a device that the host has plugged in takes to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes a second below which reading the region is too slow to be cached memory.
const UNCACHED_BELOW: f64 = 500e6;

/// The devices, if any feed is open.
#[derive(Default)]
pub struct GuestRegion(Mutex<State>);

#[derive(Default)]
struct State {
    plugged: Option<Plugged>,
    sleepers: BTreeMap<u64, BellId>,
    numbered: u64,
}

struct Plugged {
    token: Token,
    devices: Devices,
    bells: Bells,
    /// Lines of the feeds that have a ring there.
    slots: BTreeSet<u32>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestRegion {
    /// A bell came from the host.
    pub fn ring(&self) {
        if let Some(plugged) = &lock(&self.0).plugged {
            plugged.bells.ring();
        }
    }
}

impl Region for GuestRegion {
    fn ring(&self, at: &InRegion) -> Result<Ring<Mapping>, RegionError> {
        let token: Token = at.token.parse()?;
        let mut state = lock(&self.0);
        if state.plugged.as_ref().is_none_or(|plugged| plugged.token != token) {
            let devices = Devices::find(Path::new(PCI), token, APPEARS_WITHIN)?;
            let bytes_per_second = devices.bandwidth();
            if bytes_per_second < UNCACHED_BELOW {
                eprintln!(
                    "weir: the region is read at {:.0} MB/s: the processor does not cache it",
                    bytes_per_second / 1e6
                );
            }
            let bells = Bells::start(devices.words()?)?;
            state.sleepers.clear();
            state.plugged = Some(Plugged { token, devices, bells, slots: BTreeSet::new() });
        }
        let plugged = state.plugged.as_mut().ok_or("there is no device")?;
        let ring = plugged.devices.ring(&at.place)?;
        plugged.slots.insert(at.place.slot);
        Ok(ring)
    }

    fn attach(
        &self,
        at: &InRegion,
        ring: &Ring<Mapping>,
        waker: Waker,
        first_line: usize,
    ) -> Result<u64, RegionError> {
        let mut state = lock(&self.0);
        let plugged = state.plugged.as_ref().filter(|own| own.token.to_string() == at.token);
        let plugged = plugged.ok_or("the host has taken the devices away")?;
        let bell = plugged.bells.add(at.place.slot, ring.clone(), waker, first_line)?;
        state.numbered += 1;
        let number = state.numbered;
        state.sleepers.insert(number, bell);
        Ok(number)
    }

    fn detach(&self, number: u64) {
        let mut state = lock(&self.0);
        if let Some(bell) = state.sleepers.remove(&number)
            && let Some(plugged) = &state.plugged
        {
            plugged.bells.remove(bell);
        }
    }

    fn let_go(&self, at: &InRegion) {
        let mut state = lock(&self.0);
        let Some(plugged) = own(&mut state, at) else { return };
        plugged.bells.forget_slot(at.place.slot);
        // One that could not be had has none.
        if plugged.slots.remove(&at.place.slot) && plugged.slots.is_empty() {
            state.plugged = None;
            state.sleepers.clear();
        }
    }
}

/// The devices of this feed, if they are still there.
fn own<'a>(state: &'a mut State, at: &InRegion) -> Option<&'a mut Plugged> {
    state.plugged.as_mut().filter(|plugged| plugged.token.to_string() == at.token)
}
