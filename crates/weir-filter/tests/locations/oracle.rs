//! libpcap's compiler, and its interpreter, whose verdict is the reference for all others.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use pcap as _; // links libpcap
use weir_filter::{Insn, Program};
pub use weir_lab::verdict::libpcap as run;

/// `struct bpf_program` of pcap/bpf.h.
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

/// Compiles for Ethernet. Panics if libpcap refuses the text.
#[track_caller]
pub fn compile(text: &str) -> Program {
    let c_text = CString::new(text).expect("no zero bytes");
    let mut program = BpfProgram { len: 0, insns: ptr::null_mut() };
    // SAFETY: the handle is used between its opening and closing only, the text is terminated and the
    // program lives through the calls; libpcap owns the instructions until they are freed here.
    unsafe {
        let handle = pcap_open_dead(1, 262_144);
        let result = pcap_compile(handle, &raw mut program, c_text.as_ptr(), 1, u32::MAX);
        let error = CStr::from_ptr(pcap_geterr(handle)).to_string_lossy().into_owned();
        assert_eq!(result, 0, "'{text}': {error}");
        let insns = std::slice::from_raw_parts(program.insns, program.len as usize).to_vec();
        pcap_freecode(&raw mut program);
        pcap_close(handle);
        Program::new(insns).unwrap_or_else(|error| panic!("'{text}': {error}"))
    }
}
