//! Page size and NUMA placement of the memory of a new ring.

use std::ptr::NonNull;

use crate::error::RingError;

/// Kind of the pages of a new ring, and when they are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Allocated when the ring is created, as huge pages where the machine has them. So no frame waits for a page, and
    /// memory cannot be missing later.
    #[default]
    Now,
    /// Allocated when the ring is created, only from the huge pages of 2 MiB that the administrator has reserved
    /// (`vm.nr_hugepages`). So all pages are huge, even if memory is fragmented, and they are never swapped out. Every
    /// ring has an odd number of MiB, so half of its last page is unused.
    Reserved,
    /// Ordinary pages, each allocated on first access: for simulations, which create thousands of rings and use little
    /// of each. Other processes refuse such a ring ([`Trust::Anybody`](super::Trust)).
    WhenTouched,
}

/// The kind of the pages of a new ring, and their NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Kind of the pages.
    pub pages: Pages,
    /// The preferred node; `None`: that of the CPU that creates the ring. If the node has no free memory or does not
    /// exist, the kernel allocates from another node.
    pub node: Option<u32>,
}

/// Size of the huge pages that are used: that of x86-64 and of most other architectures.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Pages {
    /// Returns the size of a file for this many bytes.
    pub(super) fn file_bytes(self, bytes: u64) -> u64 {
        match self {
            Pages::Reserved => bytes.next_multiple_of(HUGE_PAGE_BYTES),
            Pages::Now | Pages::WhenTouched => bytes,
        }
    }

    /// Turns an error of creating a ring into [`RingError::NoHugePages`] if reserved huge pages are missing.
    pub(super) fn explain(self, bytes: u64, error: RingError) -> RingError {
        match error {
            RingError::Os { source, .. } if self == Pages::Reserved && is_about_pages(&source) => {
                RingError::NoHugePages { pages: self.file_bytes(bytes) / HUGE_PAGE_BYTES, source }
            }
            other => other,
        }
    }
}

/// Whether the kernel returns this error if all huge pages are in use, or if it has none of this size.
fn is_about_pages(error: &std::io::Error) -> bool {
    const ERRNOS: [i32; 5] = [libc::ENOMEM, libc::EINVAL, libc::ENODEV, libc::ENOSYS, libc::ENOENT];
    error.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno))
}

/// Makes the kernel prefer this NUMA node when it allocates pages of a mapping that are not yet allocated. A node that
/// does not exist has no effect.
pub fn prefer_node(base: NonNull<u8>, bytes: usize, node: u32) {
    const NODES_MAX: usize = 1024; // linux/numa.h: CONFIG_NODES_SHIFT is 10 at most
    let mut nodes = [0u64; NODES_MAX / 64];
    let Some(word) = nodes.get_mut(node as usize / 64) else { return };
    *word |= 1 << (node % 64);
    // The kernel uses one bit less than it is given (mbind(2), BUGS).
    let bits = NODES_MAX + 1;
    // SAFETY: at any address, this call changes neither the contents of memory nor its mapping: it affects only pages
    // that are not yet allocated. The kernel reads `NODES_MAX` bits of a live array.
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
