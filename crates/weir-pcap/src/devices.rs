//! The list of devices: the machine's interfaces, and after them the daemon's sources.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;

use weir_client::address::PREFIX;
use weir_client::status::Status;
use weir_client::{ClientError, Connection};

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

/// The flags of a source that can be opened. A source that nobody can open now has none.
const FLAGS: u32 = abi::IF_UP | abi::IF_RUNNING | abi::IF_CONNECTED;

/// Returns the names of the daemon's sources that this user may open, each with its flags.
fn sources(connection: &Connection) -> Result<Vec<(String, u32)>, ClientError> {
    let named = connection.sources()?;
    // Only the status says which sources nobody can open now.
    let status = connection.status().unwrap_or_default();
    Ok(with_flags(named.into_iter().map(|source| source.source), &status))
}

/// Returns the flags of each source: none if the daemon's status says that nobody can open it.
fn with_flags(names: impl Iterator<Item = String>, status: &Status) -> Vec<(String, u32)> {
    let with_own = |name: String| {
        let told = status.sources.iter().find(|source| source.source == name);
        let is_unavailable = told.is_some_and(|source| source.unavailable.is_some());
        (name, if is_unavailable { 0 } else { FLAGS })
    };
    names.map(with_own).collect()
}

/// Creates an entry in memory that `pcap_freealldevs` frees. Returns null if there is no memory.
fn entry(source: &str, flags: u32) -> *mut Interface {
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
                flags,
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
        let told = Connection::open(&socket()).and_then(|connection| sources(&connection));
        told.unwrap_or_default()
    });
    // SAFETY: the real function has made the list: each entry points to the next, and the last one has a null pointer.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = &raw mut (**end).next;
        }
        for (source, flags) in sources {
            let entry = entry(&source, flags);
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

#[cfg(test)]
mod tests {
    use weir_client::status::SourceStatus;

    use super::*;

    #[test]
    fn a_source_that_nobody_can_open_has_no_flags() {
        let source = |name: &str, unavailable: Option<&str>| SourceStatus {
            source: name.to_owned(),
            unavailable: unavailable.map(str::to_owned),
            ..SourceStatus::default()
        };
        let sources = vec![source("lan", None), source("gone", Some("no such interface"))];
        let status = Status { sources, ..Status::default() };
        let names = ["lan", "gone", "other"].map(str::to_owned).into_iter();
        let flags: Vec<u32> =
            with_flags(names, &status).into_iter().map(|(_, flags)| flags).collect();
        assert_eq!(flags, [FLAGS, 0, FLAGS]);
    }
}
