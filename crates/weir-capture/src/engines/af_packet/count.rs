//! The socket's filter. It also counts the offered frames, independently of the socket's own statistics.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/af_packet.skel.rs"));
}

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use skel::AfPacketSkelBuilder;
use weir_filter::ebpf::Target;

use super::classic::{Classic, REJECT_ALL};
use super::socket::{Socket, Statistics, attach_classic};
use crate::engines::bpf::memory::is;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::filters::{Prefilter, Sieve, Template, prepare};
use crate::feed::location::FilterLocation;
use crate::kernel::map_options;
use crate::setup::Setup;

/// Entries of the map `offered` of `bpf/af_packet.bpf.c`: received frames, sent frames, unwanted received frames,
/// unwanted sent frames.
const ENTRIES: u32 = 4;
const OFFERED: std::ops::Range<u32> = 0..2;
const UNWANTED: std::ops::Range<u32> = 2..4;

/// Counter of offered frames.
pub(super) enum Counter {
    /// The eBPF filter: a map that counts, on each CPU, the frames of a wanted direction.
    Filter(MapHandle),
    /// The socket's statistics, if the kernel refuses eBPF. They count only the frames that pass the classic filter.
    Socket {
        /// Whether a filter may have rejected frames that are not counted.
        has_left_out: Arc<AtomicBool>,
    },
}

impl Counter {
    /// Attaches the eBPF filter to the socket. If the kernel refuses it, attaches a classic filter, and also returns a
    /// note with the reason.
    pub(super) fn attach(
        socket: &Arc<Socket>,
        setup: &Setup,
    ) -> Result<(Counter, AtSocket, Option<String>), CaptureError> {
        let own = Arc::clone(socket);
        match attach_ebpf(socket, setup) {
            Ok((counts, sieve)) => Ok((Counter::Filter(counts), AtSocket::Sieve(own, sieve), None)),
            Err(error) => {
                let classic = Classic::attach(socket, setup);
                let classic = classic.map_err(CaptureError::os("filtering"))?;
                let way_out = match is(&error, libc::EPERM) {
                    true => "; for that, run with CAP_BPF",
                    false => "",
                };
                let note = format!(
                    "offered frames are counted by the packet socket itself, not by a counter of \
                     their own, because BPF programs cannot be loaded here ({error}){way_out}"
                );
                let counter = Counter::Socket { has_left_out: classic.has_left_out() };
                Ok((counter, AtSocket::Classic(own, classic), Some(note)))
            }
        }
    }

    /// Returns the number of frames offered so far.
    pub(super) fn offered(&self, statistics: Statistics) -> Result<u64, CaptureError> {
        let Counter::Filter(counts) = self else { return Ok(statistics.packets) };
        sum(counts, OFFERED)
    }

    /// Returns the number of offered frames that no feed wanted and that the socket therefore did not accept.
    pub(super) fn unwanted(&self) -> Result<u64, CaptureError> {
        let Counter::Filter(counts) = self else { return Ok(0) };
        sum(counts, UNWANTED)
    }

    /// Returns true if the filter may have rejected frames that no counter counts.
    pub(super) fn has_uncounted(&self) -> bool {
        matches!(self, Counter::Socket { has_left_out } if has_left_out.load(Ordering::Relaxed))
    }
}

/// A socket and the filter that is attached to it.
pub(super) enum AtSocket {
    Sieve(Arc<Socket>, Sieve),
    Classic(Arc<Socket>, Classic),
}

impl AtSocket {
    /// Returns a note for the user about the feeds' filters; `None` if there is nothing to report.
    pub(super) fn note(&self, may_change: bool) -> Option<String> {
        let AtSocket::Classic(_, classic) = self else { return None };
        classic.note(may_change)
    }
}

impl Prefilter for AtSocket {
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError> {
        let (is_all, location) = match self {
            AtSocket::Sieve(socket, sieve) => {
                (sieve.choose(feeds, |program| socket.attach_ebpf(program)), FilterLocation::Hook)
            }
            AtSocket::Classic(socket, classic) => {
                (classic.choose(socket, feeds), FilterLocation::Classic)
            }
        };
        let is_all = is_all.map_err(CaptureError::os("exchanging the socket's filter"))?;
        Ok(is_all.then_some(location))
    }
}

/// Adds up these entries over all CPUs.
fn sum(counts: &MapHandle, entries: std::ops::Range<u32>) -> Result<u64, CaptureError> {
    let failed = |source| CaptureError::Bpf { what: "reading a counter".into(), source };
    let count = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
    let mut all = 0;
    for entry in entries {
        let by_cpu = counts.lookup_percpu(&entry.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        all += by_cpu.into_iter().flatten().map(count).sum::<u64>();
    }
    Ok(all)
}

/// Makes the socket reject all frames, and waits until no run of its earlier filter is in progress.
pub(super) fn reject_all(socket: &Socket) -> Result<(), CaptureError> {
    attach_classic(socket.as_fd(), &REJECT_ALL).map_err(CaptureError::os("ending the offering"))?;
    crate::kernel::rcu::synchronize()
}

fn attach_ebpf(socket: &Socket, setup: &Setup) -> Result<(MapHandle, Sieve), libbpf_rs::Error> {
    let direction = setup.direction();
    // The map is created first and separately: without privileges this fails with one error, whereas libbpf would print
    // a long message about the program.
    let options = map_options(0);
    let offered =
        MapHandle::create(MapType::PercpuArray, Some("offered"), 4, 8, ENTRIES, &options)?;
    let mut object = MaybeUninit::uninit();
    let mut open = AfPacketSkelBuilder::default().open(&mut object)?;
    open.maps.offered.reuse_fd(offered.as_fd())?;
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
    Ok((offered, sieve))
}

/// Attaches a program that decides which frames the socket accepts. The result can replace it later by programs of its
/// template.
pub(super) fn put_on(
    socket: &Socket,
    template: Template,
    program: BorrowedFd<'_>,
) -> Result<Sieve, libbpf_rs::Error> {
    socket.attach_ebpf(program).map_err(|error| {
        libbpf_rs::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EINVAL))
    })?;
    Ok(Sieve::new(template, program.try_clone_to_owned()?))
}
