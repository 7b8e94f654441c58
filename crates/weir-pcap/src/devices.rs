//! The list of devices: the machine's interfaces, and after them the daemon's sources.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;

use weir_client::Connection;
use weir_client::address::PREFIX;

use crate::abi::{self, Interface};
use crate::create::socket;
use crate::guard::{guarded, host_name};
use crate::real;

/// Copies a text into memory that `pcap_freealldevs` frees. Returns null if there is no memory.
fn allocated(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the argument is a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Creates an entry in memory that `pcap_freealldevs` frees. Returns null if there is no memory.
fn entry(source: &str) -> *mut Interface {
    // SAFETY: the entry is written completely before it is read. `pcap_freealldevs` frees the entry and its texts by
    // free(3).
    unsafe {
        let entry: *mut Interface = libc::malloc(size_of::<Interface>()).cast();
        if !entry.is_null() {
            entry.write(Interface {
                next: null_mut(),
                name: allocated(&format!("{PREFIX}{source}")),
                description: allocated(&format!("Weir: {source}, captured by this host's daemon")),
                addresses: null_mut(),
                flags: abi::IF_UP | abi::IF_RUNNING | abi::IF_CONNECTED,
            });
        }
        entry
    }
}

/// See pcap_findalldevs(3PCAP). It succeeds also if there is no daemon, or if the daemon has no source for this user.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_findalldevs(
    list: *mut *mut Interface,
    errbuf: *mut c_char,
) -> c_int {
    // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
    let status = unsafe { real::pcap_findalldevs(list, errbuf) };
    if status != 0 {
        return status;
    }
    let sources = guarded(Vec::new(), || {
        let told = Connection::open(&socket()).and_then(|connection| connection.sources());
        told.unwrap_or_default()
    });
    // SAFETY: the real function has made the list: each entry points to the next, and the last one has a null pointer.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = &raw mut (**end).next;
        }
        for source in sources {
            let entry = entry(&source.source);
            if entry.is_null() {
                break;
            }
            *end = entry;
            end = &raw mut (*entry).next;
        }
    }
    0
}

/// See pcap_lookupnet(3PCAP). A feed has no address: the function succeeds and returns an unknown netmask.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_lookupnet(
    name: *const c_char,
    net: *mut u32,
    mask: *mut u32,
    errbuf: *mut c_char,
) -> c_int {
    // SAFETY: the program's pointers are as libpcap demands; otherwise they are passed on.
    unsafe {
        if host_name(name).is_none() {
            return real::pcap_lookupnet(name, net, mask, errbuf);
        }
        *net = 0;
        *mask = abi::NETMASK_UNKNOWN;
    }
    0
}
