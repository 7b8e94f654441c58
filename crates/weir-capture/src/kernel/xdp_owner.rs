//! The owner of an interface's XDP hook: a process that holds a BPF link, such a link by itself (pinned), or nobody, for a
//! program that was attached by netlink and stays until it is detached.

use std::fs;

use crate::engines::bpf;
use crate::error::{CaptureError, bare};
use crate::kernel::interface::InterfaceQuery;

/// What keeps an XDP program attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpOwner {
    /// A process has the link open; the program goes when it ends.
    Process {
        /// Its id.
        pid: u32,
        /// What it is called.
        name: String,
        /// The link's id.
        link: u32,
    },
    /// A link that no process which can be seen here has open: it is pinned, or a process of another container has it.
    Link(u32),
    /// No link does. The command that detaches it depends on the mode.
    Netlink(bpf::XdpMode),
}

impl XdpOwner {
    /// Of this program at the interface of this index; `None` if that cannot be seen here.
    fn find(ifindex: u32, program: u32) -> Option<XdpOwner> {
        if program == 0 || !bpf::sees_links() {
            return None;
        }
        let here = bpf::hooks(ifindex).programs;
        let (one, mode) = here.iter().find_map(|one| match one.place {
            bpf::Place::Xdp(mode) if one.program == program => Some((one, mode)),
            _ => None,
        })?;
        let Some(link) = one.link else { return Some(XdpOwner::Netlink(mode)) };
        Some(match process_with(link) {
            Some((pid, name)) => XdpOwner::Process { pid, name, link },
            None => XdpOwner::Link(link),
        })
    }
}

/// A refusal because of another XDP program, with who holds that one; any other as it is. The calling thread is in the
/// interface's network namespace.
pub(crate) fn named(error: CaptureError) -> CaptureError {
    match error {
        CaptureError::XdpBusy { iface, program, id } => {
            let found = InterfaceQuery::new().and_then(|query| query.find(bare(&iface)));
            match found.ok().and_then(|found| XdpOwner::find(found.index, id)) {
                Some(owner) => CaptureError::XdpHeld { iface, program, id, owner },
                None => CaptureError::XdpBusy { iface, program, id },
            }
        }
        other => other,
    }
}

/// A process that has the link open, and its name. Of another user's processes nobody but root sees what they have.
fn process_with(link: u32) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        // It may have ended by now.
        let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        open.into_iter()
            .any(|fd| fs::read_to_string(fd.path()).is_ok_and(|info| is_of(&info, link)))
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

/// Whether a descriptor's /proc/PID/fdinfo is of the link. Source: `bpf_link_show_fdinfo` of the kernel.
fn is_of(fdinfo: &str, link: u32) -> bool {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("link_id:"));
    value.is_some_and(|value| value.trim().parse() == Ok(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_own_number() {
        let info = "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t12\nprog_id:\t7\n";
        assert!(is_of(info, 12));
        assert!(!is_of(info, 7) && !is_of(info, 1));
        assert!(!is_of("prog_type:\t6\nprog_id:\t12\n", 12));
    }
}
