//! Runs code in network namespaces, names namespaces after their owner, and removes orphaned ones.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use std::{io, panic};

use super::End;
use super::command::{self, Running};
use crate::{Error, Result};

/// Directory in which `ip netns` keeps its names.
const NETNS_DIR: &str = "/run/netns";

/// Runs `work` inside the named network namespace, on a new thread that then ends, so that the
/// caller's thread never changes its namespace. A panic in `work` is resumed in the caller.
///
/// Only the network namespace changes: `/proc/thread-self/net` and `/proc/sys/net` follow it,
/// `/sys/class/net` (a mount) and `/proc/self/net` (the first thread) do not.
///
/// # Errors
/// [`Error::EnterNetns`] if the namespace does not exist or CAP_SYS_ADMIN is missing.
pub fn in_netns<T: Send>(netns: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let refused = |source| Error::EnterNetns { netns: netns.to_owned(), source };
    let file = File::open(format!("{NETNS_DIR}/{netns}")).map_err(refused)?;
    thread::scope(|scope| {
        let entered = scope.spawn(|| {
            // SAFETY: takes no pointers. The descriptor is open for the whole call (`file` is
            // borrowed). It changes only this thread, which runs nothing else.
            if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(refused(io::Error::last_os_error()));
            }
            Ok(work())
        });
        entered.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

/// Starts a command inside the named network namespace. Dropping the handle kills the command.
///
/// A child inherits the namespace of the thread that starts it, and that thread ends at once. Do not combine this with
/// `PR_SET_PDEATHSIG`, whose signal would be sent when the thread ends.
///
/// # Errors
/// [`Error::EnterNetns`], or [`Error::Spawn`] if the command cannot be started.
pub fn spawn_in_netns(netns: &str, mut command: Command) -> Result<Running> {
    match in_netns(netns, || command.spawn())? {
        Ok(child) => Ok(Running(child)),
        Err(source) => Err(Error::Spawn { command: format!("{command:?}"), source }),
    }
}

/// Returns the name `weir-PID-START-SERIAL-ROLE`. Process id and start time together are unique until the next boot,
/// and `/run` is empty after a boot.
pub(super) fn owned_name(serial: u32, role: &str) -> String {
    let pid = std::process::id();
    let start = start_time(pid).unwrap_or(0);
    format!("weir-{pid}-{start}-{serial}-{role}")
}

/// Parses process id and start time in a namespace's name. `None` if the name is not that of a testbed.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix("weir-")?.split('-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next()?.parse::<u32>().ok()?;
    matches!(parts.next()?, "tx" | "rx").then_some((pid, start))
}

/// Returns the start time of a process in clock ticks since boot; `None` if there is no such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, and may itself contain spaces and
    // brackets. proc(5): `starttime` is field 22, the 20th after the closing bracket.
    stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(19)?.parse().ok()
}

/// Removes the testbeds of processes that have ended. Returns the number of removed namespaces.
///
/// A zombie counts as alive. Namespaces with other names are not touched. Processes are looked up in this process's
/// `/proc`, so `/run/netns` must not be shared between PID namespaces.
pub fn sweep() -> usize {
    let Ok(names) = fs::read_dir(NETNS_DIR) else { return 0 };
    names
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| owner(name).is_some_and(|(pid, start)| start_time(pid) != Some(start)))
        .filter(|name| command::ip(&["netns", "delete", name]).is_ok())
        .count()
}

/// Switches IPv6 on or off in the calling thread's namespace, for existing and future interfaces.
pub(super) fn set_ipv6(on: bool) -> Result<()> {
    let value = if on { "0" } else { "1" };
    for scope in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        match fs::write(&path, value) {
            // On a kernel without IPv6 there is nothing to switch off.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !on => {}
            Err(source) => return Err(Error::Sysctl { path, source }),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Waits until the interface is up and has a carrier (`IFF_RUNNING`).
pub(super) fn wait_for_carrier(end: &End) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    in_netns(&end.netns, || {
        // `IFF_RUNNING` alone may lag by a second, because the kernel rate-limits its link events.
        while !crate::ethtool::has_link(&end.iface)?
            || crate::ethtool::link_flags(&end.iface)? & libc::IFF_RUNNING == 0
        {
            if start.elapsed() > LIMIT {
                let command = format!("ip -n {} link set {} up", end.netns, end.iface);
                return Err(Error::Timeout { command, seconds: LIMIT.as_secs() });
            }
            thread::sleep(Duration::from_millis(1));
        }
        // The kernel sets the flag before it activates the interface's queue, both under the same lock, and drops
        // frames that are sent in between. This request waits for that lock.
        crate::ethtool::has_link(&end.iface).map(|_| ())
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_recognised_and_alive() {
        let name = owned_name(3, "rx");
        let (pid, start) = owner(&name).unwrap();
        assert_eq!(pid, std::process::id());
        assert_eq!(start_time(pid), Some(start));
        assert!(start > 0);
    }

    #[test]
    fn foreign_names_are_not_ours_to_delete() {
        for name in
            ["weir", "weir-lab", "weir-1-2", "weir-1-2-3", "weir-1-2-3-br0", "x-1-2-3-tx", ""]
        {
            assert_eq!(owner(name), None, "{name}");
        }
        assert_eq!(owner("weir-1-2-3-tx"), Some((1, 2)));
    }
}
