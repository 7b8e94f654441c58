//! Rules for every function that a program calls: no panic leaves it, and it writes no text beyond a buffer's end.

use std::ffi::{CStr, c_char};

use crate::abi::ERRBUF_SIZE;

/// Returns the result of `work`, or `failed` if `work` panics. A panic is a bug in this library, which must neither end
/// the program nor write into its output.
pub fn guarded<T>(failed: T, work: impl FnOnce() -> T) -> T {
    weir_abi::caught(work).unwrap_or(failed)
}

/// Writes a text into a buffer of `PCAP_ERRBUF_SIZE` bytes.
///
/// # Safety
/// `buffer` is null or has `PCAP_ERRBUF_SIZE` bytes.
pub unsafe fn write_error(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let fits = (0..ERRBUF_SIZE).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let text = &text.as_bytes()[..fits.min(text.len())];
    // Our own texts have no NUL. A daemon's text that has one ends there.
    let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    // SAFETY: `len` is below the size that the caller promises. The memory does not overlap: `text` is ours.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, len);
        *buffer.add(len) = 0;
    }
}

/// Returns the rest of a name of the program's after `host:`; `None` if the name does not begin so.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn host_name<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller promises; the string lives as long as the program's call.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    name.strip_prefix(weir_client::address::PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_where_their_buffers_do() {
        let write = |text: &str| {
            let mut buffer = [c_char::from_ne_bytes([0xff]); ERRBUF_SIZE + 1];
            // SAFETY: it has the bytes.
            unsafe { write_error(buffer.as_mut_ptr(), text) };
            assert_eq!(buffer[ERRBUF_SIZE].to_ne_bytes(), [0xff], "nothing is written behind it");
            // SAFETY: it ends with a NUL.
            unsafe { CStr::from_ptr(buffer.as_ptr()) }
                .to_str()
                .expect("whole characters")
                .to_owned()
        };
        assert_eq!(write("short"), "short");
        assert_eq!(write(""), "");
        assert_eq!(write("a\0b"), "a");
        assert_eq!(write(&"x".repeat(1000)).len(), ERRBUF_SIZE - 1);
        // A character of two bytes does not fit into the last one.
        assert_eq!(write(&format!("x{}", "\u{e4}".repeat(200))).len(), ERRBUF_SIZE - 1);
        assert_eq!(write(&"\u{e4}".repeat(200)).len(), ERRBUF_SIZE - 2);
        // SAFETY: null is allowed.
        unsafe { write_error(std::ptr::null_mut(), "nobody") };
    }

    #[test]
    fn a_fault_of_ours_is_an_error_and_no_more() {
        assert_eq!(guarded(7, || 1), 1);
        assert_eq!(guarded(7, || panic!("a fault")), 7);
    }

    #[test]
    fn names_behind_host_are_ours() {
        // SAFETY: C strings, or null.
        let of = |name: &CStr| unsafe { host_name(name.as_ptr()) };
        assert_eq!(of(c"host:eth0"), Some("eth0"));
        assert_eq!(of(c"host:"), Some(""));
        assert_eq!((of(c"eth0"), of(c"hosts"), of(c"\xff"), of(c"")), (None, None, None, None));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { host_name(std::ptr::null()) }, None);
    }
}
