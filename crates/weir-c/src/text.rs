//! Strings from C and to C.

use std::ffi::{CStr, CString, c_char};

use crate::failure::Failure;

/// Returns the text at `text`; `None` for NULL.
///
/// # Errors
/// The text is not UTF-8.
///
/// # Safety
/// `text` is NULL, or a string that ends with NUL and does not change during `'a`.
pub unsafe fn from_c<'a>(what: &str, text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, as checked above; ends with NUL and does not change, as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => {
            Err(Failure::argument(format!("{what} is not UTF-8: {}", text.to_string_lossy())))
        }
    }
}

/// Returns a string for C. If the text has a NUL, the string ends there.
pub fn to_c(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// Writes the text and a NUL into a caller's buffer. A text that is too long is cut between two characters.
///
/// # Safety
/// `buffer` is NULL, or has room for `size` bytes.
pub unsafe fn copy_to(text: &str, buffer: *mut c_char, size: usize) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let text = to_c(text);
    let bytes = text.as_bytes();
    let mut kept = bytes.len().min(size - 1);
    // A byte that continues a character is 10xxxxxx.
    while kept < bytes.len() && kept > 0 && bytes[kept] & 0xc0 == 0x80 {
        kept -= 1;
    }
    // SAFETY: `kept` is less than `size`, for which the buffer has room, and at most the text's length. The text is
    // ours, so they do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), kept);
        buffer.add(kept).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(text: &str, size: usize) -> String {
        let mut buffer = vec![c_char::MAX; size + 1];
        // SAFETY: it has room for one byte more.
        unsafe { copy_to(text, buffer.as_mut_ptr(), size) };
        assert_eq!(buffer[size], c_char::MAX, "nothing is written behind the buffer");
        // SAFETY: it ends with NUL, or this test reads no further than the buffer's other bytes, which are no NUL.
        unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn texts_are_cut_at_a_character() {
        assert_eq!(copied("eth0", 10), "eth0");
        assert_eq!(copied("eth0", 5), "eth0");
        assert_eq!(copied("eth0", 4), "eth");
        assert_eq!(copied("ä", 2), "");
        assert_eq!(copied("aä", 3), "a");
        assert_eq!(copied("a\0b", 9), "a");
        assert_eq!(copied("a", 1), "");
        // SAFETY: NULL, and a buffer of no bytes.
        unsafe {
            copy_to("a", std::ptr::null_mut(), 4);
            copy_to("a", std::ptr::dangling_mut(), 0);
        }
    }
}
