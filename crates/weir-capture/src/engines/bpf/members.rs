//! The interfaces of a source that captures by pattern: their numbers, and the programs' counts of each.

mod counts;

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_ring::{Mapping, Ring};

use super::program::{MemberMaps, Programs};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::interfaces::Interfaces;

pub(super) use counts::{Counts, Share, bytes_max};

/// The interfaces of a source that captures by pattern.
pub(super) struct Members {
    pub(super) interfaces: Interfaces,
    pub(super) counts: Counts,
    /// The programs' map from the kernel's interface index to the interface's number.
    members: MapHandle,
    /// Losses that the interfaces report, indexed by the interface's number.
    missed: Mutex<Vec<Option<u64>>>,
}

impl Members {
    pub(super) fn new(
        pattern: String,
        maps: MemberMaps,
        cpus: usize,
        places: usize,
    ) -> Result<Members, CaptureError> {
        Ok(Members {
            interfaces: Interfaces::new(pattern),
            counts: Counts::map(&maps, cpus, places)?,
            members: maps.members,
            missed: Mutex::default(),
        })
    }

    /// Adds the descriptions of all interfaces so far to the rings of a new feed. The caller holds the lock of the
    /// state, so that no interface joins meanwhile.
    pub(super) fn describe_all(
        &self,
        programs: &Programs,
        first: usize,
        rings: &[Ring<Mapping>],
        feed: &Feed,
    ) -> Result<(), CaptureError> {
        for known in self.interfaces.known() {
            let described =
                self.interfaces.describe(&feed.interface, &known.name, known.owner.as_ref());
            programs.append_interface(first, rings, &described)?;
        }
        Ok(())
    }

    /// Adds an interface: from now on the programs take its frames, under this number.
    pub(super) fn insert(&self, ifindex: u32, number: u32) -> Result<(), CaptureError> {
        let (key, value) = (ifindex.to_ne_bytes(), number.to_ne_bytes());
        self.members.update(&key, &value, MapFlags::ANY).map_err(refused)
    }

    /// Removes an interface: from now on the programs take none of its frames. Programs that are running may still
    /// write a frame.
    pub(super) fn remove(&self, ifindex: u32) {
        // This fails only if the interface was never added.
        let _ = self.members.delete(&ifindex.to_ne_bytes());
    }

    /// Stores the losses that interfaces report, by number. Returns the sum over all interfaces; `None` if no interface
    /// reports any.
    pub(super) fn set_missed(&self, of: impl Iterator<Item = (u32, Option<u64>)>) -> Option<u64> {
        let mut missed = self.missed();
        for (number, frames) in of {
            let at = number as usize;
            if missed.len() <= at {
                missed.resize(at + 1, None);
            }
            // The counters of a removed interface cannot be read; its number keeps the last known count.
            missed[at] = missed[at].max(frames);
        }
        missed.iter().flatten().copied().reduce(|a, b| a + b)
    }

    /// Returns the losses that the interfaces with this number have reported.
    pub(super) fn missed_of(&self, number: u32) -> Option<u64> {
        self.missed().get(number as usize).copied().flatten()
    }

    /// Locks the reported losses. The data is valid even if a thread panicked while it held the lock.
    pub(super) fn missed(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(source: libbpf_rs::Error) -> CaptureError {
    CaptureError::Bpf { what: "adding an interface".into(), source }
}
