//! TC filters on the clsact qdisc: how programs are attached before Linux 6.6.
//!
//! Unlike a link, a filter outlives the process that made it. So each is written down in a small file
//! under `/run/weir/tc/` before it is attached, and the next start removes those whose process is gone.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::error::CaptureError;
use crate::iface::Interface;

/// Below tc's automatic priorities (49152 and down), so that this filter sees frames before others.
const PRIORITY: u32 = 1;
const RECORDS: &str = "/run/weir/tc";

/// Which side of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Ingress,
    Egress,
}

impl Side {
    pub(super) fn tcx(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Side::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Side::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }

    fn point(self) -> libbpf_rs::TcAttachPoint {
        match self {
            Side::Ingress => TC_INGRESS,
            Side::Egress => TC_EGRESS,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Ingress => "ingress",
            Side::Egress => "egress",
        })
    }
}

/// One filter, taken off when dropped.
pub(super) struct Filter {
    program: OwnedFd,
    ifindex: u32,
    side: Side,
    record: PathBuf,
}

impl Filter {
    pub(super) fn attach(
        interface: &Interface,
        program: BorrowedFd<'_>,
        side: Side,
    ) -> Result<Filter, CaptureError> {
        let doing = || format!("attaching a clsact filter to {side} of {}", interface.name);
        let owned = program.try_clone_to_owned().map_err(CaptureError::os(doing()))?;
        let mut hook = hook(program, interface.index, side);
        hook.create().map_err(|source| CaptureError::Bpf { what: doing(), source })?;
        // The process id is the filter's handle: several of ours can be on one interface.
        hook.handle(std::process::id()).priority(PRIORITY);
        let record = record_path(interface.index, side).map_err(CaptureError::os(doing()))?;
        hook.attach().map_err(|source| CaptureError::Bpf { what: doing(), source })?;
        Ok(Filter { program: owned, ifindex: interface.index, side, record })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // Failing means that the interface is gone, and the filter with it.
        let mut hook = hook(self.program.as_fd(), self.ifindex, self.side);
        let _ = hook.handle(std::process::id()).priority(PRIORITY).detach();
        let _ = fs::remove_file(&self.record);
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: u32, side: Side) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex as i32).attach_point(side.point());
    hook
}

/// Writes down what is about to be attached: `NETNS-IFINDEX-SIDE-PID-STARTTIME`.
fn record_path(ifindex: u32, side: Side) -> io::Result<PathBuf> {
    let pid = std::process::id();
    let started = started(pid).ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(RECORDS)?;
    let record = Path::new(RECORDS).join(format!("{}-{ifindex}-{side}-{pid}-{started}", netns()?));
    fs::write(&record, b"")?;
    Ok(record)
}

/// Takes off filters of this network namespace whose process is gone. Costs nothing where no clsact
/// filter was ever needed. `program` is any: it names no filter, but no hook is made without one.
pub(super) fn sweep(program: BorrowedFd<'_>) {
    let Ok(netns) = netns() else { return };
    for entry in fs::read_dir(RECORDS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((ns, ifindex, side, pid, start)) = name.to_str().and_then(parse_record) else {
            continue;
        };
        if ns != netns || started(pid) == Some(start) {
            continue;
        }
        let mut hook = hook(program, ifindex, side);
        let _ = hook.handle(pid).priority(PRIORITY).detach();
        let _ = fs::remove_file(entry.path());
    }
}

fn parse_record(name: &str) -> Option<(u64, u32, Side, u32, u64)> {
    let mut parts = name.split('-');
    let ns = parts.next()?.parse().ok()?;
    let ifindex = parts.next()?.parse().ok()?;
    let side = match parts.next()? {
        "ingress" => Side::Ingress,
        "egress" => Side::Egress,
        _ => return None,
    };
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((ns, ifindex, side, pid, start))
}

fn netns() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// When a process began, in clock ticks since boot: process ids are used again, this pair is not.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22; the name in field 2 may hold spaces and parentheses, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_whose_filter_is_where() {
        assert_eq!(
            parse_record("4026531840-7-egress-123-456"),
            Some((4_026_531_840, 7, Side::Egress, 123, 456))
        );
        for bad in ["", "1-2-ingress-3", "1-2-sideways-3-4", "1-2-ingress-3-4-5", "x-2-egress-3-4"]
        {
            assert_eq!(parse_record(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_begun() {
        assert!(started(std::process::id()).is_some());
        assert_eq!(started(u32::MAX), None);
    }
}
