//! Calls libpcap's compiler for a link type.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use pcap as _; // links libpcap
use weir_filter::Insn;

/// The length to which the program cuts accepted frames. Weir applies its own snaplen, so this is the largest snaplen
/// of libpcap.
const SNAPLEN: c_int = 262_144;
/// The netmask of the interface is not known: `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: c_uint = u32::MAX;

/// `LINKTYPE_RAW` of files: IP without a link layer. `DLT_RAW` is libpcap's number for it on Linux.
const RAW_IP: u16 = 101;
const DLT_RAW: c_int = 12;

/// `struct bpf_program`, pcap/bpf.h.
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

/// A handle without an interface.
pub(crate) struct Dead(NonNull<c_void>);

impl Dead {
    /// Opens a handle for a link type as in pcapng (`LINKTYPE_...`). `None`: no memory.
    pub(crate) fn new(link_type: u16) -> Option<Dead> {
        // Files and libpcap use the same numbers, except for a few link types that systems disagree on.
        let number = if link_type == RAW_IP { DLT_RAW } else { c_int::from(link_type) };
        // SAFETY: only numbers are passed; the result is null or a handle that we must close.
        NonNull::new(unsafe { pcap_open_dead(number, SNAPLEN) }).map(Dead)
    }

    /// Compiles an expression, with optimisation.
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
        // SAFETY: a compiled program has `len` instructions, at least one, with the layout of `Insn` (`repr(C)`, as
        // `struct bpf_insn`). libpcap allocated them, and they are freed here once.
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
