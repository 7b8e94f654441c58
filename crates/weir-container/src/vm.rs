//! Virtual machines, by the names that were given to their QEMU processes (`-name`). libvirt gives them the names of
//! its domains.

use std::collections::BTreeSet;

use weir_capture::CaptureError;
use weir_capture::interface::LinkPattern;

use crate::limits::{NAMES_IN_ERROR_MAX, OWNER_NAME_MAX};
use crate::process::{Process, plain};

/// Prefix of a machine's name.
pub const PREFIX: &str = "vm:";
/// The kind of owners that are virtual machines.
const KIND: &str = "vm";

/// Returns a pattern for the machine's taps, as they come and go.
///
/// # Errors
/// `name` cannot be the name of a machine. The text contains a remedy.
pub fn taps(name: &str) -> Result<LinkPattern, String> {
    // Owners' names are shortened, and control characters in them are replaced, so any other name would never match.
    if name.is_empty() || plain(name) != name {
        return Err(format!(
            "'{PREFIX}{name}': write {PREFIX}NAME with the name that `virsh list` shows, or that QEMU was given as \
             `-name`, of at most {OWNER_NAME_MAX} characters"
        ));
    }
    Ok(LinkPattern::of_owner(KIND, name))
}

/// Checks that a machine of this name runs in the calling thread's network namespace, where its taps are found.
///
/// # Errors
/// [`CaptureError::NoOwner`], which names the running machines, or the network namespace of this machine.
pub fn find(name: &str) -> Result<(), CaptureError> {
    let all = Process::all().into_iter().filter_map(|process| Some((process.vm()?, process)));
    let vms: Vec<(String, Process)> = all.collect();
    let own = vms.iter().filter(|(own, _)| own == name).map(|(_, process)| process);
    let owner = format!("{PREFIX}{name}");
    let here = std::fs::read_link("/proc/thread-self/ns/net").ok();
    // If this process may not read the namespace of a process, it assumes that the process is here.
    let is_here = |process: &&Process| process.netns().is_none_or(|netns| Some(netns) == here);
    let mut elsewhere = None;
    for process in own {
        if is_here(&process) {
            return Ok(());
        }
        elsewhere = Some(process.pid);
    }
    let why = match elsewhere {
        Some(pid) => format!(
            "its QEMU is in another network namespace, where taps are found by their names only: capture \
             'netns:{pid}/tap*'"
        ),
        None => none(name, vms.into_iter().map(|(name, _)| name).collect()),
    };
    Err(CaptureError::NoOwner { owner, why })
}

fn none(name: &str, names: BTreeSet<String>) -> String {
    if let Some((machine, _)) = name.split_once('/').filter(|(machine, _)| names.contains(*machine))
    {
        return format!(
            "{PREFIX} takes a machine's name and no interface: write {PREFIX}{machine}"
        );
    }
    let names: Vec<String> = names.into_iter().collect();
    match names.split_at_checked(NAMES_IN_ERROR_MAX) {
        _ if names.is_empty() => {
            "no such machine, and no QEMU runs here that was given a name (`-name`)".to_owned()
        }
        Some((first, more)) if !more.is_empty() => {
            format!("no such machine; these run: {} and {} more", first.join(", "), more.len())
        }
        _ => format!("no such machine; these run: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_name_that_owners_can_have() {
        assert_eq!(taps("web1").unwrap().to_string(), "vm:web1");
        assert_eq!(taps("a b/c").unwrap().to_string(), "vm:a b/c");
        for bad in ["", "a\nb", &"x".repeat(OWNER_NAME_MAX + 1)] {
            assert!(taps(bad).unwrap_err().contains("virsh list"), "{bad}");
        }
    }

    #[test]
    fn an_interface_behind_a_machine_is_not_taken() {
        let said = none("web1/eth0", BTreeSet::from(["web1".to_owned()]));
        assert!(said.ends_with("write vm:web1"), "{said}");
        assert!(none("db/eth0", BTreeSet::new()).contains("no such machine"));
    }

    #[test]
    fn one_that_is_not_there_names_those_that_are() {
        let names = |count: usize| (0..count).map(|at| format!("m{at:02}")).collect();
        let none = |names| none("x", names);
        assert!(none(names(0)).contains("no QEMU"));
        assert!(none(names(2)).ends_with("these run: m00, m01"));
        assert!(none(names(NAMES_IN_ERROR_MAX + 3)).ends_with("m09 and 3 more"));
        let error = find("weir-no-such-machine").unwrap_err().to_string();
        assert!(error.starts_with("vm:weir-no-such-machine: no such machine"), "{error}");
    }
}
