//! Names of drops and hooks that a daemon reports. Ledgers and reports need names of type `&'static str`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Most names that are kept. A daemon of another version may report names that this build does not know, and a hostile
/// daemon may report any number of names.
const NAMES_MAX: usize = 256;
/// Longest name that is kept.
const NAME_BYTES_MAX: usize = 64;
/// Replaces names that are too long, have other characters, or exceed the limit.
const OTHER: &str = "other";

/// Returns the name with a static lifetime. Its memory is allocated at the first call for this name, and never freed.
pub(super) fn interned(name: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(name) {
        return known;
    }
    let fits =
        name.len() <= NAME_BYTES_MAX && name.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if known.len() >= NAMES_MAX || !fits {
        return OTHER;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    known.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_and_not_without_end() {
        let first = interned("a name of a test");
        assert!(std::ptr::eq(first, interned("a name of a test")));
        assert_eq!((interned("line\nbreak"), interned(&"x".repeat(65))), (OTHER, OTHER));
        for number in 0..2 * NAMES_MAX {
            interned(&number.to_string());
        }
        assert_eq!(interned("one more"), OTHER);
        assert!(std::ptr::eq(first, interned("a name of a test")));
    }
}
