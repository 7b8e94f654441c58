//! libpcap's types and numbers. Source: pcap/pcap.h, pcap/bpf.h.

use std::ffi::{c_char, c_int, c_uchar, c_uint};

/// A capture handle of the real libpcap.
#[repr(C)]
pub struct Pcap {
    _opaque: [u8; 0],
}

/// An output file of the real libpcap.
#[repr(C)]
pub struct Dumper {
    _opaque: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PacketHeader {
    /// Time of capture: seconds, and micro- or nanoseconds.
    pub ts: libc::timeval,
    /// Bytes that were kept of the frame.
    pub caplen: u32,
    /// Bytes of the frame on the wire.
    pub len: u32,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Insn {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
pub struct Program {
    pub len: c_uint,
    pub insns: *mut Insn,
}

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    pub recv: c_uint,
    pub drop: c_uint,
    pub ifdrop: c_uint,
}

/// `struct pcap_if`.
#[repr(C)]
pub struct Interface {
    pub next: *mut Interface,
    pub name: *mut c_char,
    pub description: *mut c_char,
    pub addresses: *mut libc::c_void,
    pub flags: u32,
}

/// `pcap_handler`. A callback in C++ may throw an exception.
pub type Handler = unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar);

pub const ERRBUF_SIZE: usize = 256;

pub const ERROR: c_int = -1;
pub const ERROR_BREAK: c_int = -2;
pub const ERROR_NOT_ACTIVATED: c_int = -3;
pub const ERROR_ACTIVATED: c_int = -4;
pub const ERROR_NO_SUCH_DEVICE: c_int = -5;
pub const ERROR_RFMON_NOTSUP: c_int = -6;
pub const ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
pub const WARNING_TSTAMP_TYPE_NOTSUP: c_int = 3;

pub const TSTAMP_HOST: c_int = 0;
pub const TSTAMP_PRECISION_MICRO: c_int = 0;
pub const TSTAMP_PRECISION_NANO: c_int = 1;

pub const D_INOUT: c_int = 0;
pub const D_IN: c_int = 1;
pub const D_OUT: c_int = 2;

pub const NETMASK_UNKNOWN: u32 = 0xffff_ffff;
pub const DLT_EN10MB: c_int = 1;

pub const IF_UP: u32 = 0x2;
pub const IF_RUNNING: u32 = 0x4;
pub const IF_CONNECTED: u32 = 0x10;
