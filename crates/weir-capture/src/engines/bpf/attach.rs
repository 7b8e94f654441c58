//! Attaches programs to an interface, and detaches them.
//!
//! At TC, attaching takes two steps: opening a source attaches a placeholder to the hook, and starting the source
//! replaces the placeholder by the capturing program.
//!
//! Links (tcx, XDP) are held by a descriptor, so they always end with this process. Only clsact filters can outlive it;
//! see [`super::clsact`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::TcAttach;
use super::clsact::{self, Filter, Lock, Side};
use super::placeholder;
use super::program::{AtHook, Programs};
use super::xdp;
use crate::error::CaptureError;
use crate::kernel::interface::{Interface, InterfaceQuery};

/// A program that is attached to one hook of an interface. Detached when dropped.
pub(super) struct Attachment {
    interface: Arc<Interface>,
    held: Held,
}

enum Held {
    Link { fd: OwnedFd, side: Option<Side> },
    Filter(Filter),
}

impl Attachment {
    /// Returns true if it is on the interface with this index.
    pub(super) fn is_of(&self, ifindex: u32) -> bool {
        self.interface.index == ifindex
    }

    fn exchange(&mut self, at: &AtHook) -> Result<(), CaptureError> {
        match &mut self.held {
            Held::Link { fd, side } => {
                update(fd.as_fd(), at.program(*side).as_fd()).map_err(|source| match side {
                    Some(side) => refused(&self.interface, *side, source),
                    None => xdp::attach_error(&self.interface, source),
                })
            }
            Held::Filter(filter) => {
                let program = at.program(Some(filter.side()));
                filter.replace(&self.interface, program)
            }
        }
    }
}

/// Detaches filters that earlier processes have left in this network namespace.
pub(super) fn sweep(programs: &Programs) {
    let any = programs.at.sides().next().expect("there is one at least");
    clsact::sweep(programs.at.program(any).as_fd());
}

/// Attaches placeholders, which pass every frame, to these sides by tcx links; returns `None` if the kernel has no tcx
/// (Linux before 6.6) or if clsact filters are asked for. If a hook is full, this fails early enough to choose another
/// engine.
pub(super) fn place_links(
    interface: &Arc<Interface>,
    sides: &[Side],
    how: TcAttach,
) -> Result<Option<Vec<Attachment>>, CaptureError> {
    if how == TcAttach::Clsact {
        return Ok(None);
    }
    let program = placeholder::load()?;
    sides.iter().map(|side| link_at(interface, program.as_fd(), *side)).collect()
}

/// Attaches placeholders to these sides by clsact filters. The qdisc of the filters stays at the interface.
pub(super) fn place_filters(
    interface: &Arc<Interface>,
    sides: &[Side],
) -> Result<Vec<Attachment>, CaptureError> {
    let program = Arc::new(placeholder::load()?);
    sides.iter().map(|side| filter_at(interface, &program, *side, None)).collect()
}

/// Attaches a program by a tcx link, before all other programs, to capture frames that a later one drops or redirects.
/// Returns `None` if the kernel has no tcx.
fn link_at(
    interface: &Arc<Interface>,
    program: BorrowedFd<'_>,
    side: Side,
) -> Result<Option<Attachment>, CaptureError> {
    match link(program, interface.index, side.tcx(), libbpf_sys::BPF_F_BEFORE) {
        Ok(fd) => {
            let held = Held::Link { fd, side: Some(side) };
            Ok(Some(Attachment { interface: Arc::clone(interface), held }))
        }
        // Linux before 6.6.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(source) => Err(refused(interface, side, source)),
    }
}

fn filter_at(
    interface: &Arc<Interface>,
    program: &Arc<OwnedFd>,
    side: Side,
    lock: Option<&Arc<Lock>>,
) -> Result<Attachment, CaptureError> {
    let held = Held::Filter(Filter::attach(interface, program, side, lock)?);
    Ok(Attachment { interface: Arc::clone(interface), held })
}

/// Attaches the capturing programs to one interface of a source that has several.
///
/// This uses clsact filters, even if tcx exists: attaching a tcx link waits for RCU while it holds the lock of the
/// kernel's network configuration, which for hundreds of interfaces takes seconds (docs/decisions/0019-patterns.md).
pub(super) fn attach_member(
    interface: &Arc<Interface>,
    at: &AtHook,
    lock: Option<&Arc<Lock>>,
) -> Result<Vec<Attachment>, CaptureError> {
    let attach = |side| filter_at(interface, at.program(Some(side)), side, lock);
    at.sides().flatten().map(attach).collect()
}

fn refused(interface: &Interface, side: Side, source: io::Error) -> CaptureError {
    let (iface, hook) = (interface.name.clone(), format!("TC {side}"));
    CaptureError::Attach { iface, hook, source }
}

/// Starts the capture: replaces the placeholders at TC, or attaches the program at XDP.
pub(super) fn begin(
    interface: &Arc<Interface>,
    at: &AtHook,
    attachments: &mut Vec<Attachment>,
) -> Result<(), CaptureError> {
    if at.sides().any(|side| side.is_none()) {
        attachments.push(attach_xdp(interface, at.program(None))?);
        return Ok(());
    }
    attachments.iter_mut().try_for_each(|attachment| attachment.exchange(at))
}

pub(super) fn attach_xdp(
    interface: &Arc<Interface>,
    program: &Arc<OwnedFd>,
) -> Result<Attachment, CaptureError> {
    let fd = link(program.as_fd(), interface.index, libbpf_sys::BPF_XDP, 0)
        .map_err(|source| xdp::attach_error(interface, source))?;
    Ok(Attachment { interface: Arc::clone(interface), held: Held::Link { fd, side: None } })
}

pub(super) fn attach_tc(
    interface: &Arc<Interface>,
    program: &Arc<OwnedFd>,
    side: Side,
    how: TcAttach,
) -> Result<Attachment, CaptureError> {
    let link = match how {
        TcAttach::Best => link_at(interface, program.as_fd(), side)?,
        TcAttach::Clsact => None,
    };
    link.map_or_else(|| filter_at(interface, program, side, None), Ok)
}

/// Replaces the attached programs. Each frame is handled by either the old or the new program.
pub(super) fn exchange(at: &AtHook, attachments: &mut [Attachment]) -> Result<(), CaptureError> {
    for attachment in attachments {
        let exchanged = attachment.exchange(at);
        // If the interface was removed, its programs were detached with it.
        if exchanged.is_err() && is_there(attachment.interface.index) {
            return exchanged;
        }
    }
    Ok(())
}

pub(super) fn is_there(ifindex: u32) -> bool {
    // If the query fails, assumes that the interface exists; callers then return their own error.
    InterfaceQuery::new().map_or(true, |query| query.exists(ifindex))
}

/// Replaces the program of a link. Each frame is handled by either the old or the new program.
pub(crate) fn update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are borrowed for the call; null options mean defaults.
    let result = unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
    };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

pub(crate) fn link(
    program: BorrowedFd<'_>,
    ifindex: u32,
    kind: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    // SAFETY: `options` is initialized and lives through the call; the program descriptor is borrowed.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just returned this link's descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
