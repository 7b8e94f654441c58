//! For tests: frames that the drivers available in tests do not produce.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;

use super::port::Port;
use super::{QINQ, STAMPED, VLAN, result};

#[repr(C)]
struct RawMade {
    data: *const u8,
    stamp: u64,
    len: u32,
    part: u32,
    flags: u32,
    tci: u16,
    tci_outer: u16,
}

unsafe extern "C" {
    fn weir_make(ring: *const c_char, pool: *mut c_void, made: *const RawMade) -> c_int;
}

/// The bytes of a frame, and how its mbufs hold them: in parts of `part` bytes, one in each mbuf; 0: in a single mbuf.
#[derive(Default)]
pub(crate) struct Made<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) part: u32,
    pub(crate) outer_tci: Option<u16>,
    pub(crate) tci: Option<u16>,
    pub(crate) stamp: Option<u64>,
}

impl Port {
    /// Puts a frame into a DPDK ring from which a `net_ring` port receives.
    pub(crate) fn make(&self, ring: &CStr, made: &Made<'_>) -> io::Result<()> {
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let raw = RawMade {
            data: made.bytes.as_ptr(),
            stamp: made.stamp.unwrap_or_default(),
            len: made.bytes.len() as u32,
            part: made.part,
            flags: flag(made.tci.is_some(), VLAN)
                | flag(made.outer_tci.is_some(), QINQ)
                | flag(made.stamp.is_some(), STAMPED),
            tci: made.tci.unwrap_or_default(),
            tci_outer: made.outer_tci.unwrap_or_default(),
        };
        // SAFETY: the string, the bytes and the struct live through the call; the pool is that of this port, which was
        // set up.
        result(unsafe { weir_make(ring.as_ptr(), self.pool, &raw const raw) })
    }
}
