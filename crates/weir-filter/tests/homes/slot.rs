//! A capture program in small, and the slot where it finds its filter. See docs/decisions/0009-filter-homes.md.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use weir_filter::ebpf::Target;

use crate::kernel::{Loaded, insn};

/// What the capture program gives while its slot is empty.
pub const NO_FILTER: u32 = u32::MAX;

/// How the capture program knows the slot's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// It is written into the code: the kernel makes the call a jump, and patches that when the slot changes.
    Constant,
    /// It stands in a map: the kernel looks the slot up at each call.
    Loaded,
}

/// A program array of one slot.
pub struct Slot {
    programs: OwnedFd,
    /// An array of one word, 0: the slot's number.
    number: OwnedFd,
}

fn map(kind: libbpf_sys::bpf_map_type, name: &std::ffi::CStr) -> OwnedFd {
    // SAFETY: the name is terminated; null options mean defaults.
    let fd = unsafe { libbpf_sys::bpf_map_create(kind, name.as_ptr(), 4, 4, 1, ptr::null()) };
    assert!(fd >= 0, "{name:?}: {}", io::Error::from_raw_os_error(-fd));
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

impl Slot {
    pub fn new() -> Slot {
        Slot {
            programs: map(libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY, c"filters"),
            number: map(libbpf_sys::BPF_MAP_TYPE_ARRAY, c"number"),
        }
    }

    pub fn put(&self, filter: &Loaded) {
        let (slot, fd) = (0u32, filter.fd().as_raw_fd());
        // SAFETY: key and value live through the call and are as large as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.programs.as_raw_fd(),
                (&raw const slot).cast(),
                (&raw const fd).cast(),
                0,
            )
        };
        assert_eq!(result, 0, "putting a filter in: {}", io::Error::last_os_error());
    }

    pub fn empty(&self) {
        let slot = 0u32;
        // SAFETY: the key lives through the call and is as large as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_delete_elem(self.programs.as_raw_fd(), (&raw const slot).cast())
        };
        assert_eq!(result, 0, "taking a filter out: {}", io::Error::last_os_error());
    }

    /// Calls the slot's filter, and goes on: it gives the verdict plus 1, so that a filter which ended the
    /// whole program would show.
    pub fn capture(&self, number: Number, target: Target) -> Loaded {
        const LOCAL: u8 = 1;
        const MAP_FD: u8 = 1;
        const MAP_VALUE: u8 = 2;
        const TAIL_CALL: i32 = 12;
        let mut code = vec![
            insn(0x85, 0, LOCAL, 0, 2),
            insn(0x04, 0, 0, 0, 1),
            insn(0x95, 0, 0, 0, 0),
            // The subprogram, its context in r1.
            insn(0x18, 2, MAP_FD, 0, self.programs.as_raw_fd()),
            insn(0, 0, 0, 0, 0),
        ];
        code.extend(match number {
            Number::Constant => vec![insn(0xb7, 3, 0, 0, 0)],
            Number::Loaded => vec![
                insn(0x18, 3, MAP_VALUE, 0, self.number.as_raw_fd()),
                insn(0, 0, 0, 0, 0),
                insn(0x61, 3, 3, 0, 0),
            ],
        });
        code.extend([
            insn(0x85, 0, 0, 0, TAIL_CALL),
            insn(0xb4, 0, 0, 0, NO_FILTER.wrapping_sub(1) as i32),
            insn(0x95, 0, 0, 0, 0),
        ]);
        Loaded::with_subprogram(&code, 3, target).unwrap_or_else(|log| panic!("{target:?}: {log}"))
    }
}
