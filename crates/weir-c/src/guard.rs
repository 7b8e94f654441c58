//! No panic leaves the library, and none is printed.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::failure::{Code, Failure};

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has panics of the library's threads noted instead of printed. The hook is that of the library's own copy of Rust's
/// standard library, no other's.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let text = info.to_string().replace('\n', " ");
            let _ = LAST_PANIC.try_with(|last| last.replace(text));
        }));
    });
}

/// What `body` gives, or [`Code::Internal`] if it panics.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    note_panics();
    // What a panic has left half done is not used again: the caller closes the feed to everything but `weir_close`.
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let text = LAST_PANIC.with(RefCell::take);
        Err(Failure { code: Code::Internal, text: format!("a bug of libweir: {text}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_its_text() {
        let failure = guarded::<()>(|| panic!("of all things")).unwrap_err();
        assert_eq!(failure.code, Code::Internal);
        assert!(failure.text.contains("of all things"), "{failure:?}");
        assert_eq!(guarded(|| Ok(1)).unwrap(), 1);
    }
}
