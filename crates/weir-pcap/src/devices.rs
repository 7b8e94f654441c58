//! Which interfaces there are: the machine's, and the daemon's sources behind them.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;

use weir_client::Connection;
use weir_client::address::PREFIX;

use crate::abi::{self, Interface};
use crate::create::socket;
use crate::guard::{guarded, host_name};
use crate::real;

/// A text in memory that `pcap_freealldevs` frees; null if there is none.
fn allocated(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// An entry in such memory; null if there is none.
fn entry(source: &str) -> *mut Interface {
    // SAFETY: written whole before anybody reads it. `pcap_freealldevs` frees entry and texts by free(3).
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

/// See pcap_findalldevs(3PCAP). No daemon, or one that allows nothing, is no error.
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_findalldevs(
    list: *mut *mut Interface,
    errbuf: *mut c_char,
) -> c_int {
    // SAFETY: passed on.
    let status = unsafe { real::pcap_findalldevs(list, errbuf) };
    if status != 0 {
        return status;
    }
    let sources = guarded(Vec::new(), || {
        let told = Connection::open(&socket()).and_then(|connection| connection.sources());
        told.unwrap_or_default()
    });
    // SAFETY: a list that the real function has made: each entry points to the next, the last one nowhere.
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

/// See pcap_lookupnet(3PCAP). A feed has no address: its netmask is not known, which is no error.
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
    // SAFETY: the program's own, or passed on.
    unsafe {
        if host_name(name).is_none() {
            return real::pcap_lookupnet(name, net, mask, errbuf);
        }
        *net = 0;
        *mask = abi::NETMASK_UNKNOWN;
    }
    0
}
