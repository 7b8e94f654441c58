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

/// Priorities to try: well before tc's automatic ones (49152 and down), so that this filter sees frames
/// before others. One that a filter of another kind or protocol has is refused by the kernel.
const PRIORITIES: std::ops::RangeInclusive<u32> = 1..=16;
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
    priority: u32,
    /// `None` where this user may not write there: the filter is then taken off at the end, but not
    /// after SIGKILL.
    record: Option<PathBuf>,
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
        let mut refusal = None;
        for priority in PRIORITIES {
            // Written down first: a process can be killed between any two steps.
            let record = record_path(interface.index, side, priority).ok();
            // The process id is the filter's handle: several of ours can be on one interface.
            hook.handle(std::process::id()).priority(priority);
            match hook.attach() {
                Ok(_) => {
                    let ifindex = interface.index;
                    return Ok(Filter { program: owned, ifindex, side, priority, record });
                }
                Err(source) => refusal = Some(source),
            }
            if let Some(record) = record {
                let _ = fs::remove_file(record);
            }
        }
        let source = refusal.expect("there are priorities to try");
        Err(CaptureError::Bpf { what: doing(), source })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // Failing means that the interface is gone, and the filter with it.
        let mut hook = hook(self.program.as_fd(), self.ifindex, self.side);
        let _ = hook.handle(std::process::id()).priority(self.priority).detach();
        if let Some(record) = &self.record {
            let _ = fs::remove_file(record);
        }
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: u32, side: Side) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex as i32).attach_point(side.point());
    hook
}

/// Writes down what is about to be attached: `NETNS-IFINDEX-SIDE-PRIORITY-PID-STARTTIME`.
fn record_path(ifindex: u32, side: Side, priority: u32) -> io::Result<PathBuf> {
    let pid = std::process::id();
    let started = started(pid).ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(RECORDS)?;
    let name = format!("{}-{ifindex}-{side}-{priority}-{pid}-{started}", netns()?);
    let record = Path::new(RECORDS).join(name);
    fs::write(&record, b"")?;
    Ok(record)
}

/// Takes off filters of this network namespace whose process is gone. Costs nothing where no clsact
/// filter was ever needed. `program` is any: it names no filter, but no hook is made without one.
pub(super) fn sweep(program: BorrowedFd<'_>) {
    let Ok(netns) = netns() else { return };
    for entry in fs::read_dir(RECORDS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(record) = name.to_str().and_then(parse_record) else { continue };
        if record.netns != netns || started(record.pid) == Some(record.started) {
            continue;
        }
        let mut hook = hook(program, record.ifindex, record.side);
        let _ = hook.handle(record.pid).priority(record.priority).detach();
        let _ = fs::remove_file(entry.path());
    }
}

/// A record's name, read.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    netns: u64,
    ifindex: u32,
    side: Side,
    priority: u32,
    pid: u32,
    started: u64,
}

fn parse_record(name: &str) -> Option<Record> {
    let mut parts = name.split('-');
    let record = Record {
        netns: parts.next()?.parse().ok()?,
        ifindex: parts.next()?.parse().ok()?,
        side: match parts.next()? {
            "ingress" => Side::Ingress,
            "egress" => Side::Egress,
            _ => return None,
        },
        priority: parts.next()?.parse().ok()?,
        pid: parts.next()?.parse().ok()?,
        started: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(record)
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
        let (side, started) = (Side::Egress, 456);
        let whole =
            Record { netns: 4_026_531_840, ifindex: 7, side, priority: 1, pid: 123, started };
        assert_eq!(parse_record("4026531840-7-egress-1-123-456"), Some(whole));
        for bad in
            ["", "1-2-ingress-1-3", "1-2-sideways-1-3-4", "1-2-ingress-1-3-4-5", "x-2-egress-1-3-4"]
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
