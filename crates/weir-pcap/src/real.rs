//! The functions of the real libpcap: those that the dynamic linker finds after this library's, else those of
//! libpcap.so.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{Dumper, Handler, Insn, Interface, PacketHeader, Pcap, Program, Stat};

/// File names of libpcap, in the order in which they are tried: that of Debian, and that of most other systems.
const LIBRARIES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the calls get C strings. Libraries are never closed, so the functions stay valid.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        for library in LIBRARIES {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if !handle.is_null() {
                return libc::dlsym(handle, name.as_ptr());
            }
        }
        null_mut()
    }
}

/// Defines a function for each of these functions of libpcap. It looks up the real function when it is first called,
/// and returns `$missing` if this libpcap does not have it. The real function has the ABI `C-unwind`, because a thread
/// may be cancelled in it, and a callback may throw: both unwind stack frames of this library.
macro_rules! real {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty = $missing:expr)?;)*) => {$(
        /// Calls libpcap's function of this name.
        ///
        /// # Safety
        /// As libpcap's manual page says.
        pub unsafe fn $name($($arg: $type),*) $(-> $result)? {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let mut found = FOUND.load(Ordering::Acquire);
            if found.is_null() {
                let name = concat!(stringify!($name), "\0");
                found = find(CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends with NUL"));
                if found.is_null() {
                    return $($missing)?;
                }
                FOUND.store(found, Ordering::Release);
            }
            // SAFETY: the pointer is libpcap's function of this name, which has this type in pcap.h. The caller follows
            // its rules.
            unsafe {
                let real: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = std::mem::transmute(found);
                real($($arg),*)
            }
        }
    )*};
}

real! {
    fn pcap_create(name: *const c_char, errbuf: *mut c_char) -> *mut Pcap = null_mut();
    fn pcap_open_live(
        name: *const c_char, snaplen: c_int, promisc: c_int, to_ms: c_int, errbuf: *mut c_char
    ) -> *mut Pcap = null_mut();
    fn pcap_open_dead_with_tstamp_precision(
        linktype: c_int, snaplen: c_int, precision: c_uint
    ) -> *mut Pcap = null_mut();
    fn pcap_activate(p: *mut Pcap) -> c_int = -1;
    fn pcap_close(p: *mut Pcap);
    fn pcap_set_snaplen(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_promisc(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_rfmon(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_can_set_rfmon(p: *mut Pcap) -> c_int = -1;
    fn pcap_set_timeout(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_buffer_size(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_immediate_mode(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_tstamp_type(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_tstamp_precision(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_set_protocol_linux(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_get_tstamp_precision(p: *mut Pcap) -> c_int = -1;
    fn pcap_list_tstamp_types(p: *mut Pcap, types: *mut *mut c_int) -> c_int = -1;
    fn pcap_setdirection(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_setnonblock(p: *mut Pcap, value: c_int, errbuf: *mut c_char) -> c_int = -1;
    fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int = -1;
    fn pcap_dispatch(
        p: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar
    ) -> c_int = -1;
    fn pcap_loop(p: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar) -> c_int = -1;
    fn pcap_next(p: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar = null_mut();
    fn pcap_next_ex(
        p: *mut Pcap, header: *mut *mut PacketHeader, data: *mut *const c_uchar
    ) -> c_int = -1;
    fn pcap_breakloop(p: *mut Pcap);
    fn pcap_fileno(p: *mut Pcap) -> c_int = -1;
    fn pcap_get_selectable_fd(p: *mut Pcap) -> c_int = -1;
    fn pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval = null_mut();
    fn pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int = -1;
    fn pcap_setfilter(p: *mut Pcap, program: *mut Program) -> c_int = -1;
    fn pcap_compile(
        p: *mut Pcap, program: *mut Program, text: *const c_char, optimize: c_int, netmask: u32
    ) -> c_int = -1;
    fn pcap_offline_filter(
        program: *const Program, header: *const PacketHeader, data: *const c_uchar
    ) -> c_int = 0;
    fn bpf_validate(insns: *const Insn, len: c_int) -> c_int = 0;
    fn pcap_inject(p: *mut Pcap, data: *const c_void, size: usize) -> c_int = -1;
    fn pcap_sendpacket(p: *mut Pcap, data: *const c_uchar, size: c_int) -> c_int = -1;
    fn pcap_datalink(p: *mut Pcap) -> c_int = -1;
    fn pcap_datalink_ext(p: *mut Pcap) -> c_int = -1;
    fn pcap_list_datalinks(p: *mut Pcap, list: *mut *mut c_int) -> c_int = -1;
    fn pcap_set_datalink(p: *mut Pcap, value: c_int) -> c_int = -1;
    fn pcap_snapshot(p: *mut Pcap) -> c_int = -1;
    fn pcap_is_swapped(p: *mut Pcap) -> c_int = -1;
    fn pcap_major_version(p: *mut Pcap) -> c_int = -1;
    fn pcap_minor_version(p: *mut Pcap) -> c_int = -1;
    fn pcap_bufsize(p: *mut Pcap) -> c_int = -1;
    fn pcap_file(p: *mut Pcap) -> *mut libc::FILE = null_mut();
    fn pcap_geterr(p: *mut Pcap) -> *mut c_char = null_mut();
    fn pcap_perror(p: *mut Pcap, prefix: *const c_char);
    fn pcap_dump_open(p: *mut Pcap, name: *const c_char) -> *mut Dumper = null_mut();
    fn pcap_dump_open_append(p: *mut Pcap, name: *const c_char) -> *mut Dumper = null_mut();
    fn pcap_dump_fopen(p: *mut Pcap, file: *mut libc::FILE) -> *mut Dumper = null_mut();
    fn pcap_findalldevs(list: *mut *mut Interface, errbuf: *mut c_char) -> c_int = -1;
    fn pcap_lookupnet(
        name: *const c_char, net: *mut u32, mask: *mut u32, errbuf: *mut c_char
    ) -> c_int = -1;
}
