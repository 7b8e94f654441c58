//! Rings in BPF arrays that can be mapped into memory, one ring for each CPU.
//!
//! The order of operations protects the rings: map the first block writable, write it, unmap, freeze. After that,
//! user space can map the array only read-only, by any descriptor, while BPF programs can still write. (A descriptor
//! opened with `BPF_F_RDONLY` cannot be mapped at all.)

use std::os::fd::AsFd;

use libbpf_rs::{MapHandle, MapType};
use libbpf_sys::bpf_map_create_opts;
use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::memory::{self, Access, Trust};
use weir_ring::{Clock, Mapping, Ring, Words, WriterKind, header};

use super::cpus;
use crate::error::CaptureError;
use crate::kernel::map_options;
use crate::setup::Setup;

/// Creates, formats and freezes an array for each of these feeds and each possible CPU, ordered by feed and then by CPU
/// id.
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
    let anywhere = map_options(libbpf_sys::BPF_F_MMAPABLE);
    let make = |options| {
        MapHandle::create(MapType::Array, Some("weir_ring"), 4, BLOCK_BYTES, entries, options)
    };
    let map = match setup.ring_node {
        Some(numa_node) => {
            let map_flags = anywhere.map_flags | libbpf_sys::BPF_F_NUMA_NODE;
            // The kernel refuses a node that is not online; the ring is then allocated on any node.
            make(&bpf_map_create_opts { map_flags, numa_node, ..anywhere })
                .or_else(|_| make(&anywhere))
        }
        None => make(&anywhere),
    };
    let map = map.map_err(|source| no_ring(cpu, entries.into(), source))?;
    let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
    // SAFETY: a BPF array cannot shrink; ring memory is accessed as `Words` only.
    let block = unsafe { Mapping::map(fd, u64::from(BLOCK_BYTES), Access::Write) }?;
    header::format_block_0(block.words(), &spec)?;
    drop(block);
    map.freeze().map_err(refused("freezing a ring"))?;
    Ok(map)
}

/// Maps the rings read-only, as a reader does.
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

/// Returns true if the error has this number. libbpf-rs does not expose the number, so it is read from the text.
pub(crate) fn is(error: &libbpf_rs::Error, errno: i32) -> bool {
    format!("{error:#}").contains(&format!("(os error {errno})"))
}

/// Converts an error of the kernel. EPERM means missing privileges, EACCES a rejection by the verifier. The standard
/// library calls both "permission denied".
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
    fn root_rings_in_the_kernel_prefer_a_node_and_do_without_it() {
        if !weir_lab::testbed::require_root(
            "root_rings_in_the_kernel_prefer_a_node_and_do_without_it",
        ) {
            return;
        }
        for node in [0, 1023, u32::MAX - 1] {
            let ring_bytes = crate::engines::bpf::least_ring_bytes();
            let setup = Setup { ring_bytes, ring_node: Some(node), ..Setup::default() };
            assert!(!create(&setup, 0..1).unwrap().is_empty());
        }
    }

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
