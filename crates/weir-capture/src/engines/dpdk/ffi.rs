//! Calls DPDK through `shim.c`: all `unsafe` code of this engine is in this file and in the folder `ffi`.
//!
//! A [`Port`] owns its device, a [`Rx`] owns one of its queues, and a [`Burst`](rx::Burst) owns the mbufs of one turn.
//! Each of them has one `Drop` and no `Clone`.

#[cfg(test)]
pub(super) mod made;
mod port;
mod rx;

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::null_mut;
use std::thread::JoinHandle;

pub(super) use port::{Facts, Port};
pub(super) use rx::{BURST, Entered, Frame, Rx};

/// Bits of `weir_frame.flags`. They tell which data a frame has in addition to its bytes.
const STAMPED: u32 = 1;
const VLAN: u32 = 2;
const QINQ: u32 = 4;
const PARTS: u32 = 8;

/// `struct weir_frame` of shim.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawFrame {
    data: *const u8,
    stamp: u64,
    caplen: u32,
    wire_len: u32,
    flags: u32,
    tci: u16,
    tci_outer: u16,
}
const _: () = assert!(size_of::<RawFrame>() == 32, "as in shim.h");

/// `struct weir_facts` of shim.h.
#[repr(C)]
struct RawFacts {
    driver: [c_char; 64],
    device: [c_char; 64],
    virtual_device: u32,
    max_rx_queues: u32,
    min_rx_bufsize: u32,
    can_stamp: u32,
    can_scatter: u32,
}
const _: () = assert!(size_of::<RawFacts>() == 148, "as in shim.h");

/// Settings of a port: `struct weir_port_setup` of shim.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PortSetup {
    pub(super) queues: u32,
    /// Descriptors of each queue. [`Port::set_up`] replaces the number by the one that the driver uses.
    pub(super) descriptors: u32,
    pub(super) mbufs: u32,
    /// Bytes of a frame that fit into one mbuf.
    pub(super) room_bytes: u32,
    /// 1: the driver sets time stamps.
    pub(super) stamps: u32,
    /// 1: a frame may take several mbufs.
    pub(super) scatter: u32,
}
const _: () = assert!(size_of::<PortSetup>() == 24, "as in shim.h");

/// `struct weir_port` of shim.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawPort {
    stamp_flag: u64,
    stamp_offset: i32,
    id: u16,
}
const _: () = assert!(size_of::<RawPort>() == 16, "as in shim.h");

/// A port's statistics: `struct weir_counts` of shim.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) packets: u64,
    pub(super) missed: u64,
    pub(super) errors: u64,
    pub(super) no_mbuf: u64,
}

impl Counts {
    /// Returns the counts since `base`.
    pub(super) fn since(self, base: Counts) -> Counts {
        Counts {
            packets: self.packets.saturating_sub(base.packets),
            missed: self.missed.saturating_sub(base.missed),
            errors: self.errors.saturating_sub(base.errors),
            no_mbuf: self.no_mbuf.saturating_sub(base.no_mbuf),
        }
    }
}

unsafe extern "C" {
    fn weir_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn weir_said(text: *mut c_char, room: usize) -> usize;
    fn weir_probe(devargs: *const c_char, id: *mut u16) -> c_int;
    fn weir_facts(id: u16, facts: *mut RawFacts) -> c_int;
    fn weir_setup(id: u16, setup: *mut PortSetup, pool: *mut *mut c_void) -> c_int;
    fn weir_start(id: u16, port: *mut RawPort) -> c_int;
    fn weir_promiscuous(id: u16, on: c_int) -> c_int;
    fn weir_mtu(id: u16, mtu: u16) -> c_int;
    fn weir_counts(id: u16, counts: *mut Counts) -> c_int;
    fn weir_is_removed(id: u16) -> c_int;
    fn weir_link_down(id: u16) -> c_int;
    fn weir_close(id: u16, pool: *mut c_void) -> c_int;
    fn weir_enter();
    fn weir_leave();
    fn weir_burst(
        port: *const RawPort,
        queue: u16,
        mbufs: *mut *mut c_void,
        frames: *mut RawFrame,
        room: u16,
    ) -> u16;
    fn weir_gather(mbuf: *const c_void, bytes: *mut u8, room: u32) -> u32;
    fn weir_free(mbufs: *mut *mut c_void, count: u16);
}

/// Converts the result of a call into DPDK.
fn result(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// Starts DPDK in this process with these arguments, of which the first is the program's name. Must be called only once
/// in a process, even if it fails.
pub(super) fn init(args: &[CString]) -> io::Result<()> {
    // DPDK may reorder its arguments, and keeps pointers into them.
    let owned: Vec<CString> = args.to_vec();
    let mut pointers: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(null_mut());
    let argv: &'static mut [*mut c_char] = pointers.leak();
    // SAFETY: `argv` has `count` terminated strings and a null pointer after them, all of which live forever, as DPDK
    // requires. The caller calls this once in a process (`eal.rs`).
    result(unsafe { weir_init(count, argv.as_mut_ptr()) })
}

/// Returns the messages of DPDK and its drivers since the last call.
pub(super) fn said() -> String {
    let mut text = vec![0_u8; 2048];
    // SAFETY: the call writes at most `text.len()` bytes, and keeps no pointer.
    let bytes = unsafe { weir_said(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..bytes.min(text.len())]).into_owned()
}

/// Interrupts a system call in which `thread` sleeps: without frames, some drivers sleep for up to a second. The thread
/// may sleep again, so the caller must repeat this until the thread has ended.
pub(super) fn interrupt<T>(thread: &JoinHandle<T>) {
    extern "C" fn nothing(_signal: c_int) {}
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: `sigaction` consists of integers and a function's address, so all zeroes is a valid value. The
        // handler does nothing, which is safe at any point; nothing else in this process uses SIGURG.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(c_int) as libc::sighandler_t;
            libc::sigaction(libc::SIGURG, &raw const action, null_mut());
        }
    });
    // SAFETY: a thread that has not been joined has a valid id, even if it has ended.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
}
