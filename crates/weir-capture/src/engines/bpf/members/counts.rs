//! The programs' counts for each interface of a source that captures by pattern (`bpf/members.h`).

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use weir_ring::memory::Access;
use weir_ring::{AtomicU64, Mapping, Words};

use crate::engines::bpf::control::{Came, GENERATIONS};
use crate::engines::bpf::program::MemberMaps;
use crate::error::CaptureError;
use crate::limits::{HOOK_FEEDS_MAX, PATTERN_INTERFACES_MAX};

/// As `WEIR_ROWS` in `bpf/members.h`: a row for each interface number.
const ROWS: usize = PATTERN_INTERFACES_MAX as usize + 1;
/// Words of `struct weir_came` and of `struct weir_share`.
const CAME_WORDS: usize = 2 * GENERATIONS;
const SHARE_WORDS: usize = 8;

/// The words of `struct weir_share`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines::bpf) enum Share {
    Chosen,
    Blocked,
    Sampled,
    Captured,
    KeptBytes,
    WireBytes,
    SuperFrames,
    Unreadable,
}

const _: () = assert!(Share::Unreadable as usize + 1 == SHARE_WORDS);

/// The programs' counts: mappings of the maps that contain them.
pub(in crate::engines::bpf) struct Counts {
    came: Mapping,
    shares: Mapping,
    cpus: usize,
}

impl Counts {
    /// Maps the counts of a source with this many places for feeds.
    pub(in crate::engines::bpf) fn map(
        maps: &MemberMaps,
        cpus: usize,
        places: usize,
    ) -> Result<Counts, CaptureError> {
        let came = map(&maps.came, cpus * ROWS * CAME_WORDS)?;
        let shares = map(&maps.shares, places * cpus * ROWS * SHARE_WORDS)?;
        Ok(Counts { came, shares, cpus })
    }

    /// Returns the numbers of frames of an interface that came to a generation of the programs.
    pub(in crate::engines::bpf) fn came(&self, generation: usize, interface: usize) -> Came {
        let sum = |word: usize| {
            let rows = (0..self.cpus).map(|cpu| (cpu * ROWS + interface) * CAME_WORDS + word);
            rows.map(|at| self.came.words()[at].load(Ordering::Acquire)).sum()
        };
        Came { judged: sum(generation), reentry: sum(GENERATIONS + generation) }
    }

    /// Returns a count of an interface in the rings of a place.
    pub(in crate::engines::bpf) fn share(
        &self,
        place: usize,
        interface: usize,
        share: Share,
    ) -> u64 {
        let words = self.row(place, interface).map(|row| &row[share as usize]);
        words.map(|word| word.load(Ordering::Acquire)).sum()
    }

    /// Clears the rows of a place for a new feed. No program may be writing in this place.
    pub(in crate::engines::bpf) fn clear(&self, place: usize, interfaces: usize) {
        let rows = (1..=interfaces).flat_map(|interface| self.row(place, interface));
        rows.flatten().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Returns the row of an interface on each CPU.
    fn row(&self, place: usize, interface: usize) -> impl Iterator<Item = &[AtomicU64]> {
        let rings = place * self.cpus..(place + 1) * self.cpus;
        rings.map(move |ring| {
            let at = (ring * ROWS + interface) * SHARE_WORDS;
            &self.shares.words()[at..at + SHARE_WORDS]
        })
    }
}

fn map(map: &MapHandle, words: usize) -> Result<Mapping, CaptureError> {
    let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
    let bytes = (words * 8).next_multiple_of(4096) as u64;
    // SAFETY: a BPF array cannot shrink, and the mapping consists of whole pages of it; its words are accessed as
    // `AtomicU64` only.
    Ok(unsafe { Mapping::map(fd, bytes, Access::Write) }?)
}

/// Returns the most bytes of memory that the counts take.
pub(in crate::engines::bpf) fn bytes_max(cpus: u64) -> u64 {
    let places = HOOK_FEEDS_MAX as u64 + 1;
    cpus * ROWS as u64 * 8 * (CAME_WORDS as u64 + places * SHARE_WORDS as u64)
}
