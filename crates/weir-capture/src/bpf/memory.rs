//! Rings in mmapable BPF arrays, one per CPU.
//!
//! The order is what makes them safe: map writable, write the header, unmap, freeze. From then on user
//! space can map the array read-only and not otherwise, whatever descriptor it holds; BPF programs go on
//! writing. (A descriptor opened `BPF_F_RDONLY` could not be mapped at all.)

use std::os::fd::AsFd;

use libbpf_rs::{MapHandle, MapType};
use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::memory::{self, Access};
use weir_ring::{Clock, Mapping, Ring, Words, WriterKind, header};

use crate::error::CaptureError;
use crate::source::Setup;

/// Makes, formats and freezes an array for each possible CPU.
pub(super) fn create(setup: &Setup) -> Result<Vec<MapHandle>, CaptureError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(refused("counting CPUs"))? as u64;
    (0..cpus).map(|cpu| create_one(setup, cpus, cpu as u32)).collect()
}

fn create_one(setup: &Setup, cpus: u64, cpu: u32) -> Result<MapHandle, CaptureError> {
    let spec = setup.ring_spec(cpus, Some(cpu), Clock::Realtime, WriterKind::Bpf)?;
    let entries = spec.data_blocks as u32 + 1;
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let map =
        MapHandle::create(MapType::Array, Some("weir_ring"), 4, BLOCK_BYTES, entries, &options)
            .map_err(refused("a BPF array for a ring"))?;
    let bytes = u64::from(entries) * u64::from(BLOCK_BYTES);
    let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
    let mapping = Mapping::map(fd, bytes, Access::Write)?;
    header::format(mapping.words(), &spec)?;
    drop(mapping);
    map.freeze().map_err(refused("freezing a ring"))?;
    Ok(map)
}

/// Maps the rings as any reader would.
pub(super) fn attach(arrays: &[MapHandle]) -> Result<Vec<Ring<Mapping>>, CaptureError> {
    let attach = |map: &MapHandle| {
        let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
        Ok(memory::attach(fd)?)
    };
    arrays.iter().map(attach).collect()
}

/// What the kernel's refusal means. EPERM is about rights; EACCES is the verifier's no, though both
/// are "permission denied" to the standard library.
pub(super) fn refused(what: &str) -> impl Fn(libbpf_rs::Error) -> CaptureError + Copy + use<'_> {
    move |source| {
        // libbpf-rs keeps the error number to itself, but says it.
        if format!("{source:#}").contains(&format!("(os error {})", libc::EPERM)) {
            let needs = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
            return CaptureError::NoRights { what: "the bpf engine".to_owned(), needs };
        }
        CaptureError::Bpf { what: what.to_owned(), source }
    }
}
