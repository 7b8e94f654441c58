//! Catches panics, so that none leaves a library, and records their text instead of printing it.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::cancel;

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records panics of the library's threads instead of printing them. The hook is set in the library's own copy of
/// Rust's standard library. The hook of a Rust program that loads the library stays as it is.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let text = info.to_string().replace('\n', " ");
            let _ = LAST_PANIC.try_with(|last| last.replace(text));
        }));
    });
}

/// Returns the result of `body`, which runs with cancellation of the thread disabled ([`cancel`](crate::cancel)).
///
/// # Errors
/// The text of a panic of `body`. State that `body` has left half changed must not be used again.
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    cancel::disabled(|| {
        note_panics();
        panic::catch_unwind(AssertUnwindSafe(body)).map_err(|_| LAST_PANIC.with(RefCell::take))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let error = caught::<()>(|| panic!("of all things")).unwrap_err();
        assert!(error.contains("of all things"), "{error}");
        assert_eq!(caught(|| 1), Ok(1));
    }
}
