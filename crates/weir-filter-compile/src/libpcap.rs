//! libpcap's compiler on a link type.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use pcap as _; // links libpcap
use weir_filter::Insn;

/// Length to which the program says that accepted frames are cut; Weir's snaplen is another matter, so:
/// not at all. libpcap's own greatest.
const SNAPLEN: c_int = 262_144;
/// Addresses' networks are not known: `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: c_uint = u32::MAX;

/// `LINKTYPE_RAW` of files: IP without a link layer. And what libpcap calls it on Linux.
const RAW_IP: u16 = 101;
const DLT_RAW: c_int = 12;

/// pcap/bpf.h.
#[repr(C)]
struct BpfProgram {
    len: c_uint,
    insns: *mut Insn,
}

unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut c_void;
    fn pcap_close(handle: *mut c_void);
    fn pcap_geterr(handle: *mut c_void) -> *mut c_char;
    fn pcap_compile(
        handle: *mut c_void,
        program: *mut BpfProgram,
        text: *const c_char,
        optimize: c_int,
        netmask: c_uint,
    ) -> c_int;
    fn pcap_freecode(program: *mut BpfProgram);
}

/// A handle on no interface.
pub(crate) struct Dead(NonNull<c_void>);

impl Dead {
    /// Of a link type as in pcapng (`LINKTYPE_...`). `None`: no memory.
    pub(crate) fn new(link_type: u16) -> Option<Dead> {
        // Files and libpcap number link types alike, but for a few that systems disagree on.
        let number = if link_type == RAW_IP { DLT_RAW } else { c_int::from(link_type) };
        // SAFETY: numbers only; null or a handle that is ours to close.
        NonNull::new(unsafe { pcap_open_dead(number, SNAPLEN) }).map(Dead)
    }

    /// Compiles, optimised.
    ///
    /// # Errors
    /// libpcap's message.
    pub(crate) fn compile(&self, text: &CString) -> Result<Vec<Insn>, String> {
        let mut program = BpfProgram { len: 0, insns: ptr::null_mut() };
        // SAFETY: the handle is open as long as `self` lives; the text is terminated, and it and the program
        // live through the call.
        let result = unsafe {
            pcap_compile(self.0.as_ptr(), &raw mut program, text.as_ptr(), 1, NETMASK_UNKNOWN)
        };
        if result != 0 {
            // SAFETY: the handle is open; its message is terminated, and copied before anything else is
            // done with the handle.
            let message = unsafe { CStr::from_ptr(pcap_geterr(self.0.as_ptr())) };
            return Err(message.to_string_lossy().into_owned());
        }
        // SAFETY: a compiled program has `len` instructions, more than none, laid out as `Insn` (its
        // `repr(C)` is `struct bpf_insn`), and they are libpcap's until they are freed here, once.
        unsafe {
            let insns = std::slice::from_raw_parts(program.insns, program.len as usize).to_vec();
            pcap_freecode(&raw mut program);
            Ok(insns)
        }
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        // SAFETY: opened by `new`, closed only here.
        unsafe { pcap_close(self.0.as_ptr()) };
    }
}
