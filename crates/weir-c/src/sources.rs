//! `weir_list_sources`: the sources of a daemon.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use weir_client::{Connection, address};

use crate::failure::Failure;
use crate::guard::guarded;
use crate::options::socket_of;
use crate::text;

/// `struct weir_source`.
#[repr(C)]
pub struct Source {
    next: *const Source,
    name: *const c_char,
    snaplen: u32,
    link_type: u32,
}

/// Lists the sources of the daemon at `socket`, and returns their number.
///
/// # Safety
/// `sources` can be written; `socket` is NULL or ends with NUL; `error` is NULL or has room for `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_list_sources(
    sources: *mut *const Source,
    socket: *const c_char,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    let listed = guarded(|| {
        if sources.is_null() {
            return Err(Failure::argument("sources is NULL"));
        }
        // SAFETY: as the caller promises; the text is used in this call only.
        let socket = socket_of(unsafe { text::from_c("the socket", socket) }?);
        let list = Connection::open(&socket)?.sources()?;
        let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        let mut first: *const Source = ptr::null();
        for source in list.iter().rev() {
            let name = text::to_c(&format!("{}{}", address::PREFIX, source.source));
            let (snaplen, link_type) = (source.snaplen, source.link_type.into());
            first = Box::into_raw(Box::new(Source {
                next: first,
                name: CString::into_raw(name),
                snaplen,
                link_type,
            }));
        }
        Ok((first, count))
    });
    let (first, result, why) = match listed {
        Ok((first, count)) => (first, count, String::new()),
        Err(failure) => (ptr::null(), failure.result(), failure.text),
    };
    // SAFETY: as the caller promises.
    unsafe {
        text::copy_to(&why, error, error_size);
        if !sources.is_null() {
            sources.write(first);
        }
    }
    result
}

/// Frees a list of sources.
///
/// # Safety
/// `sources` is NULL or came from [`weir_list_sources`], and is not used after this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_sources_free(sources: *const Source) {
    let mut next = sources;
    while !next.is_null() {
        // SAFETY: each source was made by `Box::into_raw`, and its name by `CString::into_raw`; each is freed once.
        unsafe {
            let source = Box::from_raw(next.cast_mut());
            drop(CString::from_raw(source.name.cast_mut()));
            next = source.next;
        }
    }
}
