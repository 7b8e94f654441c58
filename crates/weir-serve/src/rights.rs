//! Whether a client could write into rings that are BPF arrays.
//!
//! A map descriptor that is read-only for user space does not limit a BPF program that its holder
//! loads (`CAP_BPF`), and with `CAP_SYS_ADMIN` a process can open any map by its id. Source:
//! kernel/bpf/syscall.c and verifier.c, capabilities(7).

use std::fs;

use rustix::thread::CapabilitySet;
use weir_plug::{Credentials, Who};

/// The reason why a client gets a copy of the frames in sealed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The client could write into BPF arrays.
    MayWriteMaps,
    /// Every process could do that on this machine (`kernel.unprivileged_bpf_disabled` is 0).
    EverybodyMay,
    /// It is not known, because /proc does not show the process.
    IsNotSeen,
}

impl Copied {
    /// Returns the reason as a text for the client.
    pub fn note(self) -> &'static str {
        match self {
            Copied::MayWriteMaps => {
                "frames are copied into sealed memory for you: you hold CAP_BPF or CAP_SYS_ADMIN, and could write the \
                 rings that a BPF program fills"
            }
            Copied::EverybodyMay => {
                "frames are copied into sealed memory for you: everybody may load BPF programs on this machine, and \
                 could write the rings that one fills; sysctl kernel.unprivileged_bpf_disabled=1 ends that"
            }
            Copied::IsNotSeen => {
                "frames are copied into sealed memory for you: the daemon does not see your process in /proc, so it \
                 cannot tell whether you hold CAP_BPF; a daemon in the host's PID namespace would"
            }
        }
    }
}

/// Tells whether the process `pid` is in the PID namespace whose /proc this process sees, and not in a container.
#[must_use]
pub fn is_beside(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| has_one_number(&status))
}

/// Tells whether this client may manage the daemon: it is root or the daemon's own user, and not in a container.
#[must_use]
pub fn manages(who: &Who) -> bool {
    match who {
        Who::Process(who) => manages_as(who),
        Who::Guest(_) => false,
    }
}

/// Tells whether this client is root, and not in a container.
#[must_use]
pub fn is_root(who: &Who) -> bool {
    matches!(who, Who::Process(process) if process.uid == 0) && manages(who)
}

/// Like [`manages`], for a process.
#[must_use]
pub fn manages_as(who: &Credentials) -> bool {
    let is_known = who.uid == 0 || who.uid == rustix::process::geteuid().as_raw();
    is_known && is_beside(who.pid)
}

/// Tells whether two clients are the same user, who may change his own feeds. Root of a container has the same id as
/// root but is another user. So for root, and for the daemon's own user, both processes must be in the same PID
/// namespace, and the daemon must be able to see that.
#[must_use]
pub fn is_same_user(one: &Who, other: &Who) -> bool {
    let (Who::Process(one), Who::Process(other)) = (one, other) else { return one == other };
    let stands_out = one.uid == 0 || one.uid == rustix::process::geteuid().as_raw();
    let namespace = |who: &Credentials| fs::read_link(format!("/proc/{}/ns/pid", who.pid)).ok();
    let beside = || namespace(one).is_some_and(|own| namespace(other) == Some(own));
    one.uid == other.uid && (!stands_out || beside())
}

/// Tells whether a process has only one process id. A process in another PID namespace has more than one.
fn has_one_number(status: &str) -> bool {
    field(status, "NSpid").is_some_and(|pids| pids.split_whitespace().count() == 1)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Tells whether every process may load BPF programs. Source: Documentation/admin-guide/sysctl/kernel.rst.
fn everybody_loads_programs() -> bool {
    let setting = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
    setting.is_ok_and(|setting| setting.trim() == "0")
}

/// Returns the reason why the client gets a copy, if it does: it could write into a BPF array that it may read, but
/// could not write into the daemon's memory in another way.
#[must_use]
pub fn copied_for(who: &Who) -> Option<Copied> {
    match who {
        Who::Process(who) => copied(who.pid),
        // A guest gets no rings: they are copied into its region.
        Who::Guest(_) => None,
    }
}

fn copied(pid: i32) -> Option<Copied> {
    if everybody_loads_programs() {
        return Some(Copied::EverybodyMay);
    }
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    match (read("status"), read("uid_map")) {
        (Ok(status), Ok(uid_map)) => {
            by_what_proc_says(&status, &uid_map).then_some(Copied::MayWriteMaps)
        }
        _ => Some(Copied::IsNotSeen),
    }
}

fn by_what_proc_says(status: &str, uid_map: &str) -> bool {
    // Capabilities in another user namespace do not apply to the host. The host's user namespace maps every user to
    // itself.
    let is_of_host = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    // The permitted capabilities: those that the process can make effective.
    let permitted = field(status, "CapPrm").and_then(|set| u64::from_str_radix(set, 16).ok());
    let Some(permitted) = permitted.map(CapabilitySet::from_bits_retain) else { return true };
    if !is_of_host || !permitted.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN) {
        return false;
    }
    // With this capability, the process sees the daemon and may trace it: it can write into all of the daemon's memory,
    // so a copy would protect nothing.
    !(has_one_number(status) && permitted.contains(CapabilitySet::SYS_PTRACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "         0          0 4294967295\n";

    fn status(pids: &str, permitted: CapabilitySet) -> String {
        format!("Name:\tx\nNSpid:\t{pids}\nCapInh:\t0\nCapPrm:\t{:016x}\n", permitted.bits())
    }

    #[test]
    fn who_may_load_programs_and_not_trace_the_daemon_could_write_maps() {
        let (bpf, admin) = (CapabilitySet::BPF, CapabilitySet::SYS_ADMIN);
        let (trace, raw) = (CapabilitySet::SYS_PTRACE, CapabilitySet::NET_RAW);
        let may = |pids: &str, permitted, uid_map: &str| {
            by_what_proc_says(&status(pids, permitted), uid_map)
        };
        assert!(may("7", bpf, HOST) && may("7", admin | raw, HOST));
        assert!(!may("7", raw | trace, HOST) && !may("7", CapabilitySet::empty(), HOST));
        // Root of the host, and the same in a container that does not see the host's processes.
        assert!(!may("7", bpf | admin | trace, HOST) && may("700\t7", bpf | admin | trace, HOST));
        // Root of a user namespace.
        assert!(!may("700\t7", bpf | admin, "         0     100000      65536\n"));
    }

    #[test]
    fn what_cannot_be_told_counts_as_yes() {
        assert_eq!(copied(0), Some(Copied::IsNotSeen));
        assert!(by_what_proc_says("", HOST));
        assert!(by_what_proc_says("CapPrm:\tnothing\n", HOST));
    }
}
