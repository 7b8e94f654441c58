//! The filters of all feeds in the kernel: one program, which the program at the hook or socket calls, and which is
//! exchanged while frames go by (docs/decisions/0009-filter-homes.md).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_filter::Program;
use weir_filter::ebpf::{self, Target};

use crate::feed::Feed;

/// A program of filters, in the kernel.
pub(crate) struct Filters(OwnedFd);

impl Filters {
    /// Has the kernel take the feeds' filters as one program; `None` if it does not, or if they are too long. The
    /// reason makes no difference: filters that are not here run in user space.
    pub(crate) fn load(target: Target, feeds: &[Feed]) -> Option<Filters> {
        let programs: Vec<Option<&Program>> =
            feeds.iter().map(|feed| feed.filter.as_ref().map(|filter| &filter.program)).collect();
        let code = ebpf::convert_set(&programs, target).ok()?;
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let kind = match target {
            Target::Tc => libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            Target::Socket => libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER,
            Target::User => return None,
            Target::Xdp => {
                // As libbpf loads the capture program: one array holds programs of one kind.
                options.expected_attach_type = libbpf_sys::BPF_XDP;
                options.prog_flags = libbpf_sys::BPF_F_XDP_HAS_FRAGS;
                libbpf_sys::BPF_PROG_TYPE_XDP
            }
        };
        // SAFETY: name and license are terminated, the code lives through the call with its true length, and the
        // options are whole and say their size.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                kind,
                c"weir_filters".as_ptr(),
                c"Dual MIT/GPL".as_ptr(),
                code.as_ptr().cast(),
                code.len() as libbpf_sys::size_t,
                ptr::from_mut(&mut options),
            )
        };
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        (fd >= 0).then(|| Filters(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Puts the program where it is called, in place of the one that was there. Each frame sees the
    /// one or the other whole.
    pub(crate) fn put(&self, slots: &MapHandle) -> Result<(), libbpf_rs::Error> {
        let fd = self.0.as_fd().as_raw_fd();
        slots.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
    }
}

/// Takes away what is called: every feed gets every frame from here on.
pub(crate) fn take_away(slots: &MapHandle) -> Result<(), libbpf_rs::Error> {
    slots.delete(&0u32.to_ne_bytes())
}
