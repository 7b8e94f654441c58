//! The CPUs on which programs may run, including CPUs that may be added later (hot-plugging).

use std::io;

use crate::error::CaptureError;

/// The list of possible CPUs. Source: the kernel's Documentation/ABI/testing/sysfs-devices-system-cpu.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Returns the number of entries of an array that is indexed by CPU id: the highest possible id plus one. This may be
/// more than the number of CPUs, because ids have gaps if sockets are empty or hardware threads are disabled.
///
/// # Errors
/// [`CaptureError::Os`]: the kernel does not report the ids.
pub fn entries() -> Result<u32, CaptureError> {
    let unreadable = |source| CaptureError::Os { doing: format!("reading {POSSIBLE}"), source };
    let text = std::fs::read_to_string(POSSIBLE).map_err(unreadable)?;
    entries_for(&text).ok_or_else(|| {
        let text = format!("'{}' is no list of CPUs", text.trim_end());
        unreadable(io::Error::new(io::ErrorKind::InvalidData, text))
    })
}

/// Parses a list such as `0-3,8,10-11`, and returns the highest id plus one.
fn entries_for(list: &str) -> Option<u32> {
    let last_of = |range: &str| match range.split_once('-') {
        None => range.parse::<u32>().ok(),
        Some((first, last)) => {
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            (first <= last).then_some(last)
        }
    };
    let mut entries = 0;
    for range in list.trim_end().split(',') {
        entries = entries.max(last_of(range)?.checked_add(1)?);
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_between_cpus_have_entries_too() {
        for (list, entries) in [
            ("0\n", 1),
            ("0-1\n", 2),
            ("0,2,4\n", 5),
            ("0-3,8-11\n", 12),
            ("0-239\n", 240),
            ("0-1,6,3", 7),
        ] {
            assert_eq!(entries_for(list), Some(entries), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in ["", "\n", "0-", "-3", "4-2", "0,,2", "x", "0-4294967295", "0x3"] {
            assert_eq!(entries_for(list), None, "{list}");
        }
    }

    #[test]
    fn this_machine_has_a_list() {
        let counted = libbpf_rs::num_possible_cpus().unwrap();
        assert!(entries().unwrap() as usize >= counted);
    }
}
