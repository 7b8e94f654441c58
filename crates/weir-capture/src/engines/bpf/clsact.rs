//! TC filters on the clsact qdisc. They attach programs on kernels before 6.6, to interfaces by pattern, and if the
//! user requests it.
//!
//! Unlike a link, a filter outlives the process that attached it. So a record of each filter is written before the
//! filter is attached ([`record`]), and the next start removes filters whose process has ended.

mod record;

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::error::CaptureError;
use crate::feed::direction::Direction;
use crate::kernel::interface::{Interface, hooks_qdisc};
pub(super) use record::Lock;
use record::{FilterPlace, Record};

/// Priorities to try. These numbers are lower than those that tc assigns (49152 and less), so that this filter runs
/// before others. The kernel refuses the priority of a filter of another kind or protocol.
const PRIORITIES: std::ops::RangeInclusive<u32> = 1..=16;

/// A side of an interface: ingress or egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Ingress,
    Egress,
}

impl Side {
    /// Returns the sides that frames of this direction pass.
    pub(super) fn of(direction: Direction) -> Vec<Side> {
        let all = [(direction.takes_in(), Side::Ingress), (direction.takes_out(), Side::Egress)];
        all.into_iter().filter(|(is_passed, _)| *is_passed).map(|(_, side)| side).collect()
    }

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

/// Number of clsact filters that this process has attached.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this process has attached TC filters, which can be removed only with CAP_NET_ADMIN.
pub fn has_clsact_filters() -> bool {
    ATTACHED.load(Ordering::Acquire) > 0
}

/// A filter. Dropping this value removes it.
pub(super) struct Filter {
    program: Arc<OwnedFd>,
    ifindex: u32,
    side: Side,
    priority: u32,
    /// `None` if this user cannot write records: the filter is then removed when this value is dropped, but stays after
    /// SIGKILL. This field is dropped last.
    _record: Option<Record>,
}

impl Filter {
    /// Attaches a filter. `lock`: for a source with many filters, the lock that their records share.
    pub(super) fn attach(
        interface: &Interface,
        program: &Arc<OwnedFd>,
        side: Side,
        lock: Option<&Arc<Lock>>,
    ) -> Result<Filter, CaptureError> {
        let doing = || format!("attaching a clsact filter to {side} of {}", interface.name);
        let mut hook = hook(program.as_fd(), interface.index, side);
        make_qdisc(&mut hook, interface, side, &doing)?;
        let mut refusal = None;
        // The filter's handle is the process id, so several processes of ours can have filters on one interface.
        let (ifindex, handle, netns) = (interface.index, std::process::id(), netns());
        for priority in PRIORITIES {
            // The record is written first, because a process can be killed between any two steps.
            let place = |netns| FilterPlace { netns, ifindex, side, priority, handle };
            let make = |place: &FilterPlace| match lock {
                Some(lock) => Record::make_with(lock, place),
                None => Record::make(place),
            };
            let record = match netns.as_ref().map(|&netns| make(&place(netns))) {
                Ok(Ok(record)) => Some(record),
                // Another source of this process has this place, or a process with the same id in another PID namespace
                // has it.
                Ok(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                _ => None,
            };
            match hook.handle(handle).priority(priority).attach() {
                Ok(_) => {
                    ATTACHED.fetch_add(1, Ordering::AcqRel);
                    let program = Arc::clone(program);
                    return Ok(Filter { program, ifindex, side, priority, _record: record });
                }
                Err(source) => refusal = Some(source),
            }
        }
        let taken = || io::Error::from(io::ErrorKind::AlreadyExists).into();
        let source = refusal.unwrap_or_else(taken);
        Err(CaptureError::Bpf { what: doing(), source })
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// Replaces the filter's program. Each frame is handled by either the old or the new program.
    pub(super) fn replace(
        &mut self,
        interface: &Interface,
        program: &Arc<OwnedFd>,
    ) -> Result<(), CaptureError> {
        let what = || format!("replacing the clsact filter at {} of {}", self.side, interface.name);
        let mut hook = hook(program.as_fd(), self.ifindex, self.side);
        hook.handle(std::process::id()).priority(self.priority).replace(true);
        if hook.attach().is_err() {
            // If the qdisc was removed, the filter was removed with it.
            make_qdisc(&mut hook, interface, self.side, &what)?;
            hook.attach().map_err(|source| CaptureError::Bpf { what: what(), source })?;
        }
        self.program = Arc::clone(program);
        Ok(())
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // This fails only if the interface was removed; its filters were removed with it.
        let mut hook = hook(self.program.as_fd(), self.ifindex, self.side);
        let _ = hook.handle(std::process::id()).priority(self.priority).detach();
        ATTACHED.fetch_sub(1, Ordering::AcqRel);
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: u32, side: Side) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex as i32).attach_point(side.point());
    hook
}

/// Creates the qdisc to which filters are attached, if it does not exist. `doing`: text for errors.
fn make_qdisc(
    hook: &mut TcHook,
    interface: &Interface,
    side: Side,
    doing: &dyn Fn() -> String,
) -> Result<(), CaptureError> {
    hook.create().map_err(|source| CaptureError::Bpf { what: doing(), source })?;
    // If the qdisc `ingress` is there in place of clsact, a filter for egress would get received frames a second time.
    if side == Side::Egress && hooks_qdisc(interface.index).is_ok_and(|kind| kind != "clsact") {
        let (iface, hook) = (interface.name.clone(), "TC egress".to_owned());
        let source = io::Error::other("the qdisc `ingress` has the place of clsact, and no egress");
        return Err(CaptureError::Attach { iface, hook, source });
    }
    Ok(())
}

/// Removes the filters of this network namespace whose process has ended. Returns at once if no clsact filter was ever
/// attached. `program` may be any program: removing does not use it, but libbpf-rs needs one to create a hook.
pub(super) fn sweep(program: BorrowedFd<'_>) {
    let Ok(netns) = netns() else { return };
    record::sweep(netns, |place| {
        let mut hook = hook(program, place.ifindex, place.side);
        let _ = hook.handle(place.handle).priority(place.priority).detach();
    });
}

fn netns() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}
