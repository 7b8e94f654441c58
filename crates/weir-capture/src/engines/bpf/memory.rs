//! Rings in mmapable BPF arrays, one per CPU.
//!
//! The order is what makes them safe: map writable, write the header, unmap, freeze. From then on user
//! space can map the array read-only and not otherwise, whatever descriptor it holds; BPF programs go on
//! writing. (A descriptor opened `BPF_F_RDONLY` could not be mapped at all.)

use std::os::fd::AsFd;

use libbpf_rs::{MapHandle, MapType};
use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::memory::{self, Access, Trust};
use weir_ring::{Clock, Mapping, Ring, Words, WriterKind, header};

use super::cpus;
use crate::error::CaptureError;
use crate::kernel::map_options;
use crate::setup::Setup;

/// Makes, formats and freezes an array for each CPU that there may be, in the order of their ids; those of
/// the first of these feeds first.
pub(super) fn create(
    setup: &Setup,
    feeds: std::ops::Range<usize>,
) -> Result<Vec<MapHandle>, CaptureError> {
    let cpus = cpus::entries()?;
    let each = feeds.flat_map(|feed| (0..cpus).map(move |cpu| (feed, cpu)));
    each.map(|(feed, cpu)| create_one(setup, feed, cpus, cpu)).collect()
}

fn create_one(setup: &Setup, feed: usize, cpus: u32, cpu: u32) -> Result<MapHandle, CaptureError> {
    let spec = setup.ring_spec(feed, cpus.into(), Some(cpu), Clock::Realtime, WriterKind::Bpf)?;
    let entries = spec.data_blocks as u32 + 1;
    let mut options = map_options(libbpf_sys::BPF_F_MMAPABLE);
    if let Some(node) = setup.ring_node {
        options.map_flags |= libbpf_sys::BPF_F_NUMA_NODE;
        options.numa_node = node;
    }
    let map =
        MapHandle::create(MapType::Array, Some("weir_ring"), 4, BLOCK_BYTES, entries, &options)
            .map_err(|source| no_ring(cpu, entries.into(), source))?;
    let bytes = u64::from(entries) * u64::from(BLOCK_BYTES);
    let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
    // SAFETY: a BPF array cannot shrink; ring memory is reached as `Words` only.
    let mapping = unsafe { Mapping::map(fd, bytes, Access::Write) }?;
    header::format(mapping.words(), &spec)?;
    drop(mapping);
    map.freeze().map_err(refused("freezing a ring"))?;
    Ok(map)
}

/// Maps the rings as any reader would.
pub(super) fn attach(arrays: &[MapHandle]) -> Result<Vec<Ring<Mapping>>, CaptureError> {
    let attach = |map: &MapHandle| {
        let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
        Ok(memory::attach(fd, Trust::Owner)?)
    };
    arrays.iter().map(attach).collect()
}

fn no_ring(cpu: u32, mib: u64, source: libbpf_rs::Error) -> CaptureError {
    let what = format!("the ring of CPU {cpu}");
    if is(&source, libc::ENOMEM) {
        return CaptureError::NoMemory { what, mib, source };
    }
    refused(&what)(source)
}

/// libbpf-rs keeps the error number to itself, but says it.
pub(super) fn is(error: &libbpf_rs::Error, errno: i32) -> bool {
    format!("{error:#}").contains(&format!("(os error {errno})"))
}

/// What the kernel's refusal means. EPERM is about rights; EACCES is the verifier's no, though both
/// are "permission denied" to the standard library.
pub(crate) fn refused(what: &str) -> impl Fn(libbpf_rs::Error) -> CaptureError + Copy + use<'_> {
    move |source| {
        if is(&source, libc::EPERM) {
            let needs = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
            return CaptureError::NoRights { what: "the bpf engine".to_owned(), needs };
        }
        CaptureError::Bpf { what: what.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_ring_that_finds_no_memory_says_how_much_it_wanted() {
        let errno = |errno| libbpf_rs::Error::from(io::Error::from_raw_os_error(errno));
        let text = no_ring(3, 513, errno(libc::ENOMEM)).to_string();
        for word in ["CPU 3", "513 MiB", "--ring-size", "memory.max"] {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
        assert!(matches!(no_ring(0, 5, errno(libc::EPERM)), CaptureError::NoRights { .. }));
        assert!(matches!(no_ring(0, 5, errno(libc::E2BIG)), CaptureError::Bpf { .. }));
    }
}
