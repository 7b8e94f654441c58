//! State of a source by pattern for its interfaces: their numbers, and the counts of the programs for
//! each.

mod counts;

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_ring::{Mapping, Ring};

use super::program::{MemberMaps, Programs};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::interfaces::Interfaces;

pub(super) use counts::{Counts, Share, bytes_max};

/// State of a source for its interfaces.
pub(super) struct Members {
    pub(super) interfaces: Interfaces,
    pub(super) counts: Counts,
    /// Numbers, by the kernel's index.
    members: MapHandle,
    /// Losses that the interfaces themselves report, by number.
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

    /// Has the rings of a feed that joins describe the interfaces so far. None joins meanwhile: the caller has the lock
    /// of the state.
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

    /// From here on the programs take frames of this interface, under this number.
    pub(super) fn insert(&self, ifindex: u32, number: u32) -> Result<(), CaptureError> {
        let (key, value) = (ifindex.to_ne_bytes(), number.to_ne_bytes());
        self.members.update(&key, &value, MapFlags::ANY).map_err(refused)
    }

    /// From here on, no more. Programs that run may write a frame yet.
    pub(super) fn remove(&self, ifindex: u32) {
        // It is there, or was never put there.
        let _ = self.members.delete(&ifindex.to_ne_bytes());
    }

    /// Takes over what an interface says that it lost; gives what all of them do, `None` if nobody can tell.
    pub(super) fn set_missed(&self, of: impl Iterator<Item = (u32, Option<u64>)>) -> Option<u64> {
        let mut missed = self.missed();
        for (number, frames) in of {
            let at = number as usize;
            if missed.len() <= at {
                missed.resize(at + 1, None);
            }
            // One that is gone cannot be asked, and says no more than others did before it.
            missed[at] = missed[at].max(frames);
        }
        missed.iter().flatten().copied().reduce(|a, b| a + b)
    }

    /// Losses that the interfaces of one number reported.
    pub(super) fn missed_of(&self, number: u32) -> Option<u64> {
        self.missed().get(number as usize).copied().flatten()
    }

    /// Plain numbers: valid even if a thread panicked while holding them.
    pub(super) fn missed(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(source: libbpf_rs::Error) -> CaptureError {
    CaptureError::Bpf { what: "adding an interface".into(), source }
}
