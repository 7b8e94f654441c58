//! Page size and NUMA placement of the memory of a new ring.

use std::ptr::NonNull;

use crate::error::RingError;

/// Kind of the pages of a new ring, and when they are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// At once, huge ones where the machine has them: no frame waits for a page, and there is no memory that cannot be
    /// had later.
    #[default]
    Now,
    /// At once, of the huge pages of 2 MiB that the administrator has reserved (`vm.nr_hugepages`), or not at all: huge
    /// pages are then certain, also where memory is in small pieces, and are never swapped out. A ring of an odd number
    /// of MiB, which all are, leaves half a page unused.
    Reserved,
    /// One by one, when they are touched: for simulations, which make rings by the thousand and use little of each.
    /// Other processes refuse such a ring ([`Trust::Anybody`](super::Trust)).
    WhenTouched,
}

/// The kind of a new ring's pages, and their NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Kind of the pages.
    pub pages: Pages,
    /// The node that is preferred; `None`: that of the CPU that makes the ring. Where it has no memory left, or does
    /// not exist, the kernel takes another.
    pub node: Option<u32>,
}

/// Bytes of the huge pages that are used: those of x86-64 and most others.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Pages {
    /// The size of a file for this many bytes.
    pub(super) fn file_bytes(self, bytes: u64) -> u64 {
        match self {
            Pages::Reserved => bytes.next_multiple_of(HUGE_PAGE_BYTES),
            Pages::Now | Pages::WhenTouched => bytes,
        }
    }

    /// The error of a ring that could not be made, in words about its pages where it is about those.
    pub(super) fn explain(self, bytes: u64, error: RingError) -> RingError {
        match error {
            RingError::Os { source, .. } if self == Pages::Reserved && is_about_pages(&source) => {
                RingError::NoHugePages { pages: self.file_bytes(bytes) / HUGE_PAGE_BYTES, source }
            }
            other => other,
        }
    }
}

/// The kernel's errors if all huge pages are taken, or if it has none of this size.
fn is_about_pages(error: &std::io::Error) -> bool {
    const ERRNOS: [i32; 5] = [libc::ENOMEM, libc::EINVAL, libc::ENODEV, libc::ENOSYS, libc::ENOENT];
    error.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno))
}

/// Has the kernel take the pages of a mapping that are still to come from this NUMA node, as long as it has some. A
/// node that does not exist is none: the memory lies where it would have.
pub fn prefer_node(base: NonNull<u8>, bytes: usize, node: u32) {
    const NODES_MAX: usize = 1024; // linux/numa.h: CONFIG_NODES_SHIFT is 10 at most
    let mut nodes = [0u64; NODES_MAX / 64];
    let Some(word) = nodes.get_mut(node as usize / 64) else { return };
    *word |= 1 << (node % 64);
    // The kernel takes one bit less than it is told (mbind(2), BUGS).
    let bits = NODES_MAX + 1;
    // SAFETY: for any address, the contents of memory stay as they are, and so does the place where it is mapped:
    // only pages that are not there yet are concerned. The kernel reads `NODES_MAX` bits of a live array.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            bytes,
            libc::MPOL_PREFERRED,
            nodes.as_ptr(),
            bits,
            0,
        )
    };
}
