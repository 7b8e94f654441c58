//! Programs put on an interface and taken off again.
//!
//! At TC in two steps: opening takes a place at the hook, starting puts the capturing program there.
//!
//! Links (tcx, XDP) belong to a descriptor: whatever ends this process ends them. Only clsact filters,
//! for kernels before 6.6, can outlive it; see [`super::clsact`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::TcAttach;
use super::clsact::{self, Filter, Side};
use super::program::{AtHook, Programs};
use super::xdp;
use crate::error::CaptureError;
use crate::kernel::interface::Interface;

/// A place at one hook, given up when dropped.
pub(super) enum Attachment {
    Link { fd: OwnedFd, side: Option<Side> },
    Filter(Filter),
}

/// Takes places at the TC hooks that are wanted, with a program that lets every frame by: a hook that
/// has none to give says so now, while another engine can still be chosen. At XDP there are none to take.
pub(super) fn take_places(
    interface: &Interface,
    programs: &Programs,
    how: TcAttach,
) -> Result<Vec<Attachment>, CaptureError> {
    let any = programs.at.sides().next().expect("there is one at least");
    clsact::sweep(programs.at.program(any));
    let Some(wait) = &programs.wait else { return Ok(Vec::new()) };
    let take = |side| take_place(interface, wait.as_fd(), side, how);
    programs.at.sides().flatten().map(take).collect()
}

fn take_place(
    interface: &Interface,
    program: BorrowedFd<'_>,
    side: Side,
    how: TcAttach,
) -> Result<Attachment, CaptureError> {
    if how == TcAttach::Best {
        // First of all programs, so that frames that a later one drops or redirects are seen too.
        match link(program, interface.index, side.tcx(), libbpf_sys::BPF_F_BEFORE) {
            Ok(fd) => return Ok(Attachment::Link { fd, side: Some(side) }),
            // No tcx before Linux 6.6.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(source) => return Err(refused(interface, side, source)),
        }
    }
    Ok(Attachment::Filter(Filter::attach(interface, program, side)?))
}

fn refused(interface: &Interface, side: Side, source: io::Error) -> CaptureError {
    let (iface, hook) = (interface.name.clone(), format!("TC {side}"));
    CaptureError::Attach { iface, hook, source }
}

/// Lets frames in: through the places taken at TC, or at XDP.
pub(super) fn begin(
    interface: &Interface,
    at: &AtHook,
    attachments: &mut Vec<Attachment>,
) -> Result<(), CaptureError> {
    if at.sides().any(|side| side.is_none()) {
        let fd = link(at.program(None), interface.index, libbpf_sys::BPF_XDP, 0)
            .map_err(|source| xdp::attach_error(interface, source))?;
        attachments.push(Attachment::Link { fd, side: None });
        return Ok(());
    }
    exchange(interface, at, attachments)
}

/// Puts these programs in the place of those that are there; every frame meets the one or the other.
pub(super) fn exchange(
    interface: &Interface,
    at: &AtHook,
    attachments: &mut [Attachment],
) -> Result<(), CaptureError> {
    for attachment in attachments {
        match attachment {
            Attachment::Link { fd, side } => {
                update(fd.as_fd(), at.program(*side)).map_err(|source| match side {
                    Some(side) => refused(interface, *side, source),
                    None => xdp::attach_error(interface, source),
                })?
            }
            Attachment::Filter(filter) => {
                filter.replace(interface, at.program(Some(filter.side())))?;
            }
        }
    }
    Ok(())
}

/// Puts another program in a link's place; every frame meets one of the two.
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
    // SAFETY: `options` is whole and lives through the call; the program descriptor is borrowed.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel just gave us this link's descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
