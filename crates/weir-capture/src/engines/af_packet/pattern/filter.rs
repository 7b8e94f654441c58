//! The socket's filter for a pattern of interfaces: it accepts the frames of members, and counts the frames of each
//! member.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/af_packet_pattern.skel.rs"));
}

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use skel::AfPacketPatternSkelBuilder;
use weir_filter::ebpf::Target;

use super::super::count::{AtSocket, put_on};
use super::super::socket::Socket;
use crate::engines::bpf::memory::is;
use crate::error::CaptureError;
use crate::feed::filters::{Template, prepare};
use crate::feed::interfaces::{EngineCount, EngineCounts};
use crate::kernel::map_options;
use crate::limits::PATTERN_INTERFACES_MAX;
use crate::setup::Setup;

/// Bytes of `struct weir_counts` of `bpf/af_packet_pattern.bpf.c`: received frames, sent frames, unwanted received
/// frames, unwanted sent frames.
const COUNTS_BYTES: u32 = 32;
/// The key of the sums over all members in the map `by_member`.
const ALL: u32 = 0;

/// The filter's maps. Clones share them.
#[derive(Clone)]
pub(super) struct Maps {
    shared: Arc<SharedMaps>,
}

struct SharedMaps {
    members: MapHandle,
    by_member: MapHandle,
    /// Losses that the interfaces report, by their number in the rings; index 0 is not used.
    missed: Mutex<Vec<Option<u64>>>,
}

impl Maps {
    /// Attaches the filter to the socket. It has no members yet, so it accepts no frame.
    pub(super) fn attach(
        socket: &Arc<Socket>,
        setup: &Setup,
    ) -> Result<(Maps, AtSocket), CaptureError> {
        attach(socket, setup).map_err(|source| match is(&source, libc::EPERM) {
            true => CaptureError::NoRights {
                what: format!(
                    "{}: counting the frames of each interface (a single one, as in `weir capture eth0`, needs only \
                     CAP_NET_RAW)",
                    socket.name()
                ),
                needs: "CAP_BPF",
            },
            false => CaptureError::Bpf { what: "loading the socket's filter".into(), source },
        })
    }

    /// Adds a member: from now on frames of this interface are offered, and counted under this number.
    pub(super) fn insert(&self, ifindex: u32, number: u32) -> Result<(), CaptureError> {
        let (key, value) = (ifindex.to_ne_bytes(), number.to_ne_bytes());
        self.shared
            .members
            .update(&key, &value, MapFlags::ANY)
            .map_err(|source| CaptureError::Bpf { what: "adding an interface".into(), source })
    }

    /// Removes a member: from now on frames of this interface are not offered. Filter runs in progress may still count
    /// a frame.
    pub(super) fn remove(&self, ifindex: u32) {
        // This fails only if the interface was never added.
        let _ = self.shared.members.delete(&ifindex.to_ne_bytes());
    }

    /// Returns the sums over all members: the offered frames, and the offered frames that no feed wanted.
    pub(super) fn sums(&self) -> Result<(u64, u64), CaptureError> {
        self.shared.counts(ALL)
    }

    /// Stores the losses that the interface with this number reports. The stored count never decreases.
    pub(super) fn set_missed(&self, number: u32, frames: Option<u64>) {
        let mut missed = self.shared.missed();
        let at = number as usize;
        if missed.len() <= at {
            missed.resize(at + 1, None);
        }
        // The counters of a removed interface cannot be read; its number keeps the last known count.
        missed[at] = missed[at].max(frames);
    }

    /// Returns the losses reported so far under this number, by successive interfaces of one name and owner.
    pub(super) fn missed_of(&self, number: u32) -> Option<u64> {
        self.shared.missed().get(number as usize).copied().flatten()
    }

    /// Returns the sum of the losses that all interfaces report; `None` if no interface reports any.
    pub(super) fn missed(&self) -> Option<u64> {
        self.shared.missed().iter().flatten().copied().reduce(|a, b| a + b)
    }
}

impl EngineCounts for Maps {
    fn of(&self, interface: u32) -> Result<EngineCount, CaptureError> {
        let (offered, unwanted) = self.shared.counts(interface)?;
        let missed_before = self.missed_of(interface);
        Ok(EngineCount { offered, unwanted, missed_before })
    }
}

impl SharedMaps {
    fn counts(&self, number: u32) -> Result<(u64, u64), CaptureError> {
        let failed = |source| CaptureError::Bpf { what: "reading a counter".into(), source };
        let by_cpu = self.by_member.lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY);
        let (mut offered, mut unwanted) = (0, 0);
        for counts in by_cpu.map_err(failed)?.into_iter().flatten() {
            let words = counts.as_chunks::<8>().0;
            let count = |at: usize| words.get(at).map_or(0, word);
            offered += count(0) + count(1);
            unwanted += count(2) + count(3);
        }
        Ok((offered, unwanted))
    }

    /// Locks the reported losses. The data is valid even if a thread panicked while it held the lock.
    fn missed(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn word(bytes: &[u8; 8]) -> u64 {
    u64::from_ne_bytes(*bytes)
}

fn attach(socket: &Arc<Socket>, setup: &Setup) -> Result<(Maps, AtSocket), libbpf_rs::Error> {
    let direction = setup.direction();
    let options = map_options(0);
    // The maps are created first and separately: without privileges this fails with one error, whereas libbpf would
    // print a long message about the program.
    let map = |kind, name, value_bytes, entries| {
        MapHandle::create(kind, Some(name), 4, value_bytes, entries, &options)
    };
    let members = map(MapType::Hash, "members", 4, PATTERN_INTERFACES_MAX)?;
    let entries = PATTERN_INTERFACES_MAX + 1;
    let by_member = map(MapType::PercpuArray, "by_member", COUNTS_BYTES, entries)?;
    let mut object = MaybeUninit::uninit();
    let mut open = AfPacketPatternSkelBuilder::default().open(&mut object)?;
    open.maps.members.reuse_fd(members.as_fd())?;
    open.maps.by_member.reuse_fd(by_member.as_fd())?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.take_in = u32::from(direction.takes_in());
    rodata.take_out = u32::from(direction.takes_out());
    rodata.snaplen = setup.bytes_needed();
    rodata.with_filters = u32::from(setup.may_have_filters());
    prepare(open.open_object())?;
    let object = open.open_object();
    let program = &open.progs.weir_count;
    let template = Template::take(object, program, Target::Socket, c"weir_judge", None)?;
    let skel = open.load()?;
    let sieve = put_on(socket, template, skel.progs.weir_count.as_fd())?;
    let shared = SharedMaps { members, by_member, missed: Mutex::default() };
    Ok((Maps { shared: Arc::new(shared) }, AtSocket::Sieve(Arc::clone(socket), sieve)))
}
